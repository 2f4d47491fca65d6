"""What the next days bring, from what each past day brought: a forecast that knows how far it may be off.

A day's bytes are taken to be a level that wanders, a slope, a weekly pattern and noise: statsmodels' unobserved
components. Whether there is a weekly pattern, whether effects add or multiply, and how much the level wanders is not
decided but averaged over: 40 such models are filtered, and each gives as many of the simulated futures as its share in
how well they foretold each day of the history from those before it. So the bands hold what is not known of the models
too, and what many days bring together is added up within one future at a time, as their errors belong together.

There is always a slope: averaging over models without one takes slow growth for a level that wandered, and foretells
too little.

Pure: a series of days goes in, and no server is asked. Needs the extra [report], imported when a forecast is made.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from schemaless.errors import InvalidInput
from schemaless.numbers import check_number

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]

__all__ = ["FEWEST_DAYS", "BackTest", "Band", "Forecast", "NoForecast", "forecast"]

FEWEST_DAYS: Final = 14
"""Fewer measured days than two weeks say nothing about a third one."""

_FEWEST_DAYS_FOR_WEEKS: Final = 21
_HISTORY_TIMES: Final = 5
"""A forecast looks ahead so many times the length of the history, and no further."""

_MOST_DAYS: Final = 1_826
_PATHS: Final = 1_000
_MOST_HELD_DAYS: Final = 60
_BURN: Final = 9
"""After so many days every part of a model was seen once: a week, a level and a slope. The rest compares models."""

_WANDERING: Final = (0.0, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)
"""The level's step from a day to the next may have these variances, in variances of the noise."""

_FEWEST_ERRORS: Final = 28
"""The errors of so many days say how noise is distributed; of fewer it is taken to be normal."""

_CHANCE: Final = 0.01
_FAR_SHARE: Final = 0.25
"""A sum that is off by more is no basis for a purchase, whatever its band."""

_LEAST_VARIANCE: Final = 1e-9
_MOST_LOG: Final = 300.0
_LEVELS: Final = (2.5, 10.0, 50.0, 90.0, 97.5)


class Band(NamedTuple):
    """A forecast figure: its middle, and what it is within in 80 and in 95 of 100 cases. May be infinite, for days."""

    low_95: float
    low_80: float
    mid: float
    high_80: float
    high_95: float

    def dates(self, first_day: datetime.date, earlier_days: float = 0.0) -> dict[str, datetime.date | None]:
        """Return on which dates so many days from ``first_day`` on end, or so much earlier; None for infinite ones."""
        return {
            name: None
            if math.isinf(days)
            else first_day + datetime.timedelta(math.floor(days) - math.ceil(earlier_days))
            for name, days in self._asdict().items()
        }


@dataclass(frozen=True, slots=True)
class BackTest:
    """How a forecast did that was made without the last part of the history, held against that part.

    Attributes:
        fitted_days: what it was made from.
        held_days: what it was held against.
        daily_error_share: the days' absolute errors, as a part of what the days brought.
        total_error_share: how far off the sum was; above 0 where the forecast was too high.
        inside_80_share: of the held days, how many were within their 80 % band; 0.8 is right.
        inside_95_share: the same of 95 %.
        total_inside_80: whether the sum was within its 80 % band.
        total_inside_95: the same of 95 %.
    """

    fitted_days: int
    held_days: int
    daily_error_share: float
    total_error_share: float
    inside_80_share: float
    inside_95_share: float
    total_inside_80: bool
    total_inside_95: bool

    @property
    def failure(self) -> str | None:
        """What it failed by, in words; None where chance explains it.

        Fewer days were within the 80 % band than one of a hundred forecasts has whose bands are right, were its days
        independent; or their sum was outside its 95 % band, or outside that of 80 % and off by a quarter.
        """
        inside = round(self.inside_80_share * self.held_days)
        failures = []
        if _binomial(inside, self.held_days, 0.8) < _CHANCE:
            failures.append(f"its 80 % band held {self.inside_80_share:.0%} of the last {self.held_days} days")
        far = abs(self.total_error_share) > _FAR_SHARE and not self.total_inside_80
        if far or not self.total_inside_95:
            low = "too low" if self.total_error_share < 0 else "too high"
            failures.append(f"their sum was forecast {abs(self.total_error_share):.0%} {low}")
        return " and ".join(failures) or None


def _binomial(count: int, of: int, share: float) -> float:
    """Return how likely so many or fewer are."""
    return math.fsum(math.comb(of, seen) * share**seen * (1 - share) ** (of - seen) for seen in range(count + 1))


