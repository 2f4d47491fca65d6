"""Many shards asked at once: those of a server in one statement, and all servers before the first one's reply."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from schemaless.topology.shards import Shards
from schemaless.wire.connection import Check, Rows
from schemaless.wire.pipelining import Question, ask
from schemaless.wire.pool import NodePool
from schemaless.wire.sql.parts import all_rows


def prove(shards: Shards, shard: int) -> None:
    """See that a shard is where the catalog says, once; for statements that are about many shards of a server."""
    if shards.routing.proven[shard] is None:
        shards.run(shard, lambda connection: None)


def ask_shards(
    shards: Shards,
    numbers: Collection[int],
    select: Callable[[int], bytes],
    take: Callable[[Rows], None],
    check: Check | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Send a query for each of some shards to their primaries.

    Args:
        shards: the way to them.
        numbers: the shards that are asked.
        select: makes a shard's query, of the same columns for each; what one query gives is one snapshot.
        take: given the rows, a server's at a time, while others work; all of a shard at once. It must not ask a server.
        check: looks at the rows of each statement.
        meanwhile: may be called while servers work, once or more often; it must not ask one either.

    Raises:
        ServerError: as ``Shards.rows``.
    """
    if len(numbers) == 1:
        (shard,) = numbers
        take(shards.rows(shard, select(shard), check=check))
        return
    shards.look_now_and_then()
    for shard in numbers:
        prove(shards, shard)
    known = shards.routing
    by_pool: dict[NodePool | None, list[int]] = {}
    for shard in numbers:
        by_pool.setdefault(known.proven[shard], []).append(shard)
    # What went elsewhere just now, or is not where it was asked for: the usual way finds it.
    left = by_pool.pop(None, [])
    questions = [
        Question(pool, partial(_statement, select, of_pool), check, of_pool[0], known, len(of_pool))
        for pool, of_pool in by_pool.items()
        if pool is not None
    ]
    for question, error in zip(questions, ask(questions, take, meanwhile), strict=True):
        if error is not None:
            left += by_pool[question.pool]
    for shard in left:
        take(shards.rows(shard, select(shard), check=check))


def _statement(select: Callable[[int], bytes], numbers: Collection[int]) -> bytes:
    return all_rows(map(select, numbers))
