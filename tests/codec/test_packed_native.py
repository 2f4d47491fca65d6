"""The native extension by itself: it answers where it can, says so where it cannot, and ends no process."""

from __future__ import annotations

import contextlib
import enum
import gc
import random
import subprocess
import sys
import threading
import weakref
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from schemaless.codec.documents import MAX_DEPTH, identical
from schemaless.codec.fast import optional
from schemaless.codec.packed import pack_reference
from schemaless.codec.packed_reader import unpack_reference
from schemaless.errors import CorruptBody
from tests.cases import each
from tests.codec.mutants import mutated
from tests.skips import NATIVE_NOT_BUILT

native: Any = optional("schemaless_packed")
pytestmark = [pytest.mark.once, pytest.mark.skipif(native is None, reason=NATIVE_NOT_BUILT)]

BODIES = sorted((Path(__file__).parents[1] / "vectors" / "bodies").glob("packed-of-*.body"))
PAYLOADS = [path.read_bytes()[2:-4] for path in BODIES]
LEVELS = 32
"""Levels of lists and objects that the native extension walks by itself."""

MUTANTS = 20_000

DEEPEST_PROGRAM = """
import sys, threading, schemaless_packed

def work():
    for wrap in (lambda inner: [inner], lambda inner: {"a": inner}, lambda inner: [inner, 1, "text"],
                 lambda inner: [{"a": inner}, {"a": 1, "b": None}, 2.5]):
        document = 1
        for level in range(int(sys.argv[1])):
            found.append(schemaless_packed.pack(document))
            if found[-1] is not None:
                schemaless_packed.unpack(found[-1], 512)
            document = wrap(document)

found = []
try:
    threading.stack_size(32 * 1024)
except ValueError:
    threading.stack_size(52 * 1024)  # Python 3.14 needs more
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(sum(payload is not None for payload in found))
"""

NOISE_PROGRAM = """
import random, schemaless_packed

chance = random.Random(31)
refused = 0
for _ in range(200_000):
    noise = chance.randbytes(chance.randrange(3, 40))
    try:
        schemaless_packed.unpack(bytes((chance.randrange(12), chance.randrange(12))) + noise, 512)
    except ValueError:
        refused += 1
print(refused)
"""


class Text(str):
    __slots__ = ()


class Members(dict[str, Any]):
    pass


class Elements(list[Any]):
    pass


class Watched:
    first: int
    second: str


class Level(enum.IntEnum):
    LOW = 1


class Real(float):
    pass


STRANGERS = [
    Text("a"), Members(), Elements(), Level.LOW, Real(1), (1, 2), b"bytes", bytearray(b"a"), {1}, object(), 1j, ...,
]  # fmt: skip


def program(source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", source, *arguments], capture_output=True, text=True, timeout=300, check=False
    )


def nested(levels: int) -> Any:
    document: Any = "in the middle"
    for level in range(levels):
        document = [document] if level % 2 else {"a": document}
    return document


@each("payload", PAYLOADS)
def test_native_golden_payload_is_its_own_answer(payload: bytes) -> None:
    """No golden payload is left to the reference, so that a module that always gives up does not pass for one."""
    document = native.unpack(payload, MAX_DEPTH)

    assert identical(document, unpack_reference(payload))
    assert native.pack(document) == payload
    assert identical(native.unpack(bytearray(payload), MAX_DEPTH), document)


@each("stranger", STRANGERS)
def test_native_pack_of_a_foreign_type_returns_none(stranger: Any) -> None:
    """Exact types only, wherever they stand: what else there is, the reference names."""
    for document in (stranger, [stranger], [1, stranger], [stranger] * 5, {"a": stranger}, [{"a": stranger}] * 2):
        assert native.pack(document) is None


@pytest.mark.parametrize("key", [1, None, b"a", ("a",), Text("b"), "\ud800"], ids=repr)
def test_native_pack_of_a_key_that_is_not_str_returns_none(key: Any) -> None:
    """Keys are str, in the first object of a column and in a later one."""
    for document in ({key: 1}, {"a": 1, key: 1}, [{key: 1}, {key: 1}], [{"a": 1}, {key: 1}], [{"a": 1}, [], {key: 1}]):
        assert native.pack(document) is None


@pytest.mark.parametrize("text", ["\0", "a\0", "\ud800", "\ud800\udc00"], ids=repr)
def test_native_pack_of_unrepresentable_text_returns_none(text: str) -> None:
    """NUL and lone surrogates, alone, in a column, and beside doubles whose bytes are zeros by right."""
    for document in (text, [text], [text] * 5, ["a", "b", "c", text], {"a": text, "b": -0.0}, [-0.0, 5e-324, text]):
        assert native.pack(document) is None


def test_native_pack_zero_bytes_of_numbers_are_no_text() -> None:
    """Doubles, UUIDs and hexadecimal text share a section with strings, and may have zeros in it."""
    document = ["a", -0.0, 5e-324, ["00000000-0000-0000-0000-000000000000"] * 4, ["0000"] * 5, [2.0**60, "b", -0.0]]

    assert native.pack(document) == pack_reference(document)
    assert identical(native.unpack(native.pack(document), MAX_DEPTH), document)