@dataclass(frozen=True, slots=True)
class NoForecast:
    """Why there is none.

    Attributes:
        reason: for people, one sentence without its full stop.
        days: how many days were measured.
    """

    reason: str
    days: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """What days to come bring, in the unit of the history.

    Attributes:
        first_day: the first one that is forecast, the day after the last of the history.
        history_days: measured days.
        daily: for each day its band.
        cumulative: for each day what it and all before it bring; narrower than the days' bands added up.
        growth_share_per_year: how much more a day brings 365 days later, at the trend as it is now.
        weekdays: what Monday to Sunday have of an average day, None where the history has no weekly shape.
        weekly_share: of the models, by how well they foretold, how much has a weekly shape, 0 to 1.
        compound_share: the same of effects that multiply, not add.
        back_test: None where the history is too short for one, or ends in days that brought nothing.
    """

    first_day: datetime.date
    history_days: int
    daily: tuple[Band, ...]
    cumulative: tuple[Band, ...]
    growth_share_per_year: Band
    weekdays: tuple[float, ...] | None
    weekly_share: float
    compound_share: float
    back_test: BackTest | None
    # The sum until each day, path by day.
    _totals: Any = field(repr=False, compare=False)

    @property
    def horizon_days(self) -> int:
        """How far it looks."""
        return len(self.daily)

    def between(self, first: int, behind: int) -> Band:
        """Return what the days from ``first`` on and before ``behind`` bring together, 0 being ``first_day``."""
        before = self._totals[:, first - 1] if first else 0.0
        return _bands((self._totals[:, behind - 1] - before)[:, None])[0]

    def days_until(self, amount: float) -> Band:
        """Return after how many days as much has come in: when a disk with so much free space is full.

        In days from the morning of ``first_day``, parts of days included; infinite for what is not reached within the
        horizon, whether later or never.

        Raises:
            InvalidInput: ``amount`` is no finite number.
        """
        import numpy

        check_number("amount", amount)
        if amount <= 0:
            return Band(0.0, 0.0, 0.0, 0.0, 0.0)
        totals = self._totals
        after = (totals < amount).sum(axis=1)  # whole days that are not enough
        reached = after < totals.shape[1]
        days = numpy.full(len(totals), math.inf)
        rows, last = numpy.nonzero(reached)[0], after[reached]
        before = numpy.where(last > 0, totals[rows, last - 1], 0.0)
        days[reached] = last + (amount - before) / (totals[rows, last] - before)
        # A quantile between two futures, one of them infinite, would be no number.
        return Band(*(float(value) for value in numpy.percentile(days, _LEVELS, method="inverted_cdf")))


def forecast(
    history: Sequence[tuple[datetime.date, float]], *, horizon_days: int | None = None, seed: int = 1
) -> Forecast | NoForecast:
    """Return what the days after the last of ``history`` bring.

    Args:
        history: whole days in their order, and what came in on each, 0 or more, in any unit. A day that is absent was
            not measured, which is not the same as a day that brought nothing.
        horizon_days: how far to look.  [default: five times the history, five years at most]
        seed: of the simulated futures; the same one gives the same figures.

    Raises:
        InvalidInput: the days are not in order, a value is negative or no finite number, or [report] is not installed.
    """
    _check(history, horizon_days)
    if len(history) < FEWEST_DAYS:
        days = "1 day was" if len(history) == 1 else f"{len(history)} days were" if history else "no day was"
        return NoForecast(f"{days} measured, and a forecast needs {FEWEST_DAYS} at least", len(history))
    if not any(value for _, value in history):
        return NoForecast(f"nothing came in on the {len(history)} days that were measured", len(history))
    span = (history[-1][0] - history[0][0]).days + 1
    if len(history) < span / 2:
        return NoForecast(f"only {len(history)} of {span} days were measured", len(history))
    horizon = horizon_days or min(_HISTORY_TIMES * len(history), _MOST_DAYS)
    first_day = history[-1][0] + datetime.timedelta(1)
    futures = _futures(_dense(history), horizon, seed)
    weekly = futures.weekly_share > 0.5
    totals = futures.paths.cumsum(axis=1)
    return Forecast(
        first_day=first_day,
        history_days=len(history),
        daily=_bands(futures.paths),
        cumulative=_bands(totals),
        growth_share_per_year=_bands(futures.growth[:, None])[0],
        weekdays=_weekdays(futures.weekday_effects, first_day) if weekly else None,
        weekly_share=futures.weekly_share,
        compound_share=futures.compound_share,
        back_test=_back_test(history, seed),
        _totals=totals,
    )


def _check(history: Sequence[tuple[datetime.date, float]], horizon_days: int | None) -> None:
    for day, value in history:
        check_number(f"what came in on {day}", value)
        if value < 0:
            raise InvalidInput(f"what came in on {day} must be 0 or more, got {value}")
    for (day, _), (then, _) in pairwise(history):
        if then <= day:
            raise InvalidInput(f"the days of a history must be in their order, each once; got {then} after {day}")
    if horizon_days is not None and not 1 <= horizon_days <= _MOST_DAYS:
        raise InvalidInput(f"horizon_days must be 1 to {_MOST_DAYS:,}, got {horizon_days}")


