"""Dictionaries: what is compressed with one comes back exactly, and by no other; training judges by unseen rows."""

from __future__ import annotations

import pickle
import random
import threading
import uuid
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemaless.codec.dictionaries import FIRST_ID, LAST_ID, Dictionary
from schemaless.codec.engine import REFERENCE, Engine
from schemaless.codec.envelope import (
    DEFAULT_LIMITS,
    Limits,
    check_canonical,
    counts_as,
    decode_body,
    dictionary_of,
    encode_body,
    renumbered_body,
    same_document,
)
from schemaless.codec.recode import recode
from schemaless.codec.registry import ZLIB, Codec, codec_named, codec_names
from schemaless.codec.training import part_of, train
from schemaless.errors import DecodedSizeExceeded, DictionaryDamaged, InvalidInput, UnknownDictionary
from tests.dictionaries import ZSTD, document, training

pytestmark = pytest.mark.twice

DICTIONARY = training().dictionary
WITH = replace(ZSTD, dictionary=DICTIONARY)
JSON_WITH = replace(codec_named("json+zstd"), dictionary=DICTIONARY)

OTHERS = {number: DICTIONARY.renumbered(number) for number in (FIRST_ID + 1, 40_000, LAST_ID)}

documents: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
) | st.integers(0, 10**6).map(document)


@given(documents, st.sampled_from([WITH, JSON_WITH, replace(WITH, level=12)]), st.sampled_from(sorted(OTHERS)))
def test_document_comes_back_exactly_and_under_another_number(value: Any, codec: Codec, number: int) -> None:
    """Whatever is encoded decodes to the same, is canonical, and counts as done; renumbering changes the id alone."""
    body = encode_body(value, codec)
    assert same_document(decode_body(body, dictionaries=DICTIONARY), value)
    check_canonical(body, DICTIONARY)
    assert counts_as(body, codec, DICTIONARY)
    named = dictionary_of(body)
    if named is not None:
        assert named == DICTIONARY.id
        other = OTHERS[number]
        moved = renumbered_body(body, number)
        assert dictionary_of(moved) == number
        assert moved == encode_body(value, replace(codec, dictionary=other))
        assert renumbered_body(moved, DICTIONARY.id) == body
        check_canonical(moved, other)


@given(documents, st.sampled_from([name for name in codec_names() if name != "legacy"]))
def test_recode_to_a_dictionary_and_back(value: Any, name: str) -> None:
    """Re-encoding tells a dictionary from another and from none, and loses nothing on the way there and back."""
    body = encode_body(value, codec_named(name))
    there = recode(body, WITH)
    assert same_document(decode_body(there.body, dictionaries=DICTIONARY), value)
    assert recode(there.body, WITH, dictionaries=DICTIONARY).unchanged
    back = recode(there.body, codec_named(name), dictionaries=DICTIONARY)
    assert same_document(decode_body(back.body), value)
    if dictionary_of(there.body) is not None:
        other = replace(WITH, dictionary=OTHERS[40_000])
        for elsewhere in (ZSTD, other, replace(JSON_WITH, dictionary=OTHERS[40_000])):
            assert not counts_as(there.body, elsewhere, DICTIONARY)
        with pytest.raises(UnknownDictionary, match=str(DICTIONARY.id)):
            recode(there.body, other, dictionaries=OTHERS[40_000])


def test_a_dictionary_saves_bytes_on_documents_that_it_has_not_seen(engine: Engine) -> None:
    """Short documents that are alike take less than half with it."""
    fresh = [document(number) for number in range(5_000, 5_100)]
    sizes = [sum(len(encode_body(each, codec, engine=engine)) for each in fresh) for codec in (ZSTD, WITH)]
    assert sizes[1] < 0.5 * sizes[0]


def test_a_dictionary_that_differs_in_a_byte_is_found_out(engine: Engine) -> None:
    """Its tables are the same, so zstd alone would give another document in silence."""
    body = encode_body(document(7), WITH, engine=engine)
    wrong = 0
    for place in range(len(DICTIONARY.content) - 1_200, len(DICTIONARY.content)):
        altered = bytearray(DICTIONARY.content)
        altered[place] ^= 1
        try:
            assert decode_body(body, dictionaries=Dictionary(bytes(altered)), engine=engine) == document(7)
        except DictionaryDamaged:
            wrong += 1
    assert wrong > 20