def test_native_counts_levels_and_leaves_deep_ones_to_the_reference() -> None:
    """It walks so many levels as fit the smallest stack of a thread, and never more than it is asked for."""
    packed = native.pack(nested(LEVELS))

    assert native.pack(nested(LEVELS + 1)) is None
    assert native.pack(nested(100_000)) is None
    assert identical(native.unpack(packed, LEVELS), nested(LEVELS))
    for payload, levels in ((packed, LEVELS - 1), (pack_reference(nested(LEVELS + 1)), MAX_DEPTH)):
        with pytest.raises(ValueError, match="levels"):
            native.unpack(payload, levels)


def test_native_pack_of_a_cyclic_list_returns_none() -> None:
    """A cycle ends at the limit of levels."""
    cycle: list[Any] = []
    cycle.append(cycle)
    both: dict[str, Any] = {}
    both["a"] = [both, both]

    assert native.pack(cycle) is None
    assert native.pack([cycle, cycle]) is None
    assert native.pack({"a": cycle}) is None


def test_native_deepest_documents_fit_the_smallest_stack() -> None:
    """A thread with the smallest stack that Python gives: no document and no payload ends the process."""
    done = program(DEEPEST_PROGRAM, "200")

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 3 * LEVELS


def test_native_noise_is_refused() -> None:
    """Random bytes, some of them payloads by chance: ValueError or a document, in a process that lives on."""
    done = program(NOISE_PROGRAM)

    assert (done.returncode, done.stderr) == (0, "")
    assert 190_000 < int(done.stdout) < 200_000


def test_native_mutants_are_refused_or_read_as_the_reference_does() -> None:
    """Mutants of every golden payload, the long ones too: the same document, or ValueError where it refuses."""
    chance = random.Random(41)
    read = 0
    for number in range(MUTANTS):
        mutant = mutated(chance, PAYLOADS)
        try:
            document = native.unpack(mutant, MAX_DEPTH)
        except ValueError:
            if number % 10 == 0:  # the reference takes fifty times as long
                with pytest.raises(CorruptBody):
                    unpack_reference(mutant)
            continue
        read += 1
        assert identical(document, unpack_reference(mutant)), mutant.hex()

    assert 100 < read < MUTANTS


@pytest.mark.long
def test_native_refusals_leak_no_memory() -> None:
    """What was made before a payload proved wrong is dropped: memory does not grow with refusals."""
    chance = random.Random(43)
    mutants = [mutated(chance, PAYLOADS) for _ in range(2_000)]

    def refuse() -> int:
        for mutant in mutants:
            with contextlib.suppress(ValueError):
                native.unpack(mutant, MAX_DEPTH)
        for document in ([1, "a", {"b": [2.5, object()]}], [{"a": 1}, {"a": (1,)}], {"a": ["\0"] * 9}):
            assert native.pack(document) is None
        gc.collect()
        return sys.getallocatedblocks()

    refuse()
    before = refuse()
    for _ in range(3):
        after = refuse()
    assert after - before < 100


def test_native_documents_share_no_mutable_value() -> None:
    """Keys are shared between documents, objects and lists never."""
    packed = native.pack([{"a": {}, "b": []}] * 3)
    first, second = native.unpack(packed, MAX_DEPTH), native.unpack(packed, MAX_DEPTH)
    first[0]["a"]["more"] = 1
    first[0]["b"].append(1)
    first[0]["c"] = 1

    assert first[1] == {"a": {}, "b": []}
    assert second == native.unpack(packed, MAX_DEPTH) == [{"a": {}, "b": []}] * 3


def test_native_read_documents_are_seen_by_the_garbage_collector() -> None:
    """Each object and list of a document that was read is tracked, so that cycles through it are collected."""
    payload = native.pack({"a": [{"b": {"c": 1}, "d": [1]}, {"b": {"c": 2}, "d": [2]}], "e": {"f": {}}, "g": {"h": []}})
    document = native.unpack(payload, LEVELS)
    holders = [document, document["a"][0], document["a"][1], document["e"], document["g"]]
    assert all(gc.is_tracked(holder) for holder in holders)
    watched = weakref.ref(kept := Watched())
    document["e"]["f"]["kept"] = [kept, document]
    del document, holders, kept
    gc.collect()
    assert watched() is None


def test_native_dicts_of_every_layout_are_written_alike() -> None:
    """Dicts that share their keys, that grew, that shrank: the same bytes."""
    sharing, other = Watched(), Watched()
    sharing.first, other.first = 1, 4
    sharing.second, other.second = "two", "five"
    shrunk = {str(number): number for number in range(100)} | {"first": 1, "second": "two"}
    for number in range(100):
        del shrunk[str(number)]
    of_other_keys: dict[Any, Any] = {1: 1, "first": 1, "second": "two"}
    del of_other_keys[1]
    plain = {"first": 1, "second": "two"}
    for document in (vars(sharing), shrunk, of_other_keys, shrunk.copy(), dict(of_other_keys)):
        assert native.pack(document) == native.pack(plain)
        assert native.pack([document] * 3) == native.pack([plain] * 3)
        assert native.unpack(native.pack([document, vars(other)]), LEVELS) == [plain, vars(other)]


