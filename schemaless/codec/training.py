"""Trains zstd dictionaries of several sizes on sampled bodies and evaluates them on held-out rows.

Cells of one row resemble each other, so the split is by row: 60% to train on, 20% to choose the size, and 20% to
evaluate the choice. The split uses a hash of the row_key, so a row lands in the same part in every sample.

The documents to train on are masked by default, because a dictionary outlives them; the others are not, because nothing
from them is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import zstandard

from schemaless.codec.dictionaries import FIRST_ID, NO_DICTIONARIES, Dictionaries, Dictionary
from schemaless.codec.engine import ENGINE
from schemaless.codec.envelope import DEFAULT_LIMITS, decode_body, encode_body, unseal
from schemaless.codec.masking import Mask, Values
from schemaless.codec.recode import recode
from schemaless.codec.registry import NONE, Codec
from schemaless.codec.trial import Trial, try_codec
from schemaless.errors import BodyTooLarge, CorruptBody, InvalidInput, VerificationFailed

SIZES: Final = (4 << 10, 16 << 10, 64 << 10, 110 << 10, 256 << 10)
"""Dictionary sizes to try, in bytes. Readers keep the chosen one in memory and, ideally, in processor caches."""

CLOSE: Final = 0.03
"""Maximum excess over the best result, as a fraction; the smallest dictionary within it is chosen."""

LEAST_GAIN: Final = 0.02
"""Minimum fraction of bytes that a dictionary must save over the same codec without one."""

_MOST_PAYLOAD_BYTES: Final = 64 << 20
_FEWEST_CELLS: Final = 8

Part = Literal["train", "choose", "judge"]

SampledBody = tuple[bytes, bytes]
"""A row_key's 16 bytes, and a stored body."""


@dataclass(frozen=True, slots=True)
class TriedSize:
    """Result for one dictionary size.

    Attributes:
        dictionary_bytes: size of the dictionary.
        body_bytes: total size of the bodies used to choose the size, encoded with the dictionary.
    """

    dictionary_bytes: int
    body_bytes: int


