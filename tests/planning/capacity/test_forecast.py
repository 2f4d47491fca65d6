"""Forecasts of daily series, on histories whose future is known and on histories without a forecast."""

from __future__ import annotations

import datetime
import math
import random
import sys

import numpy
import pytest

from schemaless.errors import InvalidInput
from schemaless.planning.capacity.forecast import FEWEST_DAYS, BackTest, Forecast, NoForecast, _simulated, forecast

pytestmark = pytest.mark.once

MONDAY = datetime.date(2026, 1, 5)
WEEK = (1.2, 1.1, 1.0, 1.0, 1.3, 0.8, 0.6)


def series(values) -> list[tuple[datetime.date, float]]:
    return [(MONDAY + datetime.timedelta(day), float(value)) for day, value in enumerate(values)]


def noisy(days: int, *, growth: float = 0.5, week=WEEK, noise: float = 0.08, seed: int = 5) -> list[float]:
    draw = random.Random(seed)
    return [1e9 * (1 + growth) ** (day / 365) * week[day % 7] * math.exp(draw.gauss(0, noise)) for day in range(days)]


@pytest.fixture(scope="module")
def seen() -> Forecast:
    """A forecast of 120 days with 50 % growth a year, a weekly pattern and noise."""
    found = forecast(series(noisy(120)))
    assert isinstance(found, Forecast)
    return found


def test_forecast_of_a_growing_history_finds_its_trend_and_week(seen):
    """The forecast recovers the trend, the weekly pattern and the yearly growth of the generated series."""
    assert seen.first_day == MONDAY + datetime.timedelta(120)
    assert (seen.history_days, seen.horizon_days) == (120, 600)
    assert seen.weekdays == pytest.approx([7 * share / sum(WEEK) for share in WEEK], rel=0.1)
    assert seen.weekly_share > 0.99
    assert seen.growth_share_per_year.low_95 < 0.5 < seen.growth_share_per_year.high_95
    expected = sum(1e9 * 1.5 ** ((120 + day) / 365) * WEEK[(120 + day) % 7] for day in range(60))
    assert seen.cumulative[59].low_95 < expected < seen.cumulative[59].high_95
    assert seen.cumulative[59].mid == pytest.approx(expected, rel=0.1)


def test_forecast_bands_are_nested_and_widen(seen):
    """95 % contains 80 %, which contains the median; nothing is below 0, and later days are less certain."""
    for bands in (seen.daily, seen.cumulative):
        assert all(0 <= band.low_95 <= band.low_80 <= band.mid <= band.high_80 <= band.high_95 for band in bands)

    def width(day):
        return (seen.daily[day].high_80 - seen.daily[day].low_80) / seen.daily[day].mid

    assert width(364) > 1.5 * width(0)


def test_forecast_sums_account_for_correlated_errors(seen):
    """The band of a sum is wider than for independent days, and narrower than the sum of the daily bands."""
    days = range(200)
    added = sum(seen.daily[day].high_95 - seen.daily[day].low_95 for day in days)
    alone = math.sqrt(sum((seen.daily[day].high_95 - seen.daily[day].low_95) ** 2 for day in days))
    together = seen.cumulative[199].high_95 - seen.cumulative[199].low_95

    assert 1.5 * alone < together < added


def test_days_until_is_the_inverse_of_the_cumulative_sum(seen):
    """High and low are exchanged."""
    until = seen.days_until(seen.cumulative[99].mid)
    assert until.mid == pytest.approx(100, abs=0.5)
    assert until.low_95 < until.low_80 < until.mid < until.high_80 < until.high_95

    assert seen.days_until(seen.cumulative[99].high_80).low_80 == pytest.approx(100, abs=0.5)
    assert seen.days_until(0) == (0, 0, 0, 0, 0)
    assert seen.days_until(1e300) == (math.inf,) * 5


