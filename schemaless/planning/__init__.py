"""Capacity planning: sampling, codec advice, measurements and forecasts."""
