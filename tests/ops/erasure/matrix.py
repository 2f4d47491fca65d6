"""Erasures that die beside writers, a reader, followers, a mover that dies too, and a migration; and what must hold.

A plain model has every cell that was put and every key whose erasure was asked for. After each round it is compared
with the cells, the log and the ledger, and with every row of every table of the shards on all servers.
"""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple, Self

import schemaless
from schemaless.cell import CellKey
from schemaless.codec.envelope import tombstone
from schemaless.ops.admin.indexes import indexes_of
from schemaless.ops.erasure.archives import erase_from_archives
from schemaless.ops.erasure.job import ERASE, ErasureSpec
from schemaless.ops.erasure.status import status
from schemaless.ops.erasure.verify import verify
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.move import run as moves
from schemaless.ops.move.compare import compare
from schemaless.ops.move.spec import MoveSpec
from schemaless.store.erasures.ledger import Target, target
from schemaless.store.followers.worker import Worker
from schemaless.store.indexes.definition import define
from schemaless.store.internals import internals_of
from schemaless.store.triggers.calling import Calls
from schemaless.store.triggers.supervision import prepare
from tests.movers import query
from tests.processes import PATIENCE_S, Runner, complete, run_job
from tests.store.followers.workers import CALM

REASON = "gdpr-art-17"
STAYS, MOVES = 0, 1
"""The shard that is re-encoded, and the one that moves back and forth."""

_PAUSE_S = 0.05
"""Pause between two calls of a client, in seconds; a move of a busier shard rests most of the time."""


class Sent(NamedTuple):
    """Number of statements that the first runner of each job of a round has sent."""

    erase: int
    move: int


