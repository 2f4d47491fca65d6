"""Chooses which re-encoded versions are stored as deltas, and makes the deltas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from schemaless.base.parts import parts
from schemaless.cell import StoredCell
from schemaless.codec.deltas import apply_delta, can_be_delta, delta_of, encode_delta, is_keyframe
from schemaless.codec.engine import ENGINE
from schemaless.codec.envelope import decode_body, is_erased
from schemaless.codec.registry import Codec
from schemaless.codec.serializers import NotHeld
from schemaless.errors import CorruptBody, VerificationFailed
from schemaless.store.cells.reading import PLACE, Place
from schemaless.store.cells.sql import select_cells, select_next_versions
from schemaless.store.internals import Internals

_MOST_OF_WHOLE: Final = 0.8
"""Largest size of a delta, compared to the whole body: reading it takes longer."""

_KEYS_PER_SELECT: Final = 100


def place_of(cell: StoredCell) -> Place:
    """Return a cell's key as the table stores it."""
    return cell.row_key.bytes, cell.column_name, cell.ref_key


def next_versions(internals: Internals, shard: int, places: Iterable[Place]) -> dict[Place, int]:
    """Return the ref_key of the next higher version that was not erased, by key, of the cells that have one."""
    database = internals.shards.database(shard)
    return {
        (row_key, column_name, ref_key): following
        for part in parts(places, _KEYS_PER_SELECT)
        for row_key, column_name, ref_key, following in internals.shards.rows(
            shard, select_next_versions(database, part)
        )
        if following is not None
    }


class History:
    """Makes deltas of the superseded versions of one block.

    Args:
        internals: the datastore.
        shard: number of the shard.
        codec: the target codec of the migration.
        whole: the new bodies of the block's cells, whole, by key.
        following: the ref_key of the next higher version of each cell that has one.
    """

    def __init__(
        self,
        internals: Internals,
        shard: int,
        codec: Codec,
        whole: Mapping[Place, bytes],
        following: Mapping[Place, int],
    ) -> None:
        self._serializer = ENGINE.serializers[codec.serializer.id]
        self._internals = internals
        self._payloads: dict[Place, bytes | None] = {}
        self._bases: dict[Place, Place] = {}
        for place, body in whole.items():
            base = following.get(place)
            if base is not None and body[1:2] and body[1] >> 4 == self._serializer.id and not is_keyframe(*place):
                self._bases[place] = (*place[:2], base)
        bodies = dict(whole)
        missing = [base for base in set(self._bases.values()) if base not in bodies]
        for part in parts(missing, _KEYS_PER_SELECT):
            sql = select_cells(internals.shards.database(shard), part)
            bodies |= {row[1:4]: row[4] for row in internals.reader.select(shard, sql, set(part), PLACE)}
        for place in {*self._bases, *self._bases.values()}:
            self._payloads[place] = self._payload(bodies.get(place))
        self._whole = whole

    def deltas(self) -> dict[Place, tuple[bytes, Place]]:
        """Return the deltas of the cells that do not stay whole, each with the key of its base.

        Raises:
            VerificationFailed: a delta does not give the document back. Nothing of the block is stored.
        """
        made: dict[Place, tuple[bytes, Place]] = {}
        for place, base in self._bases.items():
            payload, base_payload = self._payloads[place], self._payloads[base]
            if payload is None or base_payload is None:
                continue
            body = encode_delta(self._serializer, payload, base[2], base_payload)
            if body is None or len(body) > _MOST_OF_WHOLE * len(self._whole[place]):
                continue
            if apply_delta(delta_of(body), base_payload, len(payload)) != payload:
                raise VerificationFailed(f"a delta of {len(body):,} bytes does not give version {place[2]} back")
            made[place] = body, base
        return made

    def _payload(self, body: bytes | None) -> bytes | None:
        """Return the canonical payload of a body's document, or None if it cannot be part of a delta."""
        if body is None or is_erased(body):
            return None
        try:
            document = decode_body(body, self._internals.limits, self._internals.dictionaries)
            payload = self._serializer.dumps(document, checked=True)
        except (CorruptBody, NotHeld):
            return None
        return payload if can_be_delta(self._serializer, payload, document, ENGINE) else None
