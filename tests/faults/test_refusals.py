"""What a server refuses becomes one of the library's errors, and says truly whether to try again.

The server is these tests' own: they change its settings and shut it down.
"""

from __future__ import annotations

import contextlib
import random
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

import schemaless
from schemaless.errors import (
    AccessDenied,
    BodyTooLarge,
    FeedRefused,
    OutcomeUnknown,
    ServerError,
    ServerRefused,
    ServerTimeout,
    ServerUnavailable,
    ShardMoving,
)
from schemaless.local import servers as local_servers
from schemaless.local.description import LocalServer
from schemaless.local.processes import wait_gone
from schemaless.store.datastore import Datastore
from schemaless.store.internals import Internals, internals_of
from schemaless.testing.servers import private_servers
from schemaless.wire import connection as connections
from schemaless.wire import pool as pools
from schemaless.wire.errors import Deadlock
from tests.faults.calls import READS, ROW, WITHOUT_A_SERVER, WRITES, error_of, expect_refusal
from tests.faults.harness import direct, rows
from tests.faults.locks import eventually, holding, in_thread, insert, waiting

pytestmark = [pytest.mark.mysql, pytest.mark.twice]


@pytest.fixture(scope="module")
def server(flavour: str) -> Iterator[LocalServer]:
    """A server of these tests' own."""
    with private_servers(flavour, 1) as (running,):
        yield running


@pytest.fixture
def admin(server: LocalServer) -> Iterator[Any]:
    """A connection as root."""
    connection = direct(str(server.socket))
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def root_url(server: LocalServer) -> str:
    """A datastore of one shard."""
    return schemaless.create("refusals", 1, [server.url])


@pytest.fixture(scope="module")
def url(root_url: str, server: LocalServer) -> str:
    """The same, for an account that may read and write, and no more."""
    with contextlib.closing(direct(str(server.socket))) as admin:
        rows(admin, "CREATE USER app@localhost IDENTIFIED BY 'secret'")
        rows(admin, "GRANT SELECT, INSERT ON `refusals%`.* TO app@localhost")
        rows(admin, "GRANT SELECT ON performance_schema.* TO app@localhost")
    return root_url.replace("root@", "app:secret@")


@pytest.fixture
def store(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Datastore]:
    """The datastore, with a row in it that is read."""
    monkeypatch.setattr(pools.NodePool, "retry_pause_s", 0.002)
    with schemaless.connect(url, pool_size=2) as opened:
        internals_of(opened).shards.move_wait_s = 0.02
        opened.put_cell(ROW, "BASE", 1, "there")
        yield opened


@pytest.mark.guarantee("own-errors")
def test_every_call_is_driven_here():
    """A new call of the datastore or of its internals must be added to these tests."""
    public = {name for name in dir(Datastore) + dir(Internals) if not name.startswith("_")}

    assert public == {*READS, *WRITES, *WITHOUT_A_SERVER}


def test_close_ends_the_sessions_on_the_server(admin, url, new_row):
    """Idle connections at once, and those in use when their call is over; none is dropped without a word."""

    def number(name: str) -> int:
        return int(rows(admin, f"SHOW GLOBAL STATUS LIKE '{name}'")[0][1])

    eventually(lambda: number("Threads_connected") == 1)
    aborted = number("Aborted_clients")
    with schemaless.connect(url, pool_size=3) as store:
        reached, go_on = threading.Barrier(3), threading.Event()

        def hold(connection: connections.Connection) -> None:
            reached.wait()
            go_on.wait()
            connection.rows(b"SELECT 1")

        calls = [in_thread(lambda: internals_of(store).shards.run(0, hold)) for _ in range(2)]
        reached.wait()
        store.put_cell(new_row(), "BASE", 1, 1)
        store.close()
        go_on.set()
        for thread, results in calls:
            thread.join()
            assert results == [None]
        eventually(lambda: number("Threads_connected") == 1)

        assert store.put_cell(new_row(), "BASE", 1, 1).created, "a closed datastore connects again"
    eventually(lambda: number("Threads_connected") == 1)

    assert number("Aborted_clients") == aborted


