"""A typed document, as a dataclass and as a pydantic model."""

import sys
import uuid
from dataclasses import dataclass
from decimal import Decimal

import pydantic

import schemaless


@dataclass
class Trip:
    """A dataclass, which msgspec converts."""

    fare: Decimal


class Ride(pydantic.BaseModel):
    """A model of pydantic."""

    fare: Decimal


with schemaless.connect(sys.argv[1]) as store:
    row = uuid.uuid4()
    store.column("BASE", Trip).put(row, 1, Trip(Decimal("12.50")))
    cell = store.column("BASE", Ride).latest(row)
    assert cell is not None
    assert cell.body == Ride(fare=Decimal("12.50"))
