"""Connections cut under every call of a datastore, under ``connect`` and ``create``: what they report is true."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

import schemaless
from schemaless.errors import OutcomeUnknown, ServerUnavailable
from schemaless.local.description import LocalServer
from schemaless.store.cells import column_codecs
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.topology import router
from schemaless.wire import attempts
from schemaless.wire.errors import ConnectionLost
from schemaless.wire.pool import NodePool
from tests.faults.calls import READS, ROW, WRITES, error_of, expect_refusal
from tests.faults.kinds import ONE_KIND
from tests.faults.proxy import ANSWERING, SENDING, Fault, Proxy

pytestmark = [pytest.mark.mysql, ONE_KIND]

LOST = {2003, 2006, 2013, None}
_names = itertools.count()


@pytest.fixture(scope="module")
def proxy(servers: list[LocalServer]) -> Iterator[Proxy]:
    """The first server, by way of a proxy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NodePool, "retry_pause_s", 0.002)
        # A machine that is busy would end a call before its last attempt.
        patch.setattr(attempts, "RETRY_FOR_S", 60)
        # Reads of the catalog that happen to be due would meet the faults that are meant for calls.
        for module in (router, column_codecs):
            patch.setattr(module, "REFRESH_S", 10_000.0)
        proxy = Proxy([str(servers[0].socket)])
        yield proxy
        proxy.close()


@pytest.fixture(scope="module")
def url(proxy: Proxy) -> str:
    """A datastore of one shard behind the proxy."""
    return schemaless.create("cuts", 1, proxy.urls)


@pytest.fixture(scope="module")
def opened(url: str) -> Iterator[Datastore]:
    """The datastore, with a few versions of a cell."""
    with schemaless.connect(url, connect_timeout_s=60, read_timeout_s=60) as store:
        for ref_key in (1, 2, 3):
            store.put_cell(ROW, "BASE", ref_key, {"version": ref_key})
        yield store


@pytest.fixture
def store(opened: Datastore, proxy: Proxy) -> Iterator[Datastore]:
    """The datastore, disturbed by nothing before and after."""
    breaker = internals_of(opened).shards.pool_for(internals_of(opened).shards.node_of(0)).breaker
    breaker.acknowledge(breaker.alarms)
    yield opened
    proxy.disarm()
    breaker.answered()


@pytest.mark.parametrize("call", [*READS, *WRITES])
def test_a_call_that_gets_no_connection_did_nothing(proxy, store, call):
    """And says so at once, having asked the catalog once: retryable, with node and shard."""
    does = {**READS, **WRITES}[call]
    store.close()
    proxy.arm([Fault("accept", "before", "rst")] * 60)
    error = error_of(lambda: does(store))
    left = len(proxy.disarm())

    expect_refusal(error, ServerUnavailable, codes=LOST, retryable=True, shard=0)
    assert not isinstance(error, OutcomeUnknown)
    assert left == 58
    assert error_of(lambda: does(store)) is None


@pytest.mark.guarantee("retries")
@pytest.mark.parametrize("at", ["random byte", "no reply", "reply random"])
@pytest.mark.parametrize("call", READS)
def test_a_read_that_is_cut_once_is_repeated(proxy, store, call, at):
    """Its result is that of an undisturbed one."""
    expected = READS[call](store)
    proxy.arm([Fault("SELECT", at, "fin", seed=7)])

    assert READS[call](store) == expected
    assert len(proxy.struck) == 1


@pytest.mark.parametrize("call", READS)
def test_a_read_that_is_cut_at_every_attempt_is_an_error(proxy, store, call):
    """It is no unknown outcome: a read changes nothing."""
    proxy.arm([Fault("SELECT", "reply last", "rst")] * 60)
    error = error_of(lambda: READS[call](store))

    expect_refusal(error, ServerUnavailable, codes=LOST, retryable=True, shard=0)
    # Each with a question to the catalog, on the same server, whether the shard is still there.
    assert attempts.ATTEMPTS <= len(proxy.struck) <= 2 * attempts.ATTEMPTS


@pytest.mark.parametrize("where", ["accept", "greeting", "login", "setup", "SELECT"])
def test_connect_that_is_cut_anywhere_raises_ours_or_opens(proxy, url, where):
    """At each class of bytes; nothing is left behind that a second try would stumble over."""
    sides = {"accept": ("before",), "greeting": ANSWERING}.get(where, SENDING + ANSWERING)
    for at, skip in itertools.product(sides, (0, 2)):
        proxy.arm([Fault(where, at, "fin", skip, seed=skip)])
        error = error_of(lambda: schemaless.connect(url, connect_timeout_s=60, read_timeout_s=60).close())
        proxy.disarm()
        if error is not None:
            expect_refusal(error, ServerUnavailable, codes=LOST, retryable=True, shard=None)

        schemaless.connect(url).close()


@pytest.mark.parametrize("at", ["random byte", pytest.param("no reply", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "where",
    ["CREATE", "COMMIT", *(pytest.param(where, marks=pytest.mark.long) for where in ("INSERT", "UPDATE", "USE"))],
)
def test_create_that_is_cut_anywhere_completes_when_it_is_called_again(proxy, where, at):
    """What was written before a cut is not in the way, and the error does not say that nothing was."""
    for skip in (0, 3):
        name = f"cut{next(_names)}"
        proxy.arm([Fault(where, at, "rst", skip, seed=skip)])
        made: list[str] = []
        error = error_of(lambda: made.append(schemaless.create(name, 2, proxy.urls)))  # noqa: B023
        proxy.disarm()
        if error is not None:
            expect_refusal(error, OutcomeUnknown, codes=LOST, retryable=True)
        (url,) = made or [schemaless.create(name, 2, proxy.urls)]

        with schemaless.connect(url) as store:
            assert store.put_cell(ROW, "BASE", 1, 1).created


def test_a_transaction_whose_commit_is_refused_is_not_left_open_for_others(proxy, store, row):
    """KILL QUERY on MariaDB can refuse a COMMIT and leave its transaction open: the next put must not get into it."""
    proxy.arm([Fault("COMMIT", "before", "refuse")])
    appended = store.append_cell(row, "STATUS", "appended")
    assert len(proxy.struck) == 1
    put = store.put_cell(row, "BASE", 1, "put")
    # Whatever was uncommitted is gone with its connection.
    store.close()

    assert {name: cell.added_id for name, cell in store.get_row(row).items()} == {
        "BASE": put.added_id,
        "STATUS": appended.added_id,
    }
    assert len(list(store.get_versions(row, "STATUS"))) == 1


@pytest.mark.guarantee("outcome-known")
def test_a_transaction_whose_commit_is_refused_every_time_is_an_unknown_outcome(proxy, store, row):
    """And put_cell with its key settles it, as the error says."""
    proxy.arm([Fault("COMMIT", "before", "refuse")] * 60)
    with pytest.raises(OutcomeUnknown, match="put_cell with the same body and this key") as caught:
        store.append_cell(row, "STATUS", "appended")
    proxy.disarm()

    assert store.put_cell(*caught.value.key, "appended").created
    assert not isinstance(caught.value, ConnectionLost)
