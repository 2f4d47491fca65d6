"""Fixtures of the capacity report tests."""

from tests.remembered import remembered_forecasts

__all__ = ["remembered_forecasts"]
