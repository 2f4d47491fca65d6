"""Index queries and waits of the synchronous client, through ``schemaless.aio``."""

from __future__ import annotations

import asyncio

import pytest

import schemaless.aio
from schemaless import NewCell
from schemaless.store.internals import internals_of
from tests.aio.cancelling import at_every_wait, reads
from tests.store.indexes.conftest import admin_store, kept  # noqa: F401 - fixtures
from tests.store.indexes.test_indexes import (  # noqa: F401 - collected here
    CLIENT,
    test_a_damaged_cell_keeps_no_other_row_from_being_found,
    test_a_stale_index_entry_is_filtered,
    test_an_index_row_without_its_cell_gives_nothing,
    test_in_finds_what_equals_one_of_the_values,
    test_pages_go_on_behind_the_last_entry_and_only_with_the_same_query,
    test_queries_return_the_rows_that_a_full_scan_finds,
    test_wait_gives_read_your_writes,
    trip,
)

pytestmark = pytest.mark.mysql


@pytest.mark.guarantee("aio-cancelled", "aio-cancelled-write")
def test_a_query_cancelled_at_any_wait_leaves_no_trace(kept, fresh_url, fresh_store, new_row):  # noqa: F811
    """Queries hold connections to several servers at a time; each is closed or returned."""
    rows = [new_row() for _ in range(12)]
    fresh_store.put_cells([NewCell(row, "BASE", 1, trip(1 + number)) for number, row in enumerate(rows)])
    kept.fill()

    async def main() -> None:
        async with await schemaless.aio.connect(fresh_url) as store:
            index = store.index("client_trips")
            makers = [
                reads("query", lambda: index.query(client=CLIENT)),
                reads("wait", lambda: index.wait(rows[0])),
                reads("index", lambda: store._runtime.run(internals_of(store).registry.read)),
            ]
            for cold in (False, True):
                assert await at_every_wait(store, makers, rows, cold=cold) > 8
            found = await index.query(client=CLIENT)
            assert {row.row_key for row in found.rows} == set(rows)

    asyncio.run(main())
