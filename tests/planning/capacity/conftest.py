"""Fixtures of the capacity report tests."""

from tests.cli.conftest import _of_any_width
from tests.remembered import remembered_forecasts

__all__ = ["_of_any_width", "remembered_forecasts"]
