"""Forecasts of the same history are the same, so tests that need many reports of a few histories make each once."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Iterator, Sequence

import pytest

from schemaless.capacity import reporting
from schemaless.capacity.forecast import Forecast, NoForecast, forecast


@functools.lru_cache(maxsize=12)  # each keeps its futures, of 14 MB at most
def _forecast(history: tuple[tuple[datetime.date, float], ...], seed: int) -> Forecast | NoForecast:
    return forecast(history, seed=seed)


def _remembered(history: Sequence[tuple[datetime.date, float]], *, seed: int = 1) -> Forecast | NoForecast:
    return _forecast(tuple(history), seed)


@pytest.fixture(autouse=True, scope="session")
def remembered_forecasts() -> Iterator[None]:
    """Have reports take a forecast that was made before; what makes them is tested by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reporting, "forecast", _remembered)
        yield
