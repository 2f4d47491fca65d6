"""Statements: each reads the rows that it is about, whatever the server believes of the table."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable

import pytest

from schemaless import NewStoredCell
from schemaless.cells.sql import (
    select_added_id,
    select_block_end,
    select_by_id,
    select_cells,
    select_column_names,
    select_id_span,
    select_latest,
    select_latest_ref_key,
    select_page,
    select_page_end,
    select_row,
    select_versions,
)
from schemaless.feed.sql import select_ids
from schemaless.internals import internals_of
from schemaless.migrate.sql import update_bodies
from schemaless.survey.sql import select_probe
from schemaless.wire.connection import Connection

pytestmark = pytest.mark.mysql

CELLS = 2_500
MOST_READS = 250
"""A statement here is about twenty rows at most, and may go over each some times: MariaDB's windows do eight times."""

ROW = uuid.uuid5(uuid.NAMESPACE_OID, "statements")
KEYS = [(ROW.bytes, "A", ref_key) for ref_key in (3, 500, 2_400, 9_999)]
IDS = [4, 700, 1_300, 2_499]

HOT: dict[str, Callable[[str], bytes]] = {
    "select_cells": lambda name: select_cells(name, KEYS),
    "select_latest": lambda name: select_latest(name, [(ROW.bytes, "A"), (ROW.bytes, "B")]),
    "select_versions": lambda name: select_versions(name, ROW.bytes, "A", 100, 2_000, True, 10),
    "select_latest_ref_key": lambda name: select_latest_ref_key(name, ROW.bytes, "A"),
    "select_added_id": lambda name: select_added_id(name, ROW.bytes, "A", 77),
    "select_row of few": lambda name: select_row(name, uuid.UUID(int=7).bytes),
    "select_column_names of few": lambda name: select_column_names(name, uuid.UUID(int=7).bytes),
    "select_page_end": lambda name: select_page_end(name, 1_000, None, 20, 1 << 20),
    "select_page": lambda name: select_page(name, 1_000, None, 20, 1 << 20),
    "select_page up to": lambda name: select_page(name, 1_000, 1_020, 500, 1 << 20),
    "select_ids": lambda name: select_ids(name, 1_000, 1_020),
    "select_block_end": lambda name: select_block_end(name, 1_000, 20),
    "select_probe": lambda name: select_probe(name, 995, 1_000, 1_020, 8),
    "select_by_id": lambda name: select_by_id(name, IDS),
    "select_id_span": select_id_span,
    "update_bodies": lambda name: update_bodies(name, [(added_id, b'"body"', b'"new"') for added_id in IDS]),
}


def reads(connection: Connection) -> int:
    """Return how many rows the session has read so far."""
    return sum(int(count) for _, count in connection.rows(b"SHOW SESSION STATUS LIKE 'Handler_read%'"))


def expected_rows(connection: Connection, name: str) -> int:
    """Return how many rows the server takes the table to have."""
    plan = str(connection.rows(f"EXPLAIN FORMAT=JSON SELECT body FROM `{name}`.cell".encode())[0][0])
    return int(re.findall(r'"(?:rows|estimated_rows|rows_examined_per_scan)": (\d+)', plan)[0])


def test_statements_read_few_rows_though_statistics_say_there_are_two(fresh_store, by_hand):
    """After a crash InnoDB may believe that of a table of thousands: still none is read, or locked, from end to end."""
    shard = fresh_store.shard_of(ROW)
    name = internals_of(fresh_store).shards.database(shard)
    where = f"WHERE database_name = '{name}' AND table_name = 'cell'"
    # Else InnoDB would soon count again by itself.
    by_hand(fresh_store).execute(shard, f"ALTER TABLE `{name}`.cell STATS_AUTO_RECALC = 0".encode())
    cells = [NewStoredCell(ROW, "A", number, b'"body"') for number in range(CELLS)]
    fresh_store.put_stored_cells(cells, trusted=True)

    def run(connection: Connection) -> tuple[int, dict[str, int]]:
        for sql in (
            f"UPDATE mysql.innodb_table_stats SET n_rows = 2, clustered_index_size = 1 {where}",
            f"UPDATE mysql.innodb_index_stats SET stat_value = 1 {where}",
            # A new name makes both kinds of server read them; for MySQL, FLUSH TABLES would do.
            f"RENAME TABLE `{name}`.cell TO `{name}`.cells",
            f"RENAME TABLE `{name}`.cells TO `{name}`.cell",
        ):
            connection.execute(sql.encode())
        believed = expected_rows(connection, name)
        found = {}
        for what, statement in HOT.items():
            before = reads(connection)
            asking = reads(connection) - before
            sql = statement(name)
            connection.execute(sql) if sql.startswith(b"UPDATE") else connection.rows(sql)
            found[what] = reads(connection) - before - 2 * asking
        return believed, found

    believed, found = by_hand(fresh_store).run(shard, run)

    assert believed < 10
    assert {what: count for what, count in found.items() if count > MOST_READS} == {}
