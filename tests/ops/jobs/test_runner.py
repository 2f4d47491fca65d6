"""The order in which a runner waits, reads, writes, saves and rests."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from schemaless.ops.jobs.runner import ShardRun, Stopped
from schemaless.ops.jobs.throttle import Thresholds


def run_that_records(calls: list[object], *, stops_before: int = -1) -> Any:
    """Return a stand-in for a run whose checkpoints are always due; its gate stops it before a block."""

    def gate() -> None:
        calls.append("gate")
        if calls.count("gate") == stops_before:
            raise Stopped

    return SimpleNamespace(
        gate=gate,
        due=lambda: True,
        checkpoint=lambda: calls.append("checkpoint"),
        rest=lambda worked_s: calls.append("rest"),
    )


def reads(calls: list[object]) -> Iterator[int]:
    """Read two blocks."""
    for number in range(2):
        calls.append("read")
        yield number


def work(calls: list[object], **how: Any) -> None:
    """Write each block that is read."""
    calls.extend(f"write {number}" for number in ShardRun.paced(run_that_records(calls, **how), reads(calls)))


@pytest.mark.once
def test_each_block_is_read_after_the_gate_and_saved_after_it_is_written():
    """So a runner that dies repeats blocks since the last checkpoint, and skips none."""
    calls: list[object] = []
    work(calls)

    assert calls == [
        *("gate", "read", "write 0", "checkpoint", "rest"),
        *("gate", "read", "write 1", "checkpoint", "rest"),
        "gate",
    ]


@pytest.mark.once
def test_a_stopped_run_reads_no_further_block():
    """It ends at a checkpoint."""
    calls: list[object] = []
    with pytest.raises(Stopped):
        work(calls, stops_before=2)

    assert calls == ["gate", "read", "write 0", "checkpoint", "rest", "gate"]


@pytest.mark.once
def test_gate_rest_and_checkpoint_can_be_replaced():
    """A move waits for two clusters, and saves its own record."""
    calls: list[object] = []
    blocks = ShardRun.paced(
        run_that_records(calls),
        reads(calls),
        gate=lambda: calls.append("both gates"),
        rest=lambda worked_s: calls.append("both rest"),
        save=lambda: calls.append("saved"),
    )

    assert list(blocks) == [0, 1]
    assert calls == [*["both gates", "read", "saved", "both rest"] * 2, "both gates"]


@pytest.mark.once
def test_a_large_block_reserves_little_of_a_low_rate_limit_at_once():
    """Only a clock that was set back leaves a budget far ahead; a limit that is raised counts while a runner waits."""
    calls: list[object] = []

    def wait(seconds: float) -> None:
        calls.append(("wait", seconds))
        if calls.count(("wait", 10.0)) == 3:
            run.thresholds = Thresholds(max_mb_per_s=1)

    def spend(job_id: int, amount: int, per_s: float) -> float:
        calls.append((amount, per_s))
        return amount / per_s

    run: Any = SimpleNamespace(
        thresholds=Thresholds(max_mb_per_s=0.001),
        job=SimpleNamespace(job_id=1),
        job_store=SimpleNamespace(spend=spend),
        _wait=wait,
    )
    ShardRun.spend(run, 4_000_000)

    assert calls == [*[(10_000, 1e3), ("wait", 10.0)] * 3, (3_970_000, 1e6), ("wait", 3.97)]
