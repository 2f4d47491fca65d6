"""A state machine compares a real datastore with a dict: they agree after any sequence of calls."""

from __future__ import annotations

import itertools
import json
import time
import uuid
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from schemaless import (
    BatchError,
    CellConflict,
    CellErased,
    Datastore,
    InvalidCell,
    LatestChanged,
    NewCell,
    NewStoredCell,
    connect,
)
from schemaless.codec.envelope import describe_body, dictionary_of, same_put
from schemaless.codec.registry import codec_names
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.migrate.verify import check
from schemaless.store.cells.column_codecs import REFRESH_S, ColumnSetting, set_column
from schemaless.store.internals import internals_of
from schemaless.topology.shards import Shards
from tests.dictionaries import kept

pytestmark = [pytest.mark.mysql, pytest.mark.twice, pytest.mark.myrocks]

ROWS = [uuid.uuid5(uuid.NAMESPACE_OID, f"state {number}") for number in range(3)]
rows = st.sampled_from(ROWS)
COLUMNS = ["A", "a"]
columns = st.sampled_from(COLUMNS)
REF_KEYS = [0, 1, 2**63 - 1]
ref_keys = st.sampled_from(REF_KEYS)
# Few keys and similar bodies, so that a key often recurs with almost the same body.
NEARLY = [0, 0.0, -0.0, False, None, "", [], {}, 1, 1.0, True, {"a": 1, "b": 2}, {"b": 2, "a": 1}, {"b": 2, "a": 1.0}]
bodies = st.one_of(
    st.sampled_from(NEARLY),
    st.sampled_from([1, 1.0, True]),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    ),
    st.builds(lambda text, times: {"text": text * times}, st.text(min_size=1, max_size=4), st.integers(50, 400)),
)
codecs = st.sampled_from([None, None, *codec_names()])
dictionaries = st.sampled_from([None, 32_768, 32_769])
keys = st.tuples(rows, columns, ref_keys)
TIMES = [datetime(2016, 3, 1, tzinfo=UTC), datetime(2016, 3, 1, 0, 0, 0, 1, UTC), datetime(2017, 1, 1, tzinfo=UTC)]
NOW = datetime(9000, 1, 1, tzinfo=UTC)
"""In the model, the time of every cell that has the server's: later than ``TIMES``."""
times = st.sampled_from([None, *TIMES])
zones = st.sampled_from([UTC, timezone(timedelta(hours=-5))])


LATEST = object()
"""``if_latest`` that is the latest ref_key."""

ERASED = object()
"""Body of an erased cell in the model."""

LATE = itertools.count(1)
"""Number of times that an advanced clock has made the process read the catalog again."""


