"""Checks that servers keep followers' tables open: otherwise each poll opens and closes hundreds of tables."""

from __future__ import annotations

from collections import Counter
from typing import Final

from schemaless.errors import SchemalessError
from schemaless.store.followers.sql import SELECT_TABLE_CACHE
from schemaless.topology.shards import Shards

_TABLES: Final = 3
"""Number of tables per shard that followers read: cell, follower and parked."""


def small_table_caches(shards: Shards) -> dict[str, str]:
    """Return advice for each primary whose table cache is too small for its shards, by server.

    Servers that cannot be reached are left out; the status of their shards reports them.
    """
    advice = {}
    counts = Counter(shards.node_of(shard) for shard in range(shards.topology.shard_count))
    for node, count in counts.items():
        try:
            with shards.pool_for(node).connection() as connection:
                mariadb = connection.is_mariadb
                ((tables, instances, definitions),) = connection.rows(SELECT_TABLE_CACHE)
        except SchemalessError:
            continue
        needed = _TABLES * count
        # A connection uses one cache instance. MySQL divides the size among the instances; MariaDB does not.
        kept = int(tables) if mariadb else int(tables) // int(instances)
        if min(kept, int(definitions)) < needed:
            advice[str(node)] = (
                f"it keeps at most {kept:,} tables open per connection and {int(definitions):,} table "
                f"definitions cached; followers in "
                f"its {count:,} shards read {needed:,} tables, so they fall behind. Set table_open_cache"
                f"{'' if mariadb else ' (divided by table_open_cache_instances)'} and "
                f"table_definition_cache to {needed:,} or more"
            )
    return advice
