"""``schemaless cell``: single cells, written and read by hand."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import pytest

import schemaless
from schemaless import NewCell, NewStoredCell
from schemaless.base.keys import row_key_for
from schemaless.codec.recode import recode
from schemaless.codec.registry import LEGACY
from schemaless.store.internals import internals_of
from tests.dictionaries import COLUMN, document, kept, set_to

pytestmark = pytest.mark.mysql


def test_put_then_get_prints_the_document_on_stdout(invoke, datastore_url, row):
    """What was put comes back as JSON; messages go to standard error only."""
    body = '{"fare": {"total": 12.50}, "to": "Zürich", "n": [1, 1.0, null]}'
    put = invoke("cell", "put", row, "BASE", 3, body, url=datastore_url)
    got = invoke("cell", "get", row, "BASE", url=datastore_url)

    assert (put.code, put.out) == (0, "")
    assert put.err.startswith(f"created: cell ({row}, BASE, 3) in shard ")
    assert (got.code, got.err) == (0, "")
    assert got.json == json.loads(body)
    assert "Zürich" in got.out


def test_get_at_a_time_prints_the_version_of_that_time(invoke, store, datastore_url, row):
    """The time needs a zone, and takes the place of a REF_KEY."""
    store.put_cells([NewCell(row, "BASE", year, year, datetime(year, 3, 1, tzinfo=UTC)) for year in (2020, 2021)])

    assert invoke("cell", "get", row, "BASE", "--at", "2021-02-28T23:59Z", url=datastore_url).json == 2020
    assert invoke("cell", "get", row, "BASE", "--at", "2021-03-01T01:00+01:00", url=datastore_url).json == 2021
    missing = invoke("cell", "get", row, "BASE", "--at", "2019-01-01T00:00Z", url=datastore_url)
    assert (missing.code, "stored by 2019-01-01T00:00Z" in missing.err) == (1, True)
    for arguments, complaint in (
        (("--at", "2021-03-01"), "--at needs a time zone"),
        (("--at", "March"), "--at takes a time such as"),
        ((2020, "--at", "2021-03-01T00:00Z"), "give REF_KEY or --at, not both"),
    ):
        refused = invoke("cell", "get", row, "BASE", *arguments, url=datastore_url)
        assert refused.code != 0
        assert complaint in refused.err


def test_put_as_json_says_where_it_went(invoke, store, datastore_url, row):
    """--json: the key, shard, added_id and whether it was created; the second time it was there already."""
    arguments = ("cell", "put", row, "BASE", 1, "{}", "--json", "--url", datastore_url)
    first, second = invoke(*arguments), invoke(*arguments)

    added_id = store.get_cell(row, "BASE", 1).added_id
    expected = {
        "row_key": str(row),
        "column_name": "BASE",
        "ref_key": 1,
        "shard": store.shard_of(row),
        "added_id": added_id,
        "created": True,
    }
    assert first.json == expected
    assert second.json == expected | {"created": False}
    assert first.code == second.code == 0


def test_append_writes_the_next_version_exactly(invoke, store, datastore_url, row):
    """The text is stored as it is, with the key that JSON objects may have twice; versions count from 1."""
    first = invoke("cell", "append", row, "BASE", '{"a": 1, "a": 2}', url=datastore_url)
    second = invoke("cell", "append", row, "BASE", "-", "--as", "legacy", "--json", url=datastore_url, stdin=b" [2]\n")

    assert first.err.startswith(f"created: cell ({row}, BASE, 1) in shard ")
    assert (second.code, second.json["ref_key"], second.json["created"]) == (0, 2, True)
    bodies = [cell.body for cell in store.get_stored_versions(row, "BASE", descending=False)]
    assert bodies[1] == b"[2]"
    assert recode(bodies[0], LEGACY).body == b'{"a": 1, "a": 2}'


def test_put_reads_standard_input(invoke, store, datastore_url, row):
    """BODY - or no BODY at all; white space around it is no part of it."""
    invoke("cell", "put", row, "BASE", 1, "-", "--as", "legacy", url=datastore_url, stdin=b' \n{ "a":1}\r\n')
    invoke("cell", "put", row, "BASE", 2, url=datastore_url, stdin=b"[2]")

    assert next(store.get_stored_versions(row, "BASE", before=2)).body == b'{ "a":1}'
    assert store.get_cell(row, "BASE", 2).body == [2]


def test_put_of_endless_standard_input_is_refused(invoke, datastore_url, row, monkeypatch):
    """No more of it is read than a document may have."""
    monkeypatch.setattr("schemaless.cli.cell.MAX_LINE_BYTES", 1_000)
    result = invoke("cell", "put", row, "BASE", 1, "-", url=datastore_url, stdin=b'"' + b"x" * 5_000 + b'"')

    assert (result.code, result.out) == (2, "")
    assert "BODY: longer than 1,000 bytes" in result.err


def test_put_into_a_column_with_a_dictionary_is_created_found_and_refused(invoke, admin_url, fresh_url):
    """A put by hand writes with the column's dictionary, and compares with what was written so, in any codec."""
    with schemaless.connect(admin_url) as admin:
        set_to(admin, kept(admin).id)
    arguments = ("cell", "put", "uuid5:trip", COLUMN, 1)
    first, again, legacy, other = (
        invoke(*arguments, json.dumps(document(number)), *options, "--json", url=fresh_url)
        for number, options in ((1, ()), (1, ()), (1, ("--as", "legacy")), (2, ()))
    )
    versions = invoke("cell", "history", "uuid5:trip", COLUMN, "--json", url=fresh_url)

    assert [(each.code, each.json["created"]) for each in (first, again, legacy)] == [(0, True), (0, False), (0, False)]
    assert other.code == 1
    assert "exists with a different body" in other.err
    assert [version["codec"] for version in versions.json] == ["msgpack+zstd"]
    assert invoke("cell", "get", "uuid5:trip", COLUMN, url=fresh_url).json == document(1)


