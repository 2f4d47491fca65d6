"""Revisions: an interrupted upgrade can be repeated from any point, and unexpected tables are never accepted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from schemaless import SchemaMismatch, ServerError, ServerTimeout
from schemaless.schema import creation as making
from schemaless.schema import databases as schema
from schemaless.schema import revisions
from schemaless.schema.engine import session
from schemaless.wire.pool import NodePool
from tests.revisions import FIRST, LAST, installed

pytestmark = [pytest.mark.mysql, pytest.mark.twice]


class Cut(BaseException):
    """The simulated end of the process."""


@contextmanager
def cut_after(change: int) -> Iterator[None]:
    """Raise after the given number of changes: statements that create, alter or drop a table, or record a revision."""
    changes = itertools.count(1)

    def count(connection, cursor, statement, parameters, context, executemany) -> None:
        if not statement.lstrip().startswith(("SELECT", "SET", "USE", "SHOW", "DESCRIBE")) and next(changes) == change:
            raise Cut

    event.listen(Engine, "after_cursor_execute", count)
    try:
        yield
    finally:
        event.remove(Engine, "after_cursor_execute", count)


def execute(pool: NodePool, database: str, *statements: str) -> None:
    """Run statements in a database."""
    with session(pool, database) as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


@pytest.mark.guarantee("upgrade-interrupted")
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("branch", ["catalog", "shard"])
def test_upgrade_continues_after_an_interruption_at_any_statement(pool, empty_database, definitions, branch, step):
    """DDL cannot be rolled back together with the recorded revision, so a revision must be repeatable."""
    undisturbed = empty_database()
    database = empty_database()
    with installed():
        making.upgrade(pool, undisturbed, branch)
        for change in itertools.count(1, step):
            execute(pool, database, f"DROP DATABASE `{database}`")
            schema.create_database(pool, database)
            try:
                with cut_after(change):
                    making.upgrade(pool, database, branch)
            except Cut:
                making.upgrade(pool, database, branch)
            else:
                break

            assert definitions(database) == definitions(undisturbed), f"cut after change {change}"

    assert change > {"catalog": 6, "shard": 14}[branch]


def test_upgrade_of_a_database_without_a_revision_accepts_matching_tables(pool, empty_database, definitions):
    """If the tables match this version to the last column, only the revision is recorded."""
    database = empty_database()
    making.upgrade(pool, database, "shard")
    before = definitions(database)
    execute(pool, database, "DROP TABLE alembic_version", "CREATE TABLE unrelated (n INT)")

    assert making.upgrade(pool, database, "shard")
    assert {name: text for name, text in definitions(database).items() if name != "unrelated"} == before


@pytest.mark.guarantee("upgrade-own-tables")
@pytest.mark.parametrize(
    ("change", "correction", "complaint"),
    [
        ("ADD COLUMN more INT", "DROP COLUMN more", "remove_column cell.more"),
        ("MODIFY ref_key INT NOT NULL", "MODIFY ref_key BIGINT NOT NULL", "modify_type cell.ref_key"),
        (
            "DROP INDEX cell_key",
            "ADD UNIQUE INDEX cell_key (row_key, column_name, ref_key)",
            "add_constraint cell.cell_key",
        ),
    ],
)
def test_upgrade_that_finds_work_done_but_other_tables_is_refused(
    pool, empty_database, definitions, change, correction, complaint
):
    """Existing objects may differ, so the revision counts only after all tables were compared."""
    undisturbed, database = empty_database(), empty_database()
    for name in (undisturbed, database):
        making.create_tables(pool, name, "shard")
    execute(pool, database, f"ALTER TABLE cell ADD COLUMN later INT, {change}")
    with installed():
        making.upgrade(pool, undisturbed, "shard")
        with pytest.raises(SchemaMismatch, match=f"Duplicate column name 'later'.*: {complaint}. Correct them by hand"):
            making.upgrade(pool, database, "shard")
        left_at = schema.version_of(pool, database)
        execute(pool, database, f"ALTER TABLE cell {correction}")
        making.upgrade(pool, database, "shard")

    assert left_at == FIRST
    assert definitions(database) == definitions(undisturbed)


@pytest.mark.guarantee("upgrade-own-tables")
def test_upgrade_refused_by_the_server_is_not_taken_for_done(pool, empty_database, monkeypatch):
    """Only operations can be found done; a revision's own statement never is."""
    database = empty_database()
    making.create_tables(pool, database, "shard")
    with installed():
        for statement in ("ALTER TABLE cell ADD COLUMN ref_key INT", "DROP TABLE cell.cell"):
            monkeypatch.setattr(
                revisions._chain("shard")[-2].module, "upgrade", lambda op, statement=statement: op.execute(statement)
            )
            with pytest.raises(ServerError, match=r"Duplicate column|Unknown table"):
                making.upgrade(pool, database, "shard")

    assert schema.version_of(pool, database) == "shard_0001"


@pytest.mark.guarantee("upgrade-concurrent")
def test_concurrent_upgrades_are_serialized(pool, empty_database, definitions):
    """One runs the revisions, the others find them done; none fails."""
    undisturbed, database = empty_database(), empty_database()
    with installed():
        making.upgrade(pool, undisturbed, "shard")
        with ThreadPoolExecutor(4) as threads:
            outcomes = list(threads.map(lambda turn: revisions.run(pool, database, "shard"), range(4)))

    assert sorted(outcomes) == [False, False, False, True]
    assert definitions(database) == definitions(undisturbed)


def test_upgrade_blocked_by_another_one_or_a_reader_times_out(pool, empty_database):
    """Neither another upgrade nor an endless transaction blocks it, or the writers queued after it, for long."""
    database = empty_database()
    making.create_tables(pool, database, "shard")
    with installed():
        # Locks of a failed upgrade are released only once the server notices the end of its connection.
        with session(pool, database) as connection:
            assert connection.exec_driver_sql(f"SELECT GET_LOCK('upgrade.{database}', 0)").scalar() == 1
            with pytest.raises(ServerTimeout, match="another upgrade is changing"):
                revisions.run(pool, database, "shard", turn_s=0)
            connection.exec_driver_sql(f"DO RELEASE_LOCK('upgrade.{database}')")
        with session(pool, database) as connection:
            connection.exec_driver_sql("START TRANSACTION")
            connection.exec_driver_sql("SELECT * FROM cell")
            with pytest.raises(
                ServerTimeout, match=r"the lock was not granted in time; .* in use by thread \d+ of \S+ for "
            ):
                revisions.run(pool, database, "shard", lock_s=1)
            connection.exec_driver_sql("COMMIT")

        assert schema.version_of(pool, database) == "shard_0001"
        assert making.upgrade(pool, database, "shard")
        assert schema.version_of(pool, database) == LAST


def test_tables_of_an_interrupted_creation_keep_their_revision(pool, empty_database):
    """A creation that an earlier version began keeps that version's revision."""
    database = empty_database()
    making.create_tables(pool, database, "shard")
    with installed():
        making.create_tables(pool, database, "shard")

        assert schema.version_of(pool, database) == "shard_0001"
        assert making.upgrade(pool, database, "shard")
