"""Fixtures of the follower tests, for the tests of triggers."""

from tests.followers.conftest import put, settings, works

__all__ = ["put", "settings", "works"]
