"""Columns of typed documents: dataclasses, ``msgspec.Struct`` and pydantic models."""

from __future__ import annotations

import enum
import sys
import uuid
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typing_extensions import TypedDict

from schemaless import Cell, CellConflict, DocumentMismatch, Erased, InvalidBody, InvalidInput, LatestChanged
from tests.cases import each

pytestmark = pytest.mark.mysql


class Status(enum.Enum):
    OPEN = "open"
    PAID = "paid"


@dataclass
class Leg:
    miles: float
    stops: tuple[str, ...] = ()


@dataclass
class Trip:
    driver: uuid.UUID
    fare: Decimal
    status: Status
    requested_at: datetime
    day: date
    legs: list[Leg] = field(default_factory=list)
    notes: dict[int, str | None] = field(default_factory=dict)


class StructTrip(msgspec.Struct):
    driver: uuid.UUID
    fare: Decimal
    status: Status
    requested_at: datetime
    day: date
    legs: list[Leg] = []
    notes: dict[int, str | None] = {}


class PydanticTrip(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")

    driver: uuid.UUID
    fare: Decimal
    status: Status
    requested_at: datetime
    day: date = pydantic.Field(alias="on_day")
    legs: list[Leg] = []
    notes: dict[int, str | None] = {}

    @pydantic.computed_field
    def cents(self) -> int:
        return round(self.fare * 100)


FIELDS: dict[str, Any] = {
    "driver": uuid.UUID(int=7),
    "fare": Decimal("12.50"),
    "status": Status.PAID,
    "requested_at": datetime(2026, 3, 29, 1, 30, 0, 250_000, timezone(timedelta(hours=5, minutes=30))),
    "day": date(2026, 3, 29),
    "legs": [Leg(1.0, ("JFK", "EWR")), Leg(0.1)],
    "notes": {3: "late", -1: None},
}
STORED: dict[str, Any] = {
    "driver": "00000000-0000-0000-0000-000000000007",
    "fare": "12.50",
    "status": "paid",
    "requested_at": "2026-03-29T01:30:00.250000+05:30",
    "day": "2026-03-29",
    "legs": [{"miles": 1.0, "stops": ["JFK", "EWR"]}, {"miles": 0.1, "stops": []}],
    "notes": {"3": "late", "-1": None},
}


def made(model: type, **fields: Any) -> Any:
    """Return an instance of one of the models."""
    return model(**{("on_day" if key == "day" and model is PydanticTrip else key): fields[key] for key in fields})


@each("model", [Trip, StructTrip, PydanticTrip])
def test_documents_are_written_as_the_model_says_and_come_back_as_declared(store, new_row, model):
    """By every call of a column; other readers see plain JSON documents."""
    row = new_row()
    trips, trip, later = store.column("BASE", model), made(model, **FIELDS), made(model, **{**FIELDS, "legs": []})
    stored = {("on_day" if key == "day" and model is PydanticTrip else key): STORED[key] for key in STORED}
    assert trips.latest(row) is None
    put = trips.put(row, 1, trip)

    assert (put.created, trips.put(row, 1, trip).created) == (True, False)
    assert store.get_cell(row, "BASE", 1).body == stored
    assert trips.get(row, 1).body == trip
    assert (trips.get(row, 1).added_id, trips.get(row, 2)) == (put.added_id, None)
    with pytest.raises(CellConflict):
        trips.put(row, 1, later)
    assert trips.append(row, later, if_latest=1, refill=False).key.ref_key == 2
    with pytest.raises(LatestChanged):
        trips.append(row, trip, if_latest=1)
    assert trips.latest(row).body == later
    first_at = trips.get(row, 1).created_at
    assert trips.latest(row, at=first_at).body == trips.latest_of([row], at=first_at)[row].body == trip
    assert [cell.body for cell in trips.versions(row, descending=False, limit=2)] == [trip, later]
    assert trips.convert(store.get_row(row)["BASE"]) == trips.latest(row)
    with pytest.raises(InvalidInput, match=rf"cell \({row}, BASE, 2\) is not of column STATUS"):
        store.column("STATUS", model).convert(store.get_row(row)["BASE"])
    with pytest.raises(InvalidInput, match=r"expected a Cell, such as row.cells\['BASE'\], got dict"):
        trips.convert(stored)
    with pytest.raises(DocumentMismatch, match="it was erased"):
        trips.convert(Cell(row, "BASE", 2, Erased(1), put.added_id, datetime.now(UTC)))
    others = [new_row(), new_row()]
    assert all(put.created for put in trips.put_many([(other, 5, trip) for other in others]))
    found = trips.latest_of([row, *others, new_row()])
    assert {key: cell.body for key, cell in found.items()} == {row: later, **dict.fromkeys(others, trip)}


@each("model", [Trip, StructTrip, PydanticTrip])
def test_documents_of_another_shape_are_named_or_upcast(store, new_row, model):
    """Upcast sees each document once, on reading only, and the stored cell stays."""
    row, seen = new_row(), []

    def upcast(document: dict[str, Any]) -> dict[str, Any]:
        seen.append(document.get("shape", 2))
        if document.pop("shape", 2) == 1:
            document["fare"] = f"{document.pop('cents') / 100:.2f}"
        return document

    trips = store.column("BASE", model, upcast=upcast)
    old = store.column("BASE", model)
    trips.put(row, 2, made(model, **FIELDS))
    older = {**store.get_cell(row, "BASE", 2).body, "cents": 1250, "shape": 1}
    del older["fare"]
    store.put_cell(row, "BASE", 1, older)

    assert seen == []
    assert [cell.body for cell in trips.versions(row)] == [made(model, **FIELDS)] * 2
    assert seen == [2, 1]
    assert store.get_cell(row, "BASE", 1).body == older
    with pytest.raises(DocumentMismatch, match=rf"cell \({row}, BASE, 1\): .* is not a .*Trip: .*fare") as error:
        old.get(row, 1)
    assert error.value.key == (row, "BASE", 1)
    with pytest.raises(KeyError) as raised:
        store.column("BASE", model, upcast=lambda document: document["shape"]).latest(row)
    assert raised.value.__notes__ == [f"raised by upcast for cell ({row}, BASE, 2)"]


@pytest.mark.guarantee("refused-before-io")
@each("model", [Trip, StructTrip, PydanticTrip])
def test_what_would_not_read_back_is_not_written(store, new_row, model):
    """Dataclasses and structs do not check their fields; NaN is refused as in any document, and so is local time."""
    row, trips, trip = new_row(), store.column("BASE", model), made(model, **FIELDS)
    trip.legs = [Leg(float("nan"))]
    with pytest.raises(InvalidBody, match=r"body\.legs\[0\]\.miles: nan is not a JSON number"):
        trips.put(row, 1, trip)
    trip.legs, trip.requested_at = [], datetime(2026, 3, 29, 1, 30)  # noqa: DTZ001 - that is the point
    with pytest.raises(InvalidBody, match=r"Trip\.requested_at is a datetime without a time zone"):
        trips.put(row, 1, trip)
    trip.requested_at, trip.fare = FIELDS["requested_at"], "twelve"
    for write in (
        lambda: trips.put(row, 1, trip),
        lambda: trips.append(row, trip),
        lambda: trips.put_many([(row, 1, trip)]),
    ):
        with pytest.raises(InvalidBody, match=rf"cell \({row}, BASE, (1|next)\): this \w*Trip could not be read back"):
            write()

    with pytest.raises(InvalidInput, match=r"documents\[0\]: expected a tuple of row_key, ref_key and document"):
        trips.put_many([trip])
    with pytest.raises(InvalidInput, match="row_keys must be a list or another iterable"):
        trips.latest_of(1)
    assert store.get_row(row) == {}


class Account(pydantic.BaseModel):
    token: pydantic.SecretStr
    opened_at: datetime | None = None


class ShownAccount(Account):
    @pydantic.field_serializer("token", when_used="json")
    def shown(self, token: pydantic.SecretStr) -> str:
        return token.get_secret_value()


class PaidAccount(Account):
    cents: int


class Event(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True)


class PaidEvent(Event):
    cents: int


class Bill(pydantic.BaseModel):
    events: list[Event]
    last: pydantic.SerializeAsAny[Event] | None = None
    cents: int = 0


@dataclass
class Stop:
    street: str


@dataclass
class PaidStop(Stop):
    cents: int


class OpenEvent(Event):
    model_config = pydantic.ConfigDict(extra="allow")


class Note(TypedDict, total=False):
    last: Event


class Round(pydantic.BaseModel):
    stops: dict[str, Stop] = {}
    events: pydantic.RootModel[dict[str, Event]] | None = None
    some: set[Event] = set()
    fixed: frozenset[Event] = frozenset()
    pair: tuple[Event, Event] | None = None
    note: Note = {}


class Route(pydantic.BaseModel):
    """Serializers that write other keys or types than the values have."""

    start: Annotated[
        Stop,
        pydantic.BeforeValidator(lambda value: Stop(value) if isinstance(value, str) else value),
        pydantic.PlainSerializer(lambda stop: stop.street),
    ]
    anything: Annotated[Any, pydantic.PlainSerializer(lambda _: 1)] = None
    packed: pydantic.Json[dict[str, int]] = {"a": 1}
    parts: list[Route] = []


@pytest.mark.guarantee("refused-before-io")
def test_what_pydantic_would_write_as_asterisks_or_leave_out_is_not_written(store, new_row):
    """A secret without a serializer of its own, and the fields of a subclass, at any depth."""
    row, accounts = new_row(), store.column("BASE", Account)
    with pytest.raises(InvalidBody, match=r"Account\.token is a SecretStr, which is written as asterisks"):
        accounts.put(row, 1, Account(token="abc"))
    with pytest.raises(InvalidBody, match=r"could not be read back: Account\.cents is not a field of the model"):
        accounts.put(row, 1, PaidAccount(token="abc", cents=5))
    bills = store.column("BASE", Bill)
    with pytest.raises(InvalidBody, match=r"could not be read back: Bill\.events\[1\]\.cents is not a field"):
        bills.put(row, 1, Bill(events=[Event(), PaidEvent(cents=5)], last=PaidEvent(cents=5), cents=5))
    rounds = store.column("BASE", Round)
    with pytest.raises(InvalidBody, match=r"could not be read back: Round\.stops\.b\.cents is not a field"):
        rounds.put(row, 1, Round(stops={"cents": Stop("first"), "b": PaidStop("second", 5)}))
    with pytest.raises(InvalidBody, match=r"could not be read back: Round\.events\.cents\.cents is not a"):
        rounds.put(row, 1, Round(events={"root": OpenEvent(), "cents": OpenEvent(cents=5)}))
    for name, value in {
        "some": {PaidEvent(cents=5)},
        "fixed": frozenset({PaidEvent(cents=5)}),
        "pair": (Event(), PaidEvent(cents=5)),
        "note": {"last": PaidEvent(cents=5)},
    }.items():
        with pytest.raises(InvalidBody, match=rf"could not be read back: Round\.{name}\S*\.cents is not a field"):
            rounds.put(row, 1, Round(**{name: value}))
    with pytest.raises(InvalidBody, match=r"could not be read back: Round\.note\.cents is not a field"):
        rounds.put(row, 1, Round.model_construct(note={"cents": 5}))
    assert store.get_row(row) == {}

    bills.put(row, 2, Bill(events=[Event()], last=PaidEvent(cents=5)))
    assert store.get_cell(row, "BASE", 2).body["last"] == {"cents": 5}
    routes, route = store.column("BASE", Route), Route(start="A", parts=[Route(start="B", anything=object())])
    routes.put(row, 4, route)
    assert routes.get(row, 4).body.parts[0].start == Stop("B")
    shown = store.column("BASE", ShownAccount)
    shown.put(row, 3, ShownAccount(token="abc"))
    assert shown.get(row, 3).body.token.get_secret_value() == "abc"


def test_an_upcast_that_is_no_function_is_refused_at_once(store):
    """A coroutine function would return a coroutine instead of a document."""

    async def upcast(document):
        return document

    for wrong in (upcast, "upcast"):
        with pytest.raises(InvalidInput, match="upcast must be a function that returns a document, and no 'async def'"):
            store.column("BASE", Trip, upcast=wrong)


def test_a_model_that_cannot_be_converted_is_refused_at_once(store, monkeypatch):
    """With the line that installs what is missing."""
    with pytest.raises(InvalidInput, match="cannot be the model of a column"):
        store.column("BASE", dict[str, Trip | StructTrip])
    monkeypatch.setitem(sys.modules, "msgspec", None)
    with pytest.raises(InvalidInput, match=r"Trip need msgspec: pip install 'schemaless-store\[typed\]'"):
        store.column("BASE", Trip)


OFFSETS = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
MILES = st.floats(allow_nan=False, allow_infinity=False)
TRIPS = st.fixed_dictionaries(
    {
        "driver": st.uuids(),
        "fare": st.decimals(allow_nan=False, allow_infinity=False),
        "status": st.sampled_from(Status),
        "requested_at": st.datetimes(timezones=OFFSETS),
        "day": st.dates(),
        "legs": st.lists(st.builds(Leg, MILES, st.tuples(st.text())), max_size=3),
        "notes": st.dictionaries(st.integers(-(2**63), 2**63 - 1), st.none() | st.text(), max_size=3),
    }
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(TRIPS, min_size=1, max_size=8), st.sampled_from([Trip, StructTrip, PydanticTrip]))
def test_any_document_comes_back_equal(store, new_row, documents, model):
    """Whatever its values, through real servers."""
    trips = store.column("BASE", model)
    written = {new_row(): made(model, **fields) for fields in documents}
    trips.put_many([(row, 1, trip) for row, trip in written.items()])

    assert {row: cell.body for row, cell in trips.latest_of(written).items()} == written
