"""Forecasts of the same history are the same, so tests that need many reports of a few histories make each once."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Iterator, Sequence

import pytest

from schemaless.planning.capacity import basis
from schemaless.planning.capacity.forecast import Forecast, History, NoForecast, forecast


@functools.lru_cache(maxsize=12)  # each keeps its futures, of 14 MB at most
def _forecast(
    history: tuple[tuple[datetime.date, float], ...],
    seed: int,
    parts: tuple[tuple[tuple[datetime.date, float], ...], ...],
) -> Forecast | NoForecast:
    return forecast(history, seed=seed, parts=parts)


def _remembered(history: History, *, seed: int = 1, parts: Sequence[History] = ()) -> Forecast | NoForecast:
    return _forecast(tuple(history), seed, tuple(map(tuple, parts)))


@pytest.fixture(autouse=True, scope="session")
def remembered_forecasts() -> Iterator[None]:
    """Make reports use a precomputed forecast; computing forecasts is tested elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(basis, "forecast", _remembered)
        yield
