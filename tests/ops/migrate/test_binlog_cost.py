"""Binary log: session settings, the GRANT that they require, predicted and measured volume."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from schemaless import Datastore, NewStoredCell
from schemaless.codec.recode import recode
from schemaless.ops.migrate.archive import digest_of
from schemaless.ops.migrate.binlog_cost import (
    BinaryLog,
    BinaryLogPoint,
    binary_log,
    binary_log_in_force,
    binary_log_point,
    bytes_between,
    predicted_bytes,
)
from schemaless.ops.migrate.sql import update_bodies
from schemaless.store.internals import internals_of
from schemaless.wire.connection import Connection
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.urls import parse_url

pytestmark = [pytest.mark.mysql, pytest.mark.twice]

Changes = list[tuple[int, bytes, bytes]]


@contextmanager
def own(store: Datastore) -> Iterator[Connection]:
    """A connection to the first cluster's primary that is not returned to the pool."""
    with (
        internals_of(store).shards.pool_for(internals_of(store).topology.clusters[0].primary).connection() as connection
    ):
        connection.unfinished = True
        yield connection


@pytest.fixture
def root(servers) -> Iterator[Connection]:
    """A connection of root to the first private server."""
    parsed = parse_url(servers[0].url)
    with closing(NodePool(parsed.node, parsed.credentials, PoolOptions())) as pool, pool.connection() as connection:
        yield connection


@pytest.fixture
def changes(fresh_store, new_row) -> Changes:
    """Legacy bodies of 1 to 20 KB in shard 0: their added_ids, and the new bodies."""
    rows = (row for row in iter(new_row, None) if fresh_store.shard_of(row) == 0)
    texts = [json.dumps([f"{number} {more}" for more in range(100 * (number % 20 + 1))]) for number in range(60)]
    fresh_store.put_stored_cells(
        [NewStoredCell(next(rows), "BASE", number, text.encode()) for number, text in enumerate(texts)]
    )
    return [(cell.added_id, cell.body, recode(cell.body).body) for cell in fresh_store.scan_shard(0)]


def test_migrate_leaves_old_bodies_and_texts_out_in_its_own_sessions(migrate_store, fresh_store, flavour):
    """The settings are returned, and apply only to connections that ensure them."""
    with own(migrate_store) as connection:
        log = binary_log(connection)
        again = binary_log_in_force(connection)
    with own(migrate_store) as other:
        before = binary_log_in_force(other)
        assert log.settings is not None
        other.ensure(log.settings)
        after = binary_log_in_force(other)
    with own(fresh_store) as app:
        everybody = binary_log_in_force(app)

    assert (log.kept, log.row_image, log.annotation, log.grant) == (True, "NOBLOB", None, None)
    assert again == after == BinaryLog(True, True, "NOBLOB", None)
    assert before == everybody
    assert everybody.row_image == "FULL"
    assert everybody.annotation == ("binlog_annotate_row_events" if flavour == "mariadb" else None)


def test_account_without_the_privilege_gets_the_grant(fresh_store, accounts, flavour):
    """Without the privilege nothing is set, and the migration works without the settings."""
    with own(fresh_store) as connection:
        log = binary_log(connection)
        left = binary_log(connection, full_images=True)

    privilege = "BINLOG ADMIN" if flavour == "mariadb" else "SESSION_VARIABLES_ADMIN"
    assert log.grant == f"GRANT {privilege} ON *.* TO {accounts.account('app')}"
    assert (log.row_image, log.settings) == ("FULL", None)
    assert left.grant == (log.grant if flavour == "mariadb" else None), "the texts that MariaDB logs"


def test_existing_settings_are_kept(migrate_store, flavour):
    """A smaller row image and requested full images are kept; statement text is turned off on both servers."""
    annotation = "binlog_annotate_row_events" if flavour == "mariadb" else "binlog_rows_query_log_events"
    with own(migrate_store) as connection:
        connection.execute(f"SET SESSION binlog_row_image='MINIMAL', {annotation}=ON".encode())
        minimal = binary_log(connection)
        connection.execute(f"SET SESSION binlog_row_image='FULL', {annotation}=OFF".encode())
        full = binary_log(connection, full_images=True)
        connection.execute(b"SET SESSION binlog_format='STATEMENT'")
        text = binary_log(connection)

    assert (minimal.row_image, minimal.annotation) == ("MINIMAL", None)
    assert minimal.settings == f"SET SESSION {annotation}=0".encode()
    assert (full.row_image, full.settings, full.grant) == ("FULL", None, None)
    assert (text.by_rows, text.settings, text.grant) == (False, None, None)


def digested(changes: Changes) -> Changes:
    """Return changes with the digests of the old bodies."""
    return [(added_id, digest_of(old), new) for added_id, old, new in changes]


def test_bytes_are_counted_and_were_predicted(migrate_store, changes):
    """With either row image, the bytes written are within 5 % of the prediction."""
    database = internals_of(migrate_store).shards.database(0)
    before = sum(len(old) for _, old, _ in changes)
    after = sum(len(new) for _, _, new in changes)
    back = [(added_id, new, old) for added_id, old, new in changes]
    found = {}
    with own(migrate_store) as connection:
        for image in ("FULL", "NOBLOB"):
            connection.execute(f"SET SESSION binlog_row_image='{image}'".encode())
            binary_log(connection, full_images=True)
            start = binary_log_point(connection)
            assert connection.execute(update_bodies(database, digested(changes))).affected == len(changes)
            end = binary_log_point(connection)
            written = bytes_between(connection, start, end)
            found[image] = written, predicted_bytes(len(changes), before, after, full_images=image == "FULL")
            connection.execute(update_bodies(database, digested(back)))

    assert all(abs(predicted / written - 1) < 0.05 for written, predicted in found.values()), found
    assert found["FULL"][0] > before + after > found["NOBLOB"][0] > after


def test_bytes_are_counted_over_files_and_not_guessed(root: Connection, fresh_store, new_row: Callable):
    """A log rotation does not matter; a purged file or a missing privilege gives None."""
    start = binary_log_point(root)
    root.execute(b"FLUSH BINARY LOGS")
    root.execute(b"FLUSH BINARY LOGS")
    between = binary_log_point(root)
    fresh_store.put_stored_cells([small_cell(new_row(), number) for number in range(20)])
    root.execute(b"FLUSH BINARY LOGS")
    end = binary_log_point(root)
    first, second = bytes_between(root, start, between), bytes_between(root, between, end)

    assert start.file < between.file < end.file
    assert bytes_between(root, start, end) == first + second
    assert 0 < first < 2000 < second
    assert bytes_between(root, BinaryLogPoint("gone.000001", 4), end) is None
    with own(fresh_store) as app:
        assert binary_log_point(app) is None
        assert bytes_between(app, start, end) is None


def small_cell(row, number):
    """Return a cell of some hundred bytes."""
    return NewStoredCell(row, "BASE", number, json.dumps({"n": [number * 7919 + more for more in range(60)]}).encode())