@dataclass(frozen=True, slots=True)
class Training:
    """A trained dictionary and its evaluation.

    Attributes:
        codec: the codec with the dictionary, whose id is provisional until the catalog assigns one.
        sizes: results for the sizes tried, smallest first.
        chosen_without_bytes: total size of the bodies that ``sizes`` measures, without a dictionary.
        rows: number of rows trained on.
        cells: number of cells trained on.
        judged_rows: number of rows used only for the final evaluation.
        judged: trial of ``codec`` on the evaluation cells.
        judged_without: trial of the same codec without a dictionary on the same cells.
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
        """The chosen dictionary."""
        assert self.codec.dictionary is not None
        return self.codec.dictionary

    @property
    def share(self) -> float:
        """Size of the evaluation cells with the dictionary, relative to their size without it."""
        return _bytes_of(self.judged) / max(1, _bytes_of(self.judged_without))

    @property
    def helps(self) -> bool:
        """Whether the dictionary saves at least ``LEAST_GAIN``."""
        return self.share <= 1 - LEAST_GAIN


def part_of(row_key: bytes) -> Part:
    """Return which part of the split a row belongs to: 60% train, 20% choose, 20% judge."""
    place = hashlib.sha256(row_key).digest()[0] * 100 // 256
    return "train" if place < 60 else "choose" if place < 80 else "judge"


def train(
    cells: Iterable[SampledBody],
    codec: Codec,
    *,
    sizes: Sequence[int] = SIZES,
    dictionaries: Dictionaries = NO_DICTIONARIES,
    values: Values = "masked",
) -> Training:
    """Train dictionaries of several sizes on sampled cells, and choose one.

    Args:
        cells: sampled bodies in any codec.
        codec: the zstd codec and level to train for; its own dictionary is ignored.
        sizes: dictionary sizes to try, in bytes, smallest first.
        dictionaries: source of the dictionaries that the cells name.
        values: which values of the documents the dictionary may hold.

    Raises:
        InvalidInput: the codec does not use zstd, there are too few cells or rows, or zstd finds no repetition.
    """
    codec.check_takes_dictionary()
    codec = replace(codec, dictionary=None)
    parts: dict[Part, list[SampledBody]] = {"train": [], "choose": [], "judge": []}
    for cell in cells:
        parts[part_of(cell[0])].append(cell)
    rows = {part: len({row_key for row_key, _ in of_part}) for part, of_part in parts.items()}
    sampled, choose, judge = parts["train"], [body for _, body in parts["choose"]], [body for _, body in parts["judge"]]
    bodies = list(_uncompressed(sampled, codec, dictionaries))
    if values != "real":
        bodies = list(_masked(bodies, Mask(rows["train"], keep_common=values == "common"), codec))
    payloads = [payload for _, body in bodies if (payload := _payload(body, codec)) is not None]
    if len(payloads) < _FEWEST_CELLS <= len(sampled):
        raise InvalidInput(
            f"only {len(payloads)} of the {len(sampled)} cells to train on can use a dictionary; the others have less "
            f"than {codec.compress_min_bytes} bytes as {codec.serializer.name}, and are stored uncompressed, or cannot "
            "be re-encoded"
        )
    if len(payloads) < _FEWEST_CELLS or not choose or not judge:
        raise InvalidInput(
            f"{len(payloads)} cells of {rows['train']} rows are too few to train on, with {rows['choose']} rows to "
            f"choose a size and {rows['judge']} to evaluate the dictionary; use a dozen rows or, better, hundreds"
        )
    tried: list[tuple[TriedSize, Codec]] = []
    for size in sizes:
        dictionary = _trained(payloads, size, codec)
        if dictionary is None or (tried and len(dictionary.content) <= tried[-1][0].dictionary_bytes):
            continue
        with_it = replace(codec, dictionary=dictionary)
        body_bytes = _bytes_of(try_codec(choose, with_it, dictionaries=dictionaries))
        tried.append((TriedSize(len(dictionary.content), body_bytes), with_it))
    if not tried:
        raise InvalidInput(f"zstd finds too little in common in {len(payloads)} cells to make a dictionary")
    best = min(size.body_bytes for size, _ in tried)
    _, chosen = next((size, with_it) for size, with_it in tried if size.body_bytes <= best * (1 + CLOSE))
    return Training(
        codec=chosen,
        sizes=tuple(size for size, _ in tried),
        chosen_without_bytes=_bytes_of(try_codec(choose, codec, dictionaries=dictionaries)),
        rows=rows["train"],
        cells=len(payloads),
        judged_rows=rows["judge"],
        judged=try_codec(judge, chosen, dictionaries=dictionaries),
        judged_without=try_codec(judge, codec, dictionaries=dictionaries),
    )


def _uncompressed(cells: Iterable[SampledBody], codec: Codec, dictionaries: Dictionaries) -> Iterator[SampledBody]:
    """Yield cells with their bodies uncompressed, except those kept as text, too short or not re-encodable."""
    plain = Codec(codec.serializer, NONE)
    size = 0
    for row_key, body in cells:
        try:
            new = recode(body, plain, dictionaries=dictionaries).body
            payload = _payload(new, codec)
        except (CorruptBody, BodyTooLarge, VerificationFailed):
            continue
        if payload is not None and len(payload) >= codec.compress_min_bytes:
            yield row_key, new
            size += len(payload)
            if size >= _MOST_PAYLOAD_BYTES:
                return


def _masked(cells: Sequence[SampledBody], mask: Mask, codec: Codec) -> Iterator[SampledBody]:
    """Yield cells with their documents masked."""
    for row_key, body in cells:
        mask.see(row_key, decode_body(body))
    for row_key, body in cells:
        masked = mask.mask(decode_body(body))
        if masked is not None:
            yield row_key, encode_body(masked, Codec(codec.serializer, NONE))


def _payload(body: bytes, codec: Codec) -> bytes | None:
    """Return the payload of an uncompressed body; None if it is kept as text."""
    serializer, payload = unseal(body, DEFAULT_LIMITS, ENGINE)
    return bytes(payload) if serializer.id == codec.serializer.id else None


def _trained(payloads: list[bytes], size: int, codec: Codec) -> Dictionary | None:
    try:
        trained = zstandard.train_dictionary(
            size, [*payloads], dict_id=FIRST_ID, level=codec.level or codec.compressor.level or 0
        )
    except (zstandard.ZstdError, ValueError):
        return None  # too little repetition for a dictionary of this size
    return Dictionary(trained.as_bytes())


def _bytes_of(trial: Trial) -> int:
    return sum(length for length in trial.new_bytes if length is not None)
