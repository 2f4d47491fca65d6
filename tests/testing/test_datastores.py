"""Datastores that tests get: used before, and yet as good as new."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import uuid
from collections.abc import Iterator

import pytest

import schemaless
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.store.internals import internals_of
from schemaless.testing.datastores import Datastores
from schemaless.wire.urls import parse_url
from tests.accounts import connect, run
from tests.cases import each
from tests.dictionaries import kept
from tests.foreign import databases

pytestmark = [pytest.mark.mysql, pytest.mark.twice]
_runs = itertools.count(1)


@pytest.fixture
def made(server_urls, prefix) -> Iterator[Datastores]:
    create = lambda name: schemaless.create(name, 4, server_urls)  # noqa: E731
    datastores = Datastores(server_urls, create, f"{prefix}replica{next(_runs)}_")
    yield datastores
    datastores.close(drop=True)


def statements(url: str, *sql: str) -> list[tuple[tuple[object, ...], ...]]:
    """Run statements on the catalog's server of a datastore, whose name is {db}, and return the rows of each."""
    parsed = parse_url(url)
    with contextlib.closing(connect(url, os.environ.get("SCHEMALESS_PASSWORD"))) as connection:
        return [run(connection, statement.format(db=parsed.database)) for statement in sql]


def everything(url: str) -> dict[str, tuple[str, tuple[tuple[object, ...], ...]]]:
    """Return definition and rows of every table that a datastore has on the catalog's server.

    MySQL names a character set beside its collation only where the statement that made the table did.
    """
    (names,) = statements(
        url,
        "SELECT CONCAT(table_schema, '.', table_name) FROM information_schema.tables "
        "WHERE table_schema LIKE '{db}\\_%' OR table_schema = '{db}'",
    )
    found = {str(name): statements(url, f"SHOW CREATE TABLE {name}", f"SELECT * FROM {name}") for (name,) in names}
    return {
        name: (re.sub(r" CHARACTER SET \w+(?= COLLATE )", "", str(definition[0][1])), rows)
        for name, (definition, rows) in found.items()
    }


def test_a_datastore_that_comes_back_is_empty_and_counts_from_one(made):
    """Whatever cells a test wrote, the next one gets the same databases with none, and added_ids as in new ones."""
    rows = [uuid.UUID(int=number) for number in range(40)]
    seen = set()
    for _ in range(3):
        with made.fresh() as url, schemaless.connect(url) as store:
            assert [list(store.scan_shard(shard)) for shard in range(4)] == [[]] * 4
            puts = store.put_cells([schemaless.NewCell(row, "BASE", 1, {"n": 1}) for row in rows])
            seen.add(url)

            assert {store.shard_of(put.key.row_key) for put in puts} == {0, 1, 2, 3}
            assert min(put.added_id for put in puts) == 1
    assert len(seen) == 1


@pytest.mark.long
def test_concurrent_datastores_are_distinct(made):
    """Nobody else gets what is in use."""
    with made.fresh() as first, made.fresh() as second:
        assert first != second


@pytest.mark.long
@each(
    "sql",
    [
        "UPDATE {db}.datastore SET ready = 0",
        "INSERT INTO {db}.cluster (name) VALUES ('another')",
        "DROP TABLE {db}_0000.cell",
        "RENAME TABLE {db}_0000.cell TO {db}_0000.cell_moved_1",
        "CREATE TABLE {db}_0000.another (n INT)",
        "CREATE DATABASE {db}_0004",
        "ALTER TABLE {db}_0000.cell ADD COLUMN another INT",
        "UPDATE {db}_0000.shard_identity SET shard = 3",
        "DELETE FROM {db}.shard_range",
        "DELETE FROM {db}_0001.alembic_version",
    ],
)
def test_damage_done_by_a_test_is_repaired(made, server_urls, sql):
    """Whatever differs is restored: each definition and each row."""
    with made.fresh() as url:
        first = everything(url)
        statements(url, sql)

    with made.fresh() as again, schemaless.connect(again) as store:
        assert again == url
        assert everything(again) == first
        there = databases(server_urls[0], os.environ.get("SCHEMALESS_PASSWORD"))
        assert f"{parse_url(url).database}_0004" not in there
        assert store.put_cell(uuid.UUID(int=1), "BASE", 1, {}).added_id == 1


@pytest.mark.long
def test_a_datastore_that_lost_a_database_is_dropped(made, server_urls):
    """The next test gets another one, and of the first nothing is left."""
    with made.fresh() as spoiled:
        statements(spoiled, "DROP DATABASE {db}_0001")

    with made.fresh() as url, schemaless.connect(url) as store:
        assert store.put_cell(uuid.UUID(int=1), "BASE", 1, {}).added_id == 1
        assert url != spoiled
        there = databases(server_urls[0], os.environ.get("SCHEMALESS_PASSWORD"))
        assert [name for name in there if name.startswith(f"{parse_url(spoiled).database}_")] == []


@pytest.mark.long
def test_what_a_job_left_in_the_catalog_is_gone(made):
    """Tables of the catalog that were empty are empty again, so that the first job is number 1."""
    jobs, seen = [], set()
    for _ in range(2):
        with made.fresh() as url, schemaless.connect(url) as store:
            jobs.append(migrate.run(store, MigrateSpec()).job_id)
            seen.add(url)

    assert jobs == [1, 1]
    assert len(seen) == 1


def test_a_dictionary_is_gone(made):
    """Their ids do not begin at 1; the next test's first one gets the id that this one had."""
    found = []
    for _ in range(2):
        with made.fresh() as url, schemaless.connect(url) as store:
            found.append((url, kept(store).id))

    assert found[0] == found[1]


@pytest.mark.long
def test_a_datastore_that_a_test_left_locked_is_left_alone(made):
    """A transaction that was forgotten holds up no later test for long."""
    with made.fresh() as locked:
        store = schemaless.connect(locked)
        store.put_cell(uuid.UUID(int=1), "BASE", 1, {})
        shard = store.shard_of(uuid.UUID(int=1))
        left_open = internals_of(store).shards.pool_for(internals_of(store).shards.node_of(shard)).connection()
        connection = left_open.__enter__()
        connection.execute(b"START TRANSACTION")
        connection.rows(f"SELECT * FROM {internals_of(store).shards.database(shard)}.cell".encode())

    with made.fresh() as url:
        assert url != locked

    connection.execute(b"ROLLBACK")
    left_open.__exit__(None, None, None)
    store.close()
