"""Codecs and the ids that they are stored under."""

from __future__ import annotations

import pytest

from schemaless.codec.compressors import Compressor, Uncompressed
from schemaless.codec.engine import REFERENCE, Engine
from schemaless.codec.messagepack import MessagePack
from schemaless.codec.registry import (
    COMPRESSORS,
    DEFAULT,
    JSON,
    LEGACY,
    MSGPACK,
    NONE,
    SERIALIZERS,
    ZLIB,
    Codec,
    Registry,
    codec_named,
    codec_names,
)
from schemaless.codec.serializers import Serializer
from schemaless.errors import UnknownCodec


def test_ids_are_the_stored_ones() -> None:
    """The ids on disk: this list is only ever added to."""
    assert {kind.name: kind.id for kind in SERIALIZERS} == {"json": 0, "msgpack": 1, "packed": 2}
    assert {kind.name: kind.id for kind in COMPRESSORS} == {"none": 0, "zlib": 1, "zstd": 2}


@pytest.mark.parametrize(("kind_id", "kind_name"), [(0, "other"), (7, "json"), (15, "far"), (-1, "x")])
def test_add_with_a_taken_id_or_name_raises(kind_id: int, kind_name: str) -> None:
    """A second claim on an id or a name never overwrites the first."""
    registry = Registry[type[Serializer]]("serializer")
    registry.add(JSON)

    class Claim(MessagePack):
        id = kind_id
        name = kind_name

    with pytest.raises(ValueError, match=r"id|exists"):
        registry.add(Claim)

    assert list(registry) == [JSON]


def test_every_kind_has_its_work_on_both_engines() -> None:
    """Nothing is registered that an engine cannot do."""
    for engine in (REFERENCE, Engine(fast=True)):
        assert {number: type(one) for number, one in engine.serializers.items()} == {
            kind.id: kind for kind in SERIALIZERS
        }
        assert {number: type(one) for number, one in engine.compressors.items()} == {
            kind.id: kind for kind in COMPRESSORS
        }


def test_each_codec_counts_its_own_format_and_its_fallbacks() -> None:
    """JSON text stands in for every other serializer, uncompressed bytes for every other compressor."""
    for kinds, stands_in in ((SERIALIZERS, JSON), (COMPRESSORS, NONE)):
        for kind in kinds:
            assert kind.counts_as == tuple(dict.fromkeys((kind.id, stands_in.id)))
    assert [kind for kind in SERIALIZERS if kind.is_text] == [JSON]


def test_codec_names_lead_to_codecs_of_that_name() -> None:
    """Each name that is listed can be asked for."""
    assert codec_names()[0] == "msgpack+zlib"
    assert codec_names()[-1] == "legacy"
    assert [codec_named(name).name for name in codec_names()] == codec_names()
    assert codec_named("msgpack+zlib") == DEFAULT == Codec(MSGPACK, ZLIB, 6)
    assert codec_named("legacy") is LEGACY
    assert (LEGACY.serializer, LEGACY.enveloped) == (JSON, False)


@pytest.mark.parametrize(
    "name", ["", "msgpack", "zlib", "msgpack+lz4", "pickle+zlib", "MSGPACK+ZLIB", "msgpack+zlib:9"]
)
def test_codec_named_with_an_unknown_name_lists_the_names(name: str) -> None:
    """An unknown name is answered with those that there are."""
    with pytest.raises(UnknownCodec, match=r"msgpack\+zlib, .*, legacy"):
        codec_named(name)


def test_compressor_of_another_kind_may_have_the_same_id() -> None:
    """Serializers and compressors are numbered apart."""

    class Named(Uncompressed):
        name = "json"

    assert Registry[type[Compressor]]("compressor").add(Named).id == JSON.id
