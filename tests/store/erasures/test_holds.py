"""Legal holds: who holds which row, until it is released."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterator

import pytest

import schemaless
from schemaless import Datastore, InvalidInput, RowHeld, ServerTimeout
from schemaless.store.erasures.holds import Holds
from schemaless.store.internals import internals_of
from schemaless.wire.connection import Connection

pytestmark = pytest.mark.twice


@pytest.fixture
def admin(admin_url: str) -> Iterator[Datastore]:
    with schemaless.connect(admin_url) as opened:
        yield opened


@pytest.fixture
def holds(admin: Datastore) -> Holds:
    return Holds(lambda: internals_of(admin).catalog, admin.name)


@pytest.mark.guarantee("retention-holds")
def test_a_row_is_held_until_every_holder_has_released_it(holds: Holds, new_row: Callable[[], uuid.UUID]) -> None:
    """Holding twice is holding once; one party's release leaves the other's hold."""
    first, second = new_row(), new_row()
    holds.hold([first, second.bytes], "court", "case-12")
    holds.hold([first], "court", "case-12")
    holds.hold([first], "tax office", "audit-2026")

    assert {(hold.row_key, hold.held_by) for hold in holds.all()} == {
        (first, "court"),
        (second, "court"),
        (first, "tax office"),
    }
    assert holds.release([first, second], "court") == 2
    assert holds.release([first], "court") == 0
    (left,) = holds.of_rows({first.bytes, second.bytes})
    assert (left.row_key, left.held_by, left.reason) == (first, "tax office", "audit-2026")
    assert len(holds.all(released=True)) == 3
    assert {hold.released_by is None for hold in holds.all(released=True)} == {True, False}


def test_many_rows_are_held_and_released_in_parts(holds: Holds) -> None:
    """More rows than one statement has."""
    rows = [uuid.uuid4() for _ in range(1_201)]
    holds.hold(rows, "court", "case-12")
    assert {hold.row_key for hold in holds.of_rows({row.bytes for row in rows})} == set(rows)
    assert holds.release(rows, "court") == len(rows)


def test_a_held_row_is_refused_with_its_holder(
    holds: Holds, admin: Datastore, new_row: Callable[[], uuid.UUID]
) -> None:
    """The error says who holds which row and why, also after it went to another process."""
    row = new_row()
    holds.hold([row], "court", "case-12")

    def refuse(connection: Connection) -> None:
        with holds.lock(connection):
            holds.refuse(connection, [new_row().bytes])
            holds.refuse(connection, [new_row().bytes, row.bytes])

    with pytest.raises(RowHeld, match=f"row {row} has been held by court since .* nothing was erased") as raised:
        internals_of(admin).catalog.run(refuse)
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (copy.row_key, copy.held_by, copy.reason, str(copy)) == (row, "court", "case-12", str(raised.value))


@pytest.mark.guarantee("retention-holds")
def test_holds_and_erasures_take_turns(holds: Holds, admin: Datastore, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one is recorded, the other waits, and gives up with an error that says so."""
    monkeypatch.setattr("schemaless.store.erasures.holds.LOCK_WAIT_S", 0)

    def inside(connection: Connection) -> None:
        with holds.lock(connection), pytest.raises(ServerTimeout, match="try again"):
            holds.hold([uuid.uuid4()], "court", "case-12")

    internals_of(admin).catalog.run(inside)
    assert holds.all() == []


@pytest.mark.parametrize(
    ("held_by", "reason"), [("", "x"), ("a" * 256, "x"), ("a\nb", "x"), ("court", ""), ("court", "a b")]
)
def test_a_hold_needs_a_holder_and_a_code(holds: Holds, held_by: str, reason: str) -> None:
    """Both are kept for ever, and printed."""
    with pytest.raises(InvalidInput):
        holds.hold([uuid.uuid4()], held_by, reason)