@dataclass(frozen=True)
class Condition:
    """A setting under which a server refuses, and what becomes of reads and writes; None where they succeed."""

    begin: Sequence[str]
    end: Sequence[str]
    kind: type[ServerError]
    codes: set[int | None]
    retryable: bool
    reads: bool = True
    new_connections: bool = True


CONDITIONS = {
    "account locked": Condition(
        ["ALTER USER app@localhost ACCOUNT LOCK"],
        ["ALTER USER app@localhost ACCOUNT UNLOCK"],
        AccessDenied,
        {3118, 4151},
        retryable=False,
    ),
    "password changed": Condition(
        ["ALTER USER app@localhost IDENTIFIED BY 'changed'"],
        ["ALTER USER app@localhost IDENTIFIED BY 'secret'"],
        AccessDenied,
        {1045},
        retryable=False,
    ),
    "read-only": Condition(
        ["SET GLOBAL read_only = 1"],
        ["SET GLOBAL read_only = 0"],
        ServerRefused,
        {1290},
        retryable=True,
        reads=False,
        new_connections=False,
    ),
    "no right to write": Condition(
        ["REVOKE INSERT ON `refusals%`.* FROM app@localhost"],
        ["GRANT INSERT ON `refusals%`.* TO app@localhost"],
        AccessDenied,
        {1142},
        retryable=False,
        reads=False,
    ),
    "no right at all": Condition(
        ["REVOKE INSERT, SELECT ON `refusals%`.* FROM app@localhost"],
        ["GRANT INSERT, SELECT ON `refusals%`.* TO app@localhost"],
        AccessDenied,
        {1142},
        retryable=False,
    ),
    "table missing": Condition(
        ["RENAME TABLE refusals_0000.cell TO refusals_0000.away"],
        ["RENAME TABLE refusals_0000.away TO refusals_0000.cell"],
        ShardMoving,
        {1146},
        retryable=True,
        new_connections=False,
    ),
}


@pytest.mark.guarantee("own-errors")
@pytest.mark.parametrize("name", CONDITIONS)
def test_every_call_reports_a_refusal_until_its_cause_ends(admin, store, name):
    """The same datastore object works again as soon as the cause is gone."""
    condition = CONDITIONS[name]
    for statement in condition.begin:
        rows(admin, statement)
    try:
        if condition.new_connections:
            store.close()
        for call, does in {**READS, **WRITES}.items():
            error = error_of(lambda does=does: does(store))  # type: ignore[misc]
            if call in READS and not condition.reads:
                # To the change feed a server that is read-only may be a replica by now.
                assert error is None or isinstance(error, FeedRefused), call
            else:
                expect_refusal(error, condition.kind, codes=condition.codes, retryable=condition.retryable, shard=0)
                assert name != "account locked" or "ACCOUNT UNLOCK" in str(error)
    finally:
        for statement in condition.end:
            rows(admin, statement)
    if condition.new_connections:
        store.close()

    assert [call for call, does in {**READS, **WRITES}.items() if error_of(lambda does=does: does(store))] == []


def test_connect_and_create_report_a_refused_account(server, url, root_url):
    """With the wrong password, and without the right to make databases."""
    wrong = url.replace("secret", "wr0ng")
    for call in (
        lambda: schemaless.connect(wrong),
        lambda: schemaless.create("more", 1, [wrong.replace("refusals", "")]),
    ):
        error = error_of(call)
        expect_refusal(error, AccessDenied, codes={1045}, retryable=False, shard=None)
        assert "wr0ng" not in str(error)

    error = error_of(lambda: schemaless.create("more", 1, [url.replace("refusals", "")]))
    expect_refusal(error, AccessDenied, codes={1044, 1142}, retryable=False)


