"""``schemaless load`` and ``dump``: input, output, and errors by file and line."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import IO

import pytest

from schemaless.base.keys import row_key_for
from schemaless.codec.envelope import describe_body, encode_body
from schemaless.ops.admin import ndjson as loading
from schemaless.store.internals import internals_of

pytestmark = pytest.mark.mysql


@pytest.fixture
def trips(tmp_path, new_row):
    """A file with six documents, each with a UUID, a name and a version; and the documents."""
    documents = [
        {"trip": {"id": str(new_row()), "tail.no": f"N{number}", "hash": f"trip {new_row()}"}, "version": number + 1}
        for number in range(6)
    ]
    path = tmp_path / "trips of today.ndjson"
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return path, documents


def test_load_file_then_again(invoke, store, datastore_url, trips):
    """The number of created cells is printed; a second run finds that all of them exist."""
    path, documents = trips
    arguments = ("load", path, "--column", "BASE", "--row-key", "trip.id", "--ref-key", "version")
    first = invoke(*arguments, url=datastore_url)
    second = invoke(*arguments, "--json", url=datastore_url)

    assert (first.code, second.code) == (0, 0)
    assert first.out.startswith("6 cells created, 0 existed already, 0 lines skipped; ")
    counts = {"created": 0, "there_already": 6, "erased": 0, "blank_lines": 0, "body_bytes": 0}
    assert second.json == {**counts, "reasons": {}, "passed_over": []}
    for document in documents:
        cell = store.get_cell(uuid.UUID(document["trip"]["id"]), "BASE", document["version"])
        assert cell.body == document


@pytest.mark.parametrize(
    "written", ["2016-03-01T04:30:00.5-08:00", "2016-03-01T12:30:00.5Z", "2016-03-01 12:30:00.5", 1456835400.5]
)
def test_load_created_at_keeps_the_time_that_a_document_has(invoke, store, datastore_url, new_row, written):
    """As text with an offset or in UTC, or as seconds; and from a dump."""
    row = new_row()
    line = json.dumps({"id": str(row), "at": [written]})
    loaded = invoke(
        *("load", "-", "--column", "TIMED", "--row-key", "id", "--created-at", "at.0"),
        url=datastore_url,
        stdin=line.encode(),
    )
    at = store.get_cell(row, "TIMED", 1).created_at
    dumped = {"row_key": str(new_row()), "column_name": "TIMED", "ref_key": 1, "created_at": at.isoformat(), "body": 1}
    copied = invoke(
        *("load", "-", "--from-dump", "--created-at", "created_at"),
        url=datastore_url,
        stdin=json.dumps(dumped).encode(),
    )

    assert (loaded.code, copied.code) == (0, 0), (loaded.err, copied.err)
    assert at.isoformat() == "2016-03-01T12:30:00.500000+00:00"
    assert store.get_cell(uuid.UUID(dumped["row_key"]), "TIMED", 1).created_at == at


@pytest.mark.parametrize(
    ("written", "complaint"),
    [("yesterday", 'got "yesterday"'), (1456835400500, "divide milliseconds by 1,000"), (None, "got null")],
)
def test_load_stops_at_an_invalid_created_at(invoke, datastore_url, new_row, written, complaint):
    """No cell is loaded with a guessed time."""
    line = json.dumps({"id": str(new_row()), "at": written}).encode()
    result = invoke(
        *("load", "-", "--column", "TIMED", "--row-key", "id", "--created-at", "at"), url=datastore_url, stdin=line
    )

    assert result.code == 2
    assert "-, line 1: --created-at at: expected a time" in result.err
    assert complaint in result.err


@pytest.mark.parametrize("packed", [False, True])
def test_load_reads_standard_input(invoke, store, datastore_url, trips, packed):
    """FILE may be -, where gzip is recognised too."""
    path, documents = trips
    data = path.read_bytes()
    arguments = ("load", "-", "--column", "STDIN", "--row-key", "/trip/id", "--json")
    result = invoke(*arguments, url=datastore_url, stdin=gzip.compress(data) if packed else data)

    assert result.json["created"] == 6
    assert store.get_cell(uuid.UUID(documents[5]["trip"]["id"]), "STDIN", 1).body == documents[5]


@pytest.mark.parametrize("packed", [False, True])
def test_load_reads_a_pipe_by_its_path(invoke, store, datastore_url, trips, tmp_path, packed):
    """FILE may be a named pipe or the shell's <(...), which are not seekable."""
    path, documents = trips
    data = path.read_bytes()
    named = tmp_path / "pipe"
    os.mkfifo(named)
    reader, writer = os.pipe()
    arguments = ("--row-key", "/trip/id", "--json")

    def write(open_it: Callable[[], IO[bytes]]) -> None:
        with open_it() as pipe:
            pipe.write(gzip.compress(data) if packed else data)

    results = []
    for column, name, open_it in (
        ("FIFO", named, lambda: named.open("wb")),
        ("FD", f"/dev/fd/{reader}", lambda: os.fdopen(writer, "wb")),
    ):
        writing = threading.Thread(target=write, args=(open_it,))
        writing.start()
        results.append(invoke("load", name, "--column", column, *arguments, url=datastore_url))
        writing.join()
    os.close(reader)

    assert [(result.code, result.err) for result in results] == [(0, "")] * 2
    assert [result.json["created"] + result.json["there_already"] for result in results] == [6, 6]
    for column in ("FIFO", "FD"):
        assert store.get_cell(uuid.UUID(documents[5]["trip"]["id"]), column, 1).body == documents[5]


