"""The content of cold files: exact, in fixed places, and checked on every read."""

from __future__ import annotations

import io
import json
import os
import threading
import uuid
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemaless import ColdFileDamaged, ColdStoreUnavailable
from schemaless.codec.envelope import decode_body, encode_body, same_document
from schemaless.codec.exact_text import exact_text
from schemaless.codec.references import inlined, reference_body, reference_of, with_text
from schemaless.codec.registry import codec_named, codec_names
from schemaless.store.cold.content import GROUP_BYTES, ColdCell, Damaged, Group, content_of, without_documents
from schemaless.store.cold.fetching import Wanted, cache, fetch
from schemaless.store.cold.targets import LocalTarget
from schemaless.wire.runtime import THREADS
from tests.codec.agreement import BOUNDED, MODEL

LIMIT = 64 << 20


def cell(added_id, text, ref_key=1):
    row_key = uuid.uuid5(uuid.NAMESPACE_OID, f"row {added_id % 7}").bytes
    return ColdCell(added_id, row_key, "BASE", added_id * 10 + ref_key, text, "2026-01-31 23:59:59.123456+00:00")


CELLS = [cell(number, json.dumps({"n": number, "pad": "x" * (number * 997 % 20_000)}).encode()) for number in range(80)]
CONTENT = content_of(CELLS, 3)
SIZE = len(CONTENT.data)


@pytest.fixture
def target(tmp_path):
    target = LocalTarget(tmp_path)
    target.put("a/f.parquet", CONTENT.data, "test")
    return target


def groups_of(target, numbers, size=SIZE, limit=LIMIT, timeout_s=30):
    wanted = [Wanted("a/f.parquet", size, number) for number in numbers]
    return [found for _, found in fetch(target, wanted, THREADS, timeout_s, limit)]


def text_of(groups, cell, group=None):
    place = CONTENT.places[cell.added_id]
    reference = reference_of(reference_body(17, *place, cell.text))
    return groups[place[0]].text(reference, *cell[1:4])


def test_every_document_is_read_back(target):
    """Byte for byte, by its place; rows are sorted by key, and row groups are small."""
    groups = groups_of(target, range(CONTENT.places[max(CONTENT.places)][0] + 10))
    count = 1 + max(group for group, _ in CONTENT.places.values())
    assert all(isinstance(found, Group) for found in groups[:count])
    assert [type(found) for found in groups[count:]] == [Damaged] * len(groups[count:])
    assert [text_of(groups, cell) for cell in CELLS] == [cell.text for cell in CELLS]
    file = pq.ParquetFile(target.open_input("a/f.parquet"))
    assert file.metadata.num_row_groups == count > 2
    assert all(file.metadata.row_group(number).total_byte_size < GROUP_BYTES + (1 << 16) for number in range(count))
    keys = file.read(["row_key", "column_name", "ref_key"]).to_pylist()
    assert keys == sorted(keys, key=lambda key: tuple(key.values()))
    assert content_of(CELLS[::-1], 3).sha256 == CONTENT.sha256


def test_another_key_is_not_returned(target):
    """The key in the row is compared, so a reference to another place is found."""
    groups = groups_of(target, [0, 1, 2])
    first, second = CELLS[0], CELLS[7]
    reference = reference_of(reference_body(17, *CONTENT.places[second.added_id], second.text))
    with pytest.raises(ColdFileDamaged, match=r"cold file 17, which is damaged: row .* has the key"):
        groups[reference.group].text(reference, *first[1:4])
    with pytest.raises(ColdFileDamaged, match="but no row 9999"):
        groups[reference.group].text(replace(reference, row=9_999), *second[1:4])


def test_erased_documents_are_removed_in_place():
    """Their rows stay, so that other references remain valid; no statistics have anything of them."""
    erased = {CELLS[5].added_id, CELLS[77].added_id, 10**9}
    content = without_documents(CONTENT.data.to_pybytes(), erased)
    assert content is not None
    assert content.places == CONTENT.places
    assert content.text_bytes == CONTENT.text_bytes - len(CELLS[5].text) - len(CELLS[77].text)
    assert without_documents(content.data.to_pybytes(), erased) is None
    table = pq.read_table(io.BytesIO(content.data.to_pybytes())).to_pylist()
    assert {row["added_id"]: row["body"] for row in table} == {
        cell.added_id: None if cell.added_id in erased else cell.text.decode() for cell in CELLS
    }