def test_connect_reports_a_missing_datastore(root_url):
    """Neither a driver's error nor a traceback."""
    with pytest.raises(schemaless.DatastoreNotFound, match="nobody"):
        schemaless.connect(root_url.replace("refusals", "nobody"))


@pytest.mark.parametrize("host", ["no-such-host.invalid", "127.0.0.1:1"])
def test_connect_reports_a_missing_host(host):
    """The name is unknown, or nothing listens."""
    error = error_of(lambda: schemaless.connect(f"mysql://root@{host}/trips"))

    expect_refusal(error, ServerUnavailable, codes={2003}, retryable=True, shard=None)


def test_an_accounts_connections_used_up_is_retryable(admin, server, store):
    """It ends by itself, when others give theirs back."""
    rows(admin, "ALTER USER app@localhost WITH MAX_USER_CONNECTIONS 1")
    store.close()
    with contextlib.closing(direct(str(server.socket), user="app", password="secret")):
        for does in (READS["get_row"], WRITES["put_cells"], WRITES["append_cell"]):
            error = error_of(lambda does=does: does(store))  # type: ignore[misc]
            expect_refusal(error, ServerUnavailable, codes={1226}, retryable=True, shard=0)
    rows(admin, "ALTER USER app@localhost WITH MAX_USER_CONNECTIONS 0")

    assert error_of(lambda: WRITES["put_cells"](store)) is None


def test_an_accounts_hourly_limit_is_not_retryable(admin, store):
    """Retrying at once would not help, and the outcome is known."""
    rows(admin, "ALTER USER app@localhost WITH MAX_QUERIES_PER_HOUR 15")
    store.close()
    errors = [error_of(lambda: WRITES["put_cell"](store)) for _ in range(20)]
    rows(admin, "ALTER USER app@localhost WITH MAX_QUERIES_PER_HOUR 0")
    rows(admin, "FLUSH USER_RESOURCES")

    expect_refusal(errors[-1], ServerRefused, codes={1226}, retryable=False, shard=0)


def test_a_lock_that_is_not_granted_is_retryable(server, store, row):
    """Nothing was written, not later either; once the other is done, the same call succeeds."""
    store.close()
    with schemaless.connect(store_url(store), pool_size=1) as single:
        internals_of(single).shards.execute(0, b"SET SESSION innodb_lock_wait_timeout = 1")
        with holding(server, insert(row)):
            error = error_of(lambda: single.put_cell(row, "BASE", 1, "mine"))
        expect_refusal(error, ServerTimeout, codes={1205}, retryable=True, shard=0)
        assert single.get_row(row) == {}

        assert single.put_cell(row, "BASE", 1, "mine").created


@pytest.mark.guarantee("outcome-known")
@pytest.mark.parametrize("call", ["put_cell", "append_cell"])
def test_a_write_ended_by_kill_query_wrote_nothing(flavour, server, admin, store, row, call):
    """The administrator's word counts: it is not tried again by itself, and may be by the caller."""

    def write() -> schemaless.Put:
        return store.put_cell(row, "BASE", 1, 1) if call == "put_cell" else store.append_cell(row, "BASE", 1)

    with holding(server, insert(row)):
        thread, results = in_thread(write)
        rows(admin, f"KILL QUERY {waiting(admin, flavour)}")
        thread.join()

    expect_refusal(results[0], ServerTimeout, codes={1317}, retryable=True, shard=0)
    assert store.get_row(row) == {}
    assert write().created


@pytest.mark.parametrize("end", ["ROLLBACK", "COMMIT"])
def test_a_write_whose_connection_is_killed_still_completes(flavour, server, admin, store, row, end):
    """KILL of a connection in the middle of a write: it is repeated, and reports what is stored."""
    with holding(server, insert(row)) as other:
        thread, results = in_thread(lambda: store.put_cell(row, "BASE", 1, 1))
        rows(admin, f"KILL {waiting(admin, flavour)}")
        rows(other, end)
        thread.join()

    put = results[0]
    assert (put.added_id, put.created) == (store.get_cell(row, "BASE", 1).added_id, end == "ROLLBACK")