def test_load_several_files_one_of_them_packed(invoke, datastore_url, trips, tmp_path):
    """The counts are totals of all files."""
    path, _ = trips
    packed = tmp_path / "more.ndjson.gz"
    packed.write_bytes(gzip.compress(path.read_bytes().replace(b'"version"', b'"Version"')))
    result = invoke("load", path, packed, "--column", "X", "--row-key", "uuid5:trip.hash", "--ref-key", "@line",
                    "--keep-going", "--json", url=datastore_url)  # fmt: skip

    assert result.code == 1
    assert (result.json["created"], len(result.json["passed_over"])) == (6, 6)
    assert {(entry["file"], entry["line"]) for entry in result.json["passed_over"]} == {
        (str(packed), number) for number in range(1, 7)
    }


@pytest.mark.parametrize(
    ("row_key", "ref_key", "expected"),
    [
        ("trip.id", "=7", lambda document, line, number: (uuid.UUID(document["trip"]["id"]), 7)),
        ("/trip/id", "/version", lambda document, line, number: (uuid.UUID(document["trip"]["id"]), number)),
        ("uuid5:trip.hash", "@line", lambda document, line, number: (row_key_for(document["trip"]["hash"]), number)),
        ("@line", "version", lambda document, line, number: (row_key_for(line), number)),
        ("uuid5:/trip/tail.no", "=0", lambda document, line, number: (row_key_for(document["trip"]["tail.no"]), 0)),
    ],
)
def test_load_key_expressions(invoke, store, datastore_url, trips, row_key, ref_key, expected):
    """A UUID field, a hashed field, the line itself; a dotted path or a pointer; a field, a constant, the number."""
    path, documents = trips
    column = "K" + re.sub(r"[^A-Za-z]", "-", f"{row_key}{ref_key}")
    result = invoke(
        "load", path, "--column", column, "--row-key", row_key, "--ref-key", ref_key, "--json", url=datastore_url
    )

    assert (result.code, result.json["created"]) == (0, 6)
    for number, (document, line) in enumerate(zip(documents, path.read_text().splitlines(), strict=True), start=1):
        row, version = expected(document, line, number)
        assert store.get_cell(row, column, version).body == document


