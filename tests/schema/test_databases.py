"""Tables from metadata and from revisions are the same, and the identity of a shard database is verified."""

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
from schemaless.base.events import Advanced, only
from schemaless.ops.admin.upgrades import schema_status, upgrade_schema
from schemaless.schema import creation as making
from schemaless.schema import databases as schema
from schemaless.schema import revisions, versions
from schemaless.schema.engine import inspection
from schemaless.schema.tables import catalog_metadata, shard_metadata
from schemaless.store.internals import internals_of
from schemaless.wire.urls import parse_url

pytestmark = [pytest.mark.mysql, pytest.mark.twice]


@pytest.mark.parametrize("branch", ["catalog", "shard"])
def test_revisions_lead_to_the_tables_of_the_metadata(pool, empty_database, definitions, branch):
    """A fully upgraded database has the same definitions, to the letter, as a new one."""
    upgraded, created = empty_database(), empty_database()
    assert making.upgrade(pool, upgraded, branch)
    making.create_tables(pool, created, branch)

    assert definitions(upgraded) == definitions(created)
    assert schema.version_of(pool, upgraded) == revisions._chain(branch)[-1].revision
    assert not making.upgrade(pool, upgraded, branch)


@pytest.mark.parametrize("branch", ["catalog", "shard"])
def test_metadata_has_nothing_that_revisions_lack(pool, empty_database, branch):
    """Alembic's comparison finds no difference either."""
    database = empty_database()
    making.upgrade(pool, database, branch)
    metadata = {"catalog": catalog_metadata, "shard": shard_metadata}[branch]
    with inspection(pool, database) as connection:
        differences = compare_metadata(MigrationContext.configure(connection), metadata)

    assert differences == []


def test_cell_table_is_the_documented_one(pool, empty_database, definitions):
    """Stored bytes and placement rely on its column types, character set, defaults and row format."""
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


def test_create_tables_twice_keeps_existing_rows(pool, empty_database):
    """An interrupted creation can be repeated."""
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
def test_revision_file_names_match_alembics_revisions(branch):
    """Opening a datastore uses the file names, an upgrade uses Alembic."""
    chain = [script.revision for script in revisions._chain(branch)]

    assert versions.head(branch) == chain[-1]
    assert versions.known_revisions(branch) == set(chain)


def test_shard_tables_match_the_metadata():
    """The names that routing uses are those of the metadata."""
    assert set(shard_metadata.tables) == schema.SHARD_TABLES


@pytest.mark.parametrize("module", ["schemaless.store.opening", "schemaless.cli.migrate"])
def test_alembic_is_imported_only_for_schema_changes(module):
    """Importing it takes 0.2 s, which short commands and applications need not wait for."""
    script = f"import sys, {module}; sys.exit('alembic' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_alembics_command_line_is_refused():
    """It would skip the shards, and a downgrade would drop cells."""
    for command, revision in ((alembic.command.upgrade, "shard@head"), (alembic.command.downgrade, "shard@base")):
        with pytest.raises(CommandError, match="schemaless schema upgrade"):
            command(revisions.configuration(), revision)


def test_upgrade_creates_missing_tables(fresh_url, fresh_store, by_hand, admin_url):
    """A shard without tables gets them from the revisions; its identity must be restored by hand."""
    database = internals_of(fresh_store).shards.database(1)
    for table in ("alembic_version", "cell", "shard_identity"):
        by_hand(fresh_store).execute(1, f"DROP TABLE `{database}`.{table}".encode())
    outcome = upgrade_schema(parse_url(admin_url))

    assert outcome.failed == {}
    assert outcome.upgraded == [database]
    with connect(fresh_url) as again, pytest.raises(ShardIdentityMismatch, match="has no identity"):
        list(again.scan_shard(1))


