"""Pytest's progress, where the processes of xdist have different tests: counted over all of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest


class WholeRun:
    """A plugin of the process that starts the others.

    With ``--dist each`` pytest counts every test that any process has reported, but takes what one of them collected
    for the whole: where one tests on MySQL and the other on MariaDB it ended at 124 %.
    """

    def __init__(self) -> None:
        self._session: pytest.Session | None = None
        self._ids: set[str] = set()

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Take the session, which says how many tests there are."""
        self._session = session

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Add what a process has collected."""
        self._ids.update(ids)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        """Correct the number, which xdist sets anew after each collection."""
        if self._ids and self._session is not None:
            self._session.testscollected = len(self._ids)
