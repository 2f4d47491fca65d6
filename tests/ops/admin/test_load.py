"""Load: every line becomes one cell, exactly and once, however often the load is repeated."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from schemaless import CellConflict, CorruptBody, InvalidInput
from schemaless.base.events import Advanced, only
from schemaless.cell import CellKey
from schemaless.codec.documents import MAX_DEPTH
from schemaless.codec.envelope import describe_body, encode_body, is_enveloped, keep_reason
from schemaless.codec.lines import open_lines
from schemaless.codec.registry import DEFAULT, LEGACY, codec_named, codec_names
from schemaless.ops.admin import ndjson as loading
from schemaless.ops.migrate.verify import check
from schemaless.store.cells.writing import Cells
from tests.ops.admin.ndjson import KEPT_AS_TEXT, LINES, bodies, by_field, ids, numbered, put_raw
from tests.packets import small_packets

pytestmark = pytest.mark.mysql


@pytest.fixture
def rows_for(new_row: Callable[[], uuid.UUID]) -> Callable[[], loading.KeyOf]:
    """Returns key functions that use one row per line number, also when a number is repeated."""

    def make() -> loading.KeyOf:
        rows: dict[int, uuid.UUID] = {}

        def key_of(document: Any, line: bytes, number: int) -> CellKey:
            return CellKey(rows.setdefault(number, new_row()), "DOC", 1)

        return key_of

    return make


def test_load_as_legacy_keeps_the_exact_bytes(store, rows_for, by_hand):
    """The stored body is the line with all its spaces, without the line end, for readers that know no envelope."""
    key_of = rows_for()
    report = loading.load(store, LINES, loading.document_reader(key_of, LEGACY, allow_nan=True), source="x")

    assert (report.created, report.there, report.failures) == (len(LINES), 0, [])
    assert report.body_bytes == sum(map(len, LINES))
    for number, line in enumerate(LINES, start=1):
        assert next(store.get_stored_versions(key_of(None, b"", number).row_key, "DOC")).body == line


@pytest.mark.parametrize("name", [name for name in codec_names() if name != "legacy"])
def test_load_as_any_codec_gives_the_same_documents(store, rows_for, name):
    """Every codec decodes to the result of json.loads; lines that it cannot hold are kept as their exact text."""
    key_of = rows_for()
    loading.load(store, LINES, loading.document_reader(key_of, codec_named(name), allow_nan=True), source="x")

    for number, line in enumerate(LINES, start=1):
        stored = next(store.get_stored_versions(key_of(None, b"", number).row_key, "DOC"))
        assert is_enveloped(stored.body)
        assert repr(stored.decode().body) == repr(json.loads(line))
        kept = keep_reason(line, codec_named(name), MAX_DEPTH) is not None
        assert kept is (line in KEPT_AS_TEXT and name.startswith("msgpack")) or name.startswith("packed")
        if kept or name.startswith("json"):
            assert loading.recode(stored.body, LEGACY).body == line
            assert describe_body(stored.body).name.startswith("json")


def test_loading_again_creates_nothing_and_uses_no_added_id(fresh_store):
    """A repeated load changes neither ids nor bytes nor counters, in any codec."""
    lines = numbered(0, 60)
    loading.load(fresh_store, lines[:40], loading.document_reader(by_field, LEGACY), source="x")
    before = bodies(fresh_store)
    again = [
        loading.load(fresh_store, lines[:40], loading.document_reader(by_field, codec_named(name)), source="x")
        for name in ("legacy", "msgpack+zlib", "json+zstd")
    ]

    assert [(report.created, report.there, report.body_bytes) for report in again] == [(0, 40, 0)] * 3
    assert bodies(fresh_store) == before

    rest = loading.load(fresh_store, lines, loading.document_reader(by_field, DEFAULT), source="x")
    assert (rest.created, rest.there) == (20, 40)
    for shard in range(fresh_store.shard_count):
        found = ids(fresh_store, shard)
        assert found == list(range(1, len(found) + 1))


@pytest.mark.parametrize("stop_at", [7, 50, 119])
def test_load_interrupted_then_repeated_equals_the_undisturbed(fresh_store, stop_at):
    """Wherever it was interrupted, the same command ends with the same cells and with ids without gaps."""
    bounds = loading.BatchBounds(cells=(10, 1, 10))
    lines = numbered(0, 120)

    def cut() -> Iterator[bytes]:
        yield from lines[:stop_at]
        raise KeyboardInterrupt

    reader = loading.document_reader(by_field, DEFAULT)
    with pytest.raises(KeyboardInterrupt):
        loading.load(fresh_store, cut(), reader, source="x", bounds=bounds)
    partly = len(bodies(fresh_store))
    report = loading.load(fresh_store, lines, reader, source="x", bounds=bounds)

    assert partly == (stop_at - 1) // 10 * 10 or partly == stop_at // 10 * 10
    assert (report.created, report.there) == (120 - partly, partly)
    expected = {by_field(json.loads(line), line, 0): encode_body(json.loads(line)) for line in lines}
    assert bodies(fresh_store) == expected
    for shard in range(fresh_store.shard_count):
        assert ids(fresh_store, shard) == list(range(1, len(ids(fresh_store, shard)) + 1))


def test_load_interrupted_between_the_shards_of_a_batch_is_repeated(fresh_store, monkeypatch):
    """A batch that was written to some shards only is completed."""
    lines = numbered(0, 40)
    reader = loading.document_reader(by_field, DEFAULT)
    original = Cells.put_on_shard

    def breaks(cells, shard, *arguments, **options):
        if shard == 2:
            raise KeyboardInterrupt
        return original(cells, shard, *arguments, **options)

    monkeypatch.setattr(Cells, "put_on_shard", breaks)
    with pytest.raises(KeyboardInterrupt):
        loading.load(fresh_store, lines, reader, source="x")
    monkeypatch.setattr(Cells, "put_on_shard", original)
    partly = len(bodies(fresh_store))
    report = loading.load(fresh_store, lines, reader, source="x")

    assert 0 < partly < 40
    assert (report.created, report.there) == (40 - partly, partly)


def test_load_conflict_stops_and_names_line_and_cell(fresh_store):
    """A cell with another document is never replaced; the error names the line and the next step."""
    lines = numbered(0, 30)
    key = by_field(json.loads(lines[17]), b"", 0)
    fresh_store.put_cell(*key, {"other": True})
    reader = loading.document_reader(by_field, DEFAULT)

    with pytest.raises(
        CellConflict, match=rf"trips, line 18: cell \({key.row_key}, DOC, 1\) exists .*--keep-going"
    ) as (caught):
        loading.load(fresh_store, lines, reader, source="trips")

    assert caught.value.stored.body == {"other": True}
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert fresh_store.get_cell(*key).body == {"other": True}


def test_load_stops_at_a_conflict_and_with_keep_going_reports_all(fresh_store):
    """The load stops at a conflicting line; with keep_going, each such line is reported once."""
    lines = numbered(0, 30)
    for number in (29, 11, 20, 12, 25, 14):
        fresh_store.put_cell(*by_field(json.loads(lines[number]), b"", 0), "other")
    conflicting: list[int] = []
    loading.load(
        fresh_store,
        lines,
        loading.document_reader(by_field, DEFAULT),
        source="x",
        keep_going=True,
        listener=only(loading.LineSkipped, lambda line: conflicting.append(line.number)),
    )

    assert sorted(conflicting) == [12, 13, 15, 21, 26, 30]
    with pytest.raises(CellConflict, match=r"x, line (12|13|15): "):
        loading.load(fresh_store, lines[:20], loading.document_reader(by_field, DEFAULT), source="x")


@pytest.fixture
def batches(monkeypatch) -> list[int]:
    """Collects the number of cells in each batch that is sent."""
    sent: list[int] = []
    original = Cells.put_batch

    def counts(writer, cells, look_first):
        sent.append(len(cells))
        return original(writer, cells, look_first)

    monkeypatch.setattr(Cells, "put_batch", counts)
    return sent


def test_load_keep_going_skips_conflicts_and_loads_all_others(fresh_store, batches):
    """However many cells conflict, the others are written, with a bounded number of retries."""
    lines = numbered(0, 400)
    blocked = [line for number, line in enumerate(lines) if number % 3]
    loading.load(
        fresh_store,
        [line.replace(b"some", b"another") for line in blocked],
        loading.document_reader(by_field, DEFAULT),
        source="x",
    )
    batches.clear()
    report = loading.load(fresh_store, lines, loading.document_reader(by_field, DEFAULT), source="x", keep_going=True)

    assert (report.created, report.there) == (400 - len(blocked), 0)
    assert sorted(number for number, _ in report.failures) == [n + 1 for n in range(400) if n % 3]
    assert all("exists with a different body" in message for _, message in report.failures)
    assert sum(batches) < 400 * 12
    assert check(fresh_store).cells == 400


def test_load_same_key_twice_in_a_file(fresh_store):
    """The same document twice is one cell; another document under the same key is a conflict, also within a batch."""
    once, other = b'{"id": "twice", "n": 1}', b'{"id": "twice", "n": 2}'
    swapped = b'{"n": 1, "id": "twice"}'
    reader = loading.document_reader(by_field, LEGACY)
    report = loading.load(fresh_store, [once, once, swapped], reader, source="x")

    assert (report.created, report.there, report.body_bytes) == (1, 2, len(once))
    with pytest.raises(CellConflict, match="x, line 2"):
        loading.load(fresh_store, [once, other], reader, source="x")
    assert list(bodies(fresh_store).values()) == [once]


@pytest.mark.parametrize("damage", [b"\xc1\x11\x00\x00\x00\x00\x00", b"{"])
def test_load_over_a_damaged_cell_names_line_and_cell(fresh_store, by_hand, damage):
    """A stored cell that does not decode is neither replaced nor considered equal; keep_going skips its line."""
    lines = numbered(0, 40)
    keys = [by_field(json.loads(lines[number]), b"", 0) for number in (8, 30)]
    for key in keys:
        put_raw(fresh_store, by_hand(fresh_store), key.row_key, damage)
    reader = loading.document_reader(by_field, DEFAULT)

    with pytest.raises(
        CorruptBody, match=r"trips, line (9|31): stored cell \(.*'schemaless check'.*--keep-going"
    ) as at:
        loading.load(fresh_store, lines, reader, source="trips")

    skipped: list[tuple[int, str]] = []
    report = loading.load(
        fresh_store,
        lines,
        reader,
        source="trips",
        keep_going=True,
        listener=only(loading.LineSkipped, lambda line: skipped.append((line.number, line.message))),
    )
    assert str(pickle.loads(pickle.dumps(at.value))) == str(at.value)
    assert at.value.__cause__.key in keys
    assert report.created + report.there == 38
    assert sorted(skipped) == sorted(report.failures)
    assert [number for number, _ in sorted(skipped)] == [9, 31]
    for key, (_, message) in zip(keys, sorted(skipped), strict=True):
        assert message.startswith(f"stored cell {key} in shard {fresh_store.shard_of(key.row_key)}: ")
        assert next(fresh_store.get_stored_versions(key.row_key, "DOC")).body == damage


def test_load_batches_grow_with_the_shards_and_stay_bounded_in_bytes(fresh_store, batches):
    """A batch needs two statements per shard, so it grows with the number of shards, but its bytes are bounded."""
    reader = loading.document_reader(by_field, LEGACY)
    loading.load(fresh_store, numbered(0, 601), reader, source="x")
    assert batches == [500, 101]

    batches.clear()
    bounds = loading.BatchBounds(cells=(500, 150, 100_000))
    loading.load(fresh_store, numbered(1000, 601), reader, source="x", bounds=bounds)
    assert batches == [600, 1]

    batches.clear()
    bounds = loading.BatchBounds(body_bytes=(100_000, 30_000, 1 << 20))
    loading.load(fresh_store, numbered(2000, 13, "x" * 29_000), reader, source="x", bounds=bounds)
    assert batches == [4, 4, 4, 1]


def test_load_a_repeated_line_does_not_end_the_batch(fresh_store, batches):
    """A repeated line is one cell of one batch; if that cell conflicts, each line is reported."""
    lines = numbered(0, 5) * 20
    reader = loading.document_reader(by_field, DEFAULT)
    report = loading.load(fresh_store, lines, reader, source="x")

    assert batches == [5]
    assert (report.created, report.there) == (5, 95)

    other = [line.replace(b"some", b"other") for line in numbered(4, 1)]
    report = loading.load(fresh_store, [*other, *lines[:4], *other], reader, source="x", keep_going=True)
    assert (report.created, report.there) == (0, 4)
    assert sorted(number for number, _ in report.failures) == [1, 6]


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (b'{"id": "cut', "not JSON text .*; it looks like JSON text that is cut short"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b'{"id": "\xff"}', "not UTF-8"),
        (b'{"id": "a"} {"id": "b"}', "not JSON text"),
        (b"[" * 600 + b"]" * 600, "more than 512 levels"),
        (b'{"id": "x", "ref_key": -1}', "ref_key must be an int from 0"),
        (b'{"id": "x", "ref_key": 1.5}', "ref_key"),
        (b'{"id": "x", "at": [1e400, -Infinity]}', r"body\.at\[1\]: -inf is not a JSON number"),
    ],
)
def test_load_bad_line_is_named_and_the_lines_before_it_are_loaded(store, rows_for, bad, complaint):
    """The error has the file, the line, the reason and the next step; no later line is written."""
    lines = [*numbered(0, 3), b"", bad, *numbered(3, 3)]
    rows = rows_for()

    def key_of(document: Any, line: bytes, number: int) -> CellKey:
        return rows(document, line, number)._replace(ref_key=document.get("ref_key", 1))

    reader = loading.document_reader(key_of, DEFAULT)
    with pytest.raises(InvalidInput, match=f"a.ndjson, line 5: .*{complaint}.*The lines before it have been loaded"):
        loading.load(store, lines, reader, source="a.ndjson")

    report = loading.load(store, lines, reader, source="a.ndjson", keep_going=True)
    assert (report.created, report.there) == (3, 3)
    assert [number for number, _ in report.failures] == [5]


@pytest.mark.parametrize(
    "name", ["legacy", *(pytest.param(name, marks=pytest.mark.long) for name in ("json+none", "msgpack+none"))]
)
def test_load_document_larger_than_a_cell_names_its_line(fresh_store, name):
    """A body over 16 MiB - 1 is detected before the server rejects it with an unhelpful error."""
    large = b'{"id": "large", "text": "' + b"x" * (16 << 20) + b'"}'
    lines = [*numbered(0, 1), large, *numbered(1, 1)]
    reader = loading.document_reader(by_field, codec_named(name))

    with pytest.raises(InvalidInput, match=r"a.ndjson, line 2: body has 16\d{6} bytes once encoded"):
        loading.load(fresh_store, lines, reader, source="a.ndjson")

    report = loading.load(fresh_store, lines, reader, source="a.ndjson", keep_going=True)
    assert (report.created, report.there, len(report.failures)) == (1, 1, 1)


def test_load_cell_larger_than_a_packet_names_its_line(fresh_store):
    """A body that fits a cell, but not the server's max_allowed_packet, is a bad line like any other."""
    lines = [*numbered(0, 40), *numbered(40, 1, "long " * 30_000), *numbered(41, 40)]
    reader = loading.document_reader(by_field, LEGACY)
    with small_packets(fresh_store, 100_000) as store:
        report = loading.load(store, lines, reader, source="x", keep_going=True)
        with pytest.raises(InvalidInput, match=r"x, line 41: .*Raise its max_allowed_packet"):
            loading.load(store, lines, reader, source="x")

    assert report.created == 80
    assert [number for number, _ in report.failures] == [41]
    assert "Raise its max_allowed_packet" in report.failures[0][1]