def test_load_dump_and_tail_of_bodies_with_a_dictionary(invoke, admin_url, tail_url, fresh_url, accounts, new_name):
    """Loaded with it, found again, in conflict where the document is another, shown by dump and tail, and copied."""
    with schemaless.connect(admin_url) as admin:
        set_to(admin, kept(admin).id)
    keys = ("--column", COLUMN, "--row-key", "uuid5:trip_number", "--json")
    documents = [document(number) for number in range(30)]
    text, changed = (
        "".join(json.dumps(each | {"status": status or each["status"]}) + "\n" for each in documents).encode()
        for status in (None, "other")
    )
    first, again = (invoke("load", "-", *keys, url=fresh_url, stdin=text) for _ in range(2))
    legacy = invoke("load", "-", *keys, "--as", "legacy", url=fresh_url, stdin=text)
    other = invoke("load", "-", *keys, "--keep-going", url=fresh_url, stdin=changed)
    dumped, exact = (invoke("dump", *options, url=fresh_url).out for options in ((), ("--stored",)))
    tailed = invoke("cell", "tail", url=tail_url)
    copy = accounts.url("admin", accounts.create(new_name, 4))
    copied = [invoke("load", "-", "--from-dump", "--json", url=copy, stdin=exact.encode()) for _ in range(2)]

    assert [each.json["created"] for each in (first, again, legacy)] == [30, 0, 0]
    assert [each.json["there_already"] for each in (first, again, legacy)] == [0, 30, 30]
    assert (other.code, len(other.json["passed_over"])) == (1, 30)
    assert exact.count('"dictionary"') == 1
    for lines in (dumped, tailed.out):
        shown = sorted((json.loads(line)["body"] for line in lines.splitlines()), key=lambda one: one["trip_number"])
        assert shown == documents
    assert [(each.code, each.json["created"]) for each in copied] == [(0, 30), (0, 0)]


@pytest.mark.parametrize(("name", "stored"), [("legacy", "legacy"), ("msgpack+zstd", "msgpack+zstd")])
def test_put_in_a_codec_and_history_shows_it(invoke, datastore_url, row, name, stored):
    """--as names the codec; history lists versions, newest first, with the codec of each."""
    body = json.dumps({"text": "long enough to be compressed " * 5})
    for ref_key in (1, 2):
        assert invoke("cell", "put", row, "BASE", ref_key, body, "--as", name, url=datastore_url).code == 0
    assert invoke("cell", "put", row, "A:car:B", 1, "1", url=datastore_url).code == 0
    listed = invoke("cell", "history", row, "BASE", "--json", url=datastore_url)
    every = invoke("cell", "history", row, url=datastore_url)
    newest = invoke("cell", "history", row, "--limit", 1, "--json", url=datastore_url)

    assert [(cell["ref_key"], cell["codec"], cell["row_key"]) for cell in listed.json] == [
        (2, stored, str(row)),
        (1, stored, str(row)),
    ]
    assert all(cell["body_bytes"] > 10 and cell["created_at"].endswith("+00:00") for cell in listed.json)
    assert [(cell["column_name"], cell["ref_key"]) for cell in newest.json] == [("A:car:B", 1), ("BASE", 2)]
    assert [line.split()[0] for line in every.out.splitlines()] == ["row", "column", "A:car:B", "BASE", "BASE"]


def test_row_keys_are_uuids_or_hashed_names(invoke, store, datastore_url, row):
    """uuid5:NAME is the row that load --row-key uuid5:FIELD makes of that name."""
    name = f"aircraft {row}"
    invoke("cell", "put", f"uuid5:{name}", "LOG", 1, "[1]", url=datastore_url)
    got = invoke("cell", "get", f"uuid5:{name}", "LOG", 1, "--json", url=datastore_url)

    assert store.get_cell(row_key_for(name), "LOG", 1).body == [1]
    assert got.json["row_key"] == str(row_key_for(name))
    assert list(got.json) == ["row_key", "column_name", "ref_key", "added_id", "created_at", "body"]


@pytest.mark.parametrize("verb", [("get",), ("get", "--json"), ("history",)])
def test_absent_cell_is_exit_1_with_nothing_on_stdout(invoke, datastore_url, row, verb):
    """No such cell is an answer, not a crash: one line, on standard error."""
    result = invoke("cell", *verb, row, "BASE", url=datastore_url)

    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("schemaless: no cell")
    assert result.err.count("\n") == 1


