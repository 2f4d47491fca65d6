"""Index workers that are killed and frozen past their lease while cells are written; every row still gets its entry.

Half of the rows are written once, so that no later version repairs a lost entry. The others move from one shard of the
index to another and back, and change there, while old workers are frozen. Shards are moved at the same time, and more
entries are written after those of a shard were copied.

The tests run it with a few hundred cells, ``benchmarks/indexes.py --live`` with any number.
"""

from __future__ import annotations

import random
import re
import signal
import time
import uuid
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final
from unittest import mock

import schemaless
from schemaless.ops.admin.indexes import indexes_of
from schemaless.ops.move import sql as moves
from schemaless.ops.move.fence import Fence
from schemaless.ops.move.index_tables import IndexMover
from schemaless.store.followers.rows import FollowerRows
from schemaless.store.indexes import sql
from schemaless.store.indexes.definition import define
from schemaless.store.indexes.registry import IndexEntry
from schemaless.store.internals import internals_of
from tests.store.followers.child import TIMING
from tests.store.followers.live import CONTROLS as MOVER_CONTROLS
from tests.store.followers.live import Live, send
from tests.store.indexes import child
from tests.store.indexes.child import FREEZES_WITHIN_S

TRIPS = define("trips", "BASE.client:uuid", ["BASE.at:int"])

_ONCE = 52
_OFTEN = 16
_CLIENTS = ((0, 1, 0), (0, 1, 0, 0))
"""The client (of two) in each version of a row: some rows end by returning, others by another change after that."""

_LATER_S = 1.5
"""Additional sleep of a frozen worker, in seconds, in which others reach the last version of a row."""

_PARTS_LATER = 2
"""Number of batches to put after the next version of each row; by then, nearly all of it has been processed."""

_MOST_S = 10.0
"""Maximum additional wait on a busy machine, in seconds."""

_AT_ONCE = 5_000

NOT_SET_BACK: Final = "followers not set back by a move"


def _not_setting_back() -> AbstractContextManager[Any]:
    return mock.patch.object(moves, "rewind_follower", return_value=b"DO 0")


MOVER_CONTROLS[NOT_SET_BACK] = _not_setting_back
CONTROLS: Final = (*child.CONTROLS, NOT_SET_BACK)

Said = tuple[uuid.UUID, int, uuid.UUID, int]
"""A row, its version, and the field values in it: client and time."""


