"""Many tasks whose calls are cancelled or time out at random moments, and what the datastore says in between.

Every reply is held against what was written, so one that reached another call is found. In the end each write that was
undecided is settled by writing the cell again.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from schemaless import NewCell
from schemaless.aio import AsyncDatastore
from schemaless.errors import SchemalessError
from schemaless.store.internals import internals_of
from tests.aio.cancelling import check_pools, drain

_LONGEST_S: Final = 0.02
"""Longest time after which a call is cancelled, in seconds; most calls that wait for a connection take longer."""

_PATIENCE_S: Final = 60.0
_ROWS: Final = 40
_BATCH: Final = 4


class _Failed(Exception):
    """Ends a task group."""


@dataclass
class Run:
    """One run.

    Attributes:
        store: the datastore.
        seed: decides calls, moments and ways.
        wanted: number of cancellations after which tasks end.
        outcomes: how calls ended; faults begin with "wrong".
    """

    store: AsyncDatastore
    seed: int
    wanted: int
    outcomes: Counter[str] = field(default_factory=Counter)
    _written: dict[tuple[uuid.UUID, str, int], object] = field(default_factory=dict)
    _undecided: dict[tuple[uuid.UUID, str, int], object] = field(default_factory=dict)
    _rows: list[uuid.UUID] = field(default_factory=list)

    @property
    def cancelled(self) -> int:
        """Number of calls that were cancelled or timed out."""
        return self.outcomes["cancelled"] + self.outcomes["timed out"] + self.outcomes["task group failed"]

    @property
    def wrong(self) -> Counter[str]:
        """What must not have happened."""
        return Counter({what: times for what, times in self.outcomes.items() if what.startswith("wrong")})

    async def run(self, tasks: int) -> None:
        """Run a number of tasks until enough calls have been cancelled, then settle and check everything."""
        self._rows = [uuid.UUID(int=self.seed << 64 | number) for number in range(_ROWS)]
        await self.store.put_cells([NewCell(row, "BASE", 1, self._body(row)) for row in self._rows])
        working = [asyncio.ensure_future(self._work(number)) for number in range(tasks)]
        while self.cancelled < self.wanted and not all(task.done() for task in working):
            before = self.outcomes.total()
            await asyncio.wait(working, timeout=_PATIENCE_S if self.cancelled else None, return_when="FIRST_COMPLETED")
            if self.outcomes.total() == before:
                break
        _, stuck = await asyncio.wait(working, timeout=_PATIENCE_S)
        self.outcomes["wrong: a task is stuck"] += len(stuck)
        for task in working:
            if task not in stuck and (error := task.exception()) is not None:
                raise error
        try:
            check_pools(self.store)
        except AssertionError as fault:
            self.outcomes[f"wrong: {fault}"] += 1
        await self._settle()

    async def _work(self, number: int) -> None:
        chance = random.Random(self.seed * 1_000 + number)
        while self.cancelled < self.wanted:
            call = asyncio.ensure_future(self._call(chance, number))
            wait_s = chance.uniform(0, _LONGEST_S)
            how = chance.choice(("cancel", "timeout", "group", "none"))
            try:
                if how == "cancel":
                    asyncio.get_running_loop().call_later(wait_s, call.cancel)
                    await asyncio.wait([call])
                    call.result()
                elif how == "timeout":
                    async with asyncio.timeout(wait_s):
                        await call
                elif how == "group":
                    await self._in_a_group(call, wait_s)
                else:
                    await call
            except asyncio.CancelledError:
                self.outcomes["cancelled"] += 1
            except TimeoutError:
                self.outcomes["timed out"] += 1
            except _Failed:
                self.outcomes["task group failed"] += 1
            except SchemalessError as error:
                self.outcomes[f"wrong: {type(error).__name__}: {error}"] += 1
            else:
                self.outcomes["finished"] += 1

    async def _in_a_group(self, call: asyncio.Future[None], wait_s: float) -> None:
        async def fail() -> None:
            await asyncio.sleep(wait_s)
            raise _Failed

        async def awaited() -> None:
            await call

        try:
            async with asyncio.TaskGroup() as group:
                other = group.create_task(fail())
                group.create_task(awaited()).add_done_callback(lambda _: other.cancel())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _call(self, chance: random.Random, number: int) -> None:
        store, row = self.store, chance.choice(self._rows)
        kind = chance.choice(("get", "latest", "many", "row", "versions", "feed", "put", "put", "batch"))
        if kind == "get":
            self._check(await store.get_cell(row, "BASE", 1), row)
        elif kind == "latest":
            self._check(await store.get_cell_latest(row, "BASE"), row)
        elif kind == "many":
            rows = chance.sample(self._rows, 5)
            found = await store.get_cells_latest([(each, "BASE") for each in rows])
            for each in rows:
                self._check(found.get((each, "BASE")), each)
        elif kind == "row":
            self._check((await store.get_row(row)).get("BASE"), row)
        elif kind == "versions":
            (cell,) = await drain(store.get_versions(row, "BASE"))
            self._check(cell, row)
        elif kind == "feed":
            shard = chance.randrange(store.shard_count)
            ids = [cell.added_id for cell in (await store.get_cells_for_shard(shard, limit=5)).cells]
            self._expect(ids == sorted(ids), "the feed is out of order")
        else:
            cells = {}
            for _ in range(_BATCH if kind == "batch" else 1):
                new = uuid.UUID(int=chance.getrandbits(128))
                cells[new, "BASE", 1] = self._body(new)
            self._undecided |= cells
            if kind == "batch":
                await store.put_cells([NewCell(*key, body) for key, body in cells.items()])
            else:
                ((key, body),) = cells.items()
                put = await store.put_cell(*key, body)
                self._expect(put.key == key, "the reply to another put")
            for key in cells:
                self._written[key] = self._undecided.pop(key)

    async def _settle(self) -> None:
        """Write what is undecided again, and read everything that was written."""
        self.outcomes["undecided"] = len(self._undecided)
        for key, body in self._undecided.items():
            before = await self.store.get_cell(*key)
            put = await self.store.put_cell(*key, body)
            self._expect(before is None or put.added_id == before.added_id, "an undecided cell was written twice")
            self.outcomes["undecided, had been written"] += before is not None
        expected = self._written | self._undecided | {(row, "BASE", 1): self._body(row) for row in self._rows}
        found = {}
        for shard in range(self.store.shard_count):
            async for cell in self.store.iter_shard(shard):
                found[tuple(cell.key)] = cell.body
        missing = sum(found.get(key) != body for key, body in expected.items())
        self.outcomes["wrong: a written cell is missing or another"] += missing
        self.outcomes += Counter()

    def _check(self, cell: Any, row: uuid.UUID) -> None:
        right = cell is not None and cell.row_key == row and cell.body == self._body(row)
        self._expect(right, "the reply to another read")

    def _expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.outcomes[f"wrong: {otherwise}"] += 1

    @staticmethod
    def _body(row: uuid.UUID) -> object:
        return {"row": str(row), "text": row.hex * (row.int % 60)}


def connections_of(store: AsyncDatastore) -> int:
    """Return the number of connections that a datastore keeps."""
    return sum(len(pool.idle) for pool in internals_of(store).shards.pools._pools.values())
