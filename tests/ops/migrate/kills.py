"""Migrations with history, erasers and movers that are killed, beside each other, and what must hold after a kill."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from schemaless import Datastore, Erased, NewCell, SchemalessError
from schemaless.cell import CellKey
from schemaless.codec.envelope import base_of, describe_body, is_delta
from schemaless.ops.erasure.job import ERASE, ErasureSpec
from schemaless.ops.migrate.run import MIGRATE
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.migrate.verify import check
from schemaless.ops.move import run as moves
from schemaless.ops.move.compare import compare
from schemaless.ops.move.spec import MoveSpec
from schemaless.store.cells.bases import with_bases
from schemaless.store.erasures.ledger import target
from schemaless.store.internals import internals_of
from schemaless.wire.sql.parts import CELL, quoted_table
from tests.processes import Runner, complete, run_job

STAYS, MOVES = 0, 1
SPECS = [
    *[MigrateSpec("msgpack+zlib", history=True)] * 3,
    *[MigrateSpec("packed+zstd", history=True)] * 2,
    MigrateSpec("msgpack+zlib", history=False),
    MigrateSpec("packed+zstd"),
    MigrateSpec("json+zlib"),
]


def document(key: CellKey) -> Any:
    return {"of": str(key.row_key), "legs": [{"from": f"A{n}", "to": n / 7} for n in range(20)], "n": key.ref_key}


class Kills:
    """A datastore of two clusters, and the model of its versions.

    Args:
        store: the datastore, as root, with two shards; shard 1 moves.
        url: its URL.
        seed: seed of everything that is drawn.

    Attributes:
        faults: what was wrong so far.
        killed: number of kills, by kind of job.
        codecs: number of bodies found, by codec.
    """

    def __init__(self, store: Datastore, url: str, seed: int) -> None:
        self.store, self._url, self._chance = store, url, random.Random(seed)
        self.faults: list[str] = []
        self.killed: Counter[str] = Counter()
        self.codecs: Counter[str] = Counter()
        self._live: set[CellKey] = set()
        self._erased: dict[CellKey, int] = {}
        self._sent = Counter(migrate=30, erase=30, move=60)
        self._rows: list[uuid.UUID] = []
        while len(self._rows) < 6:
            row = uuid.uuid5(uuid.NAMESPACE_OID, f"{url} {seed} {len(self._rows)} {self._chance.random()}")
            if store.shard_of(row) == (STAYS, MOVES)[len(self._rows) % 2]:
                self._rows.append(row)
        self._put(30)

    def round(self) -> None:
        """Start two or three jobs, most of which die, compare, complete the jobs, and compare again."""
        self._put(3)
        jobs = {}
        moved = self._chance.random() < 0.5
        spec = self._chance.choice(SPECS)
        shards = [STAYS] if moved else [STAYS, MOVES]
        jobs["migrate"] = MIGRATE.begin_or_join(self.store, spec, shards)[0].job_id
        asked = self._victims()
        targets = [target(key.row_key, key.column_name, key.ref_key) for key in asked]
        number = internals_of(self.store).erasures.ledger.intend("test", targets)
        jobs["erase"] = ERASE.begin_or_join(self.store, ErasureSpec(number), [STAYS, MOVES])[0].job_id
        if moved:
            internals = internals_of(self.store)
            internals.shards.router.again(internals.shards.routing)
            home = internals.topology.cluster_of(MOVES)
            to = next(each.name for each in internals.topology.clusters if each != home)
            jobs["move"] = moves.MOVE.begin_or_join(self.store, MoveSpec(to, accounts=False), [MOVES])[0].job_id
        runners = {
            kind: Runner(
                partial(run_job, self._url, job_id),
                self._chance.randrange(self._sent[kind]) if self._chance.random() < 0.9 else None,
            )
            for kind, job_id in jobs.items()
        }
        for kind, runner in runners.items():
            self._sent[kind] = max(self._sent[kind], runner.join())
            self.killed[kind] += runner.killed
        # A mover may die while neither table has the name of the shard's.
        if "move" not in runners or not runners["move"].killed:
            self._compare(f"killed {dict(self.killed)}", dict.fromkeys(asked, number))
        complete(self.store, self._url, *jobs.values())
        self._live -= set(asked)
        self._erased |= dict.fromkeys(asked, number)
        self._compare(f"completed {dict(self.killed)}", {})
        for left in moves.left_behind(self.store, [MOVES]):
            if not compare(self.store, left).same:
                self.faults.append("the moved shard differs from its old table")
            self._read_table(left.node, left.tables[-1])
            moves.drop(self.store, left)

    def check(self) -> None:
        """Verify every stored body."""
        self.faults += [f"check: {fault}" for fault in check(self.store).faults.items()]

    def damage(self) -> Iterator[str]:
        """Remove and replace a base by SQL, one after the other, and yield what was done."""
        shards = internals_of(self.store).shards
        for shard in range(self.store.shard_count):
            for cell in self.store.get_stored_cells_for_shard(shard, limit=10_000).cells:
                if not is_delta(cell.body):
                    continue
                row, ref_key = cell.row_key.hex, base_of(cell.body)
                where = f"WHERE row_key=x'{row}' AND column_name='{cell.column_name}' AND ref_key={ref_key}"
                table = f"`{shards.database(shard)}`.cell"
                ((body,),) = shards.rows(shard, f"SELECT body FROM {table} {where}".encode())
                for what, wrong in (("removed", b"\xc1\xf0" + bytes(14)), ("replaced", b'{"n":[]}')):
                    shards.execute(shard, f"UPDATE {table} SET body=x'{wrong.hex()}' {where}".encode())
                    yield f"a base was {what}"
                shards.execute(shard, f"UPDATE {table} SET body=x'{bytes(body).hex()}' {where}".encode())
                return

    def _put(self, versions: int) -> None:
        keys = [
            CellKey(row, column, self._chance.randrange(10**6))
            for row in self._rows
            for column in ("A", "B")
            for _ in range(versions)
        ]
        fresh = sorted({key for key in keys if key not in self._erased and key not in self._live})
        self.store.put_cells([NewCell(*key, document(key)) for key in fresh])
        self._live |= set(fresh)

    def _victims(self) -> list[CellKey]:
        """Return versions to erase, bases among them; sometimes most of a row and column."""
        live = sorted(self._live)
        chosen = set(self._chance.sample(live, 12))
        if self._chance.random() < 0.2:
            whole = self._chance.choice(live)
            chosen |= {key for key in live if key[:2] == whole[:2] and self._chance.random() < 0.8}
        return sorted(chosen)

    def _compare(self, when: str, pending: dict[CellKey, int]) -> None:
        """Read every version; those in ``pending`` may be erased or not."""
        store = self.store
        try:
            found = {cell.key: cell.body for shard in range(store.shard_count) for cell in store.iter_shard(shard)}
            for row in self._rows:
                for column in ("A", "B"):
                    versions = store.get_versions(row, column)
                    wrong = [cell.key for cell in versions if found.get(cell.key) != cell.body]
                    self.faults += [f"{when}: {key} differs between calls" for key in wrong]
        except SchemalessError as error:
            self.faults.append(f"{when}: {error!r}")
            return
        for key in self._live:
            allowed = [document(key), *([Erased(pending[key])] if key in pending else [])]
            if found.get(key) not in allowed:
                self.faults.append(f"{when}: {key} is {found.get(key)!r:.80}")
        for key, number in self._erased.items():
            if found.get(key) != Erased(number):
                self.faults.append(f"{when}: {key} is {found.get(key)!r:.80}, and was erased")
        for shard in range(store.shard_count):
            stored = store.get_stored_cells_for_shard(shard, limit=100_000).cells
            self.codecs.update(describe_body(cell.body).name for cell in stored)

    def _read_table(self, node: Any, name: str) -> None:
        internals = internals_of(self.store)
        database = internals.shards.database(MOVES)
        sql = b"SELECT %b FROM %b" % (CELL, quoted_table(database, name))
        rows = internals.shards.pool_for(node).run(
            lambda connection: with_bases(connection, database, connection.rows(sql), name)  # type: ignore[arg-type]
        )
        for row in rows:
            cell = internals.stored_cell(row, MOVES)
            if not cell.erased and cell.decode().body != document(cell.key):
                self.faults.append(f"{cell.key} differs in the old table")
