"""Chooses which re-encoded versions are stored as deltas, and makes the deltas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Final

from schemaless.base.parts import grouped, parts
from schemaless.cell import StoredCell
from schemaless.codec.deltas import (
    KEYFRAME_INTERVAL,
    Payloads,
    apply_delta,
    base_level,
    can_be_delta,
    delta_of,
    encode_delta,
    expected_base,
    is_keyframe,
)
from schemaless.codec.engine import ENGINE
from schemaless.codec.envelope import base_of, decode_body, is_delta, is_enveloped, is_erased, is_reference, unseal
from schemaless.codec.recode import Conversion
from schemaless.codec.registry import Codec
from schemaless.codec.serializers import NotHeld, Payload
from schemaless.errors import BodyTooLarge, CorruptBody, VerificationFailed
from schemaless.store.cells.reading import PLACE, Place, only_requested
from schemaless.store.cells.sql import select_cells, select_higher_versions, select_latest_versions
from schemaless.store.internals import Internals

_MOST_OF_WHOLE: Final = 0.8
"""Largest size of a delta, compared to the whole body: reading it takes longer."""

_SMALL_SHARE: Final = 1 / 8
"""Size of a delta, compared to the payload, up to which the whole body is not compressed for that comparison."""

_BYTES_PER_VALUE: Final = 0.7
"""Least size of a whole body for each distinct byte of its payload, unless it is compressed with a dictionary.

The first one of each is a literal. Codes for n of them take n log2(n) bits, and each block of deflate with codes of its
own has a header of 29 bits or more, which comes to 5.7 bits each at least; a block of zstd has a longer header.
"""

_VALUES_SEARCHED: Final = 256
_KEYS_PER_SELECT: Final = 100
_PAIRS_PER_SELECT: Final = 50
_HIGHER_VERSIONS: Final = 8 * KEYFRAME_INTERVAL
"""Number of versions after a cell among which its base is searched for; one of 3,000 has none of a higher level."""


def place_of(cell: StoredCell) -> Place:
    """Return a cell's key as the table stores it."""
    return cell.row_key.bytes, cell.column_name, cell.ref_key


def latest_versions(internals: Internals, shard: int, places: Iterable[Place]) -> dict[Place, int]:
    """Return the ref_key of the latest version, by key, of the cells that have a higher one; without erased ones."""
    database = internals.shards.database(shard)
    return {
        (row_key, column_name, ref_key): latest
        for part in parts(places, _KEYS_PER_SELECT)
        for row_key, column_name, ref_key, latest in internals.shards.rows(
            shard, select_latest_versions(database, part)
        )
        if latest is not None and latest > ref_key
    }


