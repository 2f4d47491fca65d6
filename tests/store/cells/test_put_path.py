"""The path of a body from the application's document to the socket: the files involved, and the number of copies."""

from __future__ import annotations

import gc
import os
import random
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import schemaless
from schemaless import NewStoredCell
from schemaless.codec.engine import ENGINE
from schemaless.codec.envelope import seal
from schemaless.codec.registry import codec_named
from schemaless.store.cells.sql import insert_cells
from schemaless.store.cells.writing import EncodedCell

PACKAGE = Path(schemaless.__file__).parent

FILES = {
    "store/datastore.py",
    "codec/envelope.py",
    "codec/messagepack.py",
    "codec/compressors.py",
    "store/cells/writing.py",
    "store/cells/sql.py",
    "wire/sql/parts.py",
    "wire/connection.py",
    "wire/driver.py",
}
"""The files whose functions handle the body of a put, in the order of the README's "Reading the source"."""

SIZE = 4 << 20


@pytest.mark.mysql
def test_a_put_takes_its_body_through_nine_files(store, row):
    """No other file of this package handles the document, the payload, the stored bytes or the statement."""
    noise = random.Random(7)
    document = {"text": "".join(noise.choices("abcdefgh", k=40_000))}
    store.put_cell(row, "BASE", 1, {"text": "first"})
    seen: set[str] = set()

    def is_body(value: Any) -> bool:
        if isinstance(value, EncodedCell):
            return True
        return value is document or (isinstance(value, bytes | bytearray | memoryview) and len(value) > 10_000)

    def watch(frame: FrameType, event: str, value: Any) -> None:
        if event not in ("call", "return"):
            return
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE) and any(map(is_body, [value, *frame.f_locals.values()])):
            seen.add(path.relative_to(PACKAGE).as_posix())

    sys.setprofile(watch)
    try:
        store.put_cell(row, "BASE", 2, document)
    finally:
        sys.setprofile(None)

    gated = os.environ.get("SCHEMALESS_FAST") != "0"
    assert seen == FILES | (set() if gated else {"codec/documents.py"})


def copies(call: Callable[[], bytes]) -> float:
    """Return the maximum number of bodies of ``SIZE`` that a call holds at once, including its result."""
    gc.collect()
    tracemalloc.start()
    try:
        result = call()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(result) >= SIZE
    return peak_bytes / SIZE


def test_an_envelope_and_a_statement_are_one_copy_each():
    """A copy of a copy would show, because both exist for a moment. Quoting copies only if it has to."""
    plain, noise = b"x" * SIZE, random.Random(7).randbytes(SIZE)

    def insert(body: bytes) -> bytes:
        return insert_cells("mezzanine_0001", [(bytes(16), "BASE", 1, body)])

    def sealed() -> bytes:
        return seal(ENGINE.msgpack, plain, codec_named("msgpack+none"), ENGINE)

    assert copies(sealed) < 1.1
    assert copies(lambda: insert(plain)) < 1.1
    assert copies(lambda: insert(noise)) < 2.1


@pytest.mark.mysql
def test_stored_bytes_are_copied_twice_on_their_way_to_the_socket(store, row):
    """Once into the statement, and once into the driver's packet."""
    body = b'"%b"' % (b"x" * SIZE)
    store.put_cell(row, "BASE", 1, {"text": "first"})

    def put() -> bytes:
        store.put_stored_cells([NewStoredCell(row, "BASE", 2, body)], trusted=True)
        return body

    assert copies(put) < 2.1
