"""Progress and estimated time of a job, computed from its shards."""

from __future__ import annotations

import pytest

from schemaless.ops.jobs.job import ShardState
from schemaless.ops.jobs.status import _speed

DONE = ShardState(0, "done", cells=1_000, bytes_before=50_000_000, busy_s=10.0, data_bytes=100_000_000)
LEFT = [ShardState(shard, data_bytes=100_000_000) for shard in range(1, 5)]


def test_more_runners_are_faster_until_the_budget_is_spent():
    """All runners share the rate limit, which applies to bodies, here half of the table's bytes."""
    alone, eta_alone = _speed([DONE, *LEFT], 1, None)
    four, eta_four = _speed([DONE, *LEFT], 4, None)
    budget, eta_budget = _speed([DONE, *LEFT], 4, 10)

    assert (alone, eta_alone.mid_s) == pytest.approx((10, 40))
    assert (four, eta_four.mid_s) == pytest.approx((40, 10))
    assert (budget, eta_budget.mid_s) == pytest.approx((20, 20))


def test_nothing_is_promised_before_anything_is_known():
    """There is no estimate without a runner."""
    assert _speed(LEFT, 4, None) == (None, None)
    assert _speed([DONE, *LEFT], 0, None) == (None, None)