def test_decoded_size_is_bounded_with_a_dictionary_too(engine: Engine) -> None:
    """A dictionary makes no larger bombs than the limit allows."""
    body = encode_body("a" * 1_000_000, WITH, engine=engine)
    with pytest.raises(DecodedSizeExceeded):
        decode_body(body, Limits(decoded_bytes=999_999), DICTIONARY, engine=engine)
    assert decode_body(body, DEFAULT_LIMITS, DICTIONARY, engine=engine) == "a" * 1_000_000


@pytest.mark.parametrize(
    "content",
    [b"", b"no dictionary", DICTIONARY.content[:8], DICTIONARY.content[:40], b"\0" + DICTIONARY.content[1:]],
)
def test_bytes_that_are_no_dictionary_are_refused(content: bytes) -> None:
    """Nothing is taken for a dictionary that zstd would not read."""
    with pytest.raises(DictionaryDamaged):
        Dictionary(content)


@pytest.mark.parametrize("number", [0, 1, FIRST_ID - 1, LAST_ID + 1, (1 << 32) - 1])
def test_ids_of_the_public_register_are_refused(number: int) -> None:
    """A stored body never names a dictionary whose number belongs to another."""
    with pytest.raises(DictionaryDamaged, match=str(number)):
        DICTIONARY.renumbered(number)


def test_a_dictionary_travels_to_other_processes_and_threads() -> None:
    """Pickled it is the same; threads that share one do not disturb each other."""
    assert pickle.loads(pickle.dumps(WITH)) == WITH
    wrong: list[int] = []

    def work(first: int) -> None:
        found = {
            number: decode_body(encode_body(document(number), WITH), dictionaries=DICTIONARY)
            for number in range(first, first + 200)
        }
        wrong.extend(number for number, each in found.items() if each != document(number))

    threads = [threading.Thread(target=work, args=(first,)) for first in range(0, 8_000, 1_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_only_zstd_takes_a_dictionary_and_levels_are_checked() -> None:
    """A codec that is unavailable is refused when it is created."""
    with pytest.raises(InvalidInput, match="does not take a dictionary"):
        Codec(WITH.serializer, ZLIB, 6, dictionary=DICTIONARY)
    with pytest.raises(InvalidInput, match="levels 1 to 9"):
        Codec(WITH.serializer, ZLIB, 10)
    with pytest.raises(InvalidInput, match="does not take a dictionary"):
        train([], codec_named("msgpack+zlib"))


def test_training_splits_by_row_and_never_by_cell() -> None:
    """All cells of a row have one part, and what is judged was in no other."""
    rows = [uuid.uuid5(uuid.NAMESPACE_OID, str(number)).bytes for number in range(300)]
    bodies = [(rows[number // 3], encode_body(document(number))) for number in range(900)]
    found = train(bodies, ZSTD, sizes=(1_024, 2_048))
    judged = [row for row in rows if part_of(row) == "judge"]
    assert found.judged_rows == len(judged)
    assert found.judged.encoded == 3 * len(judged)
    assert found.rows == len([row for row in rows if part_of(row) == "train"])
    assert found.helps
    assert found.share < 0.5
    assert [size.dictionary_bytes for size in found.sizes] == [1_024, 2_048]


def test_training_is_honest_where_nothing_repeats_or_little_is_there() -> None:
    """Noise does not help, and is said not to; too few cells are refused."""
    drawn = random.Random(6)
    noise = [(drawn.randbytes(16), encode_body({"noise": drawn.randbytes(4_000).hex()})) for _ in range(100)]
    assert not train(noise, ZSTD, sizes=(1_024,)).helps
    with pytest.raises(InvalidInput, match="too few"):
        train(noise[:6], ZSTD)
    with pytest.raises(InvalidInput, match=r"only 0 of the \d+ cells .* have less than \d+ bytes as msgpack"):
        train([(row, encode_body({"a": 1})) for row, _ in noise], ZSTD)


def test_engines_agree_on_dictionaries() -> None:
    """Bytes are those of one zstd, with and without the packages for speed."""
    for number in range(20):
        assert encode_body(document(number), WITH) == encode_body(document(number), WITH, engine=REFERENCE)
