"""Jobs with history and cold cells that are killed, beside each other, and what must hold after a kill."""

from __future__ import annotations

import math
import random
import time
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pymysql

from schemaless import Datastore, Erased, NewCell, SchemalessError, StoredCell
from schemaless.cell import CellKey
from schemaless.codec.envelope import base_of, describe_body, is_delta, is_erased, is_reference
from schemaless.codec.exact_text import exact_text
from schemaless.codec.references import reference_body, reference_of
from schemaless.local import replication
from schemaless.local import servers as local_servers
from schemaless.local.description import LocalServer
from schemaless.ops.erasure.expired import server_time
from schemaless.ops.erasure.job import ErasureSpec, begin_retention
from schemaless.ops.failover import nodes
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.migrate.run import MIGRATE
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.migrate.verify import check
from schemaless.ops.move import run as moves
from schemaless.ops.move.compare import compare
from schemaless.ops.move.spec import MoveSpec
from schemaless.ops.tier.cooling import TIER, TierSpec
from schemaless.ops.tier.recall import RecallSpec
from schemaless.ops.tier.survey import verify
from schemaless.ops.tier.sweep import SWEEP, SweepSpec
from schemaless.store.cells.bases import with_bases
from schemaless.store.cold.fetching import cache
from schemaless.store.cold.files import ShardFiles
from schemaless.store.cold.targets import MARKER
from schemaless.store.erasures.ledger import target
from schemaless.store.erasures.retention import Policy
from schemaless.store.internals import internals_of
from schemaless.topology.shards import Shards
from schemaless.wire.sql.parts import CELL, quoted_table
from tests.processes import KINDS, Runner, complete, run_job
from tests.promotion import sql, word

STAYS, MOVES = 0, 1
COLUMNS = ("A", "B")
SPECS = [
    *[MigrateSpec("msgpack+zlib", history=True)] * 3,
    *[MigrateSpec("packed+zstd", history=True)] * 2,
    MigrateSpec("msgpack+zlib", history=False),
    MigrateSpec("packed+zstd"),
    MigrateSpec("json+zlib"),
]
DRAWN = ["migrate"] * 4 + ["tier"] * 4 + ["recall", "recall", "sweep"]
CANCELLED = "cancelled "
"""Prefix of the kinds of jobs that were cancelled."""

LONGEST_CHAIN = 3
"""Most deltas in a chain: two, and one more until a migration has gone through all versions of its row."""


def document(key: CellKey) -> Any:
    return {"of": str(key.row_key), "legs": [{"from": f"A{n}", "to": n / 7} for n in range(20)], "n": key.ref_key}


def unsound(cells: Iterable[StoredCell]) -> list[str]:
    """Return in words which deltas depend on a version that is cold, erased or missing, or on too many."""
    bodies = {cell.key: bytes(cell.body) for cell in cells}
    faults = []
    for key, body in bodies.items():
        steps, base, depends_on = 0, key, body
        while is_delta(depends_on):
            base, steps = CellKey(key.row_key, key.column_name, base_of(depends_on)), steps + 1
            depends_on = bodies.get(base, b"")
        if steps and (not depends_on or is_erased(depends_on) or is_reference(depends_on)):
            state = describe_body(depends_on).name if depends_on else "missing"
            faults.append(f"{key} is a delta, and {base} is {state}")
        if steps > LONGEST_CHAIN:
            faults.append(f"{key} takes {steps} deltas")
    return faults


