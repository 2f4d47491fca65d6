"""Tables: the metadata and the revisions lead to the same ones, and a database is what the catalog takes it for."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time

import alembic.command
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.util import CommandError

from schemaless import DatastoreNotFound, SchemaMismatch, ShardIdentityMismatch, connect, create
from schemaless.admin.upgrades import schema_status, upgrade_schema
from schemaless.events import Advanced, only
from schemaless.internals import internals_of
from schemaless.schema import creation as making
from schemaless.schema import databases as schema
from schemaless.schema import revisions, versions
from schemaless.schema.engine import inspection
from schemaless.schema.tables import catalog_metadata, shard_metadata
from schemaless.wire.urls import parse_url

pytestmark = pytest.mark.mysql


@pytest.mark.parametrize("branch", ["catalog", "shard"])
def test_revisions_lead_to_the_tables_of_the_metadata(pool, empty_database, definitions, branch):
    """A database that was upgraded all the way is the same, to the letter, as one that was created today."""
    upgraded, created = empty_database(), empty_database()
    assert making.upgrade(pool, upgraded, branch)
    making.create_tables(pool, created, branch)

    assert definitions(upgraded) == definitions(created)
    assert schema.version_of(pool, upgraded) == revisions._chain(branch)[-1].revision
    assert not making.upgrade(pool, upgraded, branch)


@pytest.mark.parametrize("branch", ["catalog", "shard"])
def test_metadata_has_nothing_that_revisions_lack(pool, empty_database, branch):
    """Alembic's own comparison finds no difference either."""
    database = empty_database()
    making.upgrade(pool, database, branch)
    metadata = {"catalog": catalog_metadata, "shard": shard_metadata}[branch]
    with inspection(pool, database) as connection:
        differences = compare_metadata(MigrationContext.configure(connection), metadata)

    assert differences == []


def test_cell_table_is_the_documented_one(pool, empty_database, definitions):
    """Column types, character set, default and row format, as stored bytes and placement rely on them."""
    database = empty_database()
    making.create_tables(pool, database, "shard")
    text = definitions(database)["cell"]

    for expected in (
        r"`added_id` bigint(\(20\))? unsigned NOT NULL AUTO_INCREMENT",
        r"`row_key` binary\(16\) NOT NULL",
        r"`column_name` varchar\(64\) CHARACTER SET ascii COLLATE ascii_bin NOT NULL",
        r"`ref_key` bigint(\(20\))? NOT NULL",
        r"`body` mediumblob NOT NULL",
        r"`created_at` datetime\(6\) NOT NULL DEFAULT \(?utc_timestamp\(6\)\)?",
        r"PRIMARY KEY \(`added_id`\)",
        r"UNIQUE KEY `cell_key` \(`row_key`,`column_name`,`ref_key`\)",
        r"ENGINE=InnoDB .*utf8mb4 COLLATE=utf8mb4_bin ROW_FORMAT=DYNAMIC",
    ):
        assert re.search(expected, text, re.IGNORECASE), f"{expected} is not in\n{text}"


def test_create_tables_twice_keeps_what_is_there(pool, empty_database):
    """An interrupted creation is repeated."""
    database = empty_database()
    making.create_tables(pool, database, "shard")
    insert = (
        f"INSERT INTO `{database}`.cell (row_key, column_name, ref_key, body) VALUES (REPEAT('k', 16), 'A', 1, '1')"
    )
    pool.run(lambda connection: connection.execute(insert.encode()))
    making.create_tables(pool, database, "shard")

    rows = pool.run(lambda connection: connection.rows(f"SELECT COUNT(*) FROM `{database}`.cell".encode()))
    assert rows == ((1,),)


@pytest.mark.parametrize("branch", ["catalog", "shard"])
def test_what_files_are_called_is_what_alembic_runs(branch):
    """Whoever opens a datastore asks for the names of files; whoever upgrades it has Alembic read them."""
    chain = [script.revision for script in revisions._chain(branch)]

    assert versions.head(branch) == chain[-1]
    assert versions.known_revisions(branch) == set(chain)


def test_every_table_of_a_shard_is_known_by_name():
    """What opening a datastore takes for a shard's tables are those of the metadata."""
    assert set(shard_metadata.tables) == schema.SHARD_TABLES


@pytest.mark.parametrize("module", ["schemaless.opening", "schemaless.cli.migrate.status"])
def test_only_who_changes_tables_imports_alembic(module):
    """It takes a fifth of a second, which every short command and every application would wait."""
    script = f"import sys, {module}; sys.exit('alembic' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_revisions_cannot_be_run_or_taken_back_by_hand():
    """Alembic's own command line would miss the shards, and a downgrade would drop cells: both are refused."""
    for command, revision in ((alembic.command.upgrade, "shard@head"), (alembic.command.downgrade, "shard@base")):
        with pytest.raises(CommandError, match="schemaless schema upgrade"):
            command(revisions.configuration(), revision)


