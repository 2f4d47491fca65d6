"""Schedules of faults: an operation, what goes wrong during it, and whether the store then said what is true.

A schedule is determined by its number.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pymysql
from pymysql.constants import SERVER_STATUS

import schemaless
from schemaless.cell import CellKey
from schemaless.codec.envelope import decode_body, encode_body
from schemaless.errors import BatchError, CellConflict, OutcomeUnknown, SchemalessError
from schemaless.store.cells.sql import insert_cells
from schemaless.store.internals import internals_of
from schemaless.wire.pool import NodePool
from tests.accounts import Accounts
from tests.faults.cases import CONNECTING, Case, Cases, choose_faults
from tests.faults.proxy import Fault, Proxy
from tests.faults.verdicts import Untrue, expect, expect_puts, is_unknown, judge

SHARDS: Final = 4
PACKET_BYTES: Final = 4096
"""What the client takes the server's ``max_allowed_packet`` for, so that a few cells need several statements."""

_PATIENCE_S: Final = 120.0


@dataclass
class Report:
    """What a schedule came to.

    Attributes:
        outcome: in a few words.
        struck: the faults that struck, in their order.
    """

    number: int
    operation: str
    outcome: str = ""
    struck: list[Fault] = field(default_factory=list)

    def __str__(self) -> str:
        faults = "; ".join(str(fault) for fault in self.struck) or "nothing struck"
        return f"schedule {self.number}, {self.operation}: {faults}: {self.outcome}"