class Store(RuleBasedStateMachine):
    """Compares the datastore with ``model``, its expected contents."""

    store: Datastore
    checking: Datastore
    migrating: Datastore
    tailing: Datastore
    admin: Datastore
    erasing: Datastore
    shards: Shards

    @initialize()
    def begin(self) -> None:
        self.model: dict[tuple[uuid.UUID, str, int], object] = {}
        self.added: dict[tuple[uuid.UUID, str, int], tuple[int, object]] = {}
        self.stored_at: dict[tuple[uuid.UUID, str, int], datetime] = {}
        self.locations = dict.fromkeys(range(self.store.shard_count), 0)
        self.tailed: list[tuple[int, int, tuple[uuid.UUID, str, int]]] = []
        for shard in range(self.store.shard_count):
            self.shards.execute(shard, f"DELETE FROM `{internals_of(self.store).shards.database(shard)}`.cell".encode())

    def expect(self, key: tuple[uuid.UUID, str, int], body: object) -> str:
        if key not in self.model:
            return "created"
        if self.model[key] is ERASED:
            return "erased"
        return "there" if same_put(self.model[key], body) else "conflict"

    @rule(key=keys, body=bodies, codec=codecs)
    def put_cell(self, key, body, codec) -> None:
        verdict = self.expect(key, body)
        if verdict == "conflict":
            with pytest.raises(CellConflict) as caught:
                self.store.put_cell(*key, body, codec=codec)
            assert same_put(caught.value.stored.body, self.model[key])
        elif verdict == "erased":
            with pytest.raises(CellErased) as refused:
                self.store.put_cell(*key, body, codec=codec)
            assert tuple(refused.value.key) == key
        else:
            put = self.store.put_cell(*key, body, codec=codec)
            assert put.created == (verdict == "created")
            self.model.setdefault(key, body)
            self.added.setdefault(key, (put.added_id, None))
            assert self.added[key][0] == put.added_id

    @rule(batch=st.dictionaries(keys, bodies, max_size=8), created_at=times, codec=codecs, look_first=st.booleans())
    def put_cells(self, batch, created_at, codec, look_first) -> None:
        verdicts = {key: self.expect(key, body) for key, body in batch.items()}
        refused = {
            self.store.shard_of(key[0]) for key, verdict in verdicts.items() if verdict in ("conflict", "erased")
        }
        cells = [NewCell(*key, body, created_at) for key, body in batch.items()]
        if refused:
            with pytest.raises(BatchError) as caught:
                self.store.put_cells(cells, codec=codec, look_first=look_first)
            puts = caught.value.written
            assert set(caught.value.causes) == refused
            assert {tuple(key) for key in caught.value.not_written} == {
                key for key in batch if self.store.shard_of(key[0]) in refused
            }
            assert {tuple(cell.key) for cell in caught.value.conflicts} == {
                key for key, verdict in verdicts.items() if verdict == "conflict"
            }
            assert sorted(map(tuple, caught.value.erased)) == sorted(
                key for key, verdict in verdicts.items() if verdict == "erased"
            )
        else:
            puts = self.store.put_cells(cells, codec=codec, look_first=look_first)
            assert [tuple(put.key) for put in puts] == list(batch)
        for put in puts:
            assert put.created == (verdicts[tuple(put.key)] == "created")
            if put.created and created_at is not None:
                self.stored_at[tuple(put.key)] = created_at
            self.model.setdefault(tuple(put.key), batch[tuple(put.key)])
            self.added.setdefault(tuple(put.key), (put.added_id, None))

    @rule(row=rows, batch=st.dictionaries(columns, bodies, max_size=2), ref_key=ref_keys, codec=codecs)
    def put_row(self, row, batch, ref_key, codec) -> None:
        verdicts = {column: self.expect((row, column, ref_key), body) for column, body in batch.items()}
        refused = {column: verdict for column, verdict in verdicts.items() if verdict in ("conflict", "erased")}
        if refused:
            with pytest.raises((CellConflict, CellErased)) as caught:
                self.store.put_row(row, batch, ref_key, codec=codec)
            found = {
                each.stored.column_name if isinstance(each, CellConflict) else each.key.column_name: (
                    "conflict" if isinstance(each, CellConflict) else "erased"
                )
                for each in (caught.value, *caught.value.others)
            }
            assert found == refused
            return
        puts = self.store.put_row(row, batch, ref_key, codec=codec)
        assert list(puts) == list(batch)
        for column, put in puts.items():
            key = (row, column, ref_key)
            assert (tuple(put.key), put.created) == (key, verdicts[column] == "created")
            self.model.setdefault(key, batch[column])
            self.added.setdefault(key, (put.added_id, None))
            assert self.added[key][0] == put.added_id

    @rule(
        row=rows,
        column=columns,
        body=bodies,
        if_latest=st.sampled_from([None, LATEST, LATEST, *REF_KEYS]),
        codec=codecs,
    )
    def append_cell(self, row, column, body, if_latest, codec) -> None:
        latest = max((key[2] for key in self.model if key[:2] == (row, column)), default=0)
        if_latest = latest if if_latest is LATEST else if_latest
        if 2**63 - 1 in (if_latest, latest if if_latest is None else 0):
            with pytest.raises(InvalidCell):
                self.store.append_cell(row, column, body, if_latest=if_latest, codec=codec)
            return
        if if_latest not in (None, latest):
            with pytest.raises(LatestChanged) as changed:
                self.store.append_cell(row, column, body, if_latest=if_latest, codec=codec)
            assert changed.value.latest == latest
            return
        put = self.store.append_cell(row, column, body, if_latest=if_latest, codec=codec)
        assert (tuple(put.key), put.created) == ((row, column, latest + 1), True)
        self.model[tuple(put.key)] = body
        self.added[tuple(put.key)] = (put.added_id, None)

    @rule(limit=st.integers(1, 5))
    def tail(self, limit) -> None:
        for shard, location in self.locations.items():
            page = self.tailing.get_cells_for_shard(shard, location, limit)
            assert len(page.cells) <= limit
            assert page.held is None
            self.tailed += [(shard, cell.added_id, tuple(cell.key)) for cell in page.cells]
            for cell in page.cells:
                body = self.model[tuple(cell.key)]
                assert cell.erased if body is ERASED else same_put(cell.body, body)
            self.locations[shard] = page.next_location

    @rule(key=keys, body=bodies, indent=st.sampled_from([None, 0, 3]))
    def put_legacy_text(self, key, body, indent) -> None:
        text = json.dumps(body, indent=indent).encode()
        verdict = self.expect(key, json.loads(text))
        if verdict == "created":
            (put,) = self.store.put_stored_cells([NewStoredCell(*key, text)])
            self.model[key] = json.loads(text)
            self.added[key] = (put.added_id, None)
        elif verdict == "there":
            assert not self.store.put_stored_cells([NewStoredCell(*key, text)])[0].created
        else:
            with pytest.raises(BatchError):
                self.store.put_stored_cells([NewStoredCell(*key, text)])

    @rule(key=keys, part=st.integers(1, 3))
    def erase(self, key, part) -> None:
        wanted = key[:part]
        hit = {each for each, body in self.model.items() if each[:part] == wanted and body is not ERASED}
        entry = self.erasing.erase(*wanted, reason="model")
        assert entry.cells == len(hit)
        assert entry.executed_at is not None
        self.model.update(dict.fromkeys(hit, ERASED))

    @rule(codec=st.sampled_from([name for name in codec_names() if name != "legacy"]), dictionary=dictionaries)
    def migrate(self, codec, dictionary) -> None:
        dictionary = dictionary if codec.endswith("+zstd") else None
        report = migrate.run(self.migrating, MigrateSpec(codec, dictionary=dictionary))
        assert report.total().left == {}
        named = {dictionary_of(cell.body) for shard in range(4) for cell in self.store.scan_shard(shard)}
        assert named <= {None, dictionary}
        assert all(
            describe_body(cell.body).name != "legacy"
            for shard in range(self.store.shard_count)
            for cell in self.store.scan_shard(shard)
        )

    @rule(column=columns, dictionary=dictionaries)
    def set_column(self, column, dictionary) -> None:
        set_column(
            internals_of(self.admin).dictionary_replicas, ColumnSetting(column, "msgpack+zstd", None, dictionary)
        )
        late_s = next(LATE) * 2 * REFRESH_S
        with pytest.MonkeyPatch.context() as patch:
            clock = SimpleNamespace(monotonic=lambda: time.monotonic() + late_s)
            patch.setattr("schemaless.store.cells.column_codecs.time", clock)
            codec = self.store.codec_for(column)
        assert dictionary == (None if codec.dictionary is None else codec.dictionary.id)

    @rule(row=rows, column=columns, low=ref_keys, high=ref_keys, descending=st.booleans(), limit=st.integers(0, 5))
    def get_versions(self, row, column, low, high, descending, limit) -> None:
        found = list(self.store.get_versions(row, column, after=low, before=high, descending=descending, limit=limit))
        expected = sorted(
            (
                key[2]
                for key, body in self.model.items()
                if key[:2] == (row, column) and low < key[2] < high and body is not ERASED
            ),
            reverse=descending,
        )
        assert [cell.ref_key for cell in found] == expected[:limit]

    @rule(at=st.sampled_from([TIMES[0] - timedelta(microseconds=1), *TIMES, NOW]), zone=zones)
    def time_travel(self, at, zone) -> None:
        self.latest_agree({key for key in self.model if self.stored_at.get(key, NOW) <= at}, at.astimezone(zone))

    @invariant()
    def reads_agree(self) -> None:
        for key, body in self.model.items():
            cell = self.store.get_cell(*key)
            if body is ERASED:
                assert cell is None
            else:
                assert cell is not None
                assert same_put(cell.body, body)
                assert cell.added_id == self.added[key][0]
        self.latest_agree(set(self.model))

    def latest_agree(self, keys: set[tuple[uuid.UUID, str, int]], at: datetime | None = None) -> None:
        latest = {key[:2]: key for key in sorted(keys)}
        latest = {pair: key for pair, key in latest.items() if self.model[key] is not ERASED}
        pairs = [(row, column) for row in ROWS for column in COLUMNS]
        found = self.store.get_cells_latest(pairs, at=at)
        assert {pair: tuple(cell.key) for pair, cell in found.items()} == latest
        assert [self.store.get_cell_latest(*pair, at=at) for pair in pairs] == [found.get(pair) for pair in pairs]
        for columns in (None, COLUMNS[:1]):
            expected: dict[uuid.UUID, dict[str, object]] = {}
            for (row, column), key in latest.items():
                if columns is None or column in columns:
                    expected.setdefault(row, {})[column] = key
            rows = self.store.get_rows(ROWS, columns=columns, at=at)
            assert {row: {name: tuple(cell.key) for name, cell in cells.items()} for row, cells in rows.items()} == (
                expected
            )
            for row in ROWS:
                assert self.store.get_row(row, columns=columns, at=at) == rows.get(row, {})

    def teardown(self) -> None:
        if hasattr(self, "model"):
            report = check(self.checking)
            assert report.faults == {}
            assert report.cells == len(self.model)
            before: dict[int, int] = {}
            while before != self.locations:
                before = dict(self.locations)
                self.tail(5)
            assert sorted(self.tailed) == sorted(
                (self.store.shard_of(key[0]), added_id, key) for key, (added_id, _) in self.added.items()
            )
            for shard in self.locations:
                ids = [added_id for of, added_id, _ in self.tailed if of == shard]
                assert ids == sorted(ids)


