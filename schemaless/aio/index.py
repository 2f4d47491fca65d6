"""``AsyncIndex``: a secondary index of an asyncio datastore."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from schemaless.aio.runtime import EventLoop
from schemaless.cell import RowKey
from schemaless.store.indexes.definition import Definition
from schemaless.store.indexes.query import Condition, Index, IndexPage


class AsyncIndex:
    """A secondary index of an open datastore, as returned by ``AsyncDatastore.index``.

    The methods have the arguments, results and errors of the methods of ``Index``.
    """

    def __init__(self, runtime: EventLoop, index: Index) -> None:
        self._runtime = runtime
        self._index = index

    def __repr__(self) -> str:
        return f"Async{self._index!r}"

    @property
    def definition(self) -> Definition:
        """The fields of the index."""
        return self._index.definition

    async def query(
        self,
        *,
        where: Iterable[Condition] = (),
        order_by: str | None = None,
        limit: int = 50,
        after: str | None = None,
        columns: Sequence[str] | None = None,
        **equals: Any,
    ) -> IndexPage:
        """Find rows. Every row is read from its shard's primary and checked against the query before it is returned."""
        index = self._index
        return await self._runtime.run(
            lambda: index.query(where=where, order_by=order_by, limit=limit, after=after, columns=columns, **equals)
        )

    async def wait(self, row_key: RowKey, timeout_s: float = 1.0) -> bool:
        """Wait until the index has caught up with a row, so that a query finds what was just written."""
        return await self._runtime.run(self._index.wait, row_key, timeout_s)
