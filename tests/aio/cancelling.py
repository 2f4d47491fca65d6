"""Calls that are cancelled at each of their waits, and whether the datastore is then as good as before."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

from schemaless import NewCell, NewStoredCell
from schemaless.aio import AsyncDatastore
from schemaless.aio.bridge import Waiter
from schemaless.codec.envelope import encode_body
from schemaless.store.internals import internals_of

BATCH: Final = 6
_rows = itertools.count(1)


def new_row() -> uuid.UUID:
    """Return a row_key that no other call has; the same ones in each run."""
    return uuid.uuid5(uuid.NAMESPACE_OID, f"cancelled {next(_rows)}")


class _Cancelling:
    """Runs a call in the current task, and cancels the task at the wait of a number, from 1.

    Attributes:
        waits: number of waits so far: of the call's greenlet for an event, and of its task for a future.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], at: int, late: bool) -> None:
        self._coroutine = coroutine
        self._at = at
        self._late = late
        self._waiter: Waiter | None = None
        self.waits = 0

    def _is_next(self) -> bool:
        self.waits += 1
        return self.waits == self._at

    def __await__(self) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        assert task is not None
        original_wait, original_resume = Waiter.wait, Waiter.resume

        def wait(waiter: Waiter) -> Any:
            if self._is_next():
                if self._late:
                    self._waiter = waiter
                else:
                    task.cancel()
            return original_wait(waiter)

        def resume(waiter: Waiter, value: Any = None) -> None:
            if waiter is self._waiter:
                # The reply is there, and the call has not been resumed yet.
                task.cancel()
            original_resume(waiter, value)

        with patch.object(Waiter, "wait", wait), patch.object(Waiter, "resume", resume):
            return (yield from self._steps(task))

    def _steps(self, task: asyncio.Task[Any]) -> Generator[Any, Any, Any]:
        step: Callable[[], Any] = lambda: self._coroutine.send(None)  # noqa: E731
        while True:
            try:
                awaited = step()
            except StopIteration as end:
                return end.value
            if self._is_next():
                if self._late and awaited is not None:
                    # When the future is done, and the task has not been resumed yet.
                    awaited.add_done_callback(lambda _: task.cancel())
                else:
                    task.cancel()
            try:
                value = yield awaited
            except BaseException as error:  # noqa: BLE001 - passed on
                step = lambda error=error: self._coroutine.throw(error)  # type: ignore[misc]  # noqa: E731
            else:
                step = lambda value=value: self._coroutine.send(value)  # type: ignore[misc]  # noqa: E731


async def waits_of(coroutine: Coroutine[Any, Any, Any]) -> int:
    """Run a coroutine and return the number of its waits."""
    whole = _Cancelling(coroutine, 0, False)
    await whole
    return whole.waits


async def cancelled_at(coroutine: Coroutine[Any, Any, Any], at: int, *, late: bool) -> bool:
    """Run a coroutine in a task that is cancelled at a wait; return whether it was.

    Args:
        coroutine: the call.
        at: number of the wait.
        late: cancel when what it waits for is there, rather than at once.
    """

    async def run() -> None:
        await _Cancelling(coroutine, at, late)

    task = asyncio.ensure_future(run())
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    return task.cancelled()


@dataclass(frozen=True)
class Case:
    """A call.

    Attributes:
        name: the method.
        call: makes the call.
        settle: checks what the call may have left, and settles it.
    """

    name: str
    call: Callable[[], Coroutine[Any, Any, Any]]
    settle: Callable[[], Awaitable[None]]


async def drain(items: AsyncIterator[Any]) -> list[Any]:
    """Return all items."""
    return [item async for item in items]


async def _nothing() -> None:
    pass


def reads(name: str, call: Callable[[], Coroutine[Any, Any, Any]]) -> Callable[[], Case]:
    """Return a maker of a case that leaves nothing to settle."""
    return lambda: Case(name, call, _nothing)