def test_interrupted_upgrade_can_be_continued(new_name, accounts, admin_urls, by_hand, monkeypatch):
    """After Ctrl-C between two shards, the same upgrade finishes the rest."""
    admin_url = create(new_name, 8, admin_urls)
    with connect(admin_url) as store:
        names = [internals_of(store).shards.database(shard) for shard in range(8)]
        for shard, name in enumerate(names):
            by_hand(store).execute(shard, f"DELETE FROM `{name}`.alembic_version".encode())
    started = threading.Semaphore(3)  # the catalog, and the first shard of each server

    def upgrade(*arguments):
        if not started.acquire(blocking=False):
            time.sleep(0.5)
        return making.upgrade(*arguments)

    def stops(advanced: Advanced) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("schemaless.ops.admin.upgrades.upgrade", upgrade)
    with pytest.raises(KeyboardInterrupt):
        upgrade_schema(parse_url(admin_url), at_once=1, listener=only(Advanced, stops))
    monkeypatch.undo()
    done = [state.database for state in schema_status(parse_url(admin_url)) if state.current]
    rest = upgrade_schema(parse_url(admin_url))

    assert 2 <= len(done) < 9
    assert rest.upgraded == [name for name in names if name not in done]
    assert (rest.current, rest.failed) == (len(done), {})
    assert all(state.current for state in schema_status(parse_url(admin_url)))


@pytest.mark.guarantee("shard-identity")
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("datastore = 'other'", "of 'other'"),
        ("shard = 3", "shard 3 of 4"),
        ("shard_count = 8", "of 8 of"),
        ("placement = 'jump'", "placed by jump"),
        ("format = 9", "format 9, but this version only knows formats up to 1"),
    ],
)
def test_shard_with_another_identity_is_refused_before_anything_is_read(
    fresh_url, fresh_store, by_hand, new_row, change, complaint
):
    """A shard of another datastore or shard count is neither read nor written."""
    row = next(row for row in iter(new_row, None) if fresh_store.shard_of(row) == 1)
    shard = 1
    database = internals_of(fresh_store).shards.database(shard)
    fresh_store.put_cell(row, "BASE", 1, {})
    root, column = by_hand(fresh_store), change.partition(" ")[0]
    ((original,),) = root.rows(shard, f"SELECT {column} FROM `{database}`.shard_identity".encode())
    root.execute(shard, f"UPDATE `{database}`.shard_identity SET {change}".encode())

    with connect(fresh_url) as again:
        for call in (
            lambda: again.get_cell(row, "BASE", 1),
            lambda: again.put_cell(row, "BASE", 2, {}),
            lambda: list(again.scan_shard(shard)),
        ):
            with pytest.raises(ShardIdentityMismatch, match=complaint):
                call()
    # Restore it, because a later test reuses this datastore.
    root.execute(shard, f"UPDATE `{database}`.shard_identity SET {column} = {original!r}".encode())


@pytest.mark.parametrize(
    ("statement", "error", "complaint"),
    [
        ("UPDATE `{}`.alembic_version SET version_num = 'catalog_9999'", SchemaMismatch, "does not know"),
        (
            "UPDATE `{}`.datastore SET format = 2",
            SchemaMismatch,
            "format 2, but this version knows formats up to 1",
        ),
        ("UPDATE `{}`.datastore SET ready = 0", DatastoreNotFound, "was interrupted"),
        ("DELETE FROM `{}`.datastore", DatastoreNotFound, "interrupted; run the same"),
        ("DROP TABLE `{}`.alembic_version", DatastoreNotFound, "no datastore"),
        ("DROP DATABASE `{}`", DatastoreNotFound, "no datastore"),
    ],
)
def test_connect_to_an_unusable_catalog_says_why(fresh_url, fresh_store, pool, statement, error, complaint):
    """An incomplete catalog is an error."""
    pool.run(lambda connection: connection.execute(statement.format(fresh_store.name).encode()))

    with pytest.raises(error, match=complaint):
        connect(fresh_url)
