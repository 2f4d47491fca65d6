"""Whether servers keep the tables open that followers read: else each look opens and closes hundreds of them."""

from __future__ import annotations

from collections import Counter
from typing import Final

from schemaless.errors import SchemalessError
from schemaless.followers.sql import SELECT_TABLE_CACHE
from schemaless.internals import Internals

_TABLES: Final = 3
"""Followers read so many tables of each shard: cell, follower and parked."""


def small_table_caches(internals: Internals) -> dict[str, str]:
    """Return what to do on each primary whose cache of open tables is too small for its shards; servers as text.

    One that cannot be asked is absent: what is said of its shards says so.
    """
    advice = {}
    shards = Counter(internals.shards.node_of(shard) for shard in range(internals.topology.shard_count))
    for node, count in shards.items():
        try:
            with internals.shards.pool_for(node).connection() as connection:
                mariadb = connection.is_mariadb
                ((tables, instances, definitions),) = connection.rows(SELECT_TABLE_CACHE)
        except SchemalessError:
            continue
        needed = _TABLES * count
        # A connection has the tables of one instance; MariaDB gives each of them the whole size.
        kept = int(tables) if mariadb else int(tables) // int(instances)
        if min(kept, int(definitions)) < needed:
            advice[str(node)] = (
                f"it keeps {kept:,} tables open for a connection, and {int(definitions):,} definitions; followers in "
                f"its {count:,} shards read {needed:,} tables, and are late. Set table_open_cache"
                f"{'' if mariadb else ' / table_open_cache_instances'} and table_definition_cache to {needed:,} or more"
            )
    return advice
