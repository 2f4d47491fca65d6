"""Placement: a rule that never changes."""

from __future__ import annotations

import uuid

import pytest

import schemaless
from schemaless.errors import InvalidCell
from schemaless.store.internals import internals_of
from schemaless.topology.placement import shard_for


@pytest.mark.guarantee("placement")
@pytest.mark.parametrize(
    ("row_key", "shard_count", "shard"),
    [
        (bytes(16), 4096, 2901),
        (bytes(range(16)), 4096, 648),
        (b"\xff" * 16, 4096, 1562),
        (b"\xff" * 16, 1, 0),
        (uuid.UUID("71f0c4d2-2918-44cc-a2df-0123456789ab").bytes, 65536, 55658),
    ],
)
def test_shard_for_known_row_keys_never_changes(row_key, shard_count, shard):
    """Every stored cell was placed by this rule."""
    assert shard_for(row_key, shard_count) == shard


def test_shard_for_text_instead_of_bytes_raises():
    """The 36 characters of a UUID's text are not a row_key."""
    with pytest.raises(InvalidCell, match="16 bytes, got 36"):
        shard_for(str(uuid.UUID(int=1)).encode(), 16)


@pytest.mark.guarantee("placement")
def test_shard_for_many_rows_fills_shards_evenly():
    """Conformance 20: no shard has a quarter more or less than its share of 64,000 rows."""
    counts = [0] * 16
    for number in range(64_000):
        counts[shard_for(uuid.uuid5(uuid.NAMESPACE_OID, str(number)).bytes, 16)] += 1

    assert 4000 * 0.75 < min(counts) <= max(counts) < 4000 * 1.25


@pytest.mark.guarantee("placement")
@pytest.mark.mysql
@pytest.mark.twice
def test_shard_for_agrees_with_the_servers_crc32(store: schemaless.Datastore):
    """Placement can be checked in SQL."""
    for number in range(50):
        row = uuid.uuid5(uuid.NAMESPACE_OID, str(number)).bytes

        rows = internals_of(store).shards.rows(0, b"SELECT CRC32(x'%b') %% 4096" % row.hex().encode())

        assert rows == ((shard_for(row, 4096),),)
