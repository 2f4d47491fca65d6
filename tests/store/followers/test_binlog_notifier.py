"""Notification of new cells by the servers' binary logs: a hint whose loss loses no cell."""

from __future__ import annotations

import math
import struct
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from pymysql.protocol import MysqlPacket

import schemaless
from schemaless.errors import AccessDenied, ServerRefused, ServerUnavailable
from schemaless.store.followers import binlog_notifier as wakes
from schemaless.store.followers.binlog_notifier import HEARD, BinlogNotifier
from schemaless.store.followers.membership import Timing
from schemaless.store.followers.rows import FollowerRows
from schemaless.store.followers.settings import Settings
from schemaless.store.followers.worker import Worker
from schemaless.store.internals import internals_of
from schemaless.wire import binlog_reader as log_reader
from schemaless.wire.binlog_events import Decoder, Ended, Inserts
from schemaless.wire.binlog_reader import LogReader, encode_gtids
from schemaless.wire.urls import parse_url
from tests.store.followers.child import WrittenDown

NAME = "trigger:heard"
# It looks at everything once, and never again by itself.
DEAF = Timing(lease_s=1_000, give_up_s=900, renew_s=0.1, note_s=0.02, look_s=1_000)
EAGER = replace(DEAF, connect_s=0.05, refused_s=0.01)


class Heard(WrittenDown):
    """A handler that keeps what it was given."""

    name = NAME

    def __init__(self) -> None:
        self.cells: list[tuple[int, int]] = []

    def handle(self, context, lease, cells) -> bool:
        for cell in cells:
            context.check_active(lease)
            self.cells.append((cell.shard, cell.added_id))
            context.advance(lease, cell.added_id)
        return True


@contextmanager
def working(store: schemaless.Datastore, timing: Timing = DEAF) -> Iterator[tuple[Worker, list[tuple[int, int]]]]:
    """A worker on a thread of its own, and what it was given."""
    Settings(internals_of(store).follower_access).create(NAME, {}, lambda shard: 0)
    stop, handler = threading.Event(), Heard()
    worker = Worker(internals_of(store).follower_access, [handler], "one", timing=timing, stop=stop)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker, handler.cells
    finally:
        stop.set()
        thread.join()


def all_of(there: set[tuple[int, int]], cells: list[tuple[int, int]]) -> bool:
    return set(cells) == there


def finds_by(worker: Worker) -> set[str]:
    return set(worker._report()["finds_by"].values())


@pytest.fixture
def kill(by_hand, follow_store, accounts) -> Callable[[], int]:
    """Ends the connections that binary logs are sent on; returns how many."""
    shards = by_hand(follow_store)
    nodes = {shards.node_of(shard) for shard in range(4)}
    name = accounts.account("follow").name.encode()

    def end_all() -> int:
        ended = 0
        for node in nodes:
            with shards.pool_for(node).connection() as root:
                for number, user, _, _, command, *_ in root.rows(b"SHOW PROCESSLIST"):
                    if user.encode() == name and command.startswith("Binlog Dump"):
                        with suppress(schemaless.ServerError):  # it has just ended
                            root.execute(b"KILL %d" % number)
                            ended += 1
        return ended

    return end_all


@pytest.mark.mysql
@pytest.mark.twice
def test_each_insert_is_heard_with_its_highest_added_id(follow_store, put, eventually, by_hand):
    """Of one row or many, short or long; other tables and other databases are nothing to it."""
    internals = internals_of(follow_store)
    shards = by_hand(follow_store)
    numbers = {internals.shards.database(shard): shard for shard in range(4)}
    tops: dict[int, int] = {}
    said: list[object] = []
    readers = []

    def listen(reader: LogReader) -> None:
        events = Decoder(frozenset(numbers), "cell")
        try:
            for event in reader.events():
                found = events.read(event)
                said.append(found)
                if isinstance(found, Inserts):
                    shard = numbers[found.schema]
                    tops[shard] = max(tops.get(shard, 0), found.last)
        except schemaless.errors.ServerError:
            return

    for node in {internals.shards.node_of(shard) for shard in range(4)}:
        pool = internals.shards.pool_for(node)
        readers.append(LogReader(pool.node, pool.credentials))
    threads = [threading.Thread(target=listen, args=(reader,)) for reader in readers]
    for thread in threads:
        thread.start()
    there = put(1) | put(30) | put(60, body="long " * 100) | put(8, body="longer " * 2_000)
    shards.execute(0, b"INSERT INTO `%b`.follower (name, location) VALUES ('x', 1)" % shards.database(0).encode())
    there |= put(3)
    ends = {shard: max(added_id for where, added_id in there if where == shard) for shard in range(4)}
    eventually(lambda: tops == ends, "the last ones are heard")
    for reader in readers:
        reader.cut()
    for thread in threads:
        thread.join()

    assert sum(isinstance(each, Ended) for each in said) >= 5


