"""Codecs and the ids that they are stored under."""

from __future__ import annotations

import pytest

from schemaless.codec.engine import REFERENCE, Engine
from schemaless.codec.registry import (
    COMPRESSORS,
    DEFAULT,
    JSON,
    LEGACY,
    MSGPACK,
    SERIALIZERS,
    ZLIB,
    Codec,
    codec_named,
    codec_names,
)
from schemaless.errors import UnknownCodec


def test_ids_are_the_stored_ones() -> None:
    """The ids on disk: this list is only ever added to."""
    assert {kind.name: kind.id for kind in SERIALIZERS.values()} == {"json": 0, "msgpack": 1, "packed": 2}
    assert {kind.name: kind.id for kind in COMPRESSORS.values()} == {"none": 0, "zlib": 1, "zstd": 2}


def test_every_kind_has_its_work_on_both_engines() -> None:
    """Nothing is registered that an engine cannot do."""
    for engine in (REFERENCE, Engine(fast=True)):
        assert {number: type(one) for number, one in engine.serializers.items()} == SERIALIZERS
        assert {number: type(one) for number, one in engine.compressors.items()} == COMPRESSORS


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