class Harness:
    """A datastore of four shards over two servers, reached through a proxy, and the servers' own view beside it.

    Args:
        server_sockets: the two servers'.
        accounts: on them.
        name: of the new datastore.
        stalls: the share of faults that the client finds out only by its timeout.
        read_timeout_s: that timeout.
    """

    def __init__(
        self, server_sockets: Sequence[str], accounts: Accounts, name: str, *, stalls: float, read_timeout_s: float
    ) -> None:
        self.stalls = stalls
        self.proxy = Proxy(server_sockets)
        self.servers = {socket: direct(socket) for socket in server_sockets}
        self._blockers = {socket: direct(socket) for socket in server_sockets}
        accounts.allow("admin", name, SHARDS)
        url = schemaless.create(name, SHARDS, [accounts.url("admin", url) for url in self.proxy.urls])
        accounts.allow("app", name, SHARDS)
        url = accounts.url("app", url)
        self.store = schemaless.connect(url, read_timeout_s=read_timeout_s, connect_timeout_s=60)
        self._cases = Cases(self.store)
        nodes = [str(cluster.primary) for cluster in internals_of(self.store).topology.clusters]
        self._socket_of_node = dict(zip(nodes, server_sockets, strict=True))
        self._not_written: list[tuple[str, Case]] = []
        self._known: dict[CellKey, str] = {}
        for pool in self._pools():
            pool.options = replace(pool.options, max_packet_bytes=PACKET_BYTES)
        for shard in range(SHARDS):
            row = self._cases.row(random.Random(shard), shard)
            self._known[CellKey(row, "KNOWN", 1)] = f"known of shard {shard}"
        for key, body in self._known.items():
            self.store.put_cell(*key, body)

    def close(self) -> None:
        """Close everything."""
        self.proxy.disarm()
        self.store.close()
        self.proxy.close()
        for connection in (*self.servers.values(), *self._blockers.values()):
            connection.close()

    def run(self, number: int) -> Report:
        """Run a schedule.

        Raises:
            Untrue: the rows that are there, and the result or the error, do not fit together.
        """
        chance = random.Random(f"schedule {number}")
        operation, case = self._cases.make(chance)
        faults = choose_faults(chance, case, self.stalls)
        if faults[0].where in CONNECTING:
            self.store.close()
        report = Report(number, operation)
        try:
            with self._blocked(chance, case, faults) as (armed, by_others):
                self.proxy.arm(armed)
                result = _attempt(case)
                self.proxy.disarm()
            # The faults are over; do not wait for the breaker to notice.
            for pool in self._pools():
                pool.breaker.answered()
            report.struck = self.proxy.struck
            self._expect_no_open_transaction()
            self._until_the_servers_know()
            there = {**case.there, **by_others}
            found = self._stored(case)
            report.outcome = judge(case, result, there, found)
            if isinstance(result, SchemalessError):
                self._settle(number, case, result, there, found)
            self._expect_all_is_well()
        except Untrue as untrue:
            report.outcome = f"UNTRUE: {untrue}"
            raise Untrue(str(report)) from untrue
        return report

    def expect_what_was_not_written_is_not_there(self) -> None:
        """Look again, in the end, for the cells of errors that said that nothing was written."""
        for report, case in self._not_written:
            new = set(self._stored(case)) - set(case.there)
            expect(not new, f"{report} said that nothing was written, and later there was {new}")

    # While it happens

    @contextmanager
    def _blocked(
        self, chance: random.Random, case: Case, faults: list[Fault]
    ) -> Iterator[tuple[list[Fault], Mapping[CellKey, Any]]]:
        """Where the first fault wants it, have another's transaction hold a key of the case until that has struck.

        Yields the faults, and what the other one has written in the end: nothing, the same document, or another.
        """
        if faults[0].at != "blocked":
            yield faults, {}
            return
        key = chance.choice([key for key in case.wanted if key not in case.there])
        end = chance.choice(["rollback", "same", "other"])
        body = case.wanted[key] if end == "same" else {"by": "another writer"}
        shard = case.shard_of(key)
        connection = self._blockers[self._socket(shard)]
        database = internals_of(self.store).shards.database(shard)
        done = threading.Event()

        def release() -> None:
            if not done.is_set():
                (connection.rollback if end == "rollback" else connection.commit)()
                done.set()

        with connection.cursor() as cursor:
            cursor.execute("START TRANSACTION")
            cursor.execute(
                insert_cells(database, [(key.row_key.bytes, key.column_name, key.ref_key, encode_body(body))])
            )
        try:
            yield [replace(faults[0], release=release), *faults[1:]], {} if end == "rollback" else {key: body}
        finally:
            if self.proxy.struck:
                done.wait(_PATIENCE_S)
            release()

    def _until_the_servers_know(self) -> None:
        """Wait until the servers have dropped every connection that the proxy has no more."""
        gone = self.proxy.settle()
        deadline = time.monotonic() + _PATIENCE_S
        for socket, connection in self.servers.items():
            ids = ",".join(str(number) for where, number in gone if where == socket)
            mariadb = "MariaDB" in connection.server_version
            # MySQL's PROCESSLIST stumbles over statements that hold bytes.
            view = "ID FROM information_schema.PROCESSLIST WHERE ID"
            if not mariadb:
                view = "PROCESSLIST_ID FROM performance_schema.threads WHERE PROCESSLIST_ID"
            while ids and rows(connection, f"SELECT {view} IN ({ids})"):
                expect(time.monotonic() < deadline, f"the server keeps connections that are gone: {ids}")
                time.sleep(0.001)

    # Afterwards

    def _settle(
        self,
        number: int,
        case: Case,
        error: SchemalessError,
        there: Mapping[CellKey, Any],
        found: Mapping[CellKey, tuple[int, Any]],
    ) -> None:
        """Do, without faults, what the error says that one may do, and expect that it helps."""
        if any(body != case.wanted.get(key, body) for key, body in there.items()) and not case.append:
            again = _attempt(case)
            expect(isinstance(again, CellConflict | BatchError), f"a conflict, repeated: {again!r}")
            return
        if isinstance(error, OutcomeUnknown) and error.key is not None:
            (body,) = case.wanted.values()
            self.store.put_cell(*error.key, body)
            new = [key for key in self._stored(case) if key not in there]
            expect(new == [error.key], f"settled, and found {new}")
            return
        new = [key for key in found if key not in there]
        if number % 2 and not new and not is_unknown(error):
            self._not_written.append((f"schedule {number}, {error!r}", replace(case, there=there)))
            return
        expect(error.retryable, f"a retry would succeed, and retryable is False: {error!r}")
        again = _attempt(case)
        if not isinstance(again, list):
            raise Untrue(f"repeated without faults: {again!r}") from again
        after = self._stored(case)
        if case.append:
            expect([key for key in after if key not in there] == [put.key for put in again], f"repeated: {again}")
        else:
            expect(set(case.wanted) <= set(after), "repeated, and not written")
            expect_puts(case, again, found, after)

    def _expect_no_open_transaction(self) -> None:
        """Expect that every connection is back in its pool, and none in the middle of a transaction."""
        for pool in self._pools():
            free = pool.slots.free()
            expect(
                free == pool.options.pool_size, f"{pool.options.pool_size - free} connections of {pool} are not back"
            )
            for connection in pool.idle:
                open_one = connection._raw.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS
                expect(not open_one, "a transaction is open on an idle connection")

    def _expect_all_is_well(self) -> None:
        """The faults are over: the same datastore works, and no reply is another's."""
        for key, body in self._known.items():
            cell = self.store.get_cell(*key)
            expect(cell is not None and cell.body == body, f"{key} reads as {cell}")
        self._expect_no_open_transaction()
        for pool in self._pools():
            for turn, connection in enumerate(pool.idle):
                found = connection.rows(b"SELECT 'own reply %d'" % turn)
                expect(found == ((f"own reply {turn}",),), f"a reply of an earlier statement: {found}")

    def _stored(self, case: Case) -> dict[CellKey, tuple[int, Any]]:
        """Return the added_id and the document of each cell in the case's rows, as the servers have them."""
        found = {}
        for shard, keys in case.row_sets().items():
            table = f"`{internals_of(self.store).shards.database(shard)}`.cell"
            listed = ",".join(f"0x{key.hex}" for key in keys)
            sql = f"SELECT row_key, column_name, ref_key, added_id, body FROM {table} WHERE row_key IN ({listed})"
            by_key = {key.bytes: key for key in keys}
            for row_key, column_name, ref_key, added_id, body in rows(self.servers[self._socket(shard)], sql):
                found[CellKey(by_key[row_key], column_name, ref_key)] = (added_id, decode_body(body))
        return found

    def _socket(self, shard: int) -> str:
        return self._socket_of_node[str(internals_of(self.store).shards.node_of(shard))]

    def _pools(self) -> list[NodePool]:
        return [
            internals_of(self.store).shards.pool_for(cluster.primary)
            for cluster in internals_of(self.store).topology.clusters
        ]


def direct(server_socket: str, **login: str) -> Any:
    """Return a driver connection to a server, past every proxy."""
    return pymysql.connect(unix_socket=server_socket, **{"user": "root", **login}, autocommit=True, ssl_disabled=True)


def rows(connection: Any, sql: str) -> tuple[tuple[Any, ...], ...]:
    """Run a statement and return its rows."""
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return tuple(cursor.fetchall())


def _attempt(case: Case) -> list[schemaless.Put] | BaseException:
    try:
        return case.call()
    except Exception as error:  # noqa: BLE001 - judged by the caller
        return error