@pytest.mark.guarantee("plain-dict", "myrocks-duplicates", "erased-reads", "reading-at")
def test_datastore_agrees_with_a_plain_dict_whatever_is_called(
    fresh_store, migrate_store, tail_store, erase_store, admin_url, by_hand
):
    """Puts, batches, conflicts, erasures, legacy text, dictionaries, migrations and all reads, in random order."""
    agree(fresh_store, fresh_store, migrate_store, tail_store, erase_store, admin_url, by_hand(fresh_store))


def agree(
    tested: Datastore,
    app: Datastore,
    migrate: Datastore,
    tail: Datastore,
    erase: Datastore,
    admin_url: str,
    root: Shards,
) -> None:
    """Run the state machine: ``tested`` and ``tail`` are compared with the model, the others do the rest."""
    opened = connect(admin_url)
    assert [kept(opened, seed).id for seed in (0, 900)] == [32_768, 32_769]

    class Bound(Store):
        store = tested
        checking = app
        migrating = migrate
        tailing = tail
        erasing = erase
        admin = opened
        shards = root

    run_state_machine_as_test(
        Bound,
        settings=settings(
            max_examples=max(3, settings.default.max_examples // 10),
            stateful_step_count=20,
            deadline=None,
            derandomize=True,
            # A failing run has at most 20 steps; shrinking it against a real server would take minutes.
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