@pytest.mark.parametrize("name", ["legacy", "json+zlib", "msgpack+zstd"])
def test_load_as_a_codec(invoke, store, datastore_url, new_row, tmp_path, name):
    """--as legacy keeps the line; other codecs encode it."""
    row = new_row()
    line = b'{ "id": "%b",  "text": "%b" }' % (str(row).encode(), b"long enough " * 20)
    path = tmp_path / "one"
    path.write_bytes(line)
    result = invoke("load", path, "--column", "BASE", "--row-key", "id", "--as", name, url=datastore_url)

    stored = next(store.get_stored_versions(row, "BASE"))
    assert result.code == 0
    assert describe_body(stored.body).name == name
    assert name != "legacy" or stored.body == line


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ((), "give --column NAME and --row-key EXPR, or --from-dump"),
        (("--column", "A"), "give --column NAME and --row-key EXPR"),
        (("--column", "A", "--row-key", "id", "--from-dump"), "omit --column and --row-key"),
        (("--column", "a b", "--row-key", "id"), "schemaless: column_name must be"),
        (("--column", "A", "--row-key", "id", "--ref-key", "=x"), "schemaless: --ref-key =x: expected a whole number"),
        (("--column", "A", "--row-key", "id", "--as", "pickle"), "'pickle' is not one of"),
        (("--column", "A", "--row-key", "id"), "line 1: no field 'id' in the document; its fields are 'trip', 'vers"),
        (("--column", "A", "--row-key", "trip.x"), "line 1: no field 'x' in trip; its fields are 'id', 'tail.no'"),
        (("--column", "A", "--row-key", "version.x"), "line 1: no field 'x' in version, of type int"),
        (("--column", "A", "--row-key", "trip.hash"), "if it is a name, use uuid5:trip.hash to hash it"),
        (("--column", "A", "--row-key", "uuid5:trip"), "expected a string or an integer to hash"),
        (("--column", "A", "--row-key", "trip.id", "--ref-key", "trip.id"), "line 1: .*expected an integer, got"),
        (("--from-dump",), "line 1: not a line of 'schemaless dump'"),
    ],
)
def test_load_with_unusable_options_is_exit_2(invoke, datastore_url, trips, options, complaint):
    """Contradicting options and keys that the documents lack: one line with the reason."""
    result = invoke("load", trips[0], *options, url=datastore_url)

    assert (result.code, result.out) == (2, "")
    assert re.search(complaint, result.err)


# Root can read every file.
@pytest.mark.parametrize("kind", ["missing", "folder", "cut", "unreadable", *(["forbidden"] if os.geteuid() else [])])
def test_load_of_a_file_that_cannot_be_read_is_exit_2(invoke, datastore_url, trips, tmp_path, kind):
    """One line that names the file, instead of a traceback or 'stopped'."""
    path = tmp_path / "data.gz"
    if kind == "folder":
        path.mkdir()
    elif kind == "forbidden":
        path.touch(0o000)
    elif kind == "cut":
        path.write_bytes(gzip.compress(trips[0].read_bytes())[:-20])
    elif kind == "unreadable":
        # It can be opened, but every read fails.
        path.symlink_to("/proc/self/mem")
    result = invoke("load", path, "--column", "A", "--row-key", "trip.id", url=datastore_url)

    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"schemaless: cannot read {path}")
    assert result.err.count("\n") == 1


def test_load_bad_line_names_file_and_line(invoke, datastore_url, trips):
    """Exit 2 without --keep-going; with it, exit 1, all other lines loaded, and each bad one reported."""
    path = trips[0]
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*lines[:2], b'{"cut": ', *lines[2:4], b'{"trip": {"id": "\\ud800"}}', *lines[4:]]))
    arguments = ("load", path, "--column", "BAD", "--row-key", "trip.id")
    stopped = invoke(*arguments, url=datastore_url)
    passed = invoke(*arguments, "--keep-going", url=datastore_url)

    assert (stopped.code, stopped.out) == (2, "")
    assert stopped.err.startswith(f"schemaless: {path}, line 3: not JSON text (")
    assert "envelope" not in stopped.err + passed.err
    assert passed.code == 1
    assert passed.out.startswith("4 cells created, 2 existed already, 2 lines skipped; ")
    assert [line.split(maxsplit=1) for line in passed.out.splitlines()[1:]] == [
        ["1", "not JSON text"],
        ["1", "--row-key trip.id: expected a UUID"],
    ]
    assert [line.split(": ")[0] for line in passed.err.splitlines()] == [
        f"skipped {path}, line {number}" for number in (3, 6)
    ]