def test_conflict_is_exit_1_with_the_advice(invoke, store, datastore_url, row):
    """A cell is written once: the refusal says so, and the stored document stays."""
    invoke("cell", "put", row, "BASE", 1, '{"fare": 10}', url=datastore_url)
    result = invoke("cell", "put", row, "BASE", 1, '{"fare": 99}', url=datastore_url)

    assert (result.code, result.out) == (1, "")
    assert result.err == (f"schemaless: cell ({row}, BASE, 1) exists with a different body; write a higher ref_key\n")
    assert store.get_cell(row, "BASE", 1).body == {"fare": 10}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("put", "short", "BASE", 1, "{}"), "a row_key is a UUID, or uuid5:NAME"),
        (("put", "uuid5:\udcff", "BASE", 1, "{}"), "text that UTF-8 can encode"),
        (("put", "uuid5:x", "a b", 1, "{}"), "column_name must be 1 to 64"),
        (("put", "uuid5:x", "BASE", "1.5", "{}"), "'1.5' is not a valid integer"),
        (("put", "uuid5:x", "BASE", 2**63, "{}"), "ref_key must be an int"),
        (("put", "uuid5:x", "BASE", -12, "{}"), "No argument may be a negative number"),
        (("put", "uuid5:x", "BASE", 1, "{fare: 1}"), "BODY: not JSON text"),
        (("put", "uuid5:x", "BASE", 1, ""), "BODY: .*an empty body"),
        (("put", "uuid5:x", "BASE", 1, "\udcff"), "BODY: .*not UTF-8"),
        (("put", "uuid5:x", "BASE", 1, "{}", "--as", "pickle"), "'pickle' is not one of"),
        (("get", "uuid5:x", "a b"), "column_name must be 1 to 64"),
        (("history", "uuid5:x", "--limit", 0), "--limit"),
    ],
)
def test_an_invalid_argument_is_exit_2(invoke, datastore_url, arguments, complaint):
    """A wrong key, body or codec is a usage error that says what is expected."""
    result = invoke("cell", *arguments, url=datastore_url)

    assert (result.code, result.out) == (2, "")
    assert re.search(complaint, result.err)


def test_put_a_body_larger_than_a_cell_says_so(invoke, datastore_url, row):
    """Also as legacy, where no codec has looked at it."""
    text = b'"' + b"x" * (16 << 20) + b'"'
    result = invoke("cell", "put", row, "BASE", 1, "--as", "legacy", url=datastore_url, stdin=text)

    assert result.code == 2
    assert "split the document" in result.err


@pytest.mark.parametrize("text", ['{"s": "\\ud800", "n": 123456789012345678901234567890}', "[1e16, -0.0]"])
def test_get_escapes_what_text_cannot_represent(invoke, datastore_url, row, text):
    """Lone surrogates and other corners of the model are printed, not tripped over."""
    invoke("cell", "put", row, "BASE", 1, text, url=datastore_url)
    plain = invoke("cell", "get", row, "BASE", url=datastore_url)
    around = invoke("cell", "get", row, "BASE", "--json", url=datastore_url)

    assert repr(plain.json) == repr(around.json["body"]) == repr(json.loads(text))


def test_nan_is_put_only_if_allowed_and_printed_as_a_string(invoke, datastore_url, row):
    """What get prints is valid JSON."""
    text = '{"a": [NaN, -Infinity, 1e400, 0.5]}'
    refused = invoke("cell", "put", row, "BASE", 1, text, url=datastore_url)
    done = invoke("cell", "put", row, "BASE", 1, text, "--allow-nan", url=datastore_url)
    printed = [invoke("cell", "get", row, "BASE", *json, url=datastore_url).json for json in ([], ["--json"])]

    assert (refused.code, done.code) == (2, 0)
    assert "body.a[0]: nan is not a JSON number" in refused.err
    assert printed[0] == printed[1]["body"] == {"a": ["NaN", "-Infinity", "Infinity", 0.5]}


def test_get_of_a_corrupt_body_names_the_cell(invoke, store, datastore_url, row, by_hand):
    """Exit 1, and history still lists it."""
    store.put_stored_cells([NewStoredCell(row, "BASE", 1, b"{}")])
    shard = store.shard_of(row)
    database = internals_of(store).shards.database(shard).encode()
    by_hand(store).execute(
        shard, b"UPDATE `%b`.cell SET body = x'C1FF' WHERE row_key = x'%b'" % (database, row.hex.encode())
    )
    got = invoke("cell", "get", row, "BASE", url=datastore_url)
    listed = invoke("cell", "history", row, "--json", url=datastore_url)

    assert (got.code, got.out) == (1, "")
    assert f"cell ({row}, BASE, 1) in shard {shard}: " in got.err
    assert listed.json[0]["codec"].startswith("unreadable: ")
    by_hand(store).execute(shard, b"DELETE FROM `%b`.cell WHERE row_key = x'%b'" % (database, row.hex.encode()))
