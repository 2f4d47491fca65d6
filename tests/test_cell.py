"""``Cell`` behaves like a frozen dataclass, with a faster constructor."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import time
import uuid
from datetime import UTC, datetime

import pytest

import schemaless
from schemaless.cell import Cell, StaleCell

pytestmark = pytest.mark.once

VALUES = (uuid.UUID(int=7), "BASE", 1, {"fare": 12.5}, 42, datetime(2026, 11, 23, tzinfo=UTC))


@pytest.mark.parametrize("kind", [Cell, StaleCell])
def test_a_cell_is_made_of_its_fields_in_their_order(kind):
    """Positional and keyword arguments work, and so do copying, replacing, pickling and comparing."""
    cell = kind(*VALUES)
    names = [field.name for field in dataclasses.fields(kind)]

    assert list(inspect.signature(kind).parameters) == names
    assert dataclasses.astuple(cell) == VALUES
    assert kind(**dict(zip(names, VALUES, strict=True))) == cell
    assert copy.copy(cell) == copy.deepcopy(cell) == pickle.loads(pickle.dumps(cell)) == cell
    assert dataclasses.replace(cell, ref_key=2) == kind(*VALUES[:2], 2, *VALUES[3:]) != cell


def test_a_cell_does_not_change():
    """No field can be set or deleted, and no attribute can be added."""
    cell = Cell(*VALUES)
    for name in [field.name for field in dataclasses.fields(Cell)]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(cell, name, None)
        with pytest.raises(dataclasses.FrozenInstanceError):
            delattr(cell, name)
    assert not hasattr(cell, "__dict__")


def test_new_keys_are_uuids_of_version_7_in_the_order_of_their_creation():
    """The first 48 bits are the time; keys of one millisecond differ in the others."""
    before = time.time_ns() // 1_000_000
    keys = [schemaless.new_key() for _ in range(1_000)]

    assert len(set(keys)) == len(keys)
    assert {(key.version, key.variant) for key in keys} == {(7, uuid.RFC_4122)}
    times = [key.int >> 80 for key in keys]
    assert before <= times[0]
    assert times == sorted(times)
    assert times[-1] <= time.time_ns() // 1_000_000
