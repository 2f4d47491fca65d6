"""``AsyncDatastore`` and ``AsyncIndex``: the calls of ``Datastore`` and ``Index`` as coroutines."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, NoReturn, ParamSpec, Self, TypeVar

from schemaless.aio.runtime import EventLoop
from schemaless.base.type_variables import T
from schemaless.store.arrow.reader import Since, each_batch
from schemaless.store.datastore import Datastore
from schemaless.store.indexes.query import Index
from schemaless.store.typed import Column, Upcast
from schemaless.topology.pinging import Ping, ping_server

P = ParamSpec("P")
S = TypeVar("S")
D = TypeVar("D")

_END: Final[Any] = object()


class _Async(Generic[S]):
    """Asynchronous counterpart of a synchronous object."""

    def __init__(self, runtime: EventLoop, blocking: S) -> None:
        self._runtime = runtime
        self._blocking = blocking

    def __repr__(self) -> str:
        return f"Async{self._blocking!r}"


def _coroutine(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[_Async[S], P], Coroutine[Any, Any, T]]:
    """Return the coroutine function of a method, with its signature and summary."""
    name = method.__name__

    async def call(self: _Async[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        # Not ``method``: telemetry replaces methods of an instance.
        blocking: Callable[P, T] = getattr(self._blocking, name)
        return await self._runtime.run(blocking, *args, **kwargs)

    return _like(method, call)


def _iterator(
    method: Callable[Concatenate[S, P], Iterator[T]],
) -> Callable[Concatenate[_Async[S], P], AsyncIterator[T]]:
    """Return the asynchronous iterator function of a method, with its signature and summary."""
    name = method.__name__

    def call(self: _Async[S], /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return SteppedIterator(self._runtime, getattr(self._blocking, name)(*args, **kwargs), name)

    signature = inspect.signature(method)
    made: Any = _like(method, call)
    made.__signature__ = signature.replace(return_annotation=f"Async{signature.return_annotation}")
    return made  # type: ignore[no-any-return]


def _immediate(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[_Async[S], P], T]:
    """Return the function of a method that contacts no server, with its signature and summary."""

    def call(self: _Async[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(self._blocking, *args, **kwargs)

    return _like(method, call)


def _like(method: Callable[..., Any], call: T) -> T:
    made: Any = functools.wraps(method)(call)  # type: ignore[arg-type]
    # The rest of the docstring has examples of synchronous calls.
    made.__qualname__ = f"Async{method.__qualname__}"
    summary = (method.__doc__ or "").partition("\n\n")[0]
    made.__doc__ = f"{summary}\n\nArguments, results and errors are those of ``{method.__qualname__}``."
    return made  # type: ignore[no-any-return]


class SteppedIterator(AsyncIterator[T], Generic[T]):
    """Asynchronous iterator over a synchronous one that queries servers, each step in a greenlet of its own.

    A step that fails or is cancelled ends the synchronous iterator, so further steps raise an error; otherwise, the
    failure would look like the end of the data.
    """

    def __init__(self, runtime: EventLoop, items: Iterator[T], name: str) -> None:
        self._runtime = runtime
        self._items = items
        self._name = name
        self._broken: str | None = None
        self._stepping = False

    def __await__(self) -> NoReturn:
        self._refuse("cannot be awaited")

    def __iter__(self) -> NoReturn:
        self._refuse("cannot be used with 'for' or list()")

    def _refuse(self, what: str) -> NoReturn:
        raise TypeError(
            f"{self._name}() returns an asynchronous iterator, which {what}; use "
            f"'async for item in {self._name}(...)', or '[item async for item in {self._name}(...)]' for a list"
        )

    async def __anext__(self) -> T:
        if self._broken is not None:
            raise RuntimeError(self._broken)
        if self._stepping:
            raise RuntimeError("another task waits for this iterator's next item; use one iterator per task, or a lock")
        self._stepping = True
        try:
            item = await self._runtime.run(next, self._items, _END)
        except BaseException as error:
            self._broken = (
                f"the iteration ended with {type(error).__name__}; start a new one after the last item received"
            )
            raise
        finally:
            self._stepping = False
        if item is _END:
            raise StopAsyncIteration
        return item


class AsyncDatastore(_Async[Datastore]):
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
        super().__init__(runtime, store)
        self._internals = store._internals  # noqa: SLF001 - for ``internals_of``

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

    close = _coroutine(Datastore.close)

    @property
    def name(self) -> str:
        """Name of the datastore."""
        return self._blocking.name

    @property
    def shard_count(self) -> int:
        """Number of shards. It is fixed when the datastore is created."""
        return self._blocking.shard_count

    async def ping(self, timeout_s: float = 1.0) -> list[Ping]:
        """Connect to every server of the datastore at the same time, and report which ones answer."""
        run, shards = self._runtime.run, self._internals.shards
        return await asyncio.gather(
            *(run(ping_server, shards, server, timeout_s) for server in self._internals.servers())
        )

    codec_for = _coroutine(Datastore.codec_for)
    decode = _coroutine(Datastore.decode)
    shard_of = _coroutine(Datastore.shard_of)
    put_cell = _coroutine(Datastore.put_cell)
    put_row = _coroutine(Datastore.put_row)
    put_cells = _coroutine(Datastore.put_cells)
    append_cell = _coroutine(Datastore.append_cell)
    put_stored_cells = _coroutine(Datastore.put_stored_cells)
    get_cell = _coroutine(Datastore.get_cell)
    get_cell_latest = _coroutine(Datastore.get_cell_latest)
    get_cells_latest = _coroutine(Datastore.get_cells_latest)
    get_row = _coroutine(Datastore.get_row)
    get_rows = _coroutine(Datastore.get_rows)
    get_versions = _iterator(Datastore.get_versions)
    get_stored_versions = _iterator(Datastore.get_stored_versions)
    column_names = _coroutine(Datastore.column_names)

    def column(self, column_name: str, model: type[T], *, upcast: Upcast | None = None) -> AsyncColumn[T]:
        """Return a column whose documents are instances of a class; no server is contacted."""
        return AsyncColumn(self._runtime, self._blocking.column(column_name, model, upcast=upcast))

    erase = _coroutine(Datastore.erase)
    erase_many = _coroutine(Datastore.erase_many)
    get_erased_for_shard = _coroutine(Datastore.get_erased_for_shard)

    def index(self, name: str) -> AsyncIndex:
        """Return a secondary index, which finds rows by the contents of their documents; no server is contacted."""
        return AsyncIndex(self._runtime, self._blocking.index(name))

    create_index = _coroutine(Datastore.create_index)
    drop_index = _coroutine(Datastore.drop_index)
    indexes = _coroutine(Datastore.indexes)
    get_cells_for_shard = _coroutine(Datastore.get_cells_for_shard)
    get_stored_cells_for_shard = _coroutine(Datastore.get_stored_cells_for_shard)
    iter_shard = _iterator(Datastore.iter_shard)
    end_of_shard = _coroutine(Datastore.end_of_shard)

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
        return SteppedIterator(self._runtime, each_batch(self._internals, column, fields, since, shards), "arrow")

    iter_cells = _iterator(Datastore.iter_cells)
    count = _coroutine(Datastore.count)
    scan_shard = _iterator(Datastore.scan_shard)


class AsyncColumn(_Async[Column[D]], Generic[D]):
    """The documents of one column as instances of a model, as returned by ``AsyncDatastore.column``.

    The methods have the arguments, results and errors of the methods of ``Column``.
    """

    put = _coroutine(Column[D].put)
    put_many = _coroutine(Column[D].put_many)
    append = _coroutine(Column[D].append)
    get = _coroutine(Column[D].get)
    latest = _coroutine(Column[D].latest)
    latest_of = _coroutine(Column[D].latest_of)
    versions = _iterator(Column[D].versions)
    convert = _immediate(Column[D].convert)


class AsyncIndex(_Async[Index]):
    """A secondary index of an open datastore, as returned by ``AsyncDatastore.index``.

    The methods have the arguments, results and errors of the methods of ``Index``.
    """

    query = _coroutine(Index.query)
    iter = _iterator(Index.iter)
    first = _coroutine(Index.first)
    wait = _coroutine(Index.wait)