def test_upgrade_makes_what_is_missing(fresh_url, fresh_store, by_hand, admin_url):
    """A shard whose tables are gone gets them from the revisions; its identity has to be restored by a person."""
    database = internals_of(fresh_store).shards.database(1)
    for table in ("alembic_version", "cell", "shard_identity"):
        by_hand(fresh_store).execute(1, f"DROP TABLE `{database}`.{table}".encode())
    outcome = upgrade_schema(parse_url(admin_url))

    assert outcome.failed == {}
    assert outcome.upgraded == [database]
    with connect(fresh_url) as again, pytest.raises(ShardIdentityMismatch, match="has no identity"):
        list(again.scan_shard(1))


def test_upgrade_interrupted_goes_on(new_name, accounts, admin_urls, by_hand, monkeypatch):
    """Ctrl-C between two shards: what is done is done, and the same upgrade does the rest."""
    admin_url = create(new_name, 8, admin_urls)
    with connect(admin_url) as store:
        names = [internals_of(store).shards.database(shard) for shard in range(8)]
        for shard, name in enumerate(names):
            by_hand(store).execute(shard, f"DELETE FROM `{name}`.alembic_version".encode())
    begun = threading.Semaphore(3)  # the catalog, and the first shard of each server

    def upgrade(*arguments):
        if not begun.acquire(blocking=False):
            time.sleep(0.5)
        return making.upgrade(*arguments)

    def stops(advanced: Advanced) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("schemaless.admin.upgrades.upgrade", upgrade)
    with pytest.raises(KeyboardInterrupt):
        upgrade_schema(parse_url(admin_url), at_once=1, listener=only(Advanced, stops))
    monkeypatch.undo()
    done = [state.database for state in schema_status(parse_url(admin_url)) if state.current]
    rest = upgrade_schema(parse_url(admin_url))

    assert 2 <= len(done) < 9
    assert rest.upgraded == [name for name in names if name not in done]
    assert (rest.current, rest.failed) == (len(done), {})
    assert all(state.current for state in schema_status(parse_url(admin_url)))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("datastore = 'other'", "of 'other'"),
        ("shard = 3", "shard 3 of 4"),
        ("shard_count = 8", "of 8 of"),
        ("placement = 'jump'", "placed by jump"),
        ("format = 9", "format 9, this version knows up to 1"),
    ],
)
def test_shard_of_another_datastore_is_refused_before_anything_is_read(
    fresh_url, fresh_store, by_hand, new_row, change, complaint
):
    """A shard opened under another count or in another datastore serves nothing."""
    row = next(row for row in iter(new_row, None) if fresh_store.shard_of(row) == 1)
    shard = 1
    database = internals_of(fresh_store).shards.database(shard)
    fresh_store.put_cell(row, "BASE", 1, {})
    root, column = by_hand(fresh_store), change.partition(" ")[0]
    ((was,),) = root.rows(shard, f"SELECT {column} FROM `{database}`.shard_identity".encode())
    root.execute(shard, f"UPDATE `{database}`.shard_identity SET {change}".encode())

    with connect(fresh_url) as again:
        for call in (
            lambda: again.get_cell(row, "BASE", 1),
            lambda: again.put_cell(row, "BASE", 2, {}),
            lambda: list(again.scan_shard(shard)),
        ):
            with pytest.raises(ShardIdentityMismatch, match=complaint):
                call()
    # As it was, so that a later test gets this datastore again.
    root.execute(shard, f"UPDATE `{database}`.shard_identity SET {column} = {was!r}".encode())


@pytest.mark.parametrize(
    ("statement", "error", "complaint"),
    [
        ("UPDATE `{}`.alembic_version SET version_num = 'catalog_9999'", SchemaMismatch, "does not know"),
        ("UPDATE `{}`.datastore SET format = 2", SchemaMismatch, "format 2, this version knows up to 1"),
        ("UPDATE `{}`.datastore SET ready = 0", DatastoreNotFound, "was interrupted"),
        ("DELETE FROM `{}`.datastore", DatastoreNotFound, "interrupted; run the same"),
        ("DROP TABLE `{}`.alembic_version", DatastoreNotFound, "no datastore"),
        ("DROP DATABASE `{}`", DatastoreNotFound, "no datastore"),
    ],
)
def test_connect_to_a_catalog_it_cannot_use_says_why(fresh_url, fresh_store, pool, statement, error, complaint):
    """Nothing is guessed from a catalog that is not whole."""
    pool.run(lambda connection: connection.execute(statement.format(fresh_store.name).encode()))

    with pytest.raises(error, match=complaint):
        connect(fresh_url)