def test_load_writes_rejected_lines_to_a_new_file(invoke, store, datastore_url, trips, tmp_path):
    """Each with file, line, reason and exact text, also one that the shard refuses; the others are loaded."""
    path, documents = trips
    lines = path.read_bytes().splitlines()
    store.put_cell(uuid.UUID(documents[4]["trip"]["id"]), "REJ", 1, "first")
    doubled = lines[4].replace(b"{", b"{ ", 1)
    path.write_bytes(
        b"\xef\xbb\xbf" + b"\n".join([*lines[:2], b"", b'{"cut": ', *lines[2:5], doubled, b'"\xff"', b"  ", *lines[5:]])
    )
    rejects = tmp_path / "rejects.ndjson"
    arguments = ("load", path, "--column", "REJ", "--row-key", "trip.id", "--rejects", rejects)
    first = invoke(*arguments, "--json", url=datastore_url)
    rejected = [json.loads(line) for line in rejects.read_text().splitlines()]
    again = invoke(*arguments, url=datastore_url)
    path.write_bytes(b"\n".join(lines[:4]))
    clean = invoke(*arguments[:-1], tmp_path / "none", url=datastore_url)

    assert (first.code, first.json["created"], first.json["blank_lines"]) == (1, 5, 2)
    assert first.json["reasons"] == {"the cell exists with another document": 2, "not JSON text": 2}
    assert "ignored the byte order mark" in first.err
    assert {each["file"] for each in rejected} == {str(path)}
    texts = {each["line"]: base64.b64decode(each["base64"]) if "base64" in each else each["text"] for each in rejected}
    assert texts == {4: '{"cut": ', 7: lines[4].decode(), 8: doubled.decode(), 9: b'"\xff"'}
    assert "exists with a different body" in next(each["reason"] for each in rejected if each["line"] == 7)
    assert (again.code, again.out) == (2, "")
    assert f"{rejects} exists" in again.err
    assert (clean.code, (tmp_path / "none").exists()) == (0, False)


@pytest.mark.parametrize("packed", [False, True])
def test_load_line_that_is_too_long_is_named(invoke, store, datastore_url, trips, tmp_path, monkeypatch, packed):
    """Exit 2 with the file and the line, after loading the lines before it; with --keep-going, those after it too."""
    monkeypatch.setattr("schemaless.codec.lines.MAX_LINE_BYTES", 100_000)
    given = trips[0].read_bytes().splitlines(keepends=True)
    text = b"".join([*given[:3], b'["' + b"x" * 900_000 + b'"]\n', *given[3:]])
    file = tmp_path / "one long line"
    file.write_bytes(gzip.compress(text) if packed else text)
    arguments = ("load", file, "--column", "LONG", "--row-key", "trip.id", "--json")
    stopped = invoke(*arguments, url=datastore_url)
    loaded = [store.get_cell_latest(uuid.UUID(trip["trip"]["id"]), "LONG") is not None for trip in trips[1]]
    going = invoke(*arguments, "--keep-going", url=datastore_url)

    assert (stopped.code, stopped.out, loaded) == (2, "", [True] * 3 + [False] * 3)
    assert f"{file}, line 4: longer than" in stopped.err
    assert (going.code, going.json["created"], going.json["there_already"]) == (1, 3, 3)
    assert [each["line"] for each in going.json["passed_over"]] == [4]


