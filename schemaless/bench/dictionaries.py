"""Contender: the store's zstd with a dictionary, cross-validated on two halves of the rows.

Each half is compressed with a dictionary trained on the other half, so no document is compressed with a dictionary that
was trained on its own row. The dictionaries contain real values, so they are discarded after the comparison.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from schemaless.bench.contenders import Compressor, store_compressor
from schemaless.cell import JSONDocument
from schemaless.codec import envelope
from schemaless.codec.registry import NONE, ZSTD, Codec
from schemaless.codec.serializers import Serializer
from schemaless.codec.training import train

NAME: Final = "zstd+dict"
_TRAINING_BYTES: Final = 16 << 20


def compressors(
    serializer: type[Serializer], documents: Sequence[JSONDocument], rows: Sequence[str], halves: Sequence[int]
) -> tuple[Compressor, Compressor]:
    """Return one compressor per half, each with a dictionary trained on the other half.

    Args:
        serializer: the store's serializer.
        documents: all documents.
        rows: the row of each document.
        halves: the half of each document, 0 or 1, the same for all documents of a row.

    Raises:
        InvalidInput: there is too little data to train on.
    """
    first, second = (
        store_compressor(
            NAME, _trained(serializer, [place for place in range(len(rows)) if halves[place] != half], documents, rows)
        )
        for half in (0, 1)
    )
    return first, second


def _trained(
    serializer: type[Serializer], places: Sequence[int], documents: Sequence[JSONDocument], rows: Sequence[str]
) -> Codec:
    plain = Codec(serializer, NONE)
    cells: list[tuple[bytes, bytes]] = []
    filled = 0
    for place in places:
        row_key = hashlib.sha256(rows[place].encode("utf-8", "backslashreplace")).digest()[:16]
        body = envelope.encode_body(documents[place], plain)
        cells.append((row_key, body))
        filled += len(body)
        if filled >= _TRAINING_BYTES:
            break
    return train(cells, Codec(serializer, ZSTD, ZSTD.level), values="real").codec
