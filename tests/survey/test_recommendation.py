"""One decision about codecs, whatever was tried: what is worth it, where the knee is, and what is left as it is."""

from __future__ import annotations

import pytest

from schemaless.numbers import Interval
from schemaless.survey.recommendation import LEAST_GAIN, Option, choose

pytestmark = pytest.mark.once


def option(name: str, share: float, cpu_s: float = 1.0, *, apart: float = 0.0, left: int = 0) -> Option:
    return Option(name, Interval(share - apart, share, share + apart), share, cpu_s, left)


DEFAULT = option("default", 0.5)


def test_choose_the_default_unless_another_is_smaller_by_what_is_worth_it():
    """Nine percent are no reason to leave the default, eleven are; --least-gain says which."""
    near, far = option("near", 0.455), option("far", 0.44)

    assert choose([DEFAULT, near], "default").chosen is DEFAULT
    assert choose([DEFAULT, near, far], "default").chosen is far
    assert choose([DEFAULT, near], "default", least_gain=0.05).chosen is near


def test_choose_no_rewrite_below_the_gain_that_is_worth_it():
    """A full rewrite for four percent is not advised, and the reason says from when on one is."""
    four = option("four", 0.96, 0.5)

    choice = choose([option("default", 1.0), four], "default")

    assert choice.chosen is None
    assert choice.best is four
    assert choice.reason == "four saves 4.0% of the pages, and a rewrite is advised from 10% on"
    assert choose([option("default", 1.0), four], "default", least_gain=0.03).chosen is four


def test_choose_goes_by_the_bad_end_of_the_interval():
    """What may save five percent as well as thirty is not known to be worth it."""
    wide, narrow = option("other", 0.82, apart=0.13), option("other", 0.82, apart=0.02)

    assert choose([option("default", 1.0), wide], "default").chosen is None
    assert choose([option("default", 1.0), narrow], "default").chosen is narrow


def test_choose_what_is_worth_it_where_the_default_is_not():
    """The default saves five percent of what there is, another twelve: that one, though it is near to the default."""
    assert choose([option("default", 0.95), option("other", 0.88)], "default").chosen.name == "other"


@pytest.mark.parametrize(("most_cpu", "chosen"), [(1.0, "default"), (2.0, "slow"), (50.0, "slowest")])
def test_choose_within_the_bound_of_time(most_cpu, chosen):
    """What takes more than so many times the time of the default is not recommended."""
    options = [DEFAULT, option("slow", 0.4, 1.9), option("slowest", 0.3, 40.0)]

    assert choose(options, "default", most_cpu=most_cpu).chosen.name == chosen


def test_choose_the_quickest_of_those_that_are_as_small():
    """Within a percent of the pages and of the bodies, time decides."""
    options = [DEFAULT, option("a", 0.300, 0.9), option("b", 0.302, 0.4), option("c", 0.32, 0.1)]

    assert choose(options, "default").chosen.name == "b"


def test_knee_is_where_bytes_are_few_and_time_is_too():
    """Among levels of one codec: before the knee time buys much, behind it little; what is worse in both is no edge."""
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
    assert choice.knee_text.startswith("the knee of bytes against time is fast, 30.0% of the pages now, at 0.3 times")
    assert "the fewest pages has strongest, 26.0%" in choice.knee_text


def test_choose_passes_over_what_cannot_have_every_cell():
    """What leaves cells is not advised where another has them; a damaged cell, which all leave, decides nothing."""
    left = option("small", 0.2, left=3)

    assert choose([DEFAULT, left], "default").chosen is DEFAULT
    assert choose([option("default", 0.5, left=1), option("small", 0.2, left=1)], "default").chosen.name == "small"


def test_choose_of_nothing_is_nothing():
    """No option, no decision."""
    assert choose([], "default") is None
    assert 0 < LEAST_GAIN < 1


def test_choose_advises_packed_where_it_is_the_smallest_and_quick_enough():
    """It is judged as every other codec is."""
    packed, other = option("packed+zstd, level 3", 0.2, 0.5), option("json+zstd", 0.4, 0.5)
    slow = option("packed+zstd, level 3", 0.2, 5.0)

    assert choose([DEFAULT, packed, other], "default").chosen is packed
    assert choose([DEFAULT, slow, other], "default").chosen is other
