"""A state machine compares a datastore that has deltas and cold cells with a dict, after each step."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import schemaless
from schemaless import Datastore, NewCell, RowHeld
from schemaless.codec.envelope import describe_body
from schemaless.ops.erasure import job
from schemaless.ops.erasure.job import ErasureSpec, finish_erasure
from schemaless.ops.erasure.replay import replay, undone
from schemaless.ops.jobs.throttle import Thresholds
from schemaless.ops.migrate import rebuild
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.migrate.verify import check
from schemaless.ops.move import run as moves
from schemaless.ops.move.compare import compare
from schemaless.ops.move.spec import MoveSpec
from schemaless.ops.tier.cooling import TIER, TierSpec
from schemaless.ops.tier.recall import RECALL, RecallSpec
from schemaless.ops.tier.survey import verify
from schemaless.ops.tier.sweep import SWEEP, SweepSpec
from schemaless.store.cells.bases import with_bases
from schemaless.store.erasures.retention import Policy
from schemaless.store.internals import internals_of
from schemaless.wire.connection import Connection
from schemaless.wire.sql.parts import CELL, quoted_table
from tests.ops.jobs.kills import unsound

pytestmark = [pytest.mark.mysql, pytest.mark.twice]

SHARD = 1
COLUMNS = ("A", "B")
Key = tuple[uuid.UUID, str, int]

places = st.integers(0, 1)
columns = st.sampled_from(COLUMNS)
ref_keys = st.integers(0, 30) | st.integers(2**63 - 40, 2**63 - 1)
kinds = st.sampled_from(["usual"] * 6 + ["huge", "nan", "other", "short"])
batches = st.dictionaries(ref_keys, kinds, min_size=8, max_size=25)
codecs = st.sampled_from([None, "legacy", "json+zlib", "packed+zstd", "msgpack+none"])
specs = st.sampled_from(
    [(to, history) for to in ("msgpack+zlib", "packed+zstd") for history in (True, True, None, False)]
    + [("msgpack+zstd", None), ("json+zlib", None), ("legacy", None)]
)
BEGIN = datetime.now(UTC)
LATER = (BEGIN + timedelta(hours=12)).isoformat()
ages = st.sampled_from([0, 0, 2, 5])
"""How old versions are, or have to be to become cold, in days."""

positions = st.integers(0, 40)
"""Number of the statement about a copy before which an erasure begins."""


def literal(value: object) -> bytes:
    """Return a value of a row as SQL."""
    if isinstance(value, bytes):
        return b"x'%b'" % value.hex().encode()
    return b"NULL" if value is None else repr(value if isinstance(value, int) else str(value)).encode()


def document(kind: str, ref_key: int) -> object:
    """Return a version; most have much in common."""
    legs = [{"from": f"A{number}", "to": number / 7} for number in range(25)]
    if kind == "other":
        return [ref_key, *range(300)]
    if kind == "short":
        return ref_key
    extra = {"usual": True, "huge": 2**70, "nan": float("nan")}[kind]
    return {"legs": legs, "n": ref_key, "extra": extra}


class History(RuleBasedStateMachine):
    """Compares the versions of a shard with ``model``: their documents as text, or None for erased ones.

    ``held`` has the rows that are under a legal hold, ``saved`` a backup of the shard and of the model, ``dated`` the
    versions with an earlier time than that of their put, and ``erased`` the targets of erasures.
    """

    store: Datastore
    new_row: Callable[[], uuid.UUID]
    interject: Callable[[int, Callable[[], object]], None]
    seen: set[str]

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[Key, str | None] = {}
        self.rows: list[uuid.UUID] = []
        self.held: set[uuid.UUID] = set()
        self.saved: tuple[dict[str, list[Any]], dict[Key, str | None]] | None = None
        self.dated: set[Key] = set()
        self.erased: set[tuple[uuid.UUID, str, int | None]] = set()

    def _rows(self):
        return (row for row in iter(self.new_row, None) if self.store.shard_of(row) == SHARD)

    @initialize(batches=st.lists(st.tuples(columns, batches), min_size=2, max_size=3), to=specs)
    def fill(self, batches, to) -> None:
        self.rows = [row for row, _ in zip(self._rows(), range(2), strict=False)]
        for place, (column, batch) in enumerate(batches):
            self.put(place % 2, column, batch, None)
        self.migrate((to[0], None))
        self.migrate(("msgpack+zlib", True))
        self.tier("A", 0, 30_000)

    @rule(place=places, column=columns, batch=batches, codec=codecs, age=ages)
    def put(self, place, column, batch, codec, age=0) -> None:
        """Put new versions, above, between and below others; puts of the same ones change nothing."""
        created_at = BEGIN - timedelta(age) if age else None
        cells = [
            NewCell(self.rows[place], column, ref_key, document(kind, ref_key), created_at=created_at)
            for ref_key, kind in batch.items()
            if (self.rows[place], column, ref_key) not in self.model
        ]
        self.store.put_cells(cells, codec=codec)
        put = {(cell.row_key, cell.column_name, cell.ref_key): repr(cell.body) for cell in cells}
        self.model |= put
        self.dated = self.dated | put.keys() if age else self.dated - put.keys()

    @rule(to=specs | st.just(("msgpack+zlib", True)))
    def migrate(self, to) -> None:
        migrate.run(self.store, MigrateSpec(to[0], history=to[1]), shards=[SHARD])

    @rule(column=columns, age=ages, file_bytes=st.sampled_from([3_000, 30_000]))
    def tier(self, column, age, file_bytes) -> None:
        TIER.run(self.store, TierSpec((f"{column} {age}",), LATER, file_text_bytes=file_bytes), [SHARD])

    @rule(chosen=st.sampled_from([(), ("A",)]))
    def recall(self, chosen) -> None:
        RECALL.run(self.store, RecallSpec(chosen), [SHARD])

    @rule()
    def sweep(self) -> None:
        """Files are kept for a day, because of the backup."""
        SWEEP.run(self.store, SweepSpec(1), [SHARD])
        assert verify(self.store, [SHARD]).faults == []

    @rule(place=places)
    def hold(self, place) -> None:
        """Hold a row, whose versions cannot be erased any more, or release it."""
        row, holds = self.rows[place], internals_of(self.store).erasures.ledger.holds
        if row in self.held:
            assert holds.release([row], "test") == 1
        else:
            holds.hold([row], "test", "case")
            with pytest.raises(RowHeld):
                self.store.erase(row, "A", reason="test")
        self.held ^= {row}

    def _tables(self, run: Callable[[bytes], Any]) -> dict[str, Any]:
        database = internals_of(self.store).shards.database(SHARD)
        return {name: run(f"{{}} `{database}`.{name}".encode()) for name in ("cell", "erased_cell", "cold_file")}

    def _read(self, statement: bytes) -> list[Any]:
        return list(internals_of(self.store).shards.rows(SHARD, statement))

    @rule()
    def back_up(self) -> None:
        self.saved = self._tables(lambda name: self._read(name.replace(b"{}", b"SELECT * FROM"))), dict(self.model)

    @precondition(lambda self: self.saved and not self.held)
    @rule()
    def restore(self) -> None:
        """Restore the shard, and erase again what was erased since the backup; later versions are lost.

        Versions that were put after their erasure, with an earlier time, are erased with the others.
        """
        shards = internals_of(self.store).shards
        assert self.saved
        tables, model = self.saved
        for name, rows in tables.items():
            table = f"`{shards.database(SHARD)}`.{name}".encode()
            shards.execute(SHARD, b"DELETE FROM %b" % table)
            for row in rows:
                shards.execute(SHARD, b"INSERT INTO %b VALUES (%b)" % (table, b",".join(map(literal, row))))
        replay(self.store, undone(self.store), Thresholds())
        assert undone(self.store) == []
        dated = {key for key in self.dated if not self.erased.isdisjoint({key, (*key[:2], None)})}
        self.model = {key: body and self.model.get(key) for key, body in model.items()} | dict.fromkeys(
            dated & model.keys()
        )

    def _erasure(self, data) -> Callable[[], object] | None:
        """Return a call that erases a version, some of them or a row, and record what it erases."""
        # In an order that does not depend on the row_keys, which differ in each example.
        live = sorted(
            (key for key, body in self.model.items() if body is not None and key[0] not in self.held),
            key=lambda key: (self.rows.index(key[0]), *key[1:]),
        )
        if not live:
            return None
        row, column, ref_key = data.draw(st.sampled_from(live))
        whole = data.draw(st.integers(0, 9)) == 0
        keys = [key for key in live if key[:2] == (row, column) and (whole or key[2] == ref_key)]
        self.model |= dict.fromkeys(keys)
        version = None if whole else ref_key
        self.erased.add((row, column, version))

        def erase() -> None:
            number = self.store.erase(row, column, version, reason="test").number
            finish_erasure(self.store, number)

        return erase

    @rule(data=st.data())
    def erase(self, data) -> None:
        (self._erasure(data) or (lambda: None))()

    @rule(column=columns, versions=st.integers(4, 20))
    def expire(self, column, versions) -> None:
        policies = internals_of(self.store).policies
        policies.set(Policy(column, None, versions))
        number = job.begin_retention(self.store)
        if number is not None:
            job.run(self.store, ErasureSpec(number))
        policies.remove(column)
        self.saved = None  # which versions expire again depends on newer ones, which a restore loses
        for key in list(self.model):
            newer = sum(other[:2] == key[:2] and other[2] > key[2] for other in self.model)
            if key[1] == column and newer >= versions and key[0] not in self.held:
                self.model[key] = None

    @rule(data=st.data(), position=positions)
    def move(self, data, position) -> None:
        """Move the shard to the other server while a version is erased; compare it with what is left behind."""
        erase = self._erasure(data)
        with self.interject(position, erase or (lambda: None)):
            internals = internals_of(self.store)
            internals.shards.router.again(internals.shards.routing)
            home = internals.topology.cluster_of(SHARD)
            target = next(each.name for each in internals.topology.clusters if each != home)
            (record,) = moves.run(self.store, MoveSpec(target, accounts=False), [SHARD])
            assert record.phase == "verified"
        (self._erasure(data) or (lambda: None))()
        (left,) = moves.left_behind(self.store, [SHARD])
        assert compare(self.store, left).same
        self._read_table(left.node, left.tables[-1])
        moves.drop(self.store, left)

    def _read_table(self, node, name) -> None:
        internals = internals_of(self.store)
        database = internals.shards.database(SHARD)

        def read(connection):
            sql = b"SELECT %b FROM %b" % (CELL, quoted_table(database, name))
            return with_bases(connection, database, connection.rows(sql), name)

        rows = internals.shards.pool_for(node).run(read)
        for row in internals.cold_bodies.completed(rows, partial(internals.shards.run, SHARD), SHARD):
            cell = internals.reader.stored(row, SHARD)
            if tuple(cell.key) in self.model:
                body = cell.decode().body
                assert cell.erased or repr(body) == self.model[tuple(cell.key)]

    @rule(data=st.data(), position=positions)
    def rebuild(self, data, position) -> None:
        erase = self._erasure(data)
        with self.interject(position, erase or (lambda: None)):
            (done,) = rebuild.run(self.store, shards=[SHARD])
        assert (done.state, done.message) == ("done", None)

    @invariant()
    def every_version_reads_as_in_the_model(self) -> None:
        for row in self.rows:
            for column in COLUMNS:
                expected = {key[2]: body for key, body in self.model.items() if key[:2] == (row, column)}
                live = [(n, body) for n, body in sorted(expected.items()) if body is not None]
                for descending in (True, False):
                    found = self.store.get_versions(row, column, descending=descending)
                    assert [(cell.ref_key, repr(cell.body)) for cell in found] == live[:: -1 if descending else 1]
                for ref_key in list(expected)[::7]:
                    cell = self.store.get_cell(row, column, ref_key)
                    assert (None if cell is None else repr(cell.body)) == expected[ref_key]
        stored = [cell for cell in self.store.scan_shard(SHARD) if cell.row_key in self.rows]
        assert unsound(stored) == []
        scanned = {cell.key: cell for cell in stored}
        assert {tuple(key) for key in scanned} == set(self.model)
        for key, cell in scanned.items():
            self.seen.add(describe_body(cell.body).name)
            assert cell.erased or repr(cell.decode().body) == self.model[tuple(key)]

    def teardown(self) -> None:
        for row in self.held:
            internals_of(self.store).erasures.ledger.holds.release([row], "test")
        assert check(self.store, cold=True).faults == {}


@pytest.fixture
def interject(monkeypatch):
    """Begin a call in another thread before the nth statement of this context about a copy, and wait for its end."""

    class Interjection:
        def __init__(self, position: int, call: Callable[[], object]) -> None:
            self.numbers, self.position, self.errors = count(), position, []
            self.thread = threading.Thread(target=self._run, args=(call,))

        def _run(self, call) -> None:
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - raised by the test's own thread
                self.errors.append(error)

        def __enter__(self) -> None:
            active.append(self)

        def __exit__(self, *_: object) -> None:
            active.remove(self)
            if self.thread.ident is None:
                self.thread.start()
            self.thread.join()
            if self.errors:
                raise self.errors[0]

    active: list[Interjection] = []
    ask = Connection.ask

    def asked(connection: Connection, sql: bytes, **how: object) -> object:
        if active and (b"cell_incoming_" in sql or b"cell_moved_" in sql):
            each = active[0]
            if threading.current_thread() != each.thread and next(each.numbers) == each.position:
                each.thread.start()
                each.thread.join(0.1)
        return ask(connection, sql, **how)

    monkeypatch.setattr(Connection, "ask", asked)
    return Interjection


@pytest.mark.guarantee("history-exact", "history-erasure", "cold-exact")
@pytest.mark.parametrize(("examples", "steps"), [(2, 7), pytest.param(15, 15, marks=pytest.mark.long)])
def test_every_version_reads_as_in_a_model(accounts, fresh_url, new_row, interject, tmp_path, examples, steps):
    """Whatever is written, re-encoded, made cold, recalled, erased, expired, moved, rebuilt and restored.

    In any order, and partly at the same time. No delta ever depends on a version that is cold or erased.
    """
    with schemaless.connect(accounts.root(fresh_url), allow_nan=True) as opened:
        internals_of(opened).cold.set_store(str(tmp_path / "cold"), 1)

        class Bound(History):
            store = opened

        Bound.new_row, Bound.interject, Bound.seen = staticmethod(new_row), staticmethod(interject), set()
        run_state_machine_as_test(
            Bound,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                derandomize=True,
                phases=[Phase.explicit, Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
    assert {"msgpack+delta", "cold"} <= Bound.seen
