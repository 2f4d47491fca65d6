"""Statements read few rows, whatever the server's statistics say."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from schemaless import NewStoredCell
from schemaless.ops.migrate.sql import update_bodies
from schemaless.planning.sampling.sql import select_probe
from schemaless.store.cells.sql import (
    count_cells,
    sample_keys,
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
    select_row_key_after,
    select_row_keys,
    select_rows,
    select_versions,
)
from schemaless.store.feed.sql import select_ids
from schemaless.store.internals import internals_of
from schemaless.wire.connection import Connection
from schemaless.wire.sql.parts import id_range

pytestmark = [pytest.mark.mysql, pytest.mark.twice]

CELLS = 2_500
MAX_READS = 250
"""Maximum number of row reads per statement; each is about twenty rows, which MariaDB's windows read eight times."""

ROW = uuid.uuid5(uuid.NAMESPACE_OID, "statements")
KEYS = [(ROW.bytes, "A", ref_key) for ref_key in (3, 500, 2_400, 9_999)]
FEW = [uuid.UUID(int=number).bytes for number in (7, 8, 9)]
AT = datetime(9000, 1, 1, tzinfo=UTC)
IDS = [4, 700, 1_300, 2_499]

HOT: dict[str, Callable[[str], bytes]] = {
    "select_cells": lambda name: select_cells(name, KEYS),
    "select_latest of one": lambda name: select_latest(name, [(ROW.bytes, "A")]),
    "select_latest": lambda name: select_latest(name, [(ROW.bytes, "A"), (ROW.bytes, "B")]),
    "select_latest at": lambda name: select_latest(name, [(ROW.bytes, "A"), (ROW.bytes, "B")], AT),
    "select_versions": lambda name: select_versions(name, ROW.bytes, "A", 100, 2_000, True, 10, live_only=True),
    "select_latest_ref_key": lambda name: select_latest_ref_key(name, ROW.bytes, "A"),
    "select_added_id": lambda name: select_added_id(name, ROW.bytes, "A", 77),
    "select_row of few": lambda name: select_row(name, uuid.UUID(int=7).bytes),
    "select_rows of few": lambda name: select_rows(name, FEW),
    "select_rows of few, some columns": lambda name: select_rows(name, FEW, ["A", "B", "C"]),
    "select_rows of one, some columns": lambda name: select_rows(name, FEW[:1], ["A", "B", "C"]),
    "select_rows of few, some columns, at": lambda name: select_rows(name, FEW, ["A", "B", "C"], AT),
    "select_rows of one, at": lambda name: select_rows(name, FEW[:1], None, AT),
    "select_column_names of few": lambda name: select_column_names(name, uuid.UUID(int=7).bytes),
    "select_row_keys": lambda name: select_row_keys(name, ROW.bytes, 64),
    "select_row_key_after": lambda name: select_row_key_after(name, ROW.bytes, 20),
    "count_cells": lambda name: count_cells(name, ROW.bytes, None, None),
    "count_cells up to": lambda name: count_cells(name, FEW[0], FEW[-1], "A"),
    "sample_keys": lambda name: sample_keys(name, ROW.bytes, 20, "A"),
    "sample_keys of the last": lambda name: sample_keys(name, bytes((255,) * 16), 20, "A"),
    "select_page_end": lambda name: select_page_end(name, id_range(1_000, None), 20, 1 << 20),
    "select_page": lambda name: select_page(name, id_range(1_000, None), 20, 1 << 20),
    "select_page up to": lambda name: select_page(name, id_range(1_000, 1_020), 500, 1 << 20),
    "select_ids": lambda name: select_ids(name, 1_000, 1_020),
    "select_block_end": lambda name: select_block_end(name, 1_000, 20),
    "select_probe": lambda name: select_probe(name, 995, 1_000, 1_020, 8),
    "select_by_id": lambda name: select_by_id(name, IDS),
    "select_id_span": select_id_span,
    "update_bodies": lambda name: update_bodies(name, [(added_id, bytes(32), b'"new"') for added_id in IDS]),
}


def reads(connection: Connection) -> int:
    """Return the number of rows that the session has read."""
    return sum(int(count) for _, count in connection.rows(b"SHOW SESSION STATUS LIKE 'Handler_read%'"))


def expected_rows(connection: Connection, name: str) -> int:
    """Return the server's estimate of the table's size in rows."""
    plan = str(connection.rows(f"EXPLAIN FORMAT=JSON SELECT body FROM `{name}`.cell".encode())[0][0])
    return int(re.findall(r'"(?:rows|estimated_rows|rows_examined_per_scan)": (\d+)', plan)[0])


def test_statements_read_few_rows_though_statistics_say_there_are_two(fresh_store, by_hand):
    """After a crash InnoDB may estimate this for a large table; still, no statement reads or locks all of it."""
    shard = fresh_store.shard_of(ROW)
    name = internals_of(fresh_store).shards.database(shard)
    where = f"WHERE database_name = '{name}' AND table_name = 'cell'"
    # Otherwise InnoDB would soon update the statistics.
    by_hand(fresh_store).execute(shard, f"ALTER TABLE `{name}`.cell STATS_AUTO_RECALC = 0".encode())
    cells = [NewStoredCell(ROW, "A", number, b'"body"') for number in range(CELLS)]
    fresh_store.put_stored_cells(cells, trusted=True)

    def run(connection: Connection) -> tuple[int, dict[str, int]]:
        for sql in (
            f"UPDATE mysql.innodb_table_stats SET n_rows = 2, clustered_index_size = 1 {where}",
            f"UPDATE mysql.innodb_index_stats SET stat_value = 1 {where}",
            # Renaming makes both MySQL and MariaDB reload the statistics; on MySQL, FLUSH TABLES would suffice.
            f"RENAME TABLE `{name}`.cell TO `{name}`.cells",
            f"RENAME TABLE `{name}`.cells TO `{name}`.cell",
        ):
            connection.execute(sql.encode())
        estimated = expected_rows(connection, name)
        reads_by_statement = {}
        for label, statement in HOT.items():
            before = reads(connection)
            overhead = reads(connection) - before
            sql = statement(name)
            connection.execute(sql) if sql.startswith(b"UPDATE") else connection.rows(sql)
            reads_by_statement[label] = reads(connection) - before - 2 * overhead
        return estimated, reads_by_statement

    estimated, reads_by_statement = by_hand(fresh_store).run(shard, run)

    assert estimated < 10
    assert {label: count for label, count in reads_by_statement.items() if count > MAX_READS} == {}
