"""Queries across many shards: one statement per server, on all servers at once."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from schemaless.base.parts import grouped
from schemaless.topology.shards import Shards
from schemaless.wire.connection import Check, Rows
from schemaless.wire.pipelining import Query, run_queries
from schemaless.wire.sql.parts import all_limited


def verify_once(shards: Shards, shard: int) -> None:
    """Verify that a shard is where the catalog says, unless this was done before; for statements about many shards."""
    if shards.routing.proven[shard] is None:
        shards.run(shard, lambda connection: None)


def query_shards(
    shards: Shards,
    numbers: Collection[int],
    select: Callable[[int], bytes],
    on_rows: Callable[[Rows], None],
    check: Check | None = None,
    while_waiting: Callable[[], object] = lambda: None,
) -> None:
    """Query the primaries of some shards.

    Shards that cannot be read together with the others, such as one that has just moved, are read one by one.

    Args:
        shards: the datastore's shards.
        numbers: the shards to query.
        select: returns the query for a shard; the columns are the same for every shard. Each query reads a single
            snapshot.
        on_rows: receives the rows of one server at a time, while the other servers work; the rows of a shard are never
            split. It must not query a server.
        check: validates the rows of each reply.
        while_waiting: called while servers work, zero or more times; it must not query a server.

    Raises:
        ServerError: a shard could not be read, as in ``Shards.rows``.
    """
    if len(numbers) == 1:
        (shard,) = numbers
        on_rows(shards.rows(shard, select(shard), check=check))
        return
    shards.router.refresh_if_due()
    for shard in numbers:
        verify_once(shards, shard)
    routing = shards.routing
    by_pool = grouped((routing.proven[shard], shard) for shard in numbers)
    one_by_one = by_pool.pop(None, [])
    queries = [
        Query(pool, partial(_statement, select, of_pool), check, of_pool[0], routing, len(of_pool))
        for pool, of_pool in by_pool.items()
        if pool is not None
    ]
    for query, error in zip(queries, run_queries(queries, on_rows, while_waiting), strict=True):
        if error is not None:
            one_by_one += by_pool[query.pool]
    for shard in one_by_one:
        on_rows(shards.rows(shard, select(shard), check=check))


def _statement(select: Callable[[int], bytes], numbers: Collection[int]) -> bytes:
    return all_limited(map(select, numbers))