@pytest.mark.mysql
@pytest.mark.twice
def test_new_cells_are_reported_to_every_listener(follow_store, put, eventually):
    """A worker that never looks by itself is given each cell, and says how it finds them."""
    there = put(10)
    with working(follow_store) as (worker, cells):
        eventually(lambda: finds_by(worker) == {HEARD}, "it listens")
        eventually(lambda: set(cells) == there, "what was there before is found by looking")
        for _ in range(5):
            there |= put(7)
            eventually(partial(all_of, there, cells), "it hears of them")
        reported = worker._report()

    assert sorted(cells) == sorted(there)
    assert reported["heard"] >= 5


@pytest.mark.guarantee("follower-notifications")
@pytest.mark.mysql
@pytest.mark.twice
def test_no_notification_is_lost_if_the_listener_is_cut(follow_store, put, eventually, kill):
    """Cut again and again while cells come; none is missed, though nothing is looked at by the clock."""
    there, cuts = set(), 0
    with working(follow_store, EAGER) as (worker, cells):
        eventually(lambda: finds_by(worker) == {HEARD}, "it listens")
        while cuts < 12:
            for _ in range(3):
                there |= put(5)
            cuts += kill()
        there |= put(5)
        eventually(lambda: set(cells) == there, "each was dealt with")
        reported = worker._report()

    assert sorted(cells) == sorted(there)
    assert reported["heard"] > 0


@pytest.mark.long
@pytest.mark.guarantee("follower-notifications")
@pytest.mark.mysql
@pytest.mark.twice
@pytest.mark.parametrize("looks", [True, False], ids=["looks", "control"])
def test_cells_committed_while_not_listening_are_polled_for(follow_store, put, eventually, kill, monkeypatch, looks):
    """Without the poll after each connect, those cells are not found, except in a shard with a later cell."""
    real, free = LogReader, threading.Event()
    free.set()

    def held(*arguments: object) -> LogReader:
        free.wait()
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(wakes, "LogReader", held)
    monkeypatch.setattr(FollowerRows, "tops", lambda *_: ({}, {}))
    with working(follow_store) as (worker, cells):
        eventually(
            lambda: finds_by(worker) == {HEARD} and not worker.discovery.notifier._polls, "it listens, and has looked"
        )
        if not looks:
            monkeypatch.setattr(BinlogNotifier, "request_poll", lambda *_: None)
        free.clear()
        kill()
        eventually(lambda: HEARD not in finds_by(worker), "the connection is down")
        missed = put(12)
        free.set()
        eventually(lambda: finds_by(worker) == {HEARD}, "it listens again")
        heard = put(1)
        eventually(lambda: heard <= set(cells), "it hears")
        (shard,) = {shard for shard, _ in heard}
        if looks:
            eventually(lambda: missed <= set(cells), "it has looked")
        else:
            assert {cell for cell in missed if cell in cells} == {cell for cell in missed if cell[0] == shard} != missed


@pytest.mark.guarantee("follower-notifications")
@pytest.mark.mysql
@pytest.mark.twice
def test_cells_announced_before_they_are_visible_are_read_again(follow_store, put, eventually):
    """A wake-up may come before its row can be read: the shard stays open until it can."""
    with working(follow_store) as (worker, cells):
        eventually(lambda: finds_by(worker) == {HEARD}, "it listens")
        there = put(8)
        eventually(lambda: set(cells) == there, "all is dealt with")
        early = dict.fromkeys(range(4), 1)
        for shard, added_id in there:
            early[shard] = max(early[shard], added_id + 1)
        worker.discovery.notifier.notify(
            {internals_of(follow_store).shards.database(shard): top for shard, top in early.items()}
        )
        eventually(
            lambda: all(lease.top == early[lease.pair[1]] for lease in worker.leases.held.values()), "it was heard"
        )
        worker.discovery.notifier.request_poll()
        eventually(lambda: not worker.discovery.notifier._polls, "it has looked")
        assert all(lease.has_work for lease in worker.leases.held.values())
        there |= put(20)
        eventually(lambda: set(cells) == there, "they are read when they are there")