def test_a_statement_over_its_time_is_retryable(flavour, admin, store):
    """A limit that the server sets: max_execution_time, or max_statement_time."""
    name, value = ("max_execution_time", 500) if flavour == "mysql" else ("max_statement_time", 0.5)
    rows(admin, f"SET GLOBAL {name} = {value}")
    store.close()
    rows(admin, "LOCK TABLES refusals_0000.cell WRITE")
    errors = [error_of(lambda does=READS[call]: does(store)) for call in ("get_cell", "scan_shard")]  # type: ignore[misc]
    rows(admin, "UNLOCK TABLES")
    rows(admin, f"SET GLOBAL {name} = 0")
    store.close()

    for error in errors:
        expect_refusal(error, ServerTimeout, codes={3024, 1969}, retryable=True, shard=0)
    assert store.get_cell(ROW, "BASE", 1).body == "there"


def test_a_body_over_the_servers_packet_is_refused_before_it_is_sent(admin, store, row):
    """The connection stays as it is, and smaller ones pass."""
    rows(admin, "SET GLOBAL max_allowed_packet = 1048576")
    store.close()
    noise = random.Random(3).randbytes(600_000).hex()
    single = pytest.raises(BodyTooLarge, match="Raise its max_allowed_packet")
    with single:
        store.put_cell(row, "BASE", 1, noise + noise)
    with pytest.raises(schemaless.BatchError) as caught:
        store.put_cells([schemaless.NewCell(row, "BASE", 1, noise + noise)])
    with single:
        store.append_cell(row, "BASE", noise + noise)
    assert isinstance(caught.value.causes[0], BodyTooLarge)
    assert not caught.value.retryable

    assert store.put_cell(row, "BASE", 1, noise).created
    rows(admin, "SET GLOBAL max_allowed_packet = 67108864")
    store.close()
    assert store.get_cell(row, "BASE", 1).body == noise


def test_a_body_too_large_for_the_second_connection_is_an_unknown_outcome(store):
    """The first one took it, and was lost: it may be written, and 'nothing was sent' would be untrue."""
    attempts = []

    def operation(connection: connections.Connection) -> None:
        attempts.append(connection)
        if len(attempts) == 1:
            with contextlib.suppress(ServerTimeout):
                connection.execute(b"KILL CONNECTION_ID()")
            connection.execute(b"DO 1")
        raise BodyTooLarge("over the limit")

    with pytest.raises(OutcomeUnknown, match="over the limit"):
        internals_of(store).shards.run(0, operation, writes=True)
    with pytest.raises(BodyTooLarge):
        internals_of(store).shards.run(0, operation, writes=True)


@pytest.mark.guarantee("retries")
def test_two_batches_that_deadlock_are_both_written(flavour, server, admin, store, new_row, monkeypatch):
    """A real deadlock: the one that the server ends is repeated silently."""
    met = []
    translated = connections.translated

    def recording(*arguments: Any, **options: Any) -> ServerError:
        error = translated(*arguments, **options)
        met.append(type(error))
        return error

    monkeypatch.setattr(connections, "translated", recording)
    for _ in range(100):  # where one batch is done before the other is woken, there is no deadlock
        shared, own = new_row(), [new_row(), new_row()]
        # Both wait for the shared key to read it. When it is rolled back, both hold it, and neither can insert it.
        with holding(server, insert(shared)) as other:
            batches = [[schemaless.NewCell(row, "BASE", 1, 1) for row in (shared, mine)] for mine in own]
            runs = [in_thread(lambda batch=batch: store.put_cells(batch)) for batch in batches]
            waiting(admin, flavour, 2)
            rows(other, "ROLLBACK")
            for thread, _ in runs:
                thread.join()
        puts = [put for _, results in runs for put in results[0]]
        assert sorted(put.created for put in puts) == [False, True, True, True]
        assert all(store.get_cell(*put.key).added_id == put.added_id for put in puts)
        if Deadlock in met:
            break

    assert Deadlock in met