def _dense(history: Sequence[tuple[datetime.date, float]]) -> list[float]:
    """Return a value for every day, NaN for those that were not measured."""
    values = dict(history)
    days = (history[-1][0] - history[0][0]).days + 1
    return [float(values.get(history[0][0] + datetime.timedelta(day), math.nan)) for day in range(days)]


class _Futures(NamedTuple):
    """Simulated futures of a series.

    Attributes:
        paths: a row is a future, a column is a day.
        growth: for each future, the share by which a day grows in a year.
        weekday_effects: what the first seven days have of an average one, averaged over the models with a weekly shape.
    """

    paths: Floats
    growth: Floats
    weekday_effects: Floats
    weekly_share: float
    compound_share: float


class _Candidate(NamedTuple):
    """A model that was fitted to a history.

    Attributes:
        state: what the model holds for the day after the history: the level, its slope and the week's six effects, if
            it has them.
        covariance: the state's, where the noise has a variance of 1.
        log_likelihood: that of the days that ``days`` counts.
        variance: the noise's, as estimated.
        errors: those of these days, in standard deviations, with their mean taken off.
    """

    state: Floats
    covariance: Floats
    log: bool
    weekly: bool
    wandering: float
    log_likelihood: float
    days: int
    variance: float
    errors: Floats


def _futures(values: list[float], horizon_days: int, seed: int) -> _Futures:
    try:
        import numpy
        import statsmodels  # noqa: F401  (the one that is missing where the extra is)
    except ImportError:
        raise InvalidInput("a forecast needs the extra 'report': pip install 'schemaless-store[report]'") from None

    numbers = numpy.asarray(values)
    mean = float(numpy.nanmean(numbers))
    candidates = _candidates(numbers / mean)
    best = max(candidate.log_likelihood for candidate in candidates)
    shares = numpy.array([math.exp(candidate.log_likelihood - best) for candidate in candidates])
    shares /= shares.sum()
    rng = numpy.random.default_rng(seed)
    paths, growths = [], []
    effects, weekly_weight = numpy.zeros(7), 0.0
    for candidate, share, count in zip(candidates, shares, rng.multinomial(_PATHS, shares), strict=True):
        if not count:
            continue
        # The noise's variance is not known either: with it, Student's t takes the place of the normal distribution.
        scale = numpy.sqrt(candidate.variance * candidate.days / rng.chisquare(candidate.days, count))[:, None]
        noise = _noise(candidate.errors, (count, horizon_days), rng)
        path, slope = _simulated(candidate.state, candidate.covariance, candidate.wandering, scale, noise, rng)
        paths.append(numpy.exp(numpy.minimum(path, _MOST_LOG)) if candidate.log else numpy.maximum(path, 0.0))
        level = max(float(candidate.state[0]), 1e-6)
        growths.append(
            numpy.expm1(numpy.minimum(365 * slope, _MOST_LOG))
            if candidate.log
            else numpy.maximum(365 * slope / level, -1.0)
        )
        if candidate.weekly:
            week = _week(candidate.state[2:8])
            effects += share * (numpy.exp(week) if candidate.log else numpy.maximum(1 + week / level, 0.0))
            weekly_weight += share
    return _Futures(
        numpy.concatenate(paths) * mean,
        numpy.concatenate(growths),
        effects / weekly_weight if weekly_weight else numpy.ones(7),
        float(sum(share for candidate, share in zip(candidates, shares, strict=True) if candidate.weekly)),
        float(sum(share for candidate, share in zip(candidates, shares, strict=True) if candidate.log)),
    )


def _candidates(numbers: Floats) -> list[_Candidate]:
    """Return every model with the likelihood of the history after its first days, each day given those before it."""
    import numpy
    from statsmodels.tsa.statespace.structural import UnobservedComponents

    candidates = []
    known = numpy.isfinite(numbers)
    scored = known.copy()
    scored[: _first_scored(known)] = False
    days = int(scored.sum())
    for log in (False, True) if numbers[known].min() > 0 else (False,):
        data = numpy.log(numbers) if log else numbers
        jacobian = float(numpy.log(numbers[scored]).sum()) if log else 0.0
        for weekly in (False, True) if known.sum() >= _FEWEST_DAYS_FOR_WEEKS else (False,):
            model = UnobservedComponents(
                data,
                level="local linear deterministic trend",
                seasonal=7 if weekly else None,
                stochastic_seasonal=False,
                use_exact_diffuse=True,
            )
            for wandering in _WANDERING:
                filtered = model.filter([1.0, wandering], return_ssm=True)
                errors = filtered.forecasts_error[0][scored]
                variances = filtered.forecasts_error_cov[0, 0][scored]
                variance = max(float((errors**2 / variances).mean()), _LEAST_VARIANCE)
                likelihood = -0.5 * (float(numpy.log(variances).sum()) + days * math.log(variance)) - jacobian
                standard = errors / numpy.sqrt(variance * variances)
                candidates.append(
                    _Candidate(
                        filtered.predicted_state[:, -1].copy(),
                        filtered.predicted_state_cov[:, :, -1].copy(),
                        log,
                        weekly,
                        wandering,
                        likelihood,
                        days,
                        variance,
                        standard - standard.mean(),
                    )
                )
    return candidates