class Kills:
    """A datastore of two clusters, and the model of its versions.

    Args:
        store: the datastore, as root, with two shards; shard 1 moves.
        url: its URL.
        seed: seed of everything that is drawn.
        cold: folder of its cold files.
        servers: the clusters' servers if they may be killed; the second one has a replica.

    Attributes:
        faults: what was wrong so far.
        killed: number of kills, by kind of job; "server" of servers, "stalled" of processes that go on later,
            "cancelled" of jobs.
        codecs: number of bodies found, by codec.
    """

    def __init__(self, store: Datastore, url: str, seed: int, cold: Path, servers: Sequence[LocalServer] = ()) -> None:
        self.store, self._url, self._chance = store, url, random.Random(seed)
        self.faults: list[str] = []
        self.killed: Counter[str] = Counter()
        self.codecs: Counter[str] = Counter()
        self._cold, self._servers = cold, list(servers)
        self._stalled: list[Runner] = []
        self._live: set[CellKey] = set()
        self._erased: dict[CellKey, int] = {}
        self._sent: Counter[str] = Counter(dict.fromkeys(KINDS, 40))
        self._rows: list[uuid.UUID] = []
        internals_of(store).cold.set_store(str(cold), 0)
        while len(self._rows) < 6:
            row = uuid.uuid5(uuid.NAMESPACE_OID, f"{seed} {len(self._rows)} {self._chance.random()}")
            if store.shard_of(row) == (STAYS, MOVES)[len(self._rows) % 2]:
                self._rows.append(row)
        self._put(30)

    @property
    def home(self) -> str:
        """Name of the cluster that has the shard that moves."""
        internals = internals_of(self.store)
        return internals.shards.router.again(internals.shards.routing).topology.cluster_of(MOVES).name

    def round(self, *, fail_over: bool = False) -> None:
        """Start two or three jobs, most of which die, compare, complete the jobs, and compare again.

        A server is killed in some rounds, if there are any that may be, and a job cancelled in others; with
        ``fail_over``, a server is replaced.
        """
        self._put(3)
        self._shards().router.again(self._shards().routing)
        kind, number, erased = self._erasure()
        pending = dict.fromkeys(erased, number)
        erasure = KINDS[kind].begin_or_join(self.store, ErasureSpec(number), (STAYS, MOVES))[0]
        jobs = {kind: erasure.job_id, **self._begin(movable=not fail_over)}
        struck = bool(self._servers) and not fail_over and self._chance.random() < 0.08
        runners = self._start(jobs, may_stall=not struck and not fail_over)
        if fail_over:
            self._wait(runners.values(), self._chance.randrange(40))
            self._fail_over()
        elif struck:
            self._wait(runners.values(), self._chance.randrange(40))
            self._restart(self._chance.randrange(len(self._servers)))
        elif self._chance.random() < 0.3:
            self._cancel(jobs, runners)
        for runner in self._stalled:
            runner.resume()
        self._join(runners, *([1] if struck or fail_over else []))
        for runner in self._stalled:
            runner.join(1)
        self._stalled = [runner for runner in runners.values() if runner.stalled]
        left = self._left(jobs)
        for _ in range(self._chance.randrange(3)):
            # Successors die, too.
            for job_id in left.values():
                JobStore(self.store).leases.release_dead(job_id, "")
            self._join(self._start(left))
            left = self._left(left)
        # A mover may die while neither table has the name of the shard's.
        if "move" not in left:
            self.faults += self._differences(f"{self.killed.total()} kills, {list(jobs)} begun", pending)
        complete(self.store, self._url, *jobs.values())
        self._live -= set(erased)
        self._erased |= pending
        self.faults += self._differences(f"{self.killed.total()} kills, {list(jobs)} completed", {})
        self.faults += self._erased_in_files()
        for behind in moves.left_behind(self.store, [MOVES]):
            if not compare(self.store, behind).same:
                self.faults.append("the moved shard differs from its old table")
            self._read_table(behind.node, behind.tables[-1])
            moves.drop(self.store, behind)

    def close(self) -> None:
        """Kill processes that are stalled."""
        for runner in self._stalled:
            runner.kill()

    def found(self) -> list[str]:
        """Return what is wrong now: documents, stored bodies, deltas, cold files and their states."""
        cache().clear()
        faults = self._differences("at the end", {})
        faults += [f"check: {fault}" for fault in check(self.store, cold=True).faults.items()]
        faults += [f"verify: {fault}" for fault in verify(self.store, (STAYS, MOVES)).faults]
        live = {file.name for shard in (STAYS, MOVES) for file in ShardFiles(self._shards(), shard).all("live")}
        there = {str(path.relative_to(self._cold)) for path in self._cold.rglob("*") if path.is_file()} - {MARKER}
        faults += [f"{name} is live, and does not exist" for name in live - there]
        return faults + [f"{name} is left for good" for name in there - live]

    def check(self) -> None:
        """Let stalled processes end, sweep cold files, as if they were unused for days, and note what is wrong."""
        for runner in self._stalled:
            runner.resume()
            runner.join(1)
        self._stalled = []
        shards = self._shards()
        for shard in (STAYS, MOVES):
            table = f"`{shards.database(shard)}`.cold_file"
            shards.execute(shard, f"UPDATE {table} SET changed_at=changed_at-INTERVAL 3 DAY".encode())
        for _ in range(2):  # A file is deleted by a later sweep than the one that finds it unused.
            SWEEP.run(self.store, SweepSpec(0))
        self.faults += self.found()

    def damage(self) -> Iterator[str]:
        """Do harm by SQL or to a cold file, one after the other, and yield what was done."""
        self._put(5)  # Everything else may be cold.
        MIGRATE.run(self.store, SPECS[0])
        TIER.run(self.store, TierSpec(("A 0",), server_time(self.store).isoformat(), file_text_bytes=20_000))
        stored = [cell for shard in (STAYS, MOVES) for cell in self._stored(shard)]
        delta = next(cell for cell in stored if is_delta(cell.body))
        base = next(cell for cell in stored if cell.key == (*delta.key[:2], base_of(delta.body)))
        cold = next(cell for cell in stored if is_reference(cell.body))
        other = next(cell for cell in stored if is_reference(cell.body) and cell.body[2:18] != cold.body[2:18])
        place, (text, _) = reference_of(cold.body), exact_text(cold.body)
        bodies = {
            "a base was removed": (base, b"\xc1\xf0" + bytes(14)),
            "a base was replaced": (base, b'{"n":[]}'),
            "a base is cold": (base, bytes(cold.body)),
            "a body was replaced without a file": (cold, reference_body(place.file + 1, place.group, place.row, text)),
            "a reference was replaced by another one": (cold, bytes(other.body)),
            "a document was replaced": (cold, b'{"n":[]}'),
        }
        for what, (cell, body) in bodies.items():
            self._write(cell, body)
            yield what
            self._write(cell, bytes(cell.body))
        self._move_version(cold, 10**9)
        yield "a version was lost"
        self._move_version(cold, -(10**9))
        (file,) = ShardFiles(self._shards(), cold.shard).all("live", file_id=place.file)
        path = self._cold / file.name
        content = path.read_bytes()
        yield from self._damaged_files(path, content)
        path.write_bytes(content)
        yield from self._stray(path)

    @staticmethod
    def _damaged_files(path: Path, content: bytes) -> Iterator[str]:
        table = pq.read_table(pa.BufferReader(content))
        texts = [text and text.replace("A1", "B1") for text in table["body"].to_pylist()]
        column = table.schema.get_field_index("body")
        pq.write_table(table.set_column(column, table.schema.field("body"), pa.array(texts, pa.string())), path)
        yield "documents were changed in a file"
        path.write_bytes(content[:-1] + b"?")
        yield "a file was damaged"
        path.unlink()
        yield "a file was deleted"

    @staticmethod
    def _stray(path: Path) -> Iterator[str]:
        stray = path.with_name("stray")
        stray.touch()
        yield "a file was left"
        stray.unlink()

    # Steps of a round

    def _put(self, versions: int) -> None:
        now = server_time(self.store)
        keys = [
            CellKey(row, column, self._chance.randrange(10**6))
            for row in self._rows
            for column in COLUMNS
            for _ in range(versions)
        ]
        fresh = sorted({key for key in keys if key not in self._erased and key not in self._live})
        ages = [timedelta(self._chance.uniform(0, 10)) for _ in fresh]
        self.store.put_cells(
            [NewCell(*key, document(key), created_at=now - age) for key, age in zip(fresh, ages, strict=True)]
        )
        self._live |= set(fresh)

    def _erasure(self) -> tuple[str, int, list[CellKey]]:
        """Return the kind of a job that erases, the number of its erasure, and which versions it erases."""
        if self._chance.random() < 0.2:
            column, kept = self._chance.choice(COLUMNS), self._chance.randrange(10, 25)
            policies = internals_of(self.store).policies
            policies.set(Policy(column, keep_versions=kept))
            number = begin_retention(self.store)
            policies.remove(column)
            assert number is not None
            everything = sorted(self._live | self._erased.keys(), reverse=True)
            place = {key: sum(key[:2] == other[:2] for other in everything[:n]) for n, key in enumerate(everything)}
            return "retain", number, [key for key in self._live if key.column_name == column and place[key] >= kept]
        asked = self._victims()
        targets = [target(key.row_key, key.column_name, key.ref_key) for key in asked]
        return "erase", internals_of(self.store).erasures.ledger.intend("test", targets), asked

    def _victims(self) -> list[CellKey]:
        """Return versions to erase, bases among them; sometimes most of a row and column."""
        live = sorted(self._live)
        chosen = set(self._chance.sample(live, 12))
        if self._chance.random() < 0.2:
            whole = self._chance.choice(live)
            chosen |= {key for key in live if key[:2] == whole[:2] and self._chance.random() < 0.8}
        return sorted(chosen)

    def _begin(
        self, shards: Collection[int] = (STAYS, MOVES), beside: Collection[str] = (), *, movable: bool = True
    ) -> dict[str, int]:
        """Begin one job per shard that excludes others, or one of both shards, and none of the kinds ``beside``.

        Returns:
            The jobs by kind.
        """
        drawn = {shard: self._chance.choice([kind for kind in DRAWN if kind not in beside]) for shard in shards}
        if movable and MOVES in drawn and self._chance.random() < 0.35:
            drawn[MOVES] = "move"
        specs: dict[str, Any] = {"recall": RecallSpec(), "sweep": SweepSpec(0)}
        jobs = {}
        for kind in dict.fromkeys(drawn.values()):
            if kind == "migrate":
                specs[kind] = self._chance.choice(SPECS)
            elif kind == "tier":
                rules = tuple(f"{column} {self._chance.choice((0, 0, 2, 5))}" for column in COLUMNS)
                size = self._chance.choice((4_000, 40_000))
                specs[kind] = TierSpec(rules, server_time(self.store).isoformat(), file_text_bytes=size)
            elif kind == "recall":
                specs[kind] = RecallSpec(self._chance.choice(((), ("A",))))
            elif kind == "move":
                internals = internals_of(self.store)
                home = internals.topology.cluster_of(MOVES)
                to = next(each.name for each in internals.topology.clusters if each != home)
                specs[kind] = MoveSpec(to, accounts=False)
            chosen = [shard for shard in drawn if drawn[shard] == kind]
            jobs[kind] = KINDS[kind].begin_or_join(self.store, specs[kind], chosen)[0].job_id
        return jobs

    def _cancel(self, jobs: dict[str, int], runners: dict[str, Runner]) -> None:
        """Cancel a job, and replace it by others on its shards: its process works on beside them until it notices."""
        kind = self._chance.choice([kind for kind in jobs if kind != "move"])
        self._wait([runners[kind]], self._chance.randrange(self._sent[kind]))
        job_store = JobStore(self.store)
        job, shards = job_store.job(jobs[kind]), job_store.numbers(jobs[kind])
        if not job_store.change_state(job.job_id, ("running",), "cancelled", "by a test"):
            return
        self.killed["cancelled"] += 1
        runners[f"{CANCELLED}{kind}"] = runners.pop(kind)
        del jobs[kind]
        if kind in ("erase", "retain"):
            spec = KINDS[kind].spec.of(job)
            successors = {kind: KINDS[kind].begin_or_join(self.store, spec, shards)[0].job_id}
        else:
            successors = self._begin(shards, jobs)
        jobs |= successors
        runners |= self._start(successors, may_stall=True)

    def _start(self, jobs: Mapping[str, int], *, may_stall: bool = False) -> dict[str, Runner]:
        """Start a process for each job; most of them will die, and some stall until the next round."""
        runners = {}
        for kind, job_id in jobs.items():
            fatal = self._chance.randrange(self._sent[kind]) if self._chance.random() < 0.9 else None
            stalls = may_stall and kind != "move" and self._chance.random() < 0.2
            runners[kind] = Runner(partial(run_job, self._url, job_id), fatal, stalls=stalls)
        return runners

    def _left(self, jobs: Mapping[str, int]) -> dict[str, int]:
        """Return the jobs that are not complete."""
        return {kind: job_id for kind, job_id in jobs.items() if JobStore(self.store).job(job_id).unfinished}

    def _join(self, runners: Mapping[str, Runner], *statuses: int) -> None:
        """Wait for the end of processes, and count those that were killed.

        If a mover died, others may wait ten minutes for a shard that has no table now; they are killed earlier.
        """
        until_s = math.inf
        for kind in sorted(runners, key="move".__ne__):
            runner = runners[kind]
            allowed = (1,) if kind.startswith(CANCELLED) else statuses
            while runner.running and not runner.stalled:
                if time.monotonic() > until_s:
                    runner.kill()
                time.sleep(0.002)
            if kind == "move" and runner.killed:
                until_s = time.monotonic() + 10
            self.killed["stalled" if runner.stalled else kind] += runner.stalled or runner.killed
            self._sent[kind] = max(self._sent[kind], runner.sent if runner.stalled else runner.join(*allowed))

    @staticmethod
    def _wait(runners: Iterable[Runner], steps: int) -> None:
        """Wait until each of some processes has made a number of steps, has stalled, or has ended."""
        while any(runner.running and not runner.stalled and runner.sent < steps for runner in runners):
            time.sleep(0.002)

    def _restart(self, which: int) -> None:
        """Kill a server, and start it again."""
        local_servers.kill(self._servers[which])
        self._servers[which] = local_servers.start(self._servers[which])
        self.killed["server"] += 1

    def _fail_over(self) -> None:
        """Kill the second server, while it has nothing that its replica lacks, and promote the replica."""
        primary = self._servers[1]
        (replica,) = primary.replicas
        with pymysql.connect(unix_socket=str(primary.socket), user="root", ssl_disabled=True) as locked:
            locked.cursor().execute("FLUSH TABLES WITH READ LOCK")
            replication.wait_until_replicating(primary, replica, print)
            local_servers.kill(primary)
        sql(replica, f"STOP {word(replica)}", f"RESET {word(replica)} ALL", "SET GLOBAL read_only = 0")
        nodes.set_primary(self._url, "cluster-2", replica.url, timeout_s=1)
        self._servers = [self._servers[0]]
        self.killed["failover"] += 1
        self._shards().router.again(self._shards().routing)

    # What must hold

    def _differences(self, when: str, pending: dict[CellKey, int]) -> list[str]:
        """Read every version; those in ``pending`` may be erased or not."""
        faults, store = [], self.store
        try:
            cells = [cell for shard in (STAYS, MOVES) for cell in store.iter_shard(shard)]
            found = {cell.key: cell.body for cell in cells}
            for row in self._rows:
                for column in COLUMNS:
                    versions = store.get_versions(row, column)
                    wrong = [cell.key for cell in versions if found.get(cell.key) != cell.body]
                    faults += [f"{when}: {key} differs between calls" for key in wrong]
            stored = [cell for shard in (STAYS, MOVES) for cell in self._stored(shard)]
        except SchemalessError as error:
            return [f"{when}: {error!r}"]
        self.codecs.update(describe_body(cell.body).name for cell in stored)
        faults += [f"{when}: {fault}" for fault in unsound(stored)]
        if len(cells) != len(found) or found.keys() != self._live | self._erased.keys():
            faults.append(f"{when}: {len(cells)} cells instead of {len(self._live) + len(self._erased)}")
        for key in self._live:
            allowed = [document(key), *([Erased(pending[key])] if key in pending else [])]
            if found.get(key) not in allowed:
                faults.append(f"{when}: {key} is {found.get(key)!r:.80}")
        for key, number in self._erased.items():
            if found.get(key) != Erased(number):
                faults.append(f"{when}: {key} is {found.get(key)!r:.80}, and was erased")
        return faults

    def _erased_in_files(self) -> list[str]:
        """Look for documents of erased versions in the cold files."""
        faults = []
        for path in self._cold.rglob("*.parquet"):
            rows = pq.read_table(path, columns=["row_key", "column_name", "ref_key", "body"]).to_pylist()
            keys = [
                CellKey(uuid.UUID(row["row_key"]), row["column_name"], row["ref_key"]) for row in rows if row["body"]
            ]
            faults += [f"{path.name} has {key}, which was erased" for key in keys if key in self._erased]
        return faults

    def _shards(self) -> Shards:
        return internals_of(self.store).shards

    def _stored(self, shard: int) -> Sequence[StoredCell]:
        return self.store.get_stored_cells_for_shard(shard, limit=100_000).cells

    def _write(self, cell: StoredCell, body: bytes) -> None:
        statement = f"UPDATE `{self._shards().database(cell.shard)}`.cell SET body=x'{body.hex()}'"
        self._shards().execute(cell.shard, f"{statement} WHERE added_id={cell.added_id}".encode())

    def _move_version(self, cell: StoredCell, by: int) -> None:
        statement = f"UPDATE `{self._shards().database(cell.shard)}`.cell SET ref_key=ref_key+({by})"
        self._shards().execute(cell.shard, f"{statement} WHERE added_id={cell.added_id}".encode())

    def _read_table(self, node: Any, name: str) -> None:
        internals = internals_of(self.store)
        database = internals.shards.database(MOVES)
        sql = b"SELECT %b FROM %b" % (CELL, quoted_table(database, name))
        rows = internals.shards.pool_for(node).run(
            lambda connection: with_bases(connection, database, connection.rows(sql), name)  # type: ignore[arg-type]
        )
        for row in internals.cold_bodies.completed(rows, partial(internals.shards.run, MOVES), MOVES):
            cell = internals.reader.stored(row, MOVES)
            if not cell.erased and cell.decode().body != document(cell.key):
                self.faults.append(f"{cell.key} differs in the old table")