class Matrix:
    """A datastore of two clusters under traffic, and the model of its cells; a context manager.

    Args:
        url: the datastore, as root; shard 1 can be moved.
        seed: seed of everything that is drawn.
        archive: folder for originals of migrations.

    Attributes:
        faults: what was wrong so far.
    """

    def __init__(self, url: str, seed: int, archive: Path) -> None:
        self.faults: list[str] = []
        self._url = url
        self._archive = archive
        self._chance = random.Random(seed)
        self._prefix = f"matrix {seed} {url}"
        self._numbers = count()
        self._cells: dict[CellKey, tuple[int, Any]] = {}
        self._erased: dict[CellKey, int] = {}
        self._known: list[uuid.UUID] = []
        self._called: set[CellKey] = set()
        self._forgotten: set[tuple[CellKey, int]] = set()
        self._reads = self._migrations = self._moves = self._kills = 0
        self._stop = threading.Event()
        self._traffic = ExitStack()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.store = stack.enter_context(schemaless.connect(self._url, read_timeout_s=60))
            internals_of(self.store).shards.move_wait_s = 60
            indexes_of(self.store).create(define("people", "BASE.n:int", ["BASE.who:text(80)"]))
            worker = self._worker()
            stack.enter_context(worker.membership)
            stack.push(self._traffic)
            self._traffic.enter_context(
                self._threads(lambda: self._follow(worker), self._write, self._read, self._migrate)
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # Traffic

    @contextmanager
    def _threads(self, *loops: Callable[[], None]) -> Iterator[None]:
        def run(work: Callable[[], None]) -> None:
            try:
                while not self._stop.wait(_PAUSE_S):
                    work()
            except BaseException as error:  # noqa: BLE001 - every error of the traffic is a fault
                self.faults.append(f"{work.__name__}: {error!r}")

        threads = [threading.Thread(target=run, args=(work,)) for work in loops]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()

    def _worker(self) -> Worker:
        @schemaless.trigger(
            column="BASE",
            start="beginning",
            on_erase=lambda erased, call: self._forgotten.add((erased.key, erased.erasure)),
        )
        def keep(cell: schemaless.Cell, call: object) -> None:
            if cell.erased:
                self.faults.append(f"the trigger was called for erased cell {cell.key}")
            self._called.add(cell.key)

        prepare(self.store, keep)
        handlers = [*indexes_of(self.store).handlers(), Calls(keep, self.store)]
        access = internals_of(self.store).follower_access
        return Worker(access, handlers, "one", timing=CALM, stop=self._stop, listen=False)

    def _follow(self, worker: Worker) -> None:
        worker.membership.renew()
        for lease in list(worker.leases.held.values()):
            lease.wait.until_s = lease.erasure_wait.until_s = 0.0
        worker.schedule.poll_now()
        worker.turn()

    def _write(self) -> None:
        self._put(self._new_row(), "LOG", 1)

    def _read(self) -> None:
        row = random.choice(self._known) if self._known else None
        if row is None:
            return
        cell = self.store.get_cell_latest(row, "BASE")
        self._reads += 1
        wrong = cell is not None and cell.body != self._cells[cell.key][1]
        if wrong or (cell is not None and cell.ref_key != 2):
            self.faults.append(f"read {cell}")
        gone = cell is None and not any(CellKey(row, "BASE", version) in self._erased for version in (1, 2))
        if gone:
            self.faults.append(f"{row} cannot be read, and its erasure was not asked for")

    def _migrate(self) -> None:
        codec = ("json+none", "msgpack+zlib")[next(self._numbers) % 2]
        outcome = migrate.run(self.store, MigrateSpec(codec, columns=("BASE",), archive=str(self._archive)), [STAYS])
        self.faults += [f"migration: {failure}" for failure in outcome.failures]
        self._migrations += 1

    def _new_row(self) -> uuid.UUID:
        return uuid.uuid5(uuid.NAMESPACE_OID, f"{self._prefix} {next(self._numbers)}")

    def _rows_of(self, shard: int, number: int) -> list[uuid.UUID]:
        rows = (row for row in iter(self._new_row, None) if self.store.shard_of(row) == shard)
        return list(islice(rows, number))

    def _put(self, row: uuid.UUID, column: str, version: int) -> None:
        document = {"who": secret(CellKey(row, column, version)), "n": row.int % 1_000, "list": [version, "x" * 40]}
        put = self.store.put_cell(row, column, version, document)
        self._cells[put.key] = put.added_id, document

    # Rounds

    def round(self, erase_dies: int | None = None, move_dies: int | None = None) -> Sent:
        """Erase some of the cells of new rows while a shard moves, and compare everything with the model.

        Args:
            erase_dies: number of the statement before which the eraser dies, or None.
            move_dies: number of the statement before which the mover dies, or None.
        """
        rows = [row for shard in (STAYS, MOVES) for row in self._rows_of(shard, 5)]
        for row in rows:
            for column, version in (("BASE", 1), ("BASE", 2), ("LOG", 7)):
                self._put(row, column, version)
        if not self._moves:
            self._await_migrations()  # of cells that are erased then, so that the archive has originals to remove
        targets = [
            each
            for whole, column, version in (rows[:3], rows[5:8])
            for each in (target(whole), target(column, "BASE"), target(version, "BASE", 2))
        ]
        asked = [key for key in list(self._cells) if any(covers(each, key) for each in targets)]
        internals = internals_of(self.store)
        number = internals.erasures.ledger.intend(REASON, targets)
        self._erased |= dict.fromkeys(asked, number)
        self._known += rows
        erasing, _ = ERASE.begin_or_join(self.store, ErasureSpec(number), [STAYS, MOVES])
        internals.shards.router.again(internals.shards.routing)
        to = next(each.name for each in internals.topology.clusters if each != internals.topology.cluster_of(MOVES))
        moving, _ = moves.MOVE.begin_or_join(self.store, MoveSpec(to, accounts=False), [MOVES])
        eraser = Runner(partial(run_job, self._url, erasing.job_id), erase_dies)
        time.sleep(self._chance.uniform(0, 0.3))
        mover = Runner(partial(run_job, self._url, moving.job_id), move_dies)
        sent = Sent(eraser.join(), mover.join())
        self._moves += 1
        self._kills += eraser.killed + mover.killed
        complete(self.store, self._url, erasing.job_id, moving.job_id)
        self._check(number, asked)
        for left in moves.left_behind(self.store, [MOVES]):
            if not compare(self.store, left).same:
                self.faults.append(f"erasure {number}: the moved shard differs from its old table")
            moves.drop(self.store, left)
        return sent

    def _await_migrations(self) -> None:
        """Wait for two whole runs, one to each codec."""
        enough = self._migrations + 3
        until_s = time.monotonic() + PATIENCE_S
        while self._migrations < enough:
            if time.monotonic() > until_s:
                self.faults.append("migrations do not end")
                return
            time.sleep(0.02)

    def _check(self, number: int, asked: list[CellKey]) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while status(self.store, number).waiting and time.monotonic() < until_s:
            time.sleep(0.02)
        entry = internals_of(self.store).erasures.ledger.entry(number)
        if (entry.cells, entry.executed_at is not None) != (len(asked), True):
            self.faults.append(f"erasure {number}: the ledger has {entry}, and {len(asked)} cells were asked for")
        # Migrations add originals to the archive, which is erased at the end.
        left = [fault for fault in verify(self.store, number).faults if not fault.startswith("originals in")]
        self.faults += [f"erasure {number}: {fault}" for fault in left]
        self.faults += [f"erasure {number}: {fault}" for fault in self.compare()]

    def compare(self) -> list[str]:
        """Return how cells, log, followers and all tables of the shards differ from the model."""
        store = self.store
        before = dict(self._cells)
        stored = {cell.key: cell for shard in range(store.shard_count) for cell in store.iter_shard(shard)}
        faults = [f"{key} is missing" for key in before if key not in stored]
        for key, (added_id, document) in before.items():
            cell = stored.get(key)
            body = schemaless.Erased(self._erased[key]) if key in self._erased else document
            if cell is not None and (cell.added_id, cell.body) != (added_id, body):
                faults.append(f"{key} is {cell.body} under {cell.added_id}, not {body} under {added_id}")
        log = sorted(
            (event.key, event.erasure, event.added_id)
            for shard in range(store.shard_count)
            for event in store.get_erased_for_shard(shard, limit=100_000)
        )
        if log != sorted((key, number, before[key][0]) for key, number in self._erased.items()):
            faults.append(f"the log has {len(log)} events for {len(self._erased)} erased cells, or others")
        of_base = {(key, number) for key, number in self._erased.items() if key.column_name == "BASE"}
        faults += [f"on_erase was not called for {key}" for key, _ in of_base - self._forgotten]
        secrets = {secret(key).encode() for key in self._erased}
        return faults + [f"{place} has an erased document" for place in self._places() if self._has(place, secrets)]

    def _places(self) -> Iterator[tuple[Any, str]]:
        """Yield the server and name of every table of the shards."""
        internals = internals_of(self.store)
        for cluster in internals.topology.clusters:
            for (database,) in query(cluster.primary, f"SHOW DATABASES LIKE '{self.store.name}\\_%'"):
                for (table,) in query(cluster.primary, f"SHOW TABLES FROM `{database}`"):
                    yield cluster.primary, f"`{database}`.`{table}`"

    def _has(self, place: tuple[Any, str], secrets: set[bytes]) -> bool:
        node, table = place
        rows = query(node, f"SELECT * FROM {table}")
        if ".`cell" in table:
            rows = [(json.dumps(self.store.decode(row[4]), default=repr),) for row in rows]
        text = b"\n".join(value if isinstance(value, bytes) else str(value).encode() for row in rows for value in row)
        return any(each in text for each in secrets)

    def finish(self) -> list[str]:
        """End the traffic, erase originals from the archives, and return all faults."""
        of_base = {key for key in list(self._cells) if key.column_name == "BASE"}
        until_s = time.monotonic() + PATIENCE_S
        while (lacking := of_base - self._called - self._erased.keys()) and time.monotonic() < until_s:
            time.sleep(0.02)
        self.faults += [f"the trigger was not called for {key}" for key in lacking]
        self._traffic.close()
        erased = erase_from_archives(self.store, [self._archive], execute=True)
        if not erased or any(file.skipped for file in erased):
            self.faults.append(f"originals of erased cells in archives: {erased}")
        for number in sorted({*self._erased.values()}):
            found = verify(self.store, number, archive_folders=[self._archive])
            if not found.clean or found.status.state != "verified":
                self.faults.append(f"erasure {number} at the end: {found.status.state}, {dict(found.faults)}")
        return self.faults

    def summary(self) -> str:
        """Return what was done, in numbers."""
        return (
            f"{len(self._cells):,} cells, {len(self._erased):,} of them erased, {self._moves} moves, "
            f"{self._migrations} migrations, {self._reads:,} reads, {self._kills} kills"
        )

    # Controls

    def damage(self) -> Iterator[str]:
        """Do harm by SQL, one kind at a time, and yield what was done."""
        shards = internals_of(self.store).shards

        def run(key: CellKey, statement: str) -> None:
            shard = self.store.shard_of(key.row_key)
            shards.execute(shard, statement.format(database=shards.database(shard), **place(key)).encode())

        gone, *_ = self._erased
        kept = next(key for key in self._cells if key not in self._erased)
        where = "WHERE row_key=x'{row}' AND column_name='{column}' AND ref_key={ref}"
        document = json.dumps(self._cells[gone][1]).encode().hex()
        for what, key, change, undo in (
            ("an erased cell survives", gone, f"body=x'{document}'", f"body=x'{tombstone(self._erased[gone]).hex()}'"),
            ("another cell is erased", kept, f"body=x'{tombstone(1).hex()}'", None),
            ("another cell is changed", kept, "body='[1]'", None),
        ):
            run(key, f"UPDATE `{{database}}`.cell SET {change} {where}")
            yield what
            undo = undo or f"body=x'{json.dumps(self._cells[kept][1]).encode().hex()}'"
            run(key, f"UPDATE `{{database}}`.cell SET {undo} {where}")
        columns = "name, added_id, row_key, column_name, ref_key, attempts, error"
        values = f"'x', 1, x'{{row}}', '{{column}}', {{ref}}, 1, '{secret(gone)}'"
        run(gone, f"INSERT INTO `{{database}}`.parked ({columns}) VALUES ({values})")
        yield "a parked cell quotes an erased document"
        run(gone, "DELETE FROM `{database}`.parked WHERE name='x'")


def place(key: CellKey) -> dict[str, object]:
    """Return the parts of a key as SQL has them."""
    return {"row": key.row_key.hex, "column": key.column_name, "ref": key.ref_key}


def secret(key: CellKey) -> str:
    """Return a text that only the document of this cell has."""
    return f"{key.row_key}/{key.column_name}/{key.ref_key}@example.org"


def covers(each: Target, key: CellKey) -> bool:
    """Return whether a cell is among those of a target."""
    row, column, version = each
    return key.row_key.bytes == row and column in ("", key.column_name) and version in (-1, key.ref_key)
