"""The ledger of erasures in the catalog: what was requested, by whom and why, and what was done.

It contains neither documents nor digests of them. An erasure is in the ledger before
anything is erased, so that one that was interrupted, or undone by a restored backup, can be executed again.
"""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from schemaless.base.keys import check_column_name, check_ref_key, check_type, row_key_bytes
from schemaless.base.parts import parts
from schemaless.base.runner_names import who
from schemaless.cell import RowKey
from schemaless.errors import InvalidInput
from schemaless.store.erasures import sql
from schemaless.store.erasures.holds import Holds, check_reason
from schemaless.store.erasures.sql import ANY_COLUMN, ANY_VERSION
from schemaless.topology.placement import shard_for
from schemaless.wire.connection import Connection
from schemaless.wire.pool import NodePool

Kind = Literal["keys", "range"]
Step = Literal["executed", "acknowledged", "verified"]

_KEYS_PER_STATEMENT: Final = 500


class Target(NamedTuple):
    """What to erase: a version, all versions of a column, or a row.

    Attributes:
        row_key: the row, as 16 bytes.
        column_name: the column; ``ANY_COLUMN`` for all columns.
        ref_key: the version; ``ANY_VERSION`` for all versions.
    """

    row_key: bytes
    column_name: str = ANY_COLUMN
    ref_key: int = ANY_VERSION

    def __str__(self) -> str:
        column = self.column_name or "all columns"
        version = "all versions" if self.ref_key == ANY_VERSION else self.ref_key
        return f"({uuid.UUID(bytes=self.row_key)}, {column}, {version})"


def completed_by(erasure: int) -> str:
    """Return in words how to continue an erasure."""
    return f"erasure {erasure} is in the ledger; 'schemaless erase run --execute --erasure {erasure}' continues it"


def target(row_key: RowKey, column_name: str | None = None, ref_key: int | None = None) -> Target:
    """Return a validated target.

    Args:
        row_key: a ``uuid.UUID`` or its 16 bytes.
        column_name: the column; None for all columns.
        ref_key: the version; None for all versions.

    Raises:
        InvalidCell: a part is invalid.
        InvalidInput: a version is given without a column.
    """
    if column_name is None and ref_key is not None:
        raise InvalidInput("to erase one version, also give its column; without a version, all versions are erased")
    return Target(
        row_key_bytes(row_key),
        ANY_COLUMN if column_name is None else check_column_name(column_name),
        ANY_VERSION if ref_key is None else check_ref_key(ref_key),
    )


@dataclass(frozen=True, slots=True)
class ErasedShard:
    """Result of an erasure in one shard.

    Attributes:
        shard: number of the shard.
        cells: number of erased cells.
        body_bytes: size of their bodies before the erasure.
        last_event: last event of the erasure in the shard's log; 0 if it erased nothing.
        executed_at: when it was executed there; None if it has not been yet.
    """

    shard: int
    cells: int
    body_bytes: int
    last_event: int
    executed_at: datetime | None


@dataclass(frozen=True, slots=True)
class Erasure:
    """An entry of the ledger.

    Attributes:
        number: number of the erasure, from 1; tombstones carry it.
        kind: "keys" (listed in the ledger) or "range" (described by ``scope``).
        scope: description of what was requested.
        reason: reason code.
        requested_by: who requested it: user and machine.
        intended_at: when it was recorded, before anything was changed.
        executed_at: when it was executed in the last of its shards; None until then.
        acknowledged_at: when all followers were first seen to have handled it; None until then.
        verified_at: when a verification first found nothing left; None until then.
        notes: dictionaries that contain erased values, and replicas that have not applied it yet.
        shards: its result in each of its shards; empty unless the entry was read individually.
    """

    number: int
    kind: Kind
    scope: Mapping[str, Any]
    reason: str
    requested_by: str
    intended_at: datetime
    executed_at: datetime | None
    acknowledged_at: datetime | None
    verified_at: datetime | None
    notes: Mapping[str, Any]
    shards: Sequence[ErasedShard] = field(default=())

    @property
    def cells(self) -> int:
        """Number of erased cells."""
        return sum(each.cells for each in self.shards)

    @property
    def body_bytes(self) -> int:
        """Size of the erased bodies, in bytes."""
        return sum(each.body_bytes for each in self.shards)