def test_load_conflict_is_exit_1_with_file_line_and_cell(invoke, store, datastore_url, trips):
    """The stored cell stays; --keep-going loads the others."""
    path, documents = trips
    row = uuid.UUID(documents[3]["trip"]["id"])
    store.put_cell(row, "BASE", 1, "first")
    arguments = ("load", path, "--column", "BASE", "--row-key", "trip.id")
    stopped = invoke(*arguments, url=datastore_url)
    passed = invoke(*arguments, "--keep-going", "--json", url=datastore_url)

    assert (stopped.code, stopped.out) == (1, "")
    assert stopped.err.startswith(f"schemaless: {path}, line 4: cell ({row}, BASE, 1) exists with a different body")
    assert passed.code == 1
    assert passed.json["created"] + passed.json["there_already"] == 5
    assert [entry["line"] for entry in passed.json["passed_over"]] == [4]
    assert store.get_cell(row, "BASE", 1).body == "first"


def test_load_of_names_that_utf8_cannot_encode_is_a_bad_line(invoke, datastore_url):
    """A lone surrogate cannot be hashed."""
    result = invoke(
        "load", "-", "--column", "A", "--row-key", "uuid5:id", url=datastore_url, stdin=b'{"id": "\\ud800"}'
    )

    assert result.code == 2
    assert "-, line 1: a name to hash must be text that UTF-8 can encode" in result.err


@pytest.fixture
def dumped(fresh_store, new_row):
    """A datastore with 40 cells in two columns."""
    for number in range(40):
        fresh_store.put_cell(new_row(), "AB"[number % 2], number, {"n": number, "text": "ü" * 60})
    return fresh_store


def test_dump_selects_columns_and_shards(invoke, dumped, fresh_url, tmp_path):
    """One line per cell on standard output or in a file, and no other output."""
    every = invoke("dump", url=fresh_url)
    one = invoke("dump", "--column", "B", "--shards", "0-1,3", url=fresh_url)
    path = tmp_path / "dump.ndjson"
    written = invoke("dump", "--output", path, url=fresh_url)

    lines = [json.loads(line) for line in every.out.splitlines()]
    assert (every.code, every.err, len(lines)) == (0, "", 40)
    assert [line["body"] for line in (json.loads(line) for line in one.out.splitlines())] == [
        line["body"]
        for line in lines
        if line["column_name"] == "B" and dumped.shard_of(uuid.UUID(line["row_key"])) in (0, 1, 3)
    ]
    assert (written.code, written.out, written.err) == (0, "", "")
    assert path.read_text() == every.out


@pytest.mark.parametrize("stored", [False, True])
def test_dump_into_load_is_a_copy(invoke, dumped, fresh_url, accounts, new_name, stored):
    """Documents, or exact bytes with --stored; a second load finds that all cells exist."""
    url = accounts.create(new_name, 2)
    text = invoke("dump", *(["--stored"] if stored else []), url=fresh_url).out.encode()
    loaded = invoke("load", "-", "--from-dump", "--json", url=url, stdin=text)
    again = invoke("load", "-", "--from-dump", "--as", "json+zlib", "--json", url=url, stdin=text)
    copied = invoke("dump", "--stored", url=url).out

    assert (loaded.code, loaded.json["created"]) == (0, 40)
    assert (again.json["created"], again.json["there_already"]) == (0, 40)

    def cells(output: str) -> set[tuple]:
        fields = [json.loads(line) for line in output.splitlines()]
        return {(line["row_key"], line["column_name"], line["ref_key"], line["stored"]) for line in fields}

    assert cells(copied) == cells(invoke("dump", "--stored", url=fresh_url).out)


