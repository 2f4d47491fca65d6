"""Chooses which re-encoded versions are stored as deltas, and makes the deltas."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from schemaless.base.parts import parts
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
from schemaless.codec.envelope import decode_body, is_enveloped, is_erased
from schemaless.codec.recode import Conversion
from schemaless.codec.registry import Codec
from schemaless.codec.serializers import NotHeld, Payload
from schemaless.errors import BodyTooLarge, CorruptBody, VerificationFailed
from schemaless.store.cells.reading import PLACE, Place
from schemaless.store.cells.sql import select_cells, select_higher_versions, select_latest_versions
from schemaless.store.internals import Internals

_MOST_OF_WHOLE: Final = 0.8
"""Largest size of a delta, compared to the whole body: reading it takes longer."""

_SMALL_SHARE: Final = 1 / 8
"""Size of a delta, compared to the payload, up to which the whole body is not compressed for that comparison."""

_KEYS_PER_SELECT: Final = 100
_PAIRS_PER_SELECT: Final = 50
_HIGHER_VERSIONS: Final = 2 * KEYFRAME_INTERVAL


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

    Args:
        internals: the datastore.
        shard: number of the shard.
        codec: the target codec of the migration.
        whole: the block's cells by key: their new bodies, whole, or what those are made of.
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
        self._serializer = ENGINE.serializers[codec.serializer.id]
        self._internals = internals
        self._shard = shard
        self._whole = whole
        self._kept = Payloads() if payloads is None else payloads
        self._payloads: dict[Place, Payload | None] = {}
        self._bases = {
            place: (*place[:2], min(expected_base(*place), latest[place]))
            for place, body in whole.items()
            if place in latest and self._is_candidate(body) and not is_keyframe(*place)
        }
        self._read_bases()
        absent = {place for place, base in self._bases.items() if self._payloads[base] is None}
        self._bases |= self._higher_versions([place for place in absent if self._bases[place][2] < latest[place]])
        self._read_bases()
        for place in absent:
            if self._payloads[self._bases[place]] is None:
                self._bases[place] = (*place[:2], latest[place])
        self._read_bases()

    def deltas(self) -> dict[Place, tuple[bytes, Place]]:
        """Return the deltas of the cells that do not stay whole, each with the key of its base.

        Raises:
            VerificationFailed: a delta does not give the document back. Nothing of the block is stored.
        """
        made: dict[Place, tuple[bytes, Place]] = {}
        for place, base in self._bases.items():
            payload, base_payload = self._payload(self._whole[place]), self._payloads[base]
            if payload is None or base_payload is None:
                continue
            body = encode_delta(self._serializer, payload, base[2], base_payload)
            if body is None or not self._is_short(body, payload, self._whole[place]):
                continue
            if apply_delta(delta_of(body), base_payload, len(payload)) != payload:
                raise VerificationFailed(f"a delta of {len(body):,} bytes does not give version {place[2]} back")
            made[place] = body, base
        return made

    def _is_candidate(self, body: bytes | Conversion) -> bool:
        if isinstance(body, Conversion):
            return body.serializer.id == self._serializer.id
        return is_enveloped(body) and body[1] >> 4 == self._serializer.id

    def _is_short(self, delta: bytes, payload: Payload, whole: bytes | Conversion) -> bool:
        if len(delta) <= _SMALL_SHARE * len(payload):
            return True
        if isinstance(whole, Conversion):
            try:
                whole = whole.sealed().body
            except (BodyTooLarge, VerificationFailed):
                return False
        return len(delta) <= _MOST_OF_WHOLE * len(whole)

    def _higher_versions(self, places: Sequence[Place]) -> dict[Place, Place]:
        """Return the next version of a higher level of each cell, or else the highest of those that follow."""
        found: dict[Place, Place] = {}
        lowest: dict[tuple[bytes, str], int] = {}
        for row_key, column_name, ref_key in places:
            pair = row_key, column_name
            lowest[pair] = min(ref_key, lowest.get(pair, ref_key))
        database = self._internals.shards.database(self._shard)
        higher: dict[tuple[bytes, str], list[int]] = {}
        for part in parts([(*pair, ref_key) for pair, ref_key in lowest.items()], _PAIRS_PER_SELECT):
            sql = select_higher_versions(database, part, _HIGHER_VERSIONS)
            for row_key, column_name, ref_key in self._internals.shards.rows(self._shard, sql):
                higher.setdefault((row_key, column_name), []).append(ref_key)
        for row_key, column_name, ref_key in places:
            level = base_level(row_key, column_name, ref_key)
            following = [other for other in sorted(higher.get((row_key, column_name), ())) if other > ref_key]
            bases = (other for other in following if base_level(row_key, column_name, other) > level)
            for base in itertools.islice(itertools.chain(bases, following[-1:]), 1):
                found[row_key, column_name, ref_key] = row_key, column_name, base
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
            bodies = {row[1:4]: row[4] for row in self._internals.reader.select(self._shard, sql, set(part), PLACE)}
            for base in part:
                self._payloads[base] = payload = self._payload(bodies.get(base))
                if payload is not None:
                    self._kept.keep((base[:2], base[2]), (self._serializer, payload))

    def _payload(self, body: bytes | Conversion | None) -> Payload | None:
        """Return the canonical payload of a body's document, or None if it cannot be part of a delta."""
        if body is None or (not isinstance(body, Conversion) and is_erased(body)):
            return None
        try:
            if isinstance(body, Conversion):
                if body.stored is not None and is_erased(body.stored):
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
