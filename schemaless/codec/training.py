"""Dictionaries trained on sampled bodies, at several sizes, judged on rows that training has not seen.

Cells of one row are alike, so rows are split and never cells: most for training, some to choose the size by, and others
to say what the chosen one gives. A row's part is its hash, so it has the same one in every sample.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import zstandard

from schemaless.codec.dictionaries import FIRST_ID, NO_DICTIONARIES, Dictionaries, Dictionary
from schemaless.codec.engine import ENGINE
from schemaless.codec.envelope import DEFAULT_LIMITS, unseal
from schemaless.codec.recode import recode
from schemaless.codec.registry import NONE, Codec
from schemaless.codec.trial import Trial, try_codec
from schemaless.errors import BodyTooLarge, CorruptBody, InvalidInput, VerificationFailed

SIZES: Final = (4 << 10, 16 << 10, 64 << 10, 110 << 10, 256 << 10)
"""These sizes are tried, in bytes. All processes that read have the chosen one in memory, and in processor caches."""

CLOSE: Final = 0.03
"""The smallest size that gives at most so much more bytes than the best one is taken."""

LEAST_GAIN: Final = 0.02
"""A dictionary has to save this share, to be kept, of the bytes that the same codec gives without it."""

_MOST_PAYLOAD_BYTES: Final = 64 << 20
_FEWEST_CELLS: Final = 8

Part = Literal["train", "choose", "judge"]

SampledBody = tuple[bytes, bytes]
"""A sampled body is a row_key's 16 bytes, and the stored body."""


@dataclass(frozen=True, slots=True)
class TriedSize:
    """A size that was tried.

    Attributes:
        dictionary_bytes: what the dictionary takes.
        body_bytes: what bodies of rows that training has not seen take with it.
    """

    dictionary_bytes: int
    body_bytes: int


@dataclass(frozen=True, slots=True)
class Training:
    """A dictionary, and what it gives.

    Attributes:
        codec: with the dictionary, under a number that the catalog has yet to give it.
        sizes: what was tried, by size; ``body_bytes`` of those without any is ``chosen_without_bytes``.
        chosen_without_bytes: see there.
        rows: rows that it was trained on.
        cells: their cells.
        judged_rows: rows that neither training nor the choice of a size has seen.
        judged: those cells in ``codec``.
        judged_without: the same cells in the same codec without the dictionary.
    """

    codec: Codec
    sizes: tuple[TriedSize, ...]
    chosen_without_bytes: int
    rows: int
    cells: int
    judged_rows: int
    judged: Trial
    judged_without: Trial

    @property
    def dictionary(self) -> Dictionary:
        """The chosen one."""
        assert self.codec.dictionary is not None
        return self.codec.dictionary

    @property
    def share(self) -> float:
        """The bytes of the judged cells with the dictionary, over those without."""
        return _bytes_of(self.judged) / max(1, _bytes_of(self.judged_without))

    @property
    def helps(self) -> bool:
        """Whether it is worth keeping."""
        return self.share <= 1 - LEAST_GAIN


def part_of(row_key: bytes) -> Part:
    """Return which part of the training a row belongs to: 60, 20 and 20 of a hundred."""
    place = hashlib.sha256(row_key).digest()[0] * 100 // 256
    return "train" if place < 60 else "choose" if place < 80 else "judge"


def train(
    cells: Iterable[SampledBody],
    codec: Codec,
    *,
    sizes: Sequence[int] = SIZES,
    dictionaries: Dictionaries = NO_DICTIONARIES,
) -> Training:
    """Train dictionaries of several sizes on some cells, and choose one.

    Args:
        cells: as they are stored, in whatever codec.
        codec: what bodies shall be in, at which level; a codec of zstd without a dictionary.
        sizes: of dictionaries, in bytes.
        dictionaries: those that the cells name.

    Raises:
        InvalidInput: the codec is not one of zstd, there are too few cells or rows, or zstd finds nothing that repeats.
    """
    codec.check_takes_dictionary()
    codec = replace(codec, dictionary=None)
    parts: dict[Part, list[bytes]] = {"train": [], "choose": [], "judge": []}
    rows: dict[Part, set[bytes]] = {"train": set(), "choose": set(), "judge": set()}
    for row_key, body in cells:
        part = part_of(row_key)
        parts[part].append(body)
        rows[part].add(row_key)
    payloads = list(_payloads(parts["train"], codec, dictionaries))
    if len(payloads) < _FEWEST_CELLS or not parts["choose"] or not parts["judge"]:
        raise InvalidInput(
            f"{len(payloads)} cells of {len(rows['train'])} rows are too few to train on, with {len(rows['choose'])} "
            f"and {len(rows['judge'])} rows to judge by; a dictionary needs a dozen rows at least, hundreds are better"
        )
    tried: list[tuple[TriedSize, Codec]] = []
    for size in sizes:
        dictionary = _trained(payloads, size, codec)
        if dictionary is None or (tried and len(dictionary.content) <= tried[-1][0].dictionary_bytes):
            continue
        with_it = replace(codec, dictionary=dictionary)
        body_bytes = _bytes_of(try_codec(parts["choose"], with_it, dictionaries=dictionaries))
        tried.append((TriedSize(len(dictionary.content), body_bytes), with_it))
    if not tried:
        raise InvalidInput(f"zstd finds nothing in {len(payloads)} cells that a dictionary could hold")
    best = min(size.body_bytes for size, _ in tried)
    _, chosen = next((size, with_it) for size, with_it in tried if size.body_bytes <= best * (1 + CLOSE))
    return Training(
        codec=chosen,
        sizes=tuple(size for size, _ in tried),
        chosen_without_bytes=_bytes_of(try_codec(parts["choose"], codec, dictionaries=dictionaries)),
        rows=len(rows["train"]),
        cells=len(payloads),
        judged_rows=len(rows["judge"]),
        judged=try_codec(parts["judge"], chosen, dictionaries=dictionaries),
        judged_without=try_codec(parts["judge"], codec, dictionaries=dictionaries),
    )


def _payloads(bodies: Iterable[bytes], codec: Codec, dictionaries: Dictionaries) -> Iterable[bytes]:
    """Yield bodies as what the compressor gets; those that the codec cannot have, or keeps as text, are left out."""
    plain = Codec(codec.serializer, NONE)
    size = 0
    for body in bodies:
        try:
            new = recode(body, plain, dictionaries=dictionaries).body
            serializer, payload = unseal(new, DEFAULT_LIMITS, ENGINE)
        except (CorruptBody, BodyTooLarge, VerificationFailed):
            continue
        if serializer.id == codec.serializer.id and len(payload) >= codec.compress_min_bytes:
            yield bytes(payload)
            size += len(payload)
            if size >= _MOST_PAYLOAD_BYTES:
                return


def _trained(payloads: list[bytes], size: int, codec: Codec) -> Dictionary | None:
    try:
        made = zstandard.train_dictionary(
            size, [*payloads], dict_id=FIRST_ID, level=codec.level or codec.compressor.level or 0
        )
    except (zstandard.ZstdError, ValueError):
        return None  # too little that repeats for this size
    return Dictionary(made.as_bytes())


def _bytes_of(trial: Trial) -> int:
    return sum(length for length in trial.new_bytes if length is not None)
