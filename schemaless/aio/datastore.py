"""``AsyncDatastore``: the calls of ``Datastore`` as coroutines."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterable, Iterator
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

from schemaless.aio.index import AsyncIndex
from schemaless.aio.iteration import SteppedIterator
from schemaless.aio.runtime import EventLoop
from schemaless.cell import Cell, ErasedCell, JSONDocument, NewCell, NewStoredCell, Page, Put, RowKey, StoredCell
from schemaless.codec.registry import Codec
from schemaless.store.arrow.reader import Since, each_batch
from schemaless.store.datastore import Datastore
from schemaless.store.erasures.ledger import Erasure
from schemaless.topology.shards import FeedFrom, ReadFrom

T = TypeVar("T")


class AsyncDatastore:
    """An open datastore for asyncio: the calls of ``Datastore`` as coroutines and asynchronous iterators.

    Returned by ``schemaless.aio.connect``, and usable as an asynchronous context manager:

        async with await schemaless.aio.connect("mysql://app@db-1:3306/mezzanine") as store:
            await store.put_cell(row_key, "BASE", 1, {"fare": {"total": 12.5}})
            cell = await store.get_cell_latest(row_key, "BASE")

    Each method has the arguments, results and errors of the method of ``Datastore`` with the same name. In addition,
    each raises ``WrongEventLoop`` in any event loop other than the one that opened the datastore.

    A cancelled call closes the connection that it was using. The outcome of a cancelled write is unknown: the cell may
    or may not have been written. Writing the same cell again settles the outcome.
    """

    def __init__(self, runtime: EventLoop, store: Datastore) -> None:
        self._runtime = runtime
        self._store = store
        self._internals = store._internals  # noqa: SLF001 - for ``internals_of``

    def __repr__(self) -> str:
        return f"Async{self._store!r}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "cannot copy or pickle an AsyncDatastore: its connections belong to this process; open another one "
            "with connect()"
        )

    def _steps(self, items: Iterator[T]) -> AsyncIterator[T]:
        return SteppedIterator(self._runtime, items)

    async def close(self) -> None:
        """Close the idle connections to all servers. A closed datastore can still be used; it connects again."""
        return await self._runtime.run(self._store.close)

    @property
    def name(self) -> str:
        """Name of the datastore."""
        return self._store.name

    @property
    def shard_count(self) -> int:
        """Number of shards. It is fixed when the datastore is created."""
        return self._store.shard_count

    async def codec_for(self, column_name: str) -> Codec:
        """Return the codec that new bodies of a column are written with by default."""
        return await self._runtime.run(self._store.codec_for, column_name)

    async def decode(self, body: bytes) -> JSONDocument:
        """Decode stored bytes, using this datastore's dictionaries."""
        return await self._runtime.run(self._store.decode, body)

    async def shard_of(self, row_key: RowKey) -> int:
        """Return the number of the shard that a row belongs to."""
        return await self._runtime.run(self._store.shard_of, row_key)

    async def put_cell(
        self, row_key: RowKey, column_name: str, ref_key: int, body: JSONDocument, *, codec: str | None = None
    ) -> Put:
        """Write one cell."""
        return await self._runtime.run(self._store.put_cell, row_key, column_name, ref_key, body, codec=codec)

    async def put_cells(
        self, cells: Iterable[NewCell], *, codec: str | None = None, look_first: bool = False
    ) -> list[Put]:
        """Write a batch of cells, in one transaction per shard."""
        return await self._runtime.run(self._store.put_cells, cells, codec=codec, look_first=look_first)

    async def append_cell(
        self, row_key: RowKey, column_name: str, body: JSONDocument, *, codec: str | None = None
    ) -> Put:
        """Write a body as the next version, with the highest ref_key plus 1, or 1 for the first version."""
        return await self._runtime.run(self._store.append_cell, row_key, column_name, body, codec=codec)

    async def put_stored_cells(
        self, cells: Iterable[NewStoredCell], *, look_first: bool = False, trusted: bool = False
    ) -> list[Put]:
        """Write a batch of encoded cells, byte for byte: for imports and copies."""
        return await self._runtime.run(self._store.put_stored_cells, cells, look_first=look_first, trusted=trusted)

    async def get_cell(
        self, row_key: RowKey, column_name: str, ref_key: int, *, read_from: ReadFrom = "primary"
    ) -> Cell | None:
        """Read one cell by its full key."""
        return await self._runtime.run(self._store.get_cell, row_key, column_name, ref_key, read_from=read_from)

    async def get_cell_latest(
        self, row_key: RowKey, column_name: str, *, read_from: ReadFrom = "primary"
    ) -> Cell | None:
        """Read the latest version: the cell with the highest ref_key, regardless of when it was written."""
        return await self._runtime.run(self._store.get_cell_latest, row_key, column_name, read_from=read_from)

    async def get_cells_latest(
        self, keys: Iterable[tuple[RowKey, str]], *, read_from: ReadFrom = "primary"
    ) -> dict[tuple[uuid.UUID, str], Cell]:
        """Read the latest versions in many rows and columns, shard by shard."""
        return await self._runtime.run(self._store.get_cells_latest, keys, read_from=read_from)

    async def get_row(self, row_key: RowKey, *, read_from: ReadFrom = "primary") -> dict[str, Cell]:
        """Read a row: the latest cell of each of its columns."""
        return await self._runtime.run(self._store.get_row, row_key, read_from=read_from)

    def get_versions(
        self,
        row_key: RowKey,
        column_name: str,
        *,
        after: int | None = None,
        before: int | None = None,
        descending: bool = True,
        limit: int | None = None,
        read_from: ReadFrom = "primary",
        include_erased: bool = False,
    ) -> AsyncIterator[Cell]:
        """Iterate over the versions of one row and column."""
        return self._steps(
            self._store.get_versions(
                row_key,
                column_name,
                after=after,
                before=before,
                descending=descending,
                limit=limit,
                read_from=read_from,
                include_erased=include_erased,
            )
        )

    def get_stored_versions(
        self,
        row_key: RowKey,
        column_name: str,
        *,
        after: int | None = None,
        before: int | None = None,
        descending: bool = True,
        limit: int | None = None,
        read_from: ReadFrom = "primary",
        include_erased: bool = False,
    ) -> AsyncIterator[StoredCell]:
        """Iterate over versions as ``get_versions`` does, without decoding them."""
        return self._steps(
            self._store.get_stored_versions(
                row_key,
                column_name,
                after=after,
                before=before,
                descending=descending,
                limit=limit,
                read_from=read_from,
                include_erased=include_erased,
            )
        )

    async def column_names(self, row_key: RowKey, *, read_from: FeedFrom = "primary") -> list[str]:
        """Return the sorted names of a row's columns; an empty list if the row does not exist."""
        return await self._runtime.run(self._store.column_names, row_key, read_from=read_from)

    async def erase(
        self,
        row_key: RowKey,
        column_name: str | None = None,
        ref_key: int | None = None,
        *,
        reason: str,
        requested_by: str | None = None,
    ) -> Erasure:
        """Erase the documents of a row, of one of its columns, or of one version."""
        return await self._runtime.run(
            self._store.erase, row_key, column_name, ref_key, reason=reason, requested_by=requested_by
        )

    async def get_erased_for_shard(self, shard: int, after: int = 0, limit: int = 1_000) -> list[ErasedCell]:
        """Read a shard's log of erased cells, for change feed consumers that may have read them before the erasure."""
        return await self._runtime.run(self._store.get_erased_for_shard, shard, after, limit)

    async def index(self, name: str) -> AsyncIndex:
        """Return a secondary index, which finds rows by the contents of their documents."""
        return AsyncIndex(self._runtime, await self._runtime.run(self._store.index, name))

    async def get_cells_for_shard(
        self,
        shard: int,
        location: int = 0,
        limit: int = 1000,
        *,
        column_name: str | None = None,
        read_from: FeedFrom = "primary",
    ) -> Page[Cell]:
        """Read one page of a shard's change feed: its cells in ``added_id`` order, strictly after ``location``."""
        return await self._runtime.run(
            self._store.get_cells_for_shard, shard, location, limit, column_name=column_name, read_from=read_from
        )

    async def get_stored_cells_for_shard(
        self,
        shard: int,
        location: int = 0,
        limit: int = 1000,
        *,
        column_name: str | None = None,
        read_from: FeedFrom = "primary",
    ) -> Page[StoredCell]:
        """Read one page of a shard's change feed as ``get_cells_for_shard`` does, without decoding the cells."""
        return await self._runtime.run(
            self._store.get_stored_cells_for_shard, shard, location, limit, column_name=column_name, read_from=read_from
        )

    def iter_shard(
        self,
        shard: int,
        location: int = 0,
        *,
        column_name: str | None = None,
        read_from: FeedFrom = "primary",
        follow: bool = False,
        poll_s: float = 0.5,
        limit: int = 1000,
    ) -> AsyncIterator[Cell]:
        """Iterate over a shard's change feed."""
        return self._steps(
            self._store.iter_shard(
                shard, location, column_name=column_name, read_from=read_from, follow=follow, poll_s=poll_s, limit=limit
            )
        )

    async def end_of_shard(self, shard: int, *, timeout_s: float = 30) -> int:
        """Return the end of a shard's change feed: a location after all existing cells and before all future ones."""
        return await self._runtime.run(self._store.end_of_shard, shard, timeout_s=timeout_s)

    def arrow(
        self,
        column: str | None = None,
        *,
        fields: Iterable[str] = (),
        since: Since = None,
        shards: Iterable[int] | None = None,
    ) -> AsyncIterator[Any]:
        """Stream the history of a column as Arrow record batches, for pandas, polars, DuckDB and others.

        Returns:
            An asynchronous iterator of ``pyarrow.RecordBatch``; it checks the arguments when the iteration begins.
        """
        return self._steps(each_batch(self._internals, column, fields, since, shards))

    def scan_shard(
        self,
        shard: int,
        *,
        after: int = 0,
        up_to: int | None = None,
        legacy_only: bool = False,
        column_name: str | None = None,
    ) -> AsyncIterator[StoredCell]:
        """Iterate over a shard's current cells in ``added_id`` order, without decoding them."""
        return self._steps(
            self._store.scan_shard(shard, after=after, up_to=up_to, legacy_only=legacy_only, column_name=column_name)
        )