def test_a_finished_import_does_not_change_the_forecast():
    """40 days of 16, 8 of 320, and 30 of 16 are forecast like 78 days of 16."""
    values = noisy(78)
    imported = [value * (20 if 40 <= day < 48 else 1) for day, value in enumerate(values)]

    found, plain = forecast(series(imported)), forecast(series(values))

    assert isinstance(found, Forecast)
    assert isinstance(plain, Forecast)
    assert [burst.first_day for burst in found.bursts] == [MONDAY + datetime.timedelta(40)]
    assert found.cumulative[99].mid == pytest.approx(plain.cumulative[99].mid, rel=0.1)
    assert found.cumulative[-1].high_80 < 3 * found.cumulative[-1].low_80


def test_a_forecast_ends_where_its_intervals_become_too_wide():
    """Growth that comes and goes has no long forecast, or none at all."""
    for seed in range(6):
        draw = random.Random(seed)
        found = forecast(series([math.exp(draw.gauss(0, 2)) for _ in range(28)]))
        if isinstance(found, Forecast):
            assert found.cumulative[-1].high_80 <= 100 * found.cumulative[-1].low_80
            assert found.horizon_days >= 7
    for values in ([0.0] * 40 + [320.0] * 8 + [0.0] * 30, [1.0] + [0.0] * 30):
        nothing = forecast(series(values))
        assert isinstance(nothing, NoForecast)
        assert "cannot be forecast yet" in nothing.reason


def test_days_until_counts_parts_of_days():
    """Growth is spread evenly over a day."""
    steady = forecast(series([8.0] * 30))
    assert isinstance(steady, Forecast)

    assert steady.days_until(20).mid == pytest.approx(2.5, abs=0.01)
    assert steady.weekdays is None


def test_back_test_is_of_days_that_the_fit_did_not_see(seen):
    """The last quarter is held out: its bands are correct, and changing its values changes the errors."""
    test = seen.back_test
    assert isinstance(test, BackTest)
    assert (test.fitted_days, test.held_days) == (90, 30)
    assert test.daily_error_share < 0.15
    assert test.inside_80_share > 0.6
    assert test.inside_95_share >= test.inside_80_share

    values = noisy(120)
    other = forecast(series(values[:90] + [3 * value for value in values[90:]]))
    assert isinstance(other, Forecast)
    assert other.back_test is not None
    assert other.back_test.total_error_share < -0.5
    assert not other.back_test.total_inside_95
    assert other.back_test.inside_95_share < 0.2


@pytest.mark.parametrize("days", [0, 1, FEWEST_DAYS - 1])
def test_forecast_of_too_few_days_says_so(days):
    """With less than two weeks there is a reason instead of figures."""
    found = forecast(series(noisy(days)))

    assert isinstance(found, NoForecast)
    assert found.days == days
    assert "needs at least 14" in found.reason


def test_forecast_of_two_weeks_has_no_back_test_and_no_weekly_pattern():
    """The history is too short for them, and the bands are wide."""
    found = forecast(series(noisy(FEWEST_DAYS)))

    assert isinstance(found, Forecast)
    assert found.back_test is None
    assert found.weekdays is None
    assert found.horizon_days == 5 * FEWEST_DAYS
    assert found.cumulative[-1].high_95 > 2 * found.cumulative[-1].low_95


def test_forecast_of_days_without_growth_says_so():
    """They were measured, but give no date."""
    found = forecast(series([0.0] * 30))

    assert found == NoForecast("the size is constant: nothing was written on the 30 measured days", 30)


def test_forecast_of_a_history_with_large_gaps_says_so():
    """Days that were not measured are not days without growth."""
    days = series(noisy(60))

    assert isinstance(forecast(days[:10] + days[50:]), NoForecast)
    assert isinstance(forecast(days[:20] + days[30:]), Forecast)


