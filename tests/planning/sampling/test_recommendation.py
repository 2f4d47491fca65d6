"""Decisions about codecs: which one is recommended, where the knee is, and when no rewrite is worthwhile."""

from __future__ import annotations

import pytest

from schemaless.base.numbers import Interval
from schemaless.planning.sampling.recommendation import LEAST_GAIN, Option, choose

pytestmark = pytest.mark.once


def option(name: str, share: float, cpu_s: float = 1.0, *, apart: float = 0.0, left: int = 0) -> Option:
    return Option(name, Interval(share - apart, share, share + apart), share, cpu_s, left)


DEFAULT = option("default", 0.5)


def test_choose_the_default_unless_another_is_smaller_by_the_least_gain():
    """A codec must be ten percent smaller to replace the default, or as --least-gain says."""
    near, far = option("near", 0.455), option("far", 0.44)

    assert choose([DEFAULT, near], "default").chosen is DEFAULT
    assert choose([DEFAULT, near, far], "default").chosen is far
    assert choose([DEFAULT, near], "default", least_gain=0.05).chosen is near


def test_choose_no_rewrite_below_the_least_gain():
    """A rewrite for four percent is not recommended, and the reason names the minimum."""
    four = option("four", 0.96, 0.5)

    choice = choose([option("default", 1.0), four], "default")

    assert choice.chosen is None
    assert choice.best is four
    assert choice.reason == "four saves 4.0% of the pages, but a rewrite must save at least 10%"
    assert choose([option("default", 1.0), four], "default", least_gain=0.03).chosen is four


def test_choose_uses_the_lower_end_of_the_interval():
    """A codec that saves between five and thirty percent is not certain to be worthwhile."""
    wide, narrow = option("other", 0.82, apart=0.13), option("other", 0.82, apart=0.02)

    assert choose([option("default", 1.0), wide], "default").chosen is None
    assert choose([option("default", 1.0), narrow], "default").chosen is narrow


def test_choose_a_worthwhile_codec_if_the_default_is_not():
    """The default saves five percent and another codec twelve: it is chosen, although it is close to the default."""
    assert choose([option("default", 0.95), option("other", 0.88)], "default").chosen.name == "other"


@pytest.mark.parametrize(("most_cpu", "chosen"), [(1.0, "default"), (2.0, "slow"), (50.0, "slowest")])
def test_choose_within_the_time_limit(most_cpu, chosen):
    """A codec that exceeds the given multiple of the default's time is not recommended."""
    options = [DEFAULT, option("slow", 0.4, 1.9), option("slowest", 0.3, 40.0)]

    assert choose(options, "default", most_cpu=most_cpu).chosen.name == chosen


def test_choose_the_fastest_of_equally_small_codecs():
    """Within one percent of the pages and of the bodies, time decides."""
    options = [DEFAULT, option("a", 0.300, 0.9), option("b", 0.302, 0.4), option("c", 0.32, 0.1)]

    assert choose(options, "default").chosen.name == "b"


def test_knee_is_the_best_trade_off_of_size_and_time():
    """Beyond the knee, more time saves little; options that are worse in both are not on the front."""
    options = [
        option("none", 1.0, 0.1),
        option("fast", 0.30, 0.3),
        option("strong", 0.27, 3.0),
        option("strongest", 0.26, 30.0),
        option("worse", 0.35, 5.0),
        DEFAULT,
    ]

    choice = choose(options, "default")

    assert [each.name for each in choice.edge] == ["none", "fast", "strong", "strongest"]
    assert choice.knee.name == "fast"
    assert choice.knee_text.startswith(
        "the best trade-off of size and time is fast, 30.0% of the present pages, at 0.3 times"
    )
    assert "the smallest is strongest, 26.0%" in choice.knee_text


def test_choose_skips_codecs_that_cannot_encode_every_cell():
    """A codec that leaves cells loses to one that does not; a damaged cell, which all leave, does not matter."""
    left = option("small", 0.2, left=3)

    assert choose([DEFAULT, left], "default").chosen is DEFAULT
    assert choose([option("default", 0.5, left=1), option("small", 0.2, left=1)], "default").chosen.name == "small"


def test_choose_without_options_returns_none():
    """There is no decision without options."""
    assert choose([], "default") is None
    assert 0 < LEAST_GAIN < 1


def test_choose_packed_if_it_is_the_smallest_and_fast_enough():
    """It is treated like every other codec."""
    packed, other = option("packed+zstd, level 3", 0.2, 0.5), option("json+zstd", 0.4, 0.5)
    slow = option("packed+zstd, level 3", 0.2, 5.0)

    assert choose([DEFAULT, packed, other], "default").chosen is packed
    assert choose([DEFAULT, slow, other], "default").chosen is other