def test_load_huge_line_is_one_cell(store, rows_for):
    """A document of 12 MB is loaded like any other."""
    key_of = rows_for()
    line = b'["' + b"abcdefghij" * 1_200_000 + b'"]'
    loading.load(store, [line], loading.document_reader(key_of, LEGACY), source="x")

    assert next(store.get_stored_versions(key_of(None, b"", 1).row_key, "DOC")).body == line


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        b"[1]\n[2]\n[3]\n",
        b"[1]\n[2]\n[3]",
        b"[1]\r\n[2]\r\n[3]\r\n",
        b"\n[1]\n\n  \n[2]\n\r\n\t\n[3]\n\n",
    ],
)
def test_load_accepts_line_ends_and_gzip(store, new_row, text, packed):
    """Blank lines, CRLF, no line end at the last line, gzip: three cells without stray bytes."""
    row = new_row()

    def key_of(document: Any, line: bytes, number: int) -> CellKey:
        return CellKey(row, "DOC", document[0])

    stream = io.BytesIO(gzip.compress(text) if packed else text)
    done: list[Advanced] = []
    report = loading.load(
        store,
        open_lines(stream, "x"),
        loading.document_reader(key_of, LEGACY),
        source="x",
        listener=only(Advanced, done.append),
    )

    assert report.created == 3
    assert [cell.body for cell in store.get_stored_versions(row, "DOC", descending=False)] == [b"[1]", b"[2]", b"[3]"]
    assert sum(line.units for line in done) == len(text)
