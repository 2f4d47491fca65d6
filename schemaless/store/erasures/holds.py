"""Legal holds: rows that must not be erased until everyone who holds them has released them.

A hold and an erasure of the same row exclude each other. Both take the same lock on the catalog's server, so an erasure
that is recorded later finds the hold, and a hold that is set later finds the erasure.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from schemaless.base.keys import check_type, row_key_bytes
from schemaless.base.parts import parts
from schemaless.base.runner_names import who
from schemaless.cell import RowKey
from schemaless.errors import InvalidInput, RowHeld, ServerTimeout
from schemaless.store.erasures import sql
from schemaless.wire.connection import Connection
from schemaless.wire.pool import NodePool
from schemaless.wire.sql.sessions import release_lock, take_lock

_REASON: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
LOCK_WAIT_S: Final = 10
_KEYS_PER_STATEMENT: Final = 500


@dataclass(frozen=True, slots=True)
class Hold:
    """A legal hold on a row.

    Attributes:
        number: number of the hold, from 1.
        row_key: the row.
        held_by: the party that holds the row, such as a case or a department.
        reason: reason code.
        held_at: when it was set.
        released_at: when it was released; None while it is in force.
        released_by: user who released it, and on which machine; None while it is in force.
    """

    number: int
    row_key: uuid.UUID
    held_by: str
    reason: str
    held_at: datetime
    released_at: datetime | None
    released_by: str | None


def check_reason(reason: str) -> str:
    """Check the reason code of an erasure or a hold.

    Raises:
        InvalidInput: it is not 1 to 64 characters of ``[A-Za-z0-9_.:-]``.
    """
    if not _REASON.fullmatch(check_type(reason, str, "reason")):
        raise InvalidInput(
            "a reason must be a code of 1 to 64 characters of [A-Za-z0-9_.:-], such as gdpr-art-17 or ticket-4711, "
            f"got {reason!r}; it is kept forever, so it must not name a person"
        )
    return reason


class Holds:
    """The legal holds of a datastore.

    Args:
        catalog: returns the connections to the catalog's server, which a failover may change.
        datastore: name of the datastore.
    """

    def __init__(self, catalog: Callable[[], NodePool], datastore: str) -> None:
        self._catalog = catalog
        self._name = datastore

    def hold(self, row_keys: Iterable[RowKey], held_by: str, reason: str) -> None:
        """Hold rows, including ones that do not exist yet. Holding a row again for the same party changes nothing.

        Args:
            row_keys: the rows.
            held_by: who holds them: 1 to 255 characters.
            reason: a code of 1 to 64 characters of ``[A-Za-z0-9_.:-]``.

        Raises:
            InvalidInput: an argument is invalid, or an erasure of one of the rows is in the ledger and not yet
                executed.
            ServerError: the catalog's server is unreachable or rejects a statement.
        """
        keys = sorted({row_key_bytes(row_key) for row_key in row_keys})
        if not 1 <= len(held_by) <= 255 or not held_by.isprintable():
            raise InvalidInput(f"held_by must name who holds the rows, in 1 to 255 characters, got {held_by!r}")
        check_reason(reason)

        def operation(connection: Connection) -> None:
            with self.lock(connection), connection.transaction():
                for part in parts(keys, _KEYS_PER_STATEMENT):
                    pending = connection.rows(sql.select_pending_erasures(self._name, part))
                    if pending:
                        row_key, erasure = pending[0]
                        raise InvalidInput(
                            f"row {uuid.UUID(bytes=row_key)} cannot be held: erasure {erasure} is in the ledger "
                            f"and may have begun; see 'schemaless erase status {erasure}'"
                        )
                    held = {(row_key, by) for _, row_key, by, *_ in self._rows_of(connection, part)}
                    new = [row_key for row_key in part if (row_key, held_by) not in held]
                    if new:
                        rows = [(row_key, held_by, reason, None, None, None) for row_key in new]
                        connection.execute(sql.insert_holds(self._name, rows))

        self._catalog().run(operation, writes=True)

    def release(self, row_keys: Iterable[RowKey], held_by: str) -> int:
        """Release rows for one party; other parties' holds remain. Return the number of released holds.

        Raises:
            ServerError: the catalog's server is unreachable or rejects a statement.
        """
        keys = sorted({row_key_bytes(row_key) for row_key in row_keys})
        statements = [sql.release_holds(self._name, part, held_by, who()) for part in parts(keys, _KEYS_PER_STATEMENT)]
        runs = (
            self._catalog().run(lambda connection, sql=each: connection.execute(sql), writes=True)  # type: ignore[misc]
            for each in statements
        )
        return sum(run.affected for run in runs)

    def all(self, *, released: bool = False) -> list[Hold]:
        """Return the holds in force, oldest first; with ``released``, also those that have been released."""
        rows = self._catalog().rows(sql.select_holds(self._name, released=released))
        return [_hold(row) for row in rows]

    def of_rows(
        self,
        row_keys: Collection[bytes],
        during: tuple[datetime, datetime] | None = None,
        recorded: Iterable[Hold] = (),
    ) -> list[Hold]:
        """Return those holds on some rows that are in force now, or that were in force at any time in a period.

        Args:
            row_keys: the rows, as 16 bytes each.
            during: start and end of the period; None to return only holds that are in force now.
            recorded: holds from a file of the ledger, which count as ``restore`` would record them.
        """
        recorded = [hold for hold in recorded if hold.row_key.bytes in row_keys]
        needs_released = during is not None or bool(recorded)

        def operation(connection: Connection) -> list[Any]:
            some = parts(sorted(row_keys), _KEYS_PER_STATEMENT)
            return [row for part in some for row in self._rows_of(connection, part, released=needs_released)]

        holds = {_identity(hold): hold for hold in map(_hold, self._catalog().run(operation))}
        holds |= {_identity(hold): hold for hold in _unrecorded(holds, recorded)}
        return [hold for hold in holds.values() if _in_force(hold, during)]

    def unrecorded(self, recorded: Iterable[Hold]) -> list[Hold]:
        """Return those holds of another catalog that are missing here, or that were released there and not here."""
        return _unrecorded({_identity(hold): hold for hold in self.all(released=True)}, recorded)

    def restore(self, recorded: Iterable[Hold]) -> list[Hold]:
        """Add holds that were recorded in another catalog and are missing here, and release those released there.

        Returns:
            The holds that were added or released.

        Raises:
            ServerError: the catalog's server is unreachable or rejects a statement.
        """

        def operation(connection: Connection) -> list[Hold]:
            with self.lock(connection), connection.transaction():
                rows = connection.rows(sql.select_holds(self._name, released=True))
                existing = {_identity(hold): hold for hold in map(_hold, rows)}
                changes = _unrecorded(existing, holds)
                for hold in changes:
                    if own := existing.get(_identity(hold)):
                        assert hold.released_at is not None
                        released = own.number, hold.released_at, hold.released_by
                        connection.execute(sql.release_past_hold(self._name, *released))
                        continue
                    ended = hold.released_by, hold.held_at, hold.released_at
                    row = (hold.row_key.bytes, hold.held_by, hold.reason, *ended)
                    connection.execute(sql.insert_holds(self._name, [row]))
            return changes

        holds = list(recorded)
        return self._catalog().run(operation, writes=True)

    @contextmanager
    def lock(self, connection: Connection) -> Iterator[None]:
        """Keep holds and erasures from being recorded at the same time.

        Args:
            connection: connection to the catalog's server, outside of a transaction.

        Raises:
            ServerTimeout: another process held the lock for too long.
        """
        name = f"schemaless-holds-{self._name}"[:64]
        with connection.whole():
            if connection.rows(take_lock(name, LOCK_WAIT_S))[0][0] != 1:
                message = f"another process has been recording holds or erasures of {self._name!r}; try again"
                raise ServerTimeout(message, node=connection.node)
            # If an exception is raised before the release, closing the connection releases the lock.
            yield
            connection.rows(release_lock(name))

    def refuse(self, connection: Connection, row_keys: Collection[bytes]) -> None:
        """Refuse to erase rows that are held; call it under ``lock``.

        Raises:
            RowHeld: a row is held.
        """
        for part in parts(sorted(row_keys), _KEYS_PER_STATEMENT):
            for row in self._rows_of(connection, part):
                hold = _hold(row)
                raise RowHeld(hold.row_key, hold.held_by, hold.reason, hold.held_at)

    def _rows_of(self, connection: Connection, row_keys: Collection[bytes], *, released: bool = False) -> Any:
        return connection.rows(sql.select_holds(self._name, row_keys, released=released)) if row_keys else ()


def _identity(hold: Hold) -> tuple[uuid.UUID, str, datetime]:
    return hold.row_key, hold.held_by, hold.held_at


def _unrecorded(existing: Mapping[tuple[uuid.UUID, str, datetime], Hold], recorded: Iterable[Hold]) -> list[Hold]:
    """Return the recorded holds that do not exist, or that exist and have been released since."""
    found = {}
    for hold in recorded:
        own = existing.get(_identity(hold))
        if own is None or (own.released_at is None and hold.released_at is not None):
            found[_identity(hold)] = hold
    return list(found.values())


def _in_force(hold: Hold, during: tuple[datetime, datetime] | None) -> bool:
    if hold.released_at is None:
        return True
    return during is not None and hold.held_at <= during[1] and hold.released_at >= during[0]


def _hold(row: Any) -> Hold:
    number, row_key, by, reason, *times, released_by = row
    held_at, released_at = (at and datetime.fromisoformat(at) for at in times)
    return Hold(number, uuid.UUID(bytes=row_key), by, reason, held_at, released_at, released_by)