@pytest.mark.guarantee("corruption-detected")
def test_damage_is_found(target, tmp_path):
    """A flipped bit in each page, a cut, and a footer or a row group that claims too much."""
    path = tmp_path / "a/f.parquet"
    whole = path.read_bytes()
    metadata = pq.ParquetFile(path).metadata
    for group in range(metadata.num_row_groups):
        column = metadata.row_group(group).column(6)
        damaged = bytearray(whole)
        damaged[column.data_page_offset + column.total_compressed_size // 2] ^= 4
        path.write_bytes(damaged)
        cache().clear()
        (found,) = groups_of(target, [group])
        assert isinstance(found, Damaged)
    for content, problem in (
        (whole[:-1], "it has .* bytes, but had"),
        (whole[:-8] + b"\xff\xff\xff\x7fPAR1", "claims a footer of"),
        (whole[:-3] + b"XXX", "."),
    ):
        path.write_bytes(content)
        cache().clear()
        (found,) = groups_of(target, [0])
        assert isinstance(found, Damaged)
        with pytest.raises(Damaged, match=problem):
            raise found
    path.write_bytes(whole)
    cache().clear()
    (found,) = groups_of(target, [0], limit=-(1 << 20) + 1000)
    with pytest.raises(Damaged, match="more than a document may have"):
        raise found
    path.unlink()
    assert isinstance(groups_of(target, [0])[0], FileNotFoundError)


class SlowTarget(LocalTarget):
    """A target whose reads wait for an event."""

    def __init__(self, root):
        super().__init__(root)
        self.opened = 0
        self.go = threading.Event()

    def open_input(self, name):
        self.opened += 1
        self.go.wait(120)
        return super().open_input(name)


def test_a_slow_store_is_awaited_for_a_while_and_read_once(target, tmp_path):
    """Callers that want the same row group share one fetch, which goes on for the others if one gives up."""
    slow = SlowTarget(tmp_path)
    cache().clear()
    try:
        with pytest.raises(ColdStoreUnavailable, match=r"no reply within 0\.05 s") as caught:
            groups_of(slow, [0], timeout_s=0.05)
        assert caught.value.retryable
        found = []
        thread = threading.Thread(target=lambda: found.extend(groups_of(slow, [0])))
        thread.start()
    finally:
        slow.go.set()
    thread.join()
    assert isinstance(found[0], Group)
    assert isinstance(groups_of(slow, [0])[0], Group)
    assert slow.opened == 1


def test_the_cache_works_after_a_fork(target):
    """The child has no threads of the parent and starts with its own."""
    assert isinstance(groups_of(target, [0])[0], Group)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if isinstance(groups_of(target, [1])[0], Group) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


NAUGHTY = (
    *('{"a": 1, "a": 2}', "[1e999]", ' {"b" : 1.50}\n', '{"s": "\\ud83d"}'),
    *("18446744073709551616", '"\\u0000"', "NaN"),
)


@BOUNDED
@given(st.lists(st.tuples(MODEL, st.sampled_from(codec_names())), max_size=20))
def test_documents_are_the_same_hot_and_cold(documents):
    """In any codec and as legacy text: the same document, and the same JSON text, byte for byte."""
    bodies = [encode_body(document, codec_named(name)) for document, name in documents]
    bodies += [text.encode() for text in NAUGHTY]
    cells = [cell(number, bytes(exact_text(body)[0])) for number, body in enumerate(bodies)]
    content = content_of(cells, 3)
    file = pq.ParquetFile(pa.BufferReader(content.data))
    groups = [file.read_row_group(number)["body"] for number in range(file.num_row_groups)]
    for body, (added_id, _, _, _, text, _) in zip(bodies, cells, strict=True):
        group, row = content.places[added_id]
        cold = with_text(reference_body(17, group, row, text), groups[group][row].as_py().encode())
        assert exact_text(cold)[0] == text
        assert same_document(decode_body(cold), decode_body(body))
        assert exact_text(inlined(cold))[0] == text