@pytest.mark.parametrize(
    "values",
    [
        [0.0] * 59 + [1.0],
        [5, 5, 5, 5, 5, 0, 0] * 8,
        [1e-9] * 30,
        [1e300] * 30,
        [2.0**day for day in range(40)],
        [1e9] * 30 + [1e13] + [1e9] * 20,
    ],
    ids=["the last day only", "weekends off", "tiny", "huge", "doubling", "one import"],
)
def test_forecast_of_unusual_histories_is_finite(values):
    """Every history gives ordered, finite bands without warnings."""
    found = forecast(series(values))

    assert isinstance(found, Forecast)
    assert all(0 <= band.low_95 <= band.mid <= band.high_95 < math.inf for band in found.cumulative)
    until = found.days_until(sum(values))
    assert list(until) == sorted(until)


def test_forecast_is_the_same_for_the_same_seed():
    """The simulated futures depend only on the seed, so a report can be reproduced."""
    days = series(noisy(40))

    assert forecast(days) == forecast(days)
    assert forecast(days) != forecast(days, seed=2)


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ([(MONDAY, 1.0), (MONDAY, 2.0)], "each once; got 2026-01-05 after 2026-01-05"),
        ([(MONDAY, -1.0)], "growth on 2026-01-05 must be 0 or more, got -1.0"),
        ([(MONDAY, math.nan)], "growth on 2026-01-05 must be finite"),
    ],
)
def test_forecast_refuses_an_invalid_history(history, message):
    """Duplicate days, and negative or non-finite values."""
    with pytest.raises(InvalidInput, match=message):
        forecast(history)


@pytest.mark.parametrize("missing", ["numpy", "statsmodels"])
def test_forecast_without_the_extra_says_what_to_install(monkeypatch, missing):
    """The extra is only imported for a forecast, and its absence is an error of one line."""
    monkeypatch.setitem(sys.modules, missing, None)

    with pytest.raises(InvalidInput, match=r"pip install 'schemaless-store\[report\]'"):
        forecast(series(noisy(30)))


def test_a_few_outliers_do_not_widen_the_80_percent_band():
    """With an outage on one day in 40, the 80 % band stays narrow relative to 95 %; a normal one has 0.65 of it."""
    draw = random.Random(11)
    far = [value * 0.1 if draw.random() < 0.025 else value for value in noisy(240, growth=0.2)]

    found = [forecast(series(values), horizon_days=60) for values in (far, noisy(240, growth=0.2))]

    parts = []
    for each in found:
        assert isinstance(each, Forecast)
        parts.append(numpy.mean([(day.high_80 - day.low_80) / (day.high_95 - day.low_95) for day in each.daily]))
    assert parts[0] < 0.6 < parts[1] < 0.7


def test_simulated_futures_match_those_of_statsmodels():
    """The vectorized simulation has the same means, spread and weekly correlation as statsmodels' own."""
    from statsmodels.tsa.statespace.structural import UnobservedComponents  # Takes a second to import.

    numbers = numpy.array(noisy(70)) / 1e9
    model = UnobservedComponents(
        numpy.log(numbers),
        level="local linear deterministic trend",
        seasonal=7,
        stochastic_seasonal=False,
        use_exact_diffuse=True,
    )
    fitted = model.filter([1.0, 0.3])
    rng = numpy.random.default_rng(8)
    state, covariance = fitted.predicted_state[:, -1], fitted.predicted_state_cov[:, :, -1]
    noise = rng.standard_normal((3_000, 30))
    ours, slopes = _simulated(state, covariance, 0.3, numpy.ones((3_000, 1)), noise, rng)
    theirs = numpy.asarray(fitted.simulate(30, anchor="end", repetitions=3_000, rng=rng)).reshape(30, 3_000).T

    assert numpy.abs(ours.mean(axis=0) - fitted.forecast(30)).max() < 5 * theirs.std(axis=0).max() / math.sqrt(3_000)
    assert ours.std(axis=0) == pytest.approx(theirs.std(axis=0), rel=0.1)
    tied = [numpy.corrcoef(each[:, 0], each[:, 7])[0, 1] for each in (ours, theirs)]
    assert tied[0] == pytest.approx(tied[1], abs=0.08)
    assert slopes.mean() == pytest.approx(float(fitted.predicted_state[1, -1]), abs=0.01)
