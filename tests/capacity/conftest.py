"""What the tests of capacity reports share."""

from tests.remembered import remembered_forecasts

__all__ = ["remembered_forecasts"]