def test_native_integers_of_every_length_are_written_as_the_reference_does() -> None:
    """Around each power of two, of both signs, alone and in columns."""
    edges = [sign * ((1 << bits) + more) for bits in range(72) for more in (-1, 0, 1) for sign in (-1, 1)]
    for document in (*edges, edges, [{"a": edge} for edge in edges]):
        payload = native.pack(document)
        assert payload == pack_reference(document)
        assert native.unpack(payload, LEVELS) == document


def test_native_threads_read_and_write_the_same() -> None:
    """Room and memory of earlier documents are one thread's at a time."""
    documents = [native.unpack(payload, MAX_DEPTH) for payload in PAYLOADS]
    start = threading.Barrier(4)

    def work(seed: int) -> None:
        chance = random.Random(seed)
        start.wait()
        for _ in range(3_000):
            number = chance.randrange(len(PAYLOADS))
            assert native.pack(documents[number]) == PAYLOADS[number]
            assert identical(native.unpack(PAYLOADS[number], MAX_DEPTH), documents[number])

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, seed) for seed in range(4)]:
            done.result()


@pytest.mark.skipif(
    sys.version_info >= (3, 12),
    reason="the collector runs on the eval breaker only, so not within a native call: What's New in Python 3.12, "
    "Other Language Changes, gh-97922; 'make test-native' runs this on Python 3.11",
)
def test_native_unpack_within_unpack_reads_the_same() -> None:
    """Creating objects may run the garbage collector, whose callbacks may call unpack."""
    payload = max(PAYLOADS, key=len)
    expected = unpack_reference(payload)
    inner: list[Any] = []

    def collected(phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            inner.append(native.unpack(PAYLOADS[len(inner) % len(PAYLOADS)], MAX_DEPTH))

    threshold = gc.get_threshold()
    gc.callbacks.append(collected)
    gc.set_threshold(5)
    try:
        found = [native.unpack(payload, MAX_DEPTH) for _ in range(50)]
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(collected)

    assert len(inner) > 0
    assert all(identical(document, expected) for document in found)
    assert all(
        identical(document, unpack_reference(PAYLOADS[number % len(PAYLOADS)]))
        for number, document in enumerate(inner[:200])
    )


@pytest.mark.parametrize("payload", ["text", 1, None, [1], memoryview(b"\0\1\1")], ids=lambda each: type(each).__name__)
def test_native_unpack_what_is_no_bytes_is_a_type_error(payload: Any) -> None:
    """Bytes and bytearray, and nothing else."""
    with pytest.raises(TypeError):
        native.unpack(payload, MAX_DEPTH)


def test_native_cache_of_layouts_is_bounded() -> None:
    """What is remembered of keys has a bound: more different objects than that, and long ones, read the same."""
    for number in range(6_000):
        document = {f"{number} {key}": key for key in range(number % 60)}
        assert native.unpack(native.pack(document), MAX_DEPTH) == document


@each("content", [b"", b"a", b"ab" * 5_000, bytes(range(256)) * 300, random.Random(5).randbytes(40_000)])
def test_native_inflate_and_deflate_are_inverse_to_zlib(content: bytes) -> None:
    """Each reads what the other wrote, at every level; bytes and bytearray give the same."""
    for level in range(1, 10):
        stream = native.deflate(content, level)
        assert stream == native.deflate(bytearray(content), level)
        assert zlib.decompress(stream) == content
        assert native.inflate(stream, 1 << 20) == content
        assert native.inflate(bytearray(zlib.compress(content, level)), 1 << 20) == content


def test_native_inflate_rejects_incomplete_streams() -> None:
    """Cut short, followed by bytes, damaged or too long: None, so that zlib tells why."""
    content = bytes(range(256)) * 300
    stream = zlib.compress(content)
    changed = stream[:40] + bytes([stream[40] ^ 1]) + stream[41:]
    for damaged in (b"", stream[:-1], stream[: len(stream) // 2], stream + b"\0", stream * 2, changed):
        assert native.inflate(damaged, 1 << 20) is None
    assert native.inflate(stream, len(content) - 1) is None
    assert native.inflate(stream, len(content)) == content


@each("level", [-1, 0, 10, 12])
def test_native_deflate_refuses_other_levels(level: int) -> None:
    """Levels are those of zlib, without the one that does not compress."""
    with pytest.raises(ValueError, match="level"):
        native.deflate(b"content", level)


def test_native_threads_inflate_and_deflate_beside_each_other() -> None:
    """They run without the GIL, each with memory of its own."""
    contents = [random.Random(seed).choices(b"abcdefgh", k=2_000 * (seed + 1)) for seed in range(8)]
    start = threading.Barrier(4)

    def work(seed: int) -> None:
        chance = random.Random(seed)
        start.wait()
        for _ in range(500):
            content = bytes(chance.choice(contents))
            assert native.inflate(native.deflate(content, chance.randrange(1, 10)), 1 << 20) == content

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, seed) for seed in range(4)]:
            done.result()
