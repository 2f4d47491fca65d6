"""Workers of an index killed with -9 and frozen past their lease while cells come; then each row has its entry.

Half of the rows are written once, so that nothing heals what is lost of them. The others go from one shard of the
index to another and back, and change there, while old workers sleep over it.

What the suite does with a few hundred cells, ``benchmarks/indexes.py --live`` does with as many as one likes.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
import uuid
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path

import schemaless
from schemaless.feed.indexes import Indexes
from schemaless.feed.rows import FollowerRows
from schemaless.mysql.sql import indexes as sql
from schemaless.store.definitions import define
from schemaless.store.indexes import values_of
from schemaless.store.registry import IndexEntry
from schemaless.store.tools import tools_of
from tests.feed.child import TIMING
from tests.feed.live import Live
from tests.index.child import FREEZES_WITHIN_S

TRIPS = define("trips", "BASE.client:uuid", ["BASE.at:int"])

_ONCE = 52
_OFTEN = 16
_CLIENTS = ((0, 1, 0), (0, 1, 0, 0))
"""Which of its two clients a row has in its versions: some rows end by coming back, some by a change there."""

_LATER_S = 1.5
"""Who sleeps gets so much longer, for others to come to a row's last version meanwhile, on a busy machine too."""

_AT_ONCE = 1_000


@dataclass
class LiveIndex(Live):
    """One run.

    Attributes:
        follow: sees how far the follower is; ``store`` unless it is given.
        entry: the index; made by ``run`` unless it is given.
        control: the fault that workers have; empty for none.
        expected: what the entry of each row has to say.
    """

    follow: schemaless.Datastore | None = None
    control: str = ""
    expected: dict[uuid.UUID, tuple[uuid.UUID, int]] = field(default_factory=dict)
    entry: IndexEntry | None = None
    _ids: dict[int, list[int]] = field(default_factory=dict)
    _aimed: bool = False

    def missing_entries(self) -> int:
        """Return how many rows have no entry in the shard where it belongs, or one that says something else."""
        assert self.entry is not None
        if self.control:
            # Locations came before the entries, or a worker has just been let go on.
            time.sleep(2 * TIMING.lease_s)
        shards = tools_of(self.store).shards
        found: dict[uuid.UUID, list[tuple[int, tuple[object, ...]]]] = {}
        for shard in range(self.store.shard_count):
            after = b""
            while rows := shards.rows(
                shard, sql.select_entries_after(shards.database(shard), self.entry.layout, after, _AT_ONCE)
            ):
                after = bytes(rows[-1][0])
                for row in rows:
                    place = shard, values_of(TRIPS, row[1:])
                    found.setdefault(uuid.UUID(bytes=bytes(row[0])), []).append(place)
        count = self.store.shard_count
        return sum(
            (TRIPS.shard_of(values[0], count), values) not in found.get(row, [])
            for row, values in self.expected.items()
        )

    def _begin(self) -> None:
        if self.entry is None:
            self.entry, _ = Indexes(self.store).create(TRIPS)

    def _program(self, name: str) -> list[str]:
        return ["tests.index.child", self.url, self.control, name]

    def _put(self, part: int) -> None:
        chance = random.Random(part)

        def new_id() -> uuid.UUID:
            return uuid.UUID(int=chance.getrandbits(128))

        said = {new_id(): (new_id(), part) for _ in range(_ONCE)}
        cells = [(row, 1) for row in said]
        for number in range(_OFTEN):
            for version, which in enumerate(_CLIENTS[number % len(_CLIENTS)], 1):
                # A batch behind the other: who sleeps over one has missed the next one.
                group = part - version + 1
                if group >= 0:
                    row = uuid.UUID(int=(group + 1) << 64 | number)
                    said[row] = uuid.UUID(int=row.int * 2 + which), version
                    cells.append((row, version))
        self.expected |= said
        new = [
            schemaless.NewCell(row, "BASE", version, {"client": str(said[row][0]), "at": said[row][1]})
            for row, version in cells
        ]
        for put in self.store.put_cells(new):
            shard = self.store.shard_of(put.key.row_key)
            self.there.add((shard, put.added_id))
            self._ids.setdefault(shard, []).append(put.added_id)

    def _dealt(self) -> int:
        assert self.entry is not None
        rows = FollowerRows(tools_of(self.follow or self.store).shards)
        looked = rows.look((self.entry.follower, shard) for shard in self._ids).rows
        return sum(bisect_right(sorted(self._ids[shard]), row.location) for (_, shard), row in looked.items())

    def _freeze(self, victim: subprocess.Popen[bytes]) -> None:
        self._aimed = not self._aimed
        os.kill(victim.pid, signal.SIGUSR1 if self._aimed else signal.SIGSTOP)

    def _thaw(self, now_s: float) -> None:
        for frozen in list(self._frozen):
            until_s, victim = frozen
            if now_s >= until_s + FREEZES_WITHIN_S + _LATER_S:
                self._frozen.remove(frozen)
                # By now it has stopped, or will not for this signal.
                self.freezes += Path(f"/proc/{victim.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
                os.kill(victim.pid, signal.SIGCONT)
