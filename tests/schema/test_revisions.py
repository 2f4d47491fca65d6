"""Revisions: each leads to its tables from wherever an earlier attempt was cut off, and never over somebody's own."""

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

pytestmark = [pytest.mark.mysql, pytest.mark.shared]


class Cut(BaseException):
    """The process ends here."""


@contextmanager
def cut_behind(change: int) -> Iterator[None]:
    """Raise behind the change of that number: a statement that makes, changes or drops a table, or notes a revision."""
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


@pytest.mark.parametrize("branch", ["catalog", "shard"])
def test_upgrade_cut_behind_any_statement_goes_on(pool, empty_database, definitions, branch):
    """No change of a table can be undone together with the note of its revision: one that died between is repeated."""
    undisturbed = empty_database()
    database = empty_database()
    with installed():
        making.upgrade(pool, undisturbed, branch)
        for change in itertools.count(1):
            execute(pool, database, f"DROP DATABASE `{database}`")
            schema.create_database(pool, database)
            try:
                with cut_behind(change):
                    making.upgrade(pool, database, branch)
            except Cut:
                making.upgrade(pool, database, branch)
            else:
                break

            assert definitions(database) == definitions(undisturbed), f"cut behind change {change}"

    assert change > {"catalog": 6, "shard": 14}[branch]


def test_upgrade_of_a_database_that_lost_its_revision_finds_its_tables(pool, empty_database, definitions):
    """Where the tables are this version's to the last column, they only have to be noted as such."""
    database = empty_database()
    making.upgrade(pool, database, "shard")
    before = definitions(database)
    execute(pool, database, "DROP TABLE alembic_version", "CREATE TABLE of_somebody_else (n INT)")

    assert making.upgrade(pool, database, "shard")
    assert {name: text for name, text in definitions(database).items() if name != "of_somebody_else"} == before


@pytest.mark.parametrize(
    ("change", "mending", "complaint"),
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
def test_upgrade_that_finds_work_done_and_other_tables_is_refused(
    pool, empty_database, definitions, change, mending, complaint
):
    """What is there already may be somebody's own doing: the revision counts only once all tables are compared."""
    undisturbed, database = empty_database(), empty_database()
    for name in (undisturbed, database):
        making.create_tables(pool, name, "shard")
    execute(pool, database, f"ALTER TABLE cell ADD COLUMN later INT, {change}")
    with installed():
        making.upgrade(pool, undisturbed, "shard")
        with pytest.raises(SchemaMismatch, match=f"Duplicate column name 'later'.*: {complaint}. Correct them by hand"):
            making.upgrade(pool, database, "shard")
        left_at = schema.version_of(pool, database)
        execute(pool, database, f"ALTER TABLE cell {mending}")
        making.upgrade(pool, database, "shard")

    assert left_at == FIRST
    assert definitions(database) == definitions(undisturbed)


def test_upgrade_refused_by_the_server_is_no_work_done(pool, empty_database, monkeypatch):
    """Only an operation that says that it is done already is passed over; a statement of a revision's own never is."""
    database = empty_database()
    making.create_tables(pool, database, "shard")
    with installed():
        for statement in ("ALTER TABLE cell ADD COLUMN ref_key INT", "DROP TABLE cell.cell"):
            monkeypatch.setattr(
                revisions._chain("shard")[2].module, "upgrade", lambda op, statement=statement: op.execute(statement)
            )
            with pytest.raises(ServerError, match=r"Duplicate column|Unknown table"):
                making.upgrade(pool, database, "shard")

    assert schema.version_of(pool, database) == "shard_0002"


def test_two_upgrades_at_once_take_turns(pool, empty_database, definitions):
    """One does it, the other finds it done; neither fails."""
    undisturbed, database = empty_database(), empty_database()
    with installed():
        making.upgrade(pool, undisturbed, "shard")
        with ThreadPoolExecutor(4) as threads:
            outcomes = list(threads.map(lambda turn: revisions.run(pool, database, "shard"), range(4)))

    assert sorted(outcomes) == [False, False, False, True]
    assert definitions(database) == definitions(undisturbed)


def test_upgrade_under_another_or_a_reader_gives_up_and_says_why(pool, empty_database):
    """Neither another upgrade nor a transaction that never ends holds it up for long, nor the writers behind it."""
    database = empty_database()
    making.create_tables(pool, database, "shard")
    with installed():
        # Only here: what a failed upgrade holds is free once the server has noticed the end of its connection.
        with session(pool, database) as connection:
            assert connection.exec_driver_sql(f"SELECT GET_LOCK('upgrade.{database}', 0)").scalar() == 1
            with pytest.raises(ServerTimeout, match="another upgrade is changing"):
                revisions.run(pool, database, "shard", turn_s=0)
            connection.exec_driver_sql(f"DO RELEASE_LOCK('upgrade.{database}')")
        with session(pool, database) as connection:
            connection.exec_driver_sql("START TRANSACTION")
            connection.exec_driver_sql("SELECT * FROM cell")
            with pytest.raises(ServerTimeout, match="the lock was not granted in time"):
                revisions.run(pool, database, "shard", lock_s=1)
            connection.exec_driver_sql("COMMIT")

        assert schema.version_of(pool, database) == "shard_0002"
        assert making.upgrade(pool, database, "shard")
        assert schema.version_of(pool, database) == LAST


def test_tables_of_an_interrupted_creation_keep_their_revision(pool, empty_database):
    """A creation that an earlier version began is not taken for this one's."""
    database = empty_database()
    making.create_tables(pool, database, "shard")
    with installed():
        making.create_tables(pool, database, "shard")

        assert schema.version_of(pool, database) == "shard_0002"
        assert making.upgrade(pool, database, "shard")
