"""Forecast of a daily series, with prediction bands.

The model is a structural time series (statsmodels' unobserved components): a random-walk level, a slope, a weekly
pattern and noise. Instead of selecting a single model, the forecast averages over models with and without a weekly
pattern, with additive or multiplicative effects, and with different variances of the level: 40 models are filtered, and
each contributes simulated futures in proportion to its one-step-ahead likelihood on the history. The bands therefore
include model uncertainty. Sums over several days are taken within each future, because the errors of its days are
correlated.

Every model has a slope: a model without a slope mistakes slow growth for a wandering level, and forecasts too little.

Pure functions, which need no server. They need the extra [report], whose packages are imported on the first forecast.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from schemaless.base.numbers import check_number, counted
from schemaless.errors import InvalidInput
from schemaless.planning.capacity.steps import Burst, bursts, usual_days

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]

History = Sequence[tuple[datetime.date, float]]

FEWEST_DAYS: Final = 14
"""Minimum number of measured days for a forecast."""

_FEWEST_DAYS_FOR_WEEKS: Final = 21
HISTORY_TIMES: Final = 5
"""Default horizon, as a multiple of the length of the history."""

MOST_DAYS: Final = 1_826
"""Longest forecast, in days: five years."""

_PATHS: Final = 1_000
_MOST_HELD_DAYS: Final = 60
_BURN_IN_DAYS: Final = 9
"""Measured days that identify the initial state (level, slope, week); likelihoods start after them."""

_LEVEL_VARIANCES: Final = (0.0, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)
"""Candidate variances of the level's daily step, relative to the variance of the noise."""

MOST_TIMES: Final = 100.0
"""Largest upper end of an interval as a multiple of the lower end."""

_FEWEST_CERTAIN_DAYS: Final = 7
"""Shortest horizon of a forecast; if the intervals of more days are too wide, there is none."""

_UNCERTAIN: Final = (
    "the growth cannot be forecast yet: daily growth varied too much; the interval of the total would span a "
    f"factor of more than {MOST_TIMES:.0f}"
)

_FEWEST_ERRORS: Final = 28
"""Minimum number of errors to resample noise from; with fewer, the noise is normal."""

_CHANCE: Final = 0.01
_FAR_SHARE: Final = 0.25
"""Largest tolerated relative error of a sum that is outside its 80 % band."""

_LEAST_VARIANCE: Final = 1e-9
_MOST_LOG: Final = 300.0
_LEVELS: Final = (2.5, 10.0, 50.0, 90.0, 97.5)


class Band(NamedTuple):
    """Median and the 80 % and 95 % prediction intervals of a forecast figure. Figures in days may be infinite."""

    low_95: float
    low_80: float
    mid: float
    high_80: float
    high_95: float

    def dates(self, first_day: datetime.date, earlier_days: float = 0.0) -> dict[str, datetime.date | None]:
        """Return the days as dates, by field name; None for infinite days.

        Args:
            first_day: The date of day 0.
            earlier_days: Lead time to subtract.
        """
        return {
            name: None
            if math.isinf(days)
            else first_day + datetime.timedelta(math.floor(days) - math.ceil(earlier_days))
            for name, days in self._asdict().items()
        }


def is_too_wide(low: float, high: float) -> bool:
    """Return whether an interval is too wide to be of use; never for figures that may be negative."""
    return low >= 0 and high > MOST_TIMES * low


def whole_days(days: float) -> int | None:
    """Return the completed days until an event, the count that every output shows; None if they are infinite."""
    return None if math.isinf(days) else math.floor(days)


