"""The benchmark of moves: that its checks find what they are for. What it measures is no matter of tests."""

from __future__ import annotations

import importlib
from array import array
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

pytestmark = pytest.mark.once


@pytest.fixture
def traffic(monkeypatch):
    """The module that has the checks."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("_move_traffic")


def test_cells_that_are_lost_renumbered_doubled_or_nobodys_are_found(traffic):
    """One of each is one of each, and nothing else."""
    written = {11: b"a", 12: b"b", 13: b"c", 14: b"d"}

    assert traffic.faults_of_shard(written, [(11, b"a"), (12, b"b"), (13, b"c"), (14, b"d")]) == []
    assert traffic.faults_of_shard(written, [(11, b"a"), (12, b"b"), (14, b"d")]) == ["1 lost"]
    assert traffic.faults_of_shard(written, [(11, b"a"), (12, b"b"), (13, b"c"), (15, b"d")]) == ["1 renumbered"]
    twice = [(11, b"a"), (12, b"b"), (13, b"c"), (14, b"d"), (16, b"d")]
    assert traffic.faults_of_shard(written, twice) == ["1 doubled"]
    strange = [(11, b"a"), (12, b"b"), (13, b"c"), (14, b"d"), (16, b"e")]
    assert traffic.faults_of_shard(written, strange) == ["1 not acknowledged"]


def test_a_follower_that_skips_or_repeats_is_found(traffic):
    """Of the cells beforehand by number, sum and XOR of their ids; of the others each id, up to the last one."""

    def faults(later: list[int], before: tuple[int, int, int] = (3, 6, 0), out_of_order: tuple[int, ...] = ()):
        followed = traffic.Followed(before, array("Q", later), list(out_of_order))
        return traffic.faults_of_follower(followed, (3, 6, 0), [11, 12, 13, 99], 13)

    assert faults([11, 12, 13]) == []
    assert faults([11, 12, 13, 99]) == []
    assert faults([11, 13]) == ["1 skipped"]
    assert faults([11, 12, 12, 13], out_of_order=(12,)) == ["1 given twice, 1 out of order"]
    assert faults([11, 12, 13], before=(2, 4, 2)) == ["1 of those beforehand skipped (or other ones given)"]
    assert faults([10, 11, 12, 13]) == ["1 given that were not acknowledged"]