def cases(store: AsyncDatastore, rows: list[uuid.UUID]) -> list[Callable[[], Case]]:
    """Return makers of one case for each method that contacts servers; each call of a maker writes to rows of its own.

    Args:
        store: the datastore.
        rows: rows with the cell BASE 1.
    """

    def put_cell() -> Case:
        key, body = (new_row(), "BASE", 1), {"text": "x" * 3000}

        async def settle() -> None:
            before = await store.get_cell(*key)
            assert before is None or before.body == body
            put = await store.put_cell(*key, body)
            assert put.created or before is None or put.added_id == before.added_id
            assert [cell.ref_key async for cell in store.get_versions(*key[:2])] == [1]

        return Case("put_cell", lambda: store.put_cell(*key, body), settle)

    def batch(name: str) -> Callable[[], Case]:
        def put() -> Case:
            keys = [(new_row(), "BASE", 1) for _ in range(BATCH)]
            if name == "put_cells":
                call = lambda: store.put_cells([NewCell(*key, {"n": 1}) for key in keys])  # noqa: E731
            else:
                body = encode_body({"n": 1})
                call = lambda: store.put_stored_cells([NewStoredCell(*key, body) for key in keys])  # noqa: E731

            async def settle() -> None:
                of_shard: dict[int, list[tuple[uuid.UUID, str]]] = {}
                for row, column, _ in keys:
                    of_shard.setdefault(await store.shard_of(row), []).append((row, column))
                for pairs in of_shard.values():
                    assert len(await store.get_cells_latest(pairs)) in (0, len(pairs)), "half of a shard's cells"
                await call()
                assert len(await store.get_cells_latest([key[:2] for key in keys])) == BATCH

            return Case(name, call, settle)

        return put

    def append_cell() -> Case:
        row = new_row()

        async def settle() -> None:
            # A COMMIT that was sent may take effect after the connection has been closed.
            put = await store.append_cell(row, "LOG", {"n": 2})
            assert put.key.ref_key in (1, 2)
            bodies = [cell.body async for cell in store.get_versions(row, "LOG", descending=False)]
            assert bodies in ([{"n": 2}], [{"n": 1}, {"n": 2}])

        return Case("append_cell", lambda: store.append_cell(row, "LOG", {"n": 1}), settle)

    return [
        put_cell,
        batch("put_cells"),
        batch("put_stored_cells"),
        append_cell,
        reads("get_cell", lambda: store.get_cell(rows[0], "BASE", 1)),
        reads("get_cell_latest", lambda: store.get_cell_latest(rows[0], "BASE")),
        reads("get_cells_latest", lambda: store.get_cells_latest([(row, "BASE") for row in rows])),
        reads("get_row", lambda: store.get_row(rows[0])),
        reads("get_rows", lambda: store.get_rows(rows)),
        reads("column_names", lambda: store.column_names(rows[0])),
        reads("get_versions", lambda: drain(store.get_versions(rows[0], "BASE"))),
        reads("get_cells_for_shard", lambda: store.get_cells_for_shard(0)),
        reads("iter_shard", lambda: drain(store.iter_shard(0, limit=50))),
        reads("end_of_shard", lambda: store.end_of_shard(0)),
        reads("scan_shard", lambda: drain(store.scan_shard(0))),
    ]


def check_pools(store: AsyncDatastore) -> None:
    """Check that no call holds anything: each slot is free, and each open connection is idle and in order."""
    pools = internals_of(store).shards.pools
    for pool in pools._pools.values():
        assert pool.slots.free() == pool.options.pool_size, "a slot is lost"
        assert not [connection for connection in pool.idle if connection.busy or connection.unfinished]
        opened = [raw for raw in pool.opened if raw._sock is not None]
        assert len(opened) == len(pool.idle), "a connection is open that no call and no pool has"


async def check_reads(store: AsyncDatastore, rows: list[uuid.UUID]) -> None:
    """Check that each connection that is kept gives each caller its own reply."""
    cells = await asyncio.gather(*(store.get_cell(row, "BASE", 1) for row in rows))
    assert [cell.row_key if cell else None for cell in cells] == rows


async def at_every_wait(
    store: AsyncDatastore, makers: Sequence[Callable[[], Case]], rows: list[uuid.UUID], *, cold: bool
) -> int:
    """Cancel each call at each of its waits, at once and late, and check after each.

    Args:
        store: the datastore.
        makers: make the calls.
        rows: rows with the cell BASE 1.
        cold: close all connections before each call.

    Returns:
        The number of calls that were cancelled.
    """
    count = 0
    for make in makers:
        if cold:
            await store.close()
        whole = make()
        waits = await waits_of(whole.call())
        assert waits, f"{whole.name} never waited"
        for at in range(1, waits + 1):
            for late in (False, True):
                if cold:
                    await store.close()
                case = make()
                count += await cancelled_at(case.call(), at, late=late)
                check_pools(store)
                await case.settle()
                check_pools(store)
        await check_reads(store, rows)
        check_pools(store)
    return count