def test_another_unique_key_is_named_as_the_cause(admin, root_url, row, new_row):
    """What INSERT meets and SELECT does not find is no reason to try for ever."""
    column = "extra INT GENERATED ALWAYS AS (IF(column_name = 'EXTRA', 1, NULL)) VIRTUAL"
    rows(admin, f"ALTER TABLE refusals_0000.cell ADD COLUMN {column}, ADD UNIQUE KEY other (extra)")
    try:
        with schemaless.connect(root_url) as store:
            store.put_cell(row, "EXTRA", 1, 1)

            with pytest.raises(ServerRefused, match="another unique key") as caught:
                store.put_cell(new_row(), "EXTRA", 1, 1)
    finally:
        rows(admin, "ALTER TABLE refusals_0000.cell DROP KEY other, DROP COLUMN extra")
    expect_refusal(caught.value, ServerRefused, codes={1062}, retryable=False, shard=0)


def test_a_full_disk_is_reported_and_reads_continue(flavour):
    """A tablespace that cannot grow stands for a disk; what was written before can be read."""
    # MariaDB keeps its undo logs there.
    files = "ibdata1:12M" if flavour == "mysql" else "ibdata1:12M;ibdata2:12M"
    options = {"innodb-data-file-path": files, "innodb-file-per-table": "OFF"}
    # MariaDB 10.11 aborts if the rollback of a large row finds no space for its undo log.
    noise = [random.Random(seed).randbytes(20_000).hex() for seed in range(1200)]
    with (
        private_servers(flavour, 1, options) as (server,),
        schemaless.connect(schemaless.create("full", 1, [server.url])) as store,
    ):
        ways: list[Callable[[int], object]] = [
            lambda number: store.put_cell(uuid.UUID(int=number), "BASE", 1, noise[number]),
            lambda number: store.append_cell(uuid.UUID(int=number), "BASE", noise[number]),
        ]
        written = []
        for way in ways:
            error = None
            while error is None:
                number = len(written)
                error = error_of(lambda: way(number))  # noqa: B023
                written += [number] * (error is None)
            expect_refusal(error, ServerRefused, codes={1114}, retryable=False, shard=0)
            assert "free some space" in str(error)

        assert [cell.body for cell in store.iter_shard(0)] == [noise[number] for number in written]


@pytest.mark.guarantee("own-errors")
def test_every_call_reports_a_server_that_was_shut_down(admin, server, url):
    """Nobody waits, nothing was written, and it may be tried again."""
    store = schemaless.connect(url)
    store.get_row(ROW)
    rows(admin, "SHUTDOWN")
    # Its socket goes before its connections do.
    assert wait_gone(server.pid, server.data, 120)

    for does in (*READS.values(), *WRITES.values()):
        error = error_of(lambda does=does: does(store))  # type: ignore[misc]
        if isinstance(error, OutcomeUnknown):
            # The first write that met the end of an idle connection; nothing tells whether it was before or after.
            continue
        expect_refusal(error, ServerUnavailable, codes={2002, 2003}, retryable=True, shard=0)
    for call in (lambda: schemaless.connect(url), lambda: schemaless.create("more", 1, [server.url])):
        expect_refusal(error_of(call), ServerUnavailable, codes={2002, 2003}, retryable=True, shard=None)
    local_servers.start(server)


def store_url(store: Datastore) -> str:
    """Return a datastore's URL with the password that ``store`` was opened with."""
    return str(internals_of(store).url).replace("***", "secret")
