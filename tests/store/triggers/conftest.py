"""Fixtures of the follower tests, for the tests of triggers."""

from tests.store.followers.conftest import put, settings, works

__all__ = ["put", "settings", "works"]