@dataclass(frozen=True, slots=True)
class BackTest:
    """Result of forecasting the last part of the history from the part before it.

    Attributes:
        fitted_days: Number of days that the forecast was made from.
        held_days: Number of held-out days that it was compared with.
        daily_error_share: Sum of the absolute daily errors divided by the total growth of the held-out days.
        total_error_share: Relative error of that total; positive if the forecast was too high.
        inside_80_share: Share of held-out days inside their 80 % band; ideally 0.8.
        inside_95_share: Likewise for 95 %.
        total_inside_80: True if that total was inside its 80 % band.
        total_inside_95: Likewise for 95 %.
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
        """Why the back-test failed, in words; None if chance explains the errors.

        It fails if no more than 1 % of correct forecasts with independent days would have so few days inside the 80 %
        band, if the sum was outside its 95 % band, or if the sum was outside its 80 % band and off by more than a
        quarter.
        """
        inside = round(self.inside_80_share * self.held_days)
        failures = []
        if _binomial(inside, self.held_days, 0.8) < _CHANCE:
            part = "none" if inside == 0 else f"only {self.inside_80_share:.0%}"
            failures.append(f"{part} of the last {self.held_days} days were in the 80 % band")
        far = abs(self.total_error_share) > _FAR_SHARE and not self.total_inside_80
        if far or not self.total_inside_95:
            low = "too low" if self.total_error_share < 0 else "too high"
            total = "their total" if failures else f"the total of the last {self.held_days} days"
            failures.append(f"{total} was forecast {abs(self.total_error_share):.0%} {low}")
        return ", and ".join(failures) or None


def _binomial(count: int, trials: int, share: float) -> float:
    return math.fsum(math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(count + 1))


@dataclass(frozen=True, slots=True)
class NoForecast:
    """Why no forecast could be made.

    Attributes:
        reason: For people; a sentence without its full stop.
        days: Number of measured days.
    """

    reason: str
    days: int


@dataclass(frozen=True, slots=True)
class Expiry:
    """Data that expires at a given age, in the unit of the forecast.

    Attributes:
        delay_days: The age in days; 0 for data that is superseded at the rate at which new data arrives.
        past: Earlier data that expires on each of the first ``delay_days`` days of the forecast.
        share: Share of each forecast day's growth that expires ``delay_days`` later.
    """

    delay_days: int
    past: tuple[float, ...]
    share: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecast of the days to come, in the unit of the history.

    Attributes:
        first_day: First forecast day, the day after the last of the history.
        history_days: Number of measured days.
        daily: Band of each day.
        cumulative: Band of the sum up to and including each day; narrower than the sum of the daily bands.
        growth_share_per_year: Relative change of the daily growth over 365 days, at the current trend.
        weekdays: Monday to Sunday relative to an average day, or None if the history has no weekly pattern.
        weekly_share: Weight of the models with a weekly pattern, 0 to 1.
        compound_share: Weight of the models with multiplicative effects, 0 to 1.
        back_test: None if the history is too short for one, or ends in days without growth.
        bursts: Finished imports, whose days were left out.
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
    # Cumulative sums; axes: future, day.
    _totals: Any = field(repr=False, compare=False)
    bursts: tuple[Burst, ...] = ()

    @property
    def horizon_days(self) -> int:
        """Number of forecast days."""
        return len(self.daily)

    def between(self, start: int, stop: int) -> Band:
        """Return the sum over the days ``start`` to ``stop - 1``, counted from ``first_day``."""
        before = self._totals[:, start - 1] if start else 0.0
        return _bands((self._totals[:, stop - 1] - before)[:, None])[0]

    def less(self, expiries: Sequence[Expiry]) -> Forecast:
        """Return the forecast of what remains if data expires."""
        return self._with(self._totals - self._expired(expiries))

    def expired(self, expiries: Sequence[Expiry]) -> Forecast:
        """Return the forecast of the data that expires."""
        return self._with(self._expired(expiries))

    def _expired(self, expiries: Sequence[Expiry]) -> Any:
        import numpy

        totals = numpy.zeros_like(self._totals)
        for expiry in expiries:
            totals += numpy.cumsum([*expiry.past, *[0.0] * self.horizon_days])[: self.horizon_days]
            if expiry.delay_days < self.horizon_days:
                totals[:, expiry.delay_days :] += (
                    expiry.share * self._totals[:, : self.horizon_days - expiry.delay_days]
                )
        return totals

    def _with(self, totals: Any) -> Forecast:
        import numpy

        days = numpy.diff(totals, axis=1, prepend=0.0)
        return replace(self, daily=_bands(days), cumulative=_bands(totals), _totals=totals)

    def days_until(self, amount: float) -> Band:
        """Return when the growth adds up to ``amount``, such as the free space of a disk.

        Returns:
            Fractional days from the start of ``first_day``; infinite if ``amount`` is not reached within the horizon.

        Raises:
            InvalidInput: ``amount`` is not a finite number.
        """
        import numpy

        check_number("amount", amount)
        if amount <= 0:
            return Band(0.0, 0.0, 0.0, 0.0, 0.0)
        totals = self._totals
        enough = totals >= amount
        first = enough.argmax(axis=1)  # The first day whose sum is enough. With expiries, a sum may fall again.
        rows = numpy.nonzero(enough[numpy.arange(len(totals)), first])[0]
        last = first[rows]
        before = numpy.where(last > 0, totals[rows, last - 1], 0.0)
        days = numpy.full(len(totals), math.inf)
        days[rows] = last + (amount - before) / (totals[rows, last] - before)
        # Interpolating between a finite and an infinite future would not give a number.
        return Band(*(float(value) for value in numpy.percentile(days, _LEVELS, method="inverted_cdf")))


def forecast(
    history: History, *, horizon_days: int | None = None, seed: int = 1, parts: Sequence[History] = ()
) -> Forecast | NoForecast:
    """Forecast the days that follow ``history``.

    In the sum of several series, the start of a later one would look like a step. Series that start at different times,
    such as those of several datastores, are therefore forecast one by one, and their simulated futures are added up.

    Args:
        history: Whole days in order, with the growth of each, 0 or more, in any unit. A missing day was not measured,
            which differs from a day without growth.
        horizon_days: Number of days to forecast; by default five times the length of the history, at most five years,
            and no further than the 80 % interval of the sum spans a factor of 100.
        seed: Seed of the simulated futures; the same seed gives the same figures.
        parts: Series that add up to ``history`` and end on the same day; the shortest one determines the default
            horizon.

    Raises:
        InvalidInput: The days are out of order, a value is negative or not finite, or [report] is not installed.
    """
    _check(history, horizon_days)
    if _reason(history) is None:
        _check_extra()
    # Days are left out of all parts alike, because their futures are added up.
    left_out = tuple(dict.fromkeys(burst for series in (history, *parts) for burst in bursts(series)))
    history, parts = usual_days(history, left_out), [usual_days(part, left_out) for part in parts]
    grown = [part for part in parts if any(value for _, value in part)] or [history]
    shortest = min(grown, key=len)
    for part in (shortest, *grown):
        reason = _reason(part)
        if reason is not None:
            return NoForecast(reason, len(part))
    horizon = horizon_days or min(HISTORY_TIMES * len(shortest), MOST_DAYS)
    first_day = history[-1][0] + datetime.timedelta(1)
    futures = _sum_of_futures(grown, horizon, seed)
    weekly = futures.weekly_share > 0.5
    totals = futures.paths.cumsum(axis=1)
    cumulative = _bands(totals)
    if horizon_days is None:
        certain = [day for day, band in enumerate(cumulative, 1) if not is_too_wide(band.low_80, band.high_80)]
        horizon = certain[-1] if certain else 0
        if horizon < _FEWEST_CERTAIN_DAYS:
            return NoForecast(_UNCERTAIN, len(shortest))
    return Forecast(
        first_day=first_day,
        history_days=len(shortest),
        daily=_bands(futures.paths[:, :horizon]),
        cumulative=cumulative[:horizon],
        growth_share_per_year=_bands(futures.growth[:, None])[0],
        weekdays=_weekdays(futures.weekday_effects, first_day) if weekly else None,
        weekly_share=futures.weekly_share,
        compound_share=futures.compound_share,
        back_test=_back_test(history, grown, seed),
        bursts=left_out,
        _totals=totals[:, :horizon],
    )


def _check_extra() -> None:
    try:
        import numpy  # noqa: F401 - these packages are missing if the extra is not installed
        import statsmodels  # noqa: F401
    except ImportError:
        raise InvalidInput("forecasts need the extra 'report': pip install 'schemaless-store[report]'") from None


def _reason(history: History) -> str | None:
    """Return why no forecast can be made, or None."""
    if len(history) < FEWEST_DAYS:
        days = counted(len(history), "day was", "days were") if history else "no day was"
        return f"{days} measured, but a forecast needs at least {FEWEST_DAYS}"
    if not any(value for _, value in history):
        return f"the size is constant: nothing was written on the {len(history)} measured days"
    span = (history[-1][0] - history[0][0]).days + 1
    return f"only {len(history)} of {span} days were measured" if len(history) < span / 2 else None


def _check(history: History, horizon_days: int | None) -> None:
    for day, value in history:
        check_number(f"growth on {day}", value)
        if value < 0:
            raise InvalidInput(f"growth on {day} must be 0 or more, got {value}")
    for (day, _), (following, _) in pairwise(history):
        if following <= day:
            raise InvalidInput(f"the days of a history must be in order, each once; got {following} after {day}")
    if horizon_days is not None and not 1 <= horizon_days <= MOST_DAYS:
        raise InvalidInput(f"horizon_days must be 1 to {MOST_DAYS:,}, got {horizon_days}")


def _dense(history: History) -> list[float]:
    """Return a value for every day, with NaN for days that were not measured."""
    values = dict(history)
    days = (history[-1][0] - history[0][0]).days + 1
    return [float(values.get(history[0][0] + datetime.timedelta(day), math.nan)) for day in range(days)]


class _Futures(NamedTuple):
    """Simulated futures of a series.

    Attributes:
        paths: One row per future, one column per day.
        growth: Relative change of the daily growth over 365 days, by future.
        weekday_effects: The first seven days relative to an average day, averaged over the models with a weekly
            pattern.
        weekly_share: Weight of the models with a weekly pattern.
        compound_share: Weight of the models with multiplicative effects.
    """

    paths: Floats
    growth: Floats
    weekday_effects: Floats
    weekly_share: float
    compound_share: float


class _Candidate(NamedTuple):
    """A model fitted to a history.

    Attributes:
        state: Predicted state for the day after the history: level, slope and, with a weekly pattern, six effects.
        covariance: Covariance of the state for noise of variance 1.
        log: True for multiplicative effects (the model is fitted to logarithms).
        weekly: True if there is a weekly pattern.
        level_variance: Variance of the level's daily step, relative to the noise.
        log_likelihood: Log-likelihood of the scored days.
        days: Number of scored days.
        variance: Estimated variance of the noise.
        errors: Centred one-step-ahead errors of the scored days, in standard deviations.
    """

    state: Floats
    covariance: Floats
    log: bool
    weekly: bool
    level_variance: float
    log_likelihood: float
    days: int
    variance: float
    errors: Floats


def _sum_of_futures(parts: Sequence[History], horizon_days: int, seed: int) -> _Futures:
    """Simulate each part by itself, and add up their futures."""
    import numpy

    if len(parts) == 1:
        return _futures(_dense(parts[0]), horizon_days, seed)
    rng = numpy.random.default_rng(seed)
    paths: Any = 0.0
    growth: Any = 0.0
    effects: Any = 0.0
    weekly = compound = 0.0
    levels = [sum(value for _, value in part[-7:]) for part in parts]
    for place, (part, level) in enumerate(zip(parts, levels, strict=True)):
        futures = _futures(_dense(part), horizon_days, seed + place)
        share = level / sum(levels) if sum(levels) else 1 / len(parts)
        # Futures are sorted by model; shuffled, so that the models of different parts are not paired.
        order = rng.permutation(len(futures.paths))
        paths = paths + futures.paths[order]
        growth = growth + share * futures.growth[order]
        effects = effects + share * futures.weekday_effects
        weekly += share * futures.weekly_share
        compound += share * futures.compound_share
    return _Futures(paths, growth, effects, weekly, compound)


def _futures(values: list[float], horizon_days: int, seed: int) -> _Futures:
    import numpy

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
        # The variance of the noise is itself an estimate; drawing it turns normal errors into Student's t.
        scale = numpy.sqrt(candidate.variance * candidate.days / rng.chisquare(candidate.days, count))[:, None]
        noise = _noise(candidate.errors, (count, horizon_days), rng)
        path, slope = _simulated(candidate.state, candidate.covariance, candidate.level_variance, scale, noise, rng)
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
    """Fit every model, and score it by the one-step-ahead likelihood of the days after the burn-in."""
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
            for level_variance in _LEVEL_VARIANCES:
                filtered = model.filter([1.0, level_variance], return_ssm=True)
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
                        level_variance,
                        likelihood,
                        days,
                        variance,
                        standard - standard.mean(),
                    )
                )
    return candidates


def _first_scored(known: Any) -> int:
    measured = 0
    for index, is_known in enumerate(known):
        if measured == _BURN_IN_DAYS:
            return index
        measured += bool(is_known)
    return len(known)


def _noise(errors: Floats, shape: tuple[int, int], rng: numpy.random.Generator) -> Floats:
    """Draw noise in standard deviations, by resampling the errors of the history if there are enough.

    Outages, holidays and imports make a few errors large; a normal distribution with the variance of all errors would
    be too wide for most days.
    """
    if len(errors) < _FEWEST_ERRORS:
        return rng.standard_normal(shape)
    return rng.choice(errors, shape)


def _simulated(
    state: Floats, covariance: Floats, level_variance: float, scale: Floats, noise: Floats, rng: numpy.random.Generator
) -> tuple[Floats, Floats]:
    """Simulate futures of a model, one per ``scale`` of the noise, and return them with their slopes.

    The simulation is vectorized, because statsmodels simulates one future at a time. The initial state is drawn with
    its covariance, the level changes by its slope and a random step each day, and the weekly pattern repeats.
    """
    import numpy

    count, horizon_days = noise.shape
    drawn = rng.multivariate_normal(numpy.zeros(len(state)), covariance, count, check_valid="ignore", method="eigh")
    states = state + scale * drawn
    steps = math.sqrt(level_variance) * rng.standard_normal((count, horizon_days))
    steps[:, 0] = 0.0  # The state already contains the level of the first day.
    path = states[:, :1] + states[:, 1:2] * numpy.arange(horizon_days) + scale * (steps.cumsum(axis=1) + noise)
    if states.shape[1] > 2:
        path += _week(states[:, 2:8].T)[numpy.arange(horizon_days) % 7].T
    return path, states[:, 1]


def _week(states: Floats) -> Floats:
    """Return the weekly effects of the seven days after the history, from the seasonal state of the first of them.

    That state holds the effects of this day and of the five before it, latest first; the seven effects sum to 0.
    """
    import numpy

    return numpy.stack([states[0], -states.sum(axis=0), *states[:0:-1]])


def _weekdays(effects: Floats, first_day: datetime.date) -> tuple[float, ...]:
    """Reorder the effects to start on Monday, and scale them to an average of 1."""
    average = float(effects.mean()) or 1.0
    return tuple(float(effects[(weekday - first_day.weekday()) % 7]) / average for weekday in range(7))


def _bands(paths: Floats) -> tuple[Band, ...]:
    import numpy

    columns = numpy.percentile(numpy.ascontiguousarray(paths.T), _LEVELS, axis=1, overwrite_input=True).T
    return tuple(Band(*(float(value) for value in column)) for column in columns)


def _back_test(history: History, parts: Sequence[History], seed: int) -> BackTest | None:
    import numpy

    held = min(max(7, min(map(len, parts)) // 4), _MOST_HELD_DAYS)
    fitted = [part[:-held] for part in parts]
    held_total = float(sum(value for _, value in history[-held:]))
    if not held_total or any(len(part) < FEWEST_DAYS or not any(value for _, value in part) for part in fitted):
        return None
    last = history[-held - 1][0]
    days = [(day - last).days - 1 for day, _ in history[-held:]]
    actual = numpy.array([value for _, value in history[-held:]])
    futures = _sum_of_futures(fitted, days[-1] + 1, seed)
    paths = futures.paths[:, days]
    low_95, low_80, mid, high_80, high_95 = numpy.percentile(paths, _LEVELS, axis=0)
    total = _bands(paths.sum(axis=1)[:, None])[0]
    return BackTest(
        fitted_days=min(map(len, fitted)),
        held_days=held,
        daily_error_share=float(numpy.abs(actual - mid).sum()) / held_total,
        total_error_share=total.mid / held_total - 1,
        inside_80_share=float(((low_80 <= actual) & (actual <= high_80)).mean()),
        inside_95_share=float(((low_95 <= actual) & (actual <= high_95)).mean()),
        total_inside_80=total.low_80 <= held_total <= total.high_80,
        total_inside_95=total.low_95 <= held_total <= total.high_95,
    )