def _first_scored(known: Any) -> int:
    """Return the index of the day from which models are compared: so many were measured before it."""
    measured = 0
    for index, is_known in enumerate(known):
        if measured == _BURN:
            return index
        measured += bool(is_known)
    return len(known)


def _noise(errors: Floats, shape: tuple[int, int], rng: numpy.random.Generator) -> Floats:
    """Return noise of futures, in standard deviations: as the days of the history erred, where these are enough.

    Outages, holidays and imports make a few errors large. The normal distribution with the variance of all of them is
    too wide for most days then.
    """
    if len(errors) < _FEWEST_ERRORS:
        return rng.standard_normal(shape)
    return rng.choice(errors, shape)


def _simulated(
    state: Floats, covariance: Floats, wandering: float, scale: Floats, noise: Floats, rng: numpy.random.Generator
) -> tuple[Floats, Floats]:
    """Return futures of a model, one for each ``scale`` of the noise, and their slopes.

    All at once, where statsmodels would simulate one after the other: from the state that it has for the first day,
    drawn with its covariance, the level takes its slope and a random step each day, and the week comes again.
    """
    import numpy

    count, horizon_days = noise.shape
    drawn = rng.multivariate_normal(numpy.zeros(len(state)), covariance, count, check_valid="ignore", method="eigh")
    states = state + scale * drawn
    steps = math.sqrt(wandering) * rng.standard_normal((count, horizon_days))
    steps[:, 0] = 0.0  # the first day's level is in the state
    path = states[:, :1] + states[:, 1:2] * numpy.arange(horizon_days) + scale * (steps.cumsum(axis=1) + noise)
    if states.shape[1] > 2:
        path += _week(states[:, 2:8].T)[numpy.arange(horizon_days) % 7].T
    return path, states[:, 1]


def _week(states: Floats) -> Floats:
    """Return the weekly component of the seven days after the history, from the states that it has for the first one.

    These are the effects of that day and of the five before it, the latest first; seven add up to 0.
    """
    import numpy

    return numpy.stack([states[0], -states.sum(axis=0), *states[:0:-1]])


def _weekdays(effects: Floats, first_day: datetime.date) -> tuple[float, ...]:
    """Return them Monday first, an average day being 1."""
    average = float(effects.mean()) or 1.0
    return tuple(float(effects[(weekday - first_day.weekday()) % 7]) / average for weekday in range(7))


def _bands(paths: Floats) -> tuple[Band, ...]:
    import numpy

    columns = numpy.percentile(numpy.ascontiguousarray(paths.T), _LEVELS, axis=1, overwrite_input=True).T
    return tuple(Band(*(float(value) for value in column)) for column in columns)


def _back_test(history: Sequence[tuple[datetime.date, float]], seed: int) -> BackTest | None:
    import numpy

    held = min(max(7, len(history) // 4), _MOST_HELD_DAYS)
    fitted = history[:-held]
    came = float(sum(value for _, value in history[-held:]))
    if len(fitted) < FEWEST_DAYS or not came or not any(value for _, value in fitted):
        return None
    last = fitted[-1][0]
    days = [(day - last).days - 1 for day, _ in history[-held:]]
    actual = numpy.array([value for _, value in history[-held:]])
    futures = _futures(_dense(fitted), days[-1] + 1, seed)
    paths = futures.paths[:, days]
    low_95, low_80, mid, high_80, high_95 = numpy.percentile(paths, _LEVELS, axis=0)
    total = _bands(paths.sum(axis=1)[:, None])[0]
    return BackTest(
        fitted_days=len(fitted),
        held_days=held,
        daily_error_share=float(numpy.abs(actual - mid).sum()) / came,
        total_error_share=total.mid / came - 1,
        inside_80_share=float(((low_80 <= actual) & (actual <= high_80)).mean()),
        inside_95_share=float(((low_95 <= actual) & (actual <= high_95)).mean()),
        total_inside_80=total.low_80 <= came <= total.high_80,
        total_inside_95=total.low_95 <= came <= total.high_95,
    )
