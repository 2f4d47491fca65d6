"""Seeded schedules of faults on real servers: what the store says is true. ``benchmarks/faults.py`` runs 2,000."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from schemaless.local.description import LocalServer
from schemaless.wire import pool
from tests.accounts import Accounts
from tests.faults.harness import Harness

pytestmark = [pytest.mark.mysql, pytest.mark.twice]


@pytest.fixture(scope="module")
def harness(servers: list[LocalServer], accounts: Accounts) -> Iterator[Harness]:
    """A datastore behind a proxy, with short pauses between attempts; the timeout is long enough for a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool.NodePool, "retry_pause_s", 0.002)
        sockets = [str(server.socket) for server in servers]
        harness = Harness(sockets, accounts, "faults", stalls=0.01, read_timeout_s=4.0)
        yield harness
        harness.close()


@pytest.mark.guarantee("outcome-known")
@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.long) for first in range(30, 150, 30))])
def test_whatever_breaks_results_and_errors_are_true(harness, first):
    """Each cell is there once or the error says what is known; the datastore works on, and no reply is another's."""
    for number in range(first, first + 30):
        harness.run(number)

    harness.expect_what_was_not_written_is_not_there()