@pytest.mark.guarantee("follower-notifications")
@pytest.mark.mysql
@pytest.mark.twice
def test_without_the_privilege_new_cells_are_found_by_sweep(follow_store, tail_store, put, eventually, monkeypatch):
    """And it says why, with the server's words."""
    refused = BinlogNotifier(internals_of(tail_store).shards, EAGER)
    refused.listen({internals_of(tail_store).shards.node_of(shard) for shard in range(4)})
    eventually(lambda: all("REPLICATION SLAVE" in how for how in refused.report().values()), "it is refused")
    refused.close()

    def refuse(*_: object) -> None:
        raise AccessDenied("REPLICATION SLAVE is needed", node="db-1")

    monkeypatch.setattr(wakes, "LogReader", refuse)
    with working(follow_store) as (worker, cells):
        there = put(10)
        eventually(lambda: set(cells) == there, "the sweep finds them")
        eventually(lambda: finds_by(worker) == {"sweep: db-1: REPLICATION SLAVE is needed"}, "it says so")
        assert worker._report()["heard"] == 0


@pytest.mark.once
def test_a_log_that_the_server_ends_is_a_lost_connection(monkeypatch):
    """It sends so when it goes down: no event, and no more than a byte or five."""
    raw = MagicMock()
    raw.cursor().fetchone.return_value = ("", 1, "ROW")
    raw._read_packet.return_value = MysqlPacket(b"\xfe\0\0\0\0", "utf8")
    monkeypatch.setattr(log_reader, "open_connection", lambda *_: (raw, SimpleNamespace(is_mariadb=False)))
    url = parse_url("mysql://follow@db-1/trips")
    reader = LogReader(url.node, url.credentials)

    with pytest.raises(ServerUnavailable, match="db-1:3306: the server ended the binary log stream"):
        next(reader.events())


@pytest.mark.guarantee("follower-notifications")
@pytest.mark.mysql
@pytest.mark.twice
@pytest.mark.parametrize(
    ("sent", "message", "again"),
    [(b"", "IndexError: ", True), (struct.pack("<IBIIIH", 0, 40, 0, 19, 0, 0), "has compressed transactions", False)],
    ids=["not understood", "compressed"],
)
def test_a_listener_that_loses_its_log_reports_it(follow_store, eventually, monkeypatch, sent, message, again):
    """Whatever it met, its shards are swept; it asks again soon, and where that is of no use after a minute."""
    readers = []

    class Reader:
        facts = SimpleNamespace(server="", connected_at_s=math.inf)

        def __init__(self, *_: object) -> None:
            readers.append(self)

        def events(self) -> Iterator[bytes]:
            yield struct.pack("<IBIIIH", 0, 27, 0, 19, 0, 0)
            yield sent

        def close(self) -> None: ...

        def cut(self) -> None: ...

    monkeypatch.setattr(wakes, "LogReader", Reader)
    shards = internals_of(follow_store).shards
    node = shards.node_of(0)
    with closing(BinlogNotifier(shards, replace(DEAF, connect_s=0.05))) as heard:
        heard.listen([node])
        eventually(lambda: message in heard.report()[str(node)] and (len(readers) > 2 or not again), "it says why")
        assert not heard.is_listening(node)

    assert again or len(readers) == 1


@pytest.mark.mysql
@pytest.mark.twice
@pytest.mark.parametrize(("kept", "how", "message"), [(1, "MIXED", "binlog_format=MIXED"), (0, "ROW", "no binary log")])
def test_a_server_whose_log_has_no_rows_is_not_listened_to(follow_store, monkeypatch, kept, how, message):
    """What it logs would not say which shard."""
    for name in ("SELECT_LOG_STATE", "SELECT_LOG_STATE_MARIADB"):
        monkeypatch.setattr(log_reader, name, b"SELECT '', %d, '%b'" % (kept, how.encode()))
    pool = internals_of(follow_store).shards.pool_for(internals_of(follow_store).shards.node_of(0))

    with pytest.raises(ServerRefused, match=message):
        LogReader(pool.node, pool.credentials)


@pytest.mark.once
def test_sets_of_gtids_are_written_as_the_protocol_has_them():
    """Intervals end after their last number; tagged GTIDs are rejected."""
    one, other = uuid.UUID(int=1), uuid.UUID(int=2)
    written = encode_gtids(f"{one}:1-3:8,\n{other}:5-6", "db-1")
    number = [int.from_bytes(written[at : at + 8], "little") for at in (0, 24, 32, 40, 48, 56, 80, 88, 96)]

    assert number == [2, 2, 1, 4, 8, 9, 1, 5, 7]
    assert (written[8:24], written[64:80], len(written)) == (one.bytes, other.bytes, 104)
    assert encode_gtids("", "db-1") == bytes(8)
    with pytest.raises(ServerRefused, match="tagged"):
        encode_gtids(f"{one}:mine:1-3", "db-1")