@dataclass
class LiveIndex(Live):
    """One run.

    Attributes:
        entry: the index, once the run has begun.
    """

    entry: IndexEntry | None = None
    _ids: dict[int, array[int]] = field(default_factory=lambda: defaultdict(lambda: array("q")))
    _aimed: bool = False
    _since: dict[BaseProcess, int] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        """Number of cells put at once."""
        return self.scale * (_ONCE + sum(len(_CLIENTS[number % len(_CLIENTS)]) for number in range(_OFTEN)))

    @property
    def _apart(self) -> int:
        """Number of batches between the versions of a row: more than the workers' lag, so that they see each."""
        return 1 if self.scale == 1 else 6

    def missing_entries(self) -> tuple[int, int]:
        """Return the number of rows without a correct entry in the right shard, and the number of other entries.

        Other entries may be left by late workers; queries read the row and ignore them.
        """
        assert self.entry is not None
        if self.control:
            # Locations were stored before entries, or a worker has just been resumed.
            time.sleep(2 * TIMING.lease_s)
        shards, count = internals_of(self.store).shards, self.store.shard_count
        expected: list[set[bytes]] = [set() for _ in range(count)]
        for row, _, client, at in self.last_said():
            shard = TRIPS.shard_of(client, count)
            assert shard is not None
            expected[shard].add(_key(row.bytes, client, at))
        missing = others = 0
        for shard in range(count):
            after, found = b"", set[bytes]()
            while rows := shards.rows(
                shard, sql.select_entries_after(shards.database(shard), self.entry.layout, after, _AT_ONCE)
            ):
                after = bytes(rows[-1][0])
                found |= {_key(bytes(row[0]), *TRIPS.from_table(row[1:])) for row in rows}
            missing += len(expected[shard] - found)
            others += len(found - expected[shard])
        return missing, others

    def last_said(self) -> Iterator[Said]:
        """Return the last version of each row."""
        for part in range(self.parts):
            yield from self._once(part)
            for number in range(self.scale * _OFTEN):
                clients = _CLIENTS[number % len(_CLIENTS)]
                yield _often(part, number, min(len(clients), 1 + (self.parts - 1 - part) // self._apart))

    def _begin(self) -> None:
        self.entry, _ = indexes_of(self.store).create(TRIPS)

    def _program(self, name: str) -> tuple[Callable[..., None], tuple[Any, ...]]:
        return child.work, (self.url, self.control, name)

    # Cells

    def _once(self, part: int) -> Iterator[Said]:
        """Return the rows of a batch that are written once."""
        chance = random.Random(part)
        for _ in range(self.scale * _ONCE):
            yield uuid.UUID(int=chance.getrandbits(128)), 1, uuid.UUID(int=chance.getrandbits(128)), part

    def _put(self, part: int) -> None:
        # The versions of a row are some batches apart, so that a worker that sleeps over one misses the next.
        said = [
            *self._once(part),
            *(
                _often(part - (version - 1) * self._apart, number, version)
                for number in range(self.scale * _OFTEN)
                for version in range(1, 1 + min(1 + part // self._apart, len(_CLIENTS[number % len(_CLIENTS)])))
            ),
        ]
        new = [
            schemaless.NewCell(row, "BASE", version, {"client": str(client), "at": at})
            for row, version, client, at in said
        ]
        for put in sorted(self.store.put_cells(new), key=lambda put: put.added_id):
            ids = self._ids[self.store.shard_of(put.key.row_key)]
            assert not ids or ids[-1] < put.added_id, "a single writer gets ascending ids"
            ids.append(put.added_id)
            self.given.put += 1

    def _locations(self) -> dict[int, int]:
        """Return the location of each shard that can be read."""
        assert self.entry is not None
        rows = FollowerRows(internals_of(self.store).shards)
        looked = rows.look((self.entry.follower, shard) for shard in range(self.store.shard_count)).rows
        return {shard: row.location for (_, shard), row in looked.items()}

    def _dealt(self) -> int:
        return sum(bisect_right(self._ids[shard], location) for shard, location in self._locations().items())

    # Shards that move

    def _move_one(self, store: schemaless.Datastore, shard: int) -> None:
        copy = IndexMover.copy

        def copied(run: IndexMover, fence: Fence, token: str) -> set[str]:
            tables = copy(run, fence, token)
            self._write_beside()
            return tables

        with mock.patch.object(IndexMover, "copy", copied):
            super()._move_one(store, shard)

    def _write_beside(self) -> None:
        """Put more cells, and wait until workers have processed them."""
        self._put_more()
        enough = {shard: ids[-1] for shard, ids in list(self._ids.items()) if ids}
        until_s = time.monotonic() + self.patience_s
        while any(self._locations().get(shard, 0) < added_id for shard, added_id in enough.items()):
            if time.monotonic() > until_s:
                raise TimeoutError(f"cells put during a move were not processed within {self.patience_s:.0f} s")
            time.sleep(0.05)

    # Workers

    def _freeze(self, victim: BaseProcess) -> None:
        self._aimed = not self._aimed
        self._since[victim] = self.parts
        # The signal would kill a process that has just been started.
        send(victim, signal.SIGUSR1 if self._aimed and _catches(victim, signal.SIGUSR1) else signal.SIGSTOP)

    def _thaw(self, now_s: float) -> None:
        for frozen in list(self._frozen):
            until_s, victim = frozen
            if now_s >= until_s - 2 * TIMING.lease_s + FREEZES_WITHIN_S and not _is_stopped(victim):
                # It did not come to such a page.
                send(victim, signal.SIGSTOP)
                self._frozen[self._frozen.index(frozen)] = now_s + 2 * TIMING.lease_s, victim
            elif now_s >= until_s + FREEZES_WITHIN_S + _LATER_S and (
                self.given.put >= self._wanted
                or self.parts >= self._since[victim] + self._apart + _PARTS_LATER
                or now_s >= until_s + _MOST_S
            ):
                send(victim, signal.SIGCONT)
                self._frozen.remove(frozen)
                self.freezes += 1


def _often(group: int, number: int, version: int) -> Said:
    """Return a version of a row that is written several times."""
    row = uuid.UUID(int=(group + 1) << 64 | number)
    which = _CLIENTS[number % len(_CLIENTS)][version - 1]
    return row, version, uuid.UUID(int=row.int * 2 + which), version


def _key(row_key: bytes, client: Any, at: Any) -> bytes:
    """Return a compact key of an entry, because millions of them are compared."""
    return b"%b %b %d" % (row_key, client.bytes, at)


def _catches(process: BaseProcess, number: int) -> bool:
    status = Path(f"/proc/{process.pid}/status").read_text()
    (caught,) = re.findall(r"^SigCgt:\s*(\w+)", status, re.MULTILINE)
    return bool(int(caught, 16) >> number - 1 & 1)


def _is_stopped(process: BaseProcess) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