class History:
    """Makes deltas of the superseded versions of one block.

    A version is stored against the next one of a higher level; until there is one, against the latest. When that has
    been superseded, it is stored against another one, so that no chain has more than two deltas.

    Args:
        internals: the datastore.
        shard: number of the shard.
        codec: the target codec of the migration.
        whole: the block's cells by key: their new bodies, whole, or what those are made of; deltas of the target codec
            as they are stored.
        latest: the ref_key of the latest version of each cell that has a higher one.
        payloads: payloads of bases, kept for the next block of the shard.
    """

    def __init__(
        self,
        internals: Internals,
        shard: int,
        codec: Codec,
        whole: Mapping[Place, bytes | Conversion],
        latest: Mapping[Place, int],
        payloads: Payloads | None = None,
    ) -> None:
        self._codec = codec
        self._serializer = ENGINE.serializers[codec.serializer.id]
        self._internals = internals
        self._shard = shard
        self._whole = whole
        self._kept = Payloads() if payloads is None else payloads
        self._payloads: dict[Place, Payload | None] = {}
        self._bases = {
            place: (*place[:2], min(expected_base(*place), latest[place]))
            for place, body in whole.items()
            if place in latest and self._is_candidate(place, body) and not is_keyframe(*place)
        }
        self._read_bases()
        absent = {place for place, base in self._bases.items() if self._payloads[base] is None}
        self._bases |= self._higher_versions([place for place in absent if self._bases[place][2] < latest[place]])
        self._read_bases()
        for place in absent:
            if self._payloads[self._bases[place]] is None:
                self._bases[place] = (*place[:2], latest[place])
        self._read_bases()

    def deltas(self) -> dict[Place, tuple[bytes, Place | None]]:
        """Return the new bodies of the cells that become deltas, each with the key of its base.

        A delta that would be too long against its new base becomes whole; its base is None.

        Raises:
            VerificationFailed: a delta does not give the document back. Nothing of the block is stored.
        """
        made: dict[Place, tuple[bytes, Place | None]] = {}
        # By base, since the compressor of one is used for all deltas against it.
        for place, base in sorted(self._bases.items(), key=itemgetter(1)):
            stored = _stored_delta(self._whole[place])
            if stored is not None and base_of(stored) == base[2]:
                continue
            payload, base_payload = self._payload(self._whole[place]), self._payloads[base]
            if payload is None or base_payload is None:
                continue
            body = encode_delta(self._serializer, payload, base[2], base_payload)
            if body is None or not self._is_short(body, payload, self._whole[place]):
                if stored is not None:
                    with suppress(BodyTooLarge, VerificationFailed):
                        made[place] = self._sealed(stored), None
                continue
            if apply_delta(delta_of(body), base_payload, len(payload)) != payload:
                raise VerificationFailed(f"a delta of {len(body):,} bytes does not give version {place[2]} back")
            made[place] = body, base
        return made

    def _is_candidate(self, place: Place, body: bytes | Conversion) -> bool:
        stored = _stored_delta(body)
        if stored is not None and base_level(*place[:2], base_of(stored)) > base_level(*place):
            return False
        if isinstance(body, Conversion):
            return body.serializer.id == self._serializer.id
        return is_enveloped(body) and body[1] >> 4 == self._serializer.id

    def _is_short(self, delta: bytes, payload: Payload, whole: bytes | Conversion) -> bool:
        if len(delta) <= _SMALL_SHARE * len(payload):
            return True
        least = 0 if self._codec.dictionary else _BYTES_PER_VALUE * len(set(payload[:_VALUES_SEARCHED]))
        if len(delta) <= _MOST_OF_WHOLE * least:
            return True
        try:
            stored = _stored_delta(whole)
            if stored is not None:
                whole = self._sealed(stored)
            elif isinstance(whole, Conversion):
                whole = whole.sealed().body
        except (BodyTooLarge, VerificationFailed):
            return False
        return len(delta) <= _MOST_OF_WHOLE * len(whole)

    def _sealed(self, delta: bytes) -> bytes:
        """Return the whole body of a delta."""
        serializer, payload = unseal(delta, self._internals.limits, ENGINE, self._internals.dictionaries)
        return Conversion(None, serializer, payload, None, self._codec).sealed().body

    def _higher_versions(self, places: Sequence[Place]) -> dict[Place, Place]:
        """Return the next version of a higher level of each cell that has one among those that follow."""
        database = self._internals.shards.database(self._shard)
        found: dict[Place, Place] = {}
        searched = grouped(
            ((row_key, column_name), ref_key) for row_key, column_name, ref_key in sorted(places, reverse=True)
        )
        while searched:
            following: dict[tuple[bytes, str], list[int]] = {pair: [] for pair in searched}
            for part in parts([(*pair, ref_keys[-1]) for pair, ref_keys in searched.items()], _PAIRS_PER_SELECT):
                sql = select_higher_versions(database, part, _HIGHER_VERSIONS)
                rows = self._internals.shards.rows(self._shard, sql, check=only_requested(searched, slice(0, 2)))
                for row_key, column_name, ref_key in rows:
                    following[row_key, column_name].append(ref_key)
            for pair, higher in following.items():
                *others, lowest = searched.pop(pair)
                bases = _bases_among(pair, (*others, lowest), sorted(higher))
                found |= {(*pair, ref_key): (*pair, base) for ref_key, base in bases.items()}
                left = [ref_key for ref_key in others if ref_key not in bases]
                if left and len(higher) == _HIGHER_VERSIONS:
                    searched[pair] = left
        return found

    def _read_bases(self) -> None:
        """Look up the payload of each base: None if it does not exist or cannot be one."""
        missing = []
        for base in set(self._bases.values()) - self._payloads.keys():
            kept = self._kept.get((base[:2], base[2]))
            if base in self._whole:
                self._payloads[base] = self._payload(self._whole[base])
            elif kept is not None:
                self._payloads[base] = kept[1]
            else:
                missing.append(base)
        for part in parts(missing, _KEYS_PER_SELECT):
            sql = select_cells(self._internals.shards.database(self._shard), part)
            rows = self._internals.reader.select(self._shard, sql, set(part), PLACE, cold=False)
            bodies = {row[1:4]: row[4] for row in rows}
            for base in part:
                self._payloads[base] = payload = self._payload(bodies.get(base))
                if payload is not None:
                    self._kept.keep((base[:2], base[2]), (self._serializer, payload))

    def _payload(self, body: bytes | Conversion | None) -> Payload | None:
        """Return the canonical payload of a body's document, or None if it cannot be part of a delta.

        A cold cell cannot: nothing in a file is needed to read a body in the database, or while a cell is erased.
        """
        if body is None or (not isinstance(body, Conversion) and (is_erased(body) or is_reference(body))):
            return None
        try:
            if isinstance(body, Conversion):
                if body.stored is not None and (is_erased(body.stored) or is_reference(body.stored)):
                    return None
                if body.serializer.id == self._serializer.id and not body.is_copy:
                    return self._usable(body.payload)
                document = body.serializer.loads(body.payload)
            else:
                document = decode_body(body, self._internals.limits, self._internals.dictionaries)
            return self._usable(self._serializer.dumps(document, checked=True))
        except (CorruptBody, NotHeld):
            return None

    def _usable(self, payload: Payload) -> Payload | None:
        if self._serializer.may_hold_nan(payload):
            document = self._serializer.loads(payload)
            return payload if can_be_delta(self._serializer, payload, document, ENGINE) else None
        return payload


def _stored_delta(body: bytes | Conversion) -> bytes | None:
    """Return the stored body of a cell that is a delta in the target codec already."""
    stored = body.stored if isinstance(body, Conversion) else body
    return stored if stored is not None and is_delta(stored) else None


def _bases_among(pair: tuple[bytes, str], ref_keys: Iterable[int], higher: list[int]) -> dict[int, int]:
    """Return the first version of a higher level, among ``higher``, of each version that has one.

    Args:
        pair: row_key and column_name.
        ref_keys: the versions, which are no keyframes, descending.
        higher: other versions, ascending.
    """
    found: dict[int, int] = {}
    lowest_above: dict[int, int] = {}
    for ref_key in ref_keys:
        while higher and higher[-1] > ref_key:
            base = higher.pop()
            lowest_above |= dict.fromkeys(range(base_level(*pair, base)), base)
        base_of_level = lowest_above.get(base_level(*pair, ref_key))
        if base_of_level is not None:
            found[ref_key] = base_of_level
    return found
