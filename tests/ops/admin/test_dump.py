"""Dump and reload: the same documents, or the same bytes."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator

import pytest

import schemaless
from schemaless import CorruptBody, Datastore, InvalidBody, InvalidInput, NewStoredCell
from schemaless.codec.envelope import decode_body, describe_body, encode_body
from schemaless.codec.registry import DEFAULT, LEGACY, codec_named, codec_names
from schemaless.ops.admin import ndjson as loading
from tests.ops.admin.ndjson import LINES, bodies, everything, put_raw

pytestmark = pytest.mark.mysql


AWKWARD = [
    *LINES,
    b'{"body": {"body": 1}, "stored": "\\"body\\":", "x\\"body": 2}',
    b'{"a":\n  [1,\r\n 2],\n\n"b": "\\n\\r"\n}\n',
    b"[" * 512 + b"]" * 512,
    '{"é": "ü\u2028\u2029\x7f\x85"}'.encode(),
]


@pytest.fixture
def mixed(fresh_store, new_row):
    """A datastore that holds each awkward body in every codec."""
    cells = [
        NewStoredCell(new_row(), column, ref_key, loading.recode(text, codec_named(name)).body)
        for ref_key, (text, name) in enumerate(itertools.product(AWKWARD, codec_names()))
        for column in ("A", "body")
    ]
    fresh_store.put_stored_cells(cells)
    return fresh_store


@pytest.fixture
def other_store(accounts, new_name) -> Iterator[Datastore]:
    """A second datastore with another number of shards."""
    with schemaless.connect(accounts.create(new_name, 3)) as opened:
        yield opened


@pytest.mark.parametrize(
    "name", ["msgpack+zlib", *(pytest.param(name, marks=pytest.mark.long) for name in ("legacy", "json+zstd"))]
)
def test_dump_then_load_gives_the_same_documents(mixed, other_store, name):
    """Into another datastore and codec, with newlines, NaN, duplicate keys, lone surrogates and deep nesting."""
    lines = [loading.dump_line(cell, stored=False) for cell in everything(mixed)]
    with_nan = next(line for line in lines if line.endswith(b"[NaN, Infinity, -Infinity]}"))
    with pytest.raises(InvalidBody, match=r"body\[0\]: nan is not a JSON number"):
        loading.dump_reader(codec_named(name))(with_nan, 1)
    report = loading.load(other_store, lines, loading.dump_reader(codec_named(name), allow_nan=True), source="x")

    assert not any(b"\n" in line or b"\r" in line for line in lines)
    assert report.created == len(lines)
    before, after = bodies(mixed), bodies(other_store)
    assert before.keys() == after.keys()
    for key, body in before.items():
        assert repr(decode_body(after[key])) == repr(decode_body(body))
        text = loading.recode(body, LEGACY).body
        if (
            describe_body(body).name.split("+")[0] in ("json", "legacy")
            and b"\n" not in text
            and name != "msgpack+zlib"
        ):
            assert loading.recode(after[key], LEGACY).body == text
    assert loading.load(mixed, lines, loading.dump_reader(DEFAULT, allow_nan=True), source="x").created == 0


def test_dump_stored_and_load_preserve_the_bytes(mixed, other_store):
    """--stored is an exact copy of every format, unless another codec is requested."""
    lines = [loading.dump_line(cell, stored=True) for cell in everything(mixed)]
    loading.load(other_store, lines, loading.dump_reader(None), source="x")

    assert bodies(other_store) == bodies(mixed)
    recoded = [loading.dump_reader(codec_named("json+zlib"))(line, 1) for line in lines]
    assert {describe_body(cell.body).name for cell in recoded} == {"json+zlib", "json+none"}


def test_load_of_dumped_documents_without_a_codec_uses_the_default(store, row):
    """A dump of documents contains no stored bytes to keep."""
    line = b'{"row_key": "%b", "column_name": "A", "ref_key": 1, "body": [%b1]}' % (str(row).encode(), b"1, " * 100)
    cell = loading.dump_reader(None)(line, 1)

    assert describe_body(cell.body).name == "msgpack+zlib"


def test_dump_line_is_json_with_the_body_last(fresh_store, row):
    """The fields are the key, added_id, created_at and body, as jq reads them."""
    fresh_store.put_cell(row, "BASE", 7, {"fare": 1.5})
    [cell] = everything(fresh_store)
    fields = json.loads(loading.dump_line(cell, stored=False))

    assert list(fields) == ["row_key", "column_name", "ref_key", "added_id", "created_at", "body"]
    assert fields["row_key"] == str(row)
    assert fields["created_at"] == cell.created_at.isoformat()
    assert fields["body"] == {"fare": 1.5}
    stored = json.loads(loading.dump_line(cell, stored=True))
    assert base64.b64decode(stored["stored"]) == cell.body


def test_dump_of_a_corrupt_body_names_the_cell(fresh_store, by_hand, row):
    """It cannot be dumped as a document; --stored copies its bytes, and load then rejects the line."""
    damaged = bytearray(encode_body({"text": "long enough to be compressed " * 9}))
    damaged[10] ^= 1
    put_raw(fresh_store, by_hand(fresh_store), row, bytes(damaged))
    [cell] = everything(fresh_store)

    with pytest.raises(CorruptBody, match=rf"cell \({row}, DOC, 1\) in shard {cell.shard}: CRC-32"):
        loading.dump_line(cell, stored=False)

    line = loading.dump_line(cell, stored=True)
    assert base64.b64decode(json.loads(line)["stored"]) == bytes(damaged)
    for codec in (None, DEFAULT):
        with pytest.raises(InvalidInput, match="copy, line 1: CRC-32"):
            loading.load(fresh_store, [line], loading.dump_reader(codec), source="copy")


HEAD = b'{"row_key": "71f0c4d2-2918-44cc-a2df-000000000001", "column_name": "A", "ref_key": 1, '


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"[]", "not a line of 'schemaless dump'"),
        (b'{"row_key": 1, "column_name": "A", "ref_key": 1}', "not a line of 'schemaless dump'"),
        (HEAD + b'"body": ]}', "not JSON text"),
        (HEAD + b'"body" : 1}', "the last field must be the body, written exactly as"),
        (b'{"body": 1, ' + HEAD[1:-2] + b"}", "not JSON text"),
        (HEAD + b'"stored": "x"}', "stored is not base64"),
        (HEAD + b'"stored": "ew==\\n"}', "stored is not base64"),
        (HEAD + b'"stored": "\xc3\xa9"}', "stored is not base64"),
        (HEAD + b'"stored": 7}', "stored is not base64"),
        (HEAD + b'"stored": "ew=="}', "not JSON text"),
        (HEAD + b'"body": ' + b"[" * 513 + b"]" * 513 + b"}", "more than 51[23] levels"),
        (HEAD.replace(b"71f0", b"71f") + b'"body": 1}', "row_key is not a UUID: '71fc4d2"),
        (HEAD.replace(b'"A"', b'"a b"') + b'"body": 1}', "column_name must be"),
        (HEAD.replace(b'"A"', b"3") + b'"body": 1}', "column_name must be"),
        (HEAD.replace(b": 1, ", b": true, ") + b'"body": 1}', "ref_key must be an int"),
    ],
)
def test_load_rejects_lines_that_are_not_from_a_dump(store, line, complaint):
    """The error names the line, which is never loaded in part."""
    for codec in (None, LEGACY, DEFAULT):
        with pytest.raises(InvalidInput, match=f"x, line 1: .*{complaint}"):
            loading.load(store, [line], loading.dump_reader(codec), source="x")
