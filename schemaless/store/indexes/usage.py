"""Indexes that no query has read, as far as the servers count reads.

Queries use the key ``query`` of an index's table; followers and checks use the primary key. A server's counters are
trusted only if they have counted changes of the table.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from functools import partial

from schemaless.base.keys import shard_database
from schemaless.errors import ServerError
from schemaless.store.indexes import sql
from schemaless.topology.shards import Shards
from schemaless.wire.connection import Connection


def unread_since(shards: Shards, tables: Iterable[str]) -> dict[str, datetime.datetime]:
    """Return the index tables of which no server has counted a read, with the latest start of a server, UTC.

    A table is absent if a primary or replica of its shards cannot be asked, does not count, or was not written to since
    its start. Counters that were reset, and queries that found nothing, cannot be told from none.

    Args:
        shards: access to the shards.
        tables: names of index tables.
    """
    topology = shards.routing.topology
    found = dict.fromkeys(tables, datetime.datetime.min.replace(tzinfo=datetime.UTC))
    for cluster in topology.clusters if found else ():
        databases = [shard_database(topology.name, shard) for shard in topology.shards_of(cluster.name)]
        for node in cluster.nodes if databases else ():
            try:
                started, unread = shards.pool_for(node).run(partial(_unread, databases=databases, tables=[*found]))
            except ServerError:
                return {}
            found = {table: max(since, started) for table, since in found.items() if table in unread}
    return found


def _unread(connection: Connection, databases: list[str], tables: list[str]) -> tuple[datetime.datetime, set[str]]:
    """Return when a server was started, and the tables in which it has counted changes, but no reads by queries."""
    if not tables:
        return datetime.datetime.now(datetime.UTC), set()
    rows = connection.rows(sql.select_reads(databases, tables))
    if not rows and connection.is_mariadb:
        rows = connection.rows(sql.select_user_statistics(databases, tables))
    ((_, uptime_s),) = connection.rows(sql.SHOW_UPTIME)
    started = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=int(uptime_s))
    return started, {str(table) for table, changes, reads in rows if int(changes) and not int(reads)}