def test_dump_of_a_corrupt_body_is_exit_1_and_names_it(invoke, dumped, fresh_url, row, by_hand):
    """With --stored, its bytes are written, and load names the line."""
    shard = dumped.shard_of(row)
    damaged = bytearray(encode_body({"text": "long enough to be compressed " * 9}))
    damaged[-1] ^= 1
    by_hand(dumped).execute(
        shard,
        b"INSERT INTO `%b`.cell (row_key, column_name, ref_key, body) VALUES (x'%b', 'A', 1, x'%b')"
        % (internals_of(dumped).shards.database(shard).encode(), row.hex.encode(), damaged.hex().encode()),
    )
    documents = invoke("dump", url=fresh_url)
    stored = invoke("dump", "--stored", "--shards", shard, url=fresh_url)
    loaded = invoke("load", "-", "--from-dump", "--keep-going", "--json", url=fresh_url, stdin=stored.out.encode())

    assert documents.code == 1
    assert f"cell ({row}, A, 1) in shard {shard}: CRC-32" in documents.err
    lines = stored.out.splitlines()
    assert stored.code == 0
    assert loaded.code == 1
    assert [entry["line"] for entry in loaded.json["passed_over"]] == [len(lines)]
    assert loaded.json["there_already"] == len(lines) - 1


def test_load_over_a_damaged_cell_is_exit_1_with_file_line_and_cell(invoke, fresh_store, fresh_url, trips):
    """The damaged cell is named and stays; --keep-going loads the others."""
    path, documents = trips
    row = uuid.UUID(documents[2]["trip"]["id"])
    shard = fresh_store.shard_of(row)
    insert = b"INSERT INTO `%b`.cell (row_key, column_name, ref_key, body) VALUES (x'%b', 'HURT', 1, '{')"
    internals_of(fresh_store).shards.execute(
        shard, insert % (internals_of(fresh_store).shards.database(shard).encode(), row.hex.encode())
    )
    arguments = ("load", path, "--column", "HURT", "--row-key", "trip.id")
    stopped = invoke(*arguments, url=fresh_url)
    passed = invoke(*arguments, "--keep-going", "--json", url=fresh_url)

    assert (stopped.code, stopped.out, passed.code) == (1, "", 1)
    assert stopped.err.startswith(f"schemaless: {path}, line 3: stored cell ({row}, HURT, 1) in shard {shard}: ")
    assert passed.json["created"] + passed.json["there_already"] == 5
    assert [entry["line"] for entry in passed.json["passed_over"]] == [3]


def test_dump_to_a_file_is_atomic(invoke, dumped, fresh_url, tmp_path, monkeypatch):
    """An interrupted dump keeps the old file and leaves no other; a complete one keeps the mode and the link."""
    there, link = tmp_path / "there", tmp_path / "link"
    there.write_text("before")
    there.chmod(0o640)
    link.symlink_to(there)
    listings: list[list[str]] = []

    def interrupted(cell, **how):
        listings.append(sorted(path.name for path in tmp_path.iterdir()))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loading, "dump_line", interrupted)
        stopped = [invoke("dump", "--output", tmp_path / name, url=fresh_url) for name in ("there", "new")]
    after = sorted(path.name for path in tmp_path.iterdir())
    done = [invoke("dump", "--output", path, url=fresh_url) for path in (link, tmp_path / "new")]

    assert [result.code for result in stopped] == [3, 3]
    assert [len(names) for names in listings] == [3, 3]
    assert all(any(name.endswith(".part") for name in names) for names in listings)
    assert after == ["link", "there"]
    assert [result.code for result in done] == [0, 0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "new", "there"]
    assert link.is_symlink()
    assert there.stat().st_mode & 0o777 == 0o640
    assert there.read_text() == (tmp_path / "new").read_text() == invoke("dump", url=fresh_url).out