class Ledger:
    """The erasures of a datastore.

    Args:
        catalog: returns the connections to the catalog's server, which a failover may change.
        datastore: name of the datastore.
        shard_count: its number of shards.

    Attributes:
        holds: the rows that must not be erased.
    """

    def __init__(self, catalog: Callable[[], NodePool], datastore: str, shard_count: int) -> None:
        self._catalog = catalog
        self._name = datastore
        self._shard_count = shard_count
        self.holds: Holds = Holds(catalog, datastore)

    def intend(
        self,
        reason: str,
        targets: Iterable[Target] = (),
        *,
        kind: Kind = "keys",
        scope: Mapping[str, Any] | None = None,
        shards: Iterable[int] = (),
        requested_by: str | None = None,
    ) -> int:
        """Record an erasure before it is executed.

        Args:
            reason: reason code.
            targets: what to erase, for ``keys``.
            kind: "keys" or "range".
            scope: description of what is requested, as JSON values, without documents.
            shards: shards of a ``range``; those of ``keys`` follow from the targets.
            requested_by: who requests it; the current user and machine by default.

        Returns:
            The number of the erasure.

        Raises:
            InvalidInput: the reason is not a valid code, or there is nothing to erase.
            RowHeld: a row is under a legal hold; nothing was recorded.
        """
        check_reason(reason)
        keys = self._by_shard(targets)
        concerned = sorted({*shards, *(shard for shard, *_ in keys)})
        if not concerned:
            raise InvalidInput("an erasure needs at least one row to erase")
        rows = {row_key for _, row_key, *_ in keys}
        token = secrets.token_bytes(16)
        author = check_type(requested_by or who(), str, "requested_by")

        def operation(connection: Connection) -> int:
            # The entry exists already if this operation is repeated after its reply was lost.
            if existing := connection.rows(sql.select_by_token(self._name, token)):
                return int(existing[0][0])
            with self.holds.lock(connection), connection.transaction():
                self.holds.refuse(connection, rows)
                about = kind, json.dumps(scope or {}), reason, author, token
                return self._insert(connection, about, keys, [(shard, 0, 0, None) for shard in concerned])

        return self._catalog().run(operation, writes=True)

    def restore(self, recorded: Erasure, targets: Iterable[Target]) -> bool:
        """Add an erasure recorded in another catalog, under the same number and with its results.

        Legal holds are not checked: the erasure was lawful when it was recorded.

        Returns:
            False if this catalog already has an erasure with that number. It is a different one if ``intended_at``
            differs.

        Raises:
            InvalidInput: the reason is not a valid code.
        """
        check_reason(recorded.reason)
        number, keys, token = recorded.number, self._by_shard(targets), secrets.token_bytes(16)
        shards = [(each.shard, each.cells, each.body_bytes, each.executed_at) for each in recorded.shards]
        about = recorded.kind, json.dumps(dict(recorded.scope)), recorded.reason, recorded.requested_by, token
        times = recorded.intended_at, recorded.executed_at

        def operation(connection: Connection) -> bool:
            if existing := connection.rows(sql.select_erasures(self._name, number)):
                own = connection.rows(sql.select_by_token(self._name, token))
                return bool(own) and int(own[0][0]) == int(existing[0][0])
            with connection.transaction():
                self._insert(connection, about, keys, shards, number, times)
            return True

        return self._catalog().run(operation, writes=True)

    def _by_shard(self, targets: Iterable[Target]) -> list[tuple[int, bytes, str, int]]:
        return sorted({(shard_for(each.row_key, self._shard_count), *each) for each in targets})

    def _insert(
        self,
        connection: Connection,
        about: tuple[str, str, str, str, bytes],
        keys: Sequence[tuple[int, bytes, str, int]],
        shards: Sequence[tuple[int, int, int, datetime | None]],
        number: int | None = None,
        times: tuple[datetime | None, datetime | None] = (None, None),
    ) -> int:
        """Insert an erasure with its keys and shards, and return its number; see ``sql.insert_erasure``."""
        inserted = connection.execute(sql.insert_erasure(self._name, *about, number, *times)).last_id
        number = number or inserted
        for some_keys in parts(keys, _KEYS_PER_STATEMENT):
            connection.execute(sql.insert_keys(self._name, number, some_keys))
        for some_shards in parts(shards, _KEYS_PER_STATEMENT):
            connection.execute(sql.insert_erasure_shards(self._name, number, some_shards))
        return number

    def entry(self, number: int) -> Erasure:
        """Return an erasure with its shards.

        Raises:
            InvalidInput: it does not exist.
        """
        rows = self._rows(sql.select_erasures(self._name, number))
        if not rows:
            raise InvalidInput(f"{self._name!r} has no erasure {number}; 'schemaless erase status' lists them")
        shards = [
            ErasedShard(shard, cells, size, event, at and datetime.fromisoformat(at))
            for shard, cells, size, event, at in self._rows(sql.select_erasure_shards(self._name, number))
        ]
        return _erasure(rows[0], shards)

    def entries(self) -> list[Erasure]:
        """Return all erasures in order, without their shards."""
        return [_erasure(row, ()) for row in self._rows(sql.select_erasures(self._name))]

    def targets(self, number: int, shard: int | None = None) -> Iterator[Target]:
        """Yield the keys of an erasure, optionally only those of a shard."""
        after: Any = None
        while True:
            rows = self._rows(sql.select_keys(self._name, number, shard, after, _KEYS_PER_STATEMENT))
            yield from (Target(*key) for _, *key in rows)
            if len(rows) < _KEYS_PER_STATEMENT:
                return
            after = rows[-1]

    def record_shard(self, number: int, shard: int, cells: int, body_bytes: int, last_event: int) -> None:
        """Record that an erasure was executed in a shard and, after its last shard, that it is complete."""

        def operation(connection: Connection) -> None:
            connection.execute(sql.upsert_shard(self._name, number, shard, cells, body_bytes, last_event))
            connection.execute(sql.mark_executed(self._name, number))

        self._catalog().run(operation, writes=True)

    def mark(self, number: int, step: Step) -> None:
        """Record the time of a step, unless one is already recorded."""
        self._execute(sql.mark(self._name, number, step))

    def note(self, number: int, changes: Mapping[str, Any]) -> None:
        """Merge values into the notes of an erasure; lists are combined."""

        def operation(connection: Connection) -> None:
            with connection.transaction():
                before = _from_json(connection.rows(sql.lock_notes(self._name, number))[0][0])
                after = {**before, **{key: _united(before.get(key), value) for key, value in changes.items()}}
                if after != before:
                    connection.execute(sql.update_notes(self._name, number, json.dumps(after)))

        self._catalog().run(operation, writes=True)

    def record_acknowledged(self, number: int, followers: Sequence[str]) -> None:
        """Record that followers have handled all events of an erasure."""
        if followers:
            self._execute(sql.insert_acknowledged(self._name, number, followers))

    def acknowledged(self, number: int) -> dict[str, datetime]:
        """Return when each follower was first seen to have handled all events of an erasure."""
        rows = self._rows(sql.select_acknowledged(self._name, number))
        return {name: datetime.fromisoformat(at) for name, at in rows}

    def _rows(self, statement: bytes) -> Sequence[tuple[Any, ...]]:
        return self._catalog().rows(statement)

    def _execute(self, statement: bytes) -> None:
        self._catalog().execute(statement)


def _erasure(row: tuple[Any, ...], shards: Sequence[ErasedShard]) -> Erasure:
    number, kind, scope, reason, requested_by, *times, notes = row
    intended, executed, acknowledged, verified = (at and datetime.fromisoformat(at) for at in times)
    about = number, kind, json.loads(scope), reason, requested_by
    return Erasure(*about, intended, executed, acknowledged, verified, _from_json(notes), shards)


def _from_json(value: str | None) -> dict[str, Any]:
    return {} if value is None else dict(json.loads(value))


def _united(before: Any, value: Any) -> Any:
    return sorted({*(before or ()), *value}) if isinstance(value, list) else value
