"""Other connections to the refusing server: they hold locks, and are waited for."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import schemaless
from schemaless.local.description import LocalServer
from tests.faults.harness import direct, rows


@contextlib.contextmanager
def holding(server: LocalServer, *sql: str) -> Iterator[Any]:
    """Hold a transaction open for the block, with these statements in it; rolled back at its end."""
    connection = direct(str(server.socket))
    try:
        rows(connection, "START TRANSACTION")
        for statement in sql:
            rows(connection, statement)
        yield connection
    finally:
        connection.close()


def insert(row: uuid.UUID, column: str = "BASE", ref_key: int = 1) -> str:
    """Return a statement that inserts a cell with the body ``1``."""
    return (
        "INSERT INTO refusals_0000.cell (row_key, column_name, ref_key, body) "
        f"VALUES (x'{row.hex}', '{column}', {ref_key}, '1')"
    )


_WAITING = {
    "mysql": "SELECT DISTINCT t.PROCESSLIST_ID FROM performance_schema.data_lock_waits AS w "
    "JOIN performance_schema.threads AS t ON t.THREAD_ID = w.REQUESTING_THREAD_ID",
    "mariadb": "SELECT DISTINCT t.trx_mysql_thread_id FROM information_schema.INNODB_LOCK_WAITS AS w "
    "JOIN information_schema.INNODB_TRX AS t ON t.trx_id = w.requesting_trx_id",
}


def waiting(admin: Any, flavour: str, count: int = 1) -> int:
    """Wait until so many connections wait for a row's lock, and return the id of one."""
    if flavour == "mariadb":
        # For 0.1 s it keeps returning the previous result.
        time.sleep(0.12)
    found = eventually(lambda: ids if len(ids := rows(admin, _WAITING[flavour])) >= count else None, pause_s=0.12)
    return int(found[0][0])


def eventually(look: Callable[[], Any], pause_s: float = 0.01) -> Any:
    """Look until there is something, and return it."""
    deadline = time.monotonic() + 120
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(pause_s)
    return found


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[Any]]:
    """Run a call beside the test; what it returns or raises is in the list in the end."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(call())
        except schemaless.SchemalessError as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results
