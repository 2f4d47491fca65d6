"""Signal handlers that raise inside an index query: no connection slot is lost, and no reply reaches another caller."""

from __future__ import annotations

import itertools

import pytest

import schemaless
from schemaless.store.internals import internals_of
from tests.faults.interrupts import ARRIVING, RAISED, interrupted_at
from tests.faults.kinds import ONE_KIND
from tests.store.indexes.test_indexes import CLIENT, trip

pytestmark = [
    pytest.mark.mysql,
    ONE_KIND,
    # PyMySQL drops a socket that an exception strikes between its creation and its first use.
    pytest.mark.filterwarnings(r"ignore:unclosed <socket\.socket fd=\d+, family=1, type=1, proto=0:ResourceWarning"),
]


@pytest.mark.long
def test_an_exception_at_any_line_of_a_query_leaves_the_pools_sound(kept, fresh_store, new_row):
    """The query reads from two servers at once; every 23rd line is interrupted, by one class after the other."""
    rows = [next(row for row in iter(new_row, None) if fresh_store.shard_of(row) == n % 4) for n in range(12)]
    fresh_store.put_cells([schemaless.NewCell(row, "BASE", 1, trip(1 + n)) for n, row in enumerate(rows)])
    kept.fill()
    index = fresh_store.index("client_trips")
    shards = internals_of(fresh_store).shards
    pools = {shards.pool_for(cluster.primary) for cluster in shards.topology.clusters}
    assert len(pools) == 2

    def found() -> list[object]:
        return [(row.row_key, row.cells["BASE"].body) for row in index.query(client=CLIENT, order_by="at").rows]

    expected = found()
    assert [row_key for row_key, _ in expected] == rows
    interrupts = 0
    for line in itertools.count(1, 23):
        raised = RAISED[interrupts % len(RAISED)]
        arrived = interrupted_at(line, raised, found)
        if arrived is None:
            break
        interrupts += 1
        assert arrived or raised not in ARRIVING, f"the exception at line {line} was swallowed or replaced"
        assert [pool.slots.free() for pool in pools] == [pool.options.pool_size for pool in pools]
        assert not [connection for pool in pools for connection in pool.idle if connection.busy]
        assert found() == expected
    assert interrupts > 30