def test_dump_to_a_pipe_writes_into_it(invoke, dumped, fresh_url, tmp_path):
    """A pipe is written to and not replaced."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text: list[str] = []
    reading = threading.Thread(target=lambda: text.append(pipe.read_text()))
    reading.start()
    result = invoke("dump", "--output", pipe, url=fresh_url)
    reading.join()

    assert result.code == 0
    assert pipe.is_fifo()
    assert text == [invoke("dump", url=fresh_url).out]


@pytest.mark.parametrize("shards", ["4", "0-9", "3-1", "x", "1,", "-1", "0--1"])
def test_unknown_shards_are_exit_2(invoke, datastore_url, shards):
    """The error names the existing range."""
    result = invoke("dump", f"--shards={shards}", url=datastore_url)

    assert (result.code, result.out) == (2, "")
    assert "--shards" in result.err


@pytest.mark.parametrize("place", ["missing/dump", "."])
def test_dump_to_an_unwritable_path_is_exit_2(invoke, datastore_url, tmp_path, place):
    """A missing folder, or a folder instead of a file: one line."""
    result = invoke("dump", "--output", tmp_path / place, url=datastore_url)

    assert (result.code, result.out) == (2, "")
    assert re.search("cannot write .*: there is no folder|is a directory", result.err)


def test_dump_of_a_column_without_cells_is_exit_2(invoke, dumped, fresh_url, tmp_path):
    """A mistyped column gives one line and no file, in place of an empty dump."""
    result = invoke("dump", "--column", "TYPO", "--output", tmp_path / "dump", url=fresh_url)

    assert (result.code, result.out) == (2, "")
    assert "no cell in the given shards is in column 'TYPO'" in result.err
    assert list(tmp_path.iterdir()) == []


def test_output_to_a_full_disk_is_exit_1(invoke, start, dumped, fresh_url):
    """One line with the file and the reason; a truncated dump is a failure."""
    to_file = invoke("dump", "--output", "/dev/full", url=fresh_url)
    process = start("info", "--json", url=fresh_url, stdout="/dev/full")
    _, err = process.communicate(timeout=120)

    assert (to_file.code, to_file.err) == (1, "schemaless: /dev/full: No space left on device\n")
    assert (process.returncode, err.decode()) == (1, "schemaless: standard output: No space left on device\n")


def test_closed_streams_and_notes_that_cannot_be_written_end_no_command(new_row, fresh_url):
    """As under a supervisor without streams, with a log on a full disk, and with a reader that is slow."""
    command = [sys.executable, "-m", "schemaless.cli.entry", "cell", "put", str(new_row()), "BASE", "1"]
    script = '"$@" <&- >&- 2>&- && "$@" 2>/dev/full'
    environment = {**os.environ, "SCHEMALESS_URL": fresh_url}
    reader, full = os.pipe()
    os.set_blocking(full, False)
    with suppress(BlockingIOError):
        while True:
            os.write(full, bytes(4096))

    done = subprocess.run(["sh", "-c", script, "sh", *command, "{}"], env=environment)
    conflict = subprocess.run([*command, "[]"], env=environment, stderr=full)
    child = "import os; [os.fstat(number) for number in range(3)]"
    parent = (
        "import os, sys; from schemaless.cli.entry import _settle_streams; _settle_streams(); "
        f"os.execv(sys.executable, ['-', '-c', {child!r}])"
    )
    inherited = subprocess.run(["sh", "-c", '"$@" <&- >&- 2>&-', "sh", sys.executable, "-c", parent])

    os.close(reader)
    os.close(full)
    assert (done.returncode, conflict.returncode, inherited.returncode) == (0, 1, 0)


def test_dump_to_head_is_quiet(start, dumped, fresh_url):
    """The reader closes the pipe after a line: exit 0 and no error message."""
    for number in range(40):
        dumped.put_cell(uuid.UUID(int=number), "BIG", 1, "x" * 20_000)
    process = start("dump", url=fresh_url)
    first = process.stdout.readline()
    process.stdout.close()
    process.stdin.close()
    err = process.stderr.read()

    assert json.loads(first)
    assert (process.wait(120), err) == (0, b"")


@pytest.mark.parametrize("command", [("info",), pytest.param(("check", "--json"), marks=pytest.mark.long)])
def test_short_output_to_a_closed_pipe_is_quiet(start, datastore_url, command):
    """Also if the first write happens at the very end."""
    process = start(*command, url=datastore_url)
    process.stdout.close()
    process.stdin.close()
    err = process.stderr.read()

    assert (process.wait(120), err) == (0, b"")
