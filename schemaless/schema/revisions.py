"""Revisions: the steps from older tables to this version's, taken on one database at a time, from many threads at once.

The files are Alembic's and so are their operations. Its runner is not used: that keeps the operations and the
connection in globals of the process, and MySQL commits each statement that changes a table by itself, so a step may be
found half taken. Here a revision is handed its operations, ``upgrade(op)``, and what an operation finds done counts as
done, once the tables have been compared with this version's. ``migrations/README.md`` has the rules for a revision.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import Any, Final

import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.operations import MigrateOperation, Operations
from alembic.operations.ops import CreateTableOp, ExecuteSQLOp
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from sqlalchemy import MetaData

from schemaless.errors import SchemaMismatch, ServerTimeout
from schemaless.schema.engine import inspection, session
from schemaless.schema.sql import CREATE_VERSION_TABLE, insert_first_version, select_version, update_version
from schemaless.schema.tables import catalog_metadata, shard_metadata
from schemaless.schema.versions import Branch, folders, head, known_revisions
from schemaless.wire.errors import error_code
from schemaless.wire.pool import NodePool
from schemaless.wire.sql.sessions import release_lock, set_session, take_lock

METADATA: Final[dict[Branch, MetaData]] = {"catalog": catalog_metadata, "shard": shard_metadata}

_TURN_WAIT_S: Final = 10
"""An upgrade waits so long for another one of the same database."""

_LOCK_WAIT_S: Final = 10
"""A change of a table waits so long for those who use it: meanwhile all others wait behind it, writers too."""

_DONE: Final = frozenset({1050, 1051, 1060, 1061, 1091})
"""These say that a table, column or key to make is there, or one to drop is not."""


def version_of(connection: sqlalchemy.Connection, database: str) -> str | None:
    """Return the revision that a database is at, or None where it has none."""
    try:
        row = _send(connection, select_version(database)).first()
    except sqlalchemy.exc.DBAPIError as error:
        if error_code(error) == 1146:
            return None
        raise
    return None if row is None else str(row[0])


def check_known(pool: NodePool, database: str, branch: Branch, version: str | None) -> None:
    """Check that a database is at a revision that this version has, or at none.

    Raises:
        SchemaMismatch: it is at another.
    """
    if version is not None and version not in known_revisions(branch):
        raise SchemaMismatch(
            f"{database!r} on {pool.node} is at revision {version!r}, which this version does not know; "
            "use a later version of schemaless. Nothing was changed"
        )


def run(
    pool: NodePool, database: str, branch: Branch, *, turn_s: int = _TURN_WAIT_S, lock_s: int = _LOCK_WAIT_S
) -> bool:
    """Run the revisions that a database lacks, oldest first; safe to repeat after an interruption at any point.

    Args:
        turn_s: how long it waits for another upgrade of the same database.
        lock_s: how long a change waits for those who use its table.

    Returns:
        Whether there was any.

    Raises:
        SchemaMismatch: it is at a revision that this version does not know, or an operation found its work done and
            the tables are not this version's in the end.
        ServerError: the server refused an operation, or failed; the revisions before it are done.
    """
    with session(pool, database) as connection, _turn(connection, pool, database, turn_s, lock_s):
        version = version_of(connection, database)
        check_known(pool, database, branch, version)
        known = [script.revision for script in _chain(branch)]
        lacking = _chain(branch)[0 if version is None else known.index(version) + 1 :]
        if not lacking:
            return False
        operations = _Repeatable(MigrationContext.configure(connection))
        for script in lacking:
            script.module.upgrade(operations)
            if operations.done_before and script is lacking[-1]:
                # What was found done may be somebody else's doing.
                _compare(pool, database, branch, operations.done_before)
            _note(connection, database, version, script.revision)
            version = script.revision
    return True


def configuration() -> Config:
    """Return Alembic's configuration of the two branches."""
    config = Config()
    # ConfigParser would read a percent sign in a path as its own.
    config.set_main_option("script_location", str(files("schemaless.migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", "\n".join(map(str, folders())).replace("%", "%%"))
    return config


@cache
def _chain(branch: Branch) -> list[Script]:
    """Return a branch's revisions, oldest first."""
    scripts = ScriptDirectory.from_config(configuration()).iterate_revisions(f"{branch}@head", "base")
    return list(scripts)[::-1]


class _Repeatable(Operations):
    """Alembic's operations, where one that finds its work done goes on.

    A process or a server may have died behind any of them, since none can be undone together with the note of its
    revision. Only statements of the revision's own, ``op.execute``, are for the revision to make repeatable.

    Attributes:
        found: what the server said of work that was done already.
    """

    def __init__(self, context: MigrationContext) -> None:
        super().__init__(context)
        self.done_before: list[str] = []

    def invoke(self, operation: MigrateOperation) -> Any:
        """Run one operation."""
        try:
            return super().invoke(operation)
        except sqlalchemy.exc.DBAPIError as error:
            if error_code(error) not in _DONE or isinstance(operation, ExecuteSQLOp):
                raise
            self.done_before.append(str(error.orig.args[1]) if error.orig is not None else str(error))
        return operation.to_table(self.migration_context) if isinstance(operation, CreateTableOp) else None


def _note(connection: sqlalchemy.Connection, database: str, old: str | None, new: str) -> None:
    """Write down that a revision is done."""
    if old is None:
        _send(connection, CREATE_VERSION_TABLE)
        _send(connection, insert_first_version(database, new))
    else:
        _send(connection, update_version(database, old, new))


def _send(connection: sqlalchemy.Connection, sql: bytes) -> sqlalchemy.CursorResult[Any]:
    return connection.exec_driver_sql(sql.decode())


def _compare(pool: NodePool, database: str, branch: Branch, already: list[str]) -> None:
    """Check that the tables are this version's.

    Raises:
        SchemaMismatch: they are not.
    """
    # A connection of its own: Alembic looks for tables in the database that its engine connects to.
    with inspection(pool, database) as connection:
        differences = compare_metadata(MigrationContext.configure(connection), METADATA[branch])
    telling = [difference for difference in differences if difference[0] != "remove_table"]
    if telling:
        raise SchemaMismatch(
            f"{database!r} on {pool.node} has what a revision was to make or to drop ({already[0]}), but its tables "
            f"are not those of revision {head(branch)!r}: {_named(telling[0])}. Mend them by hand, then run "
            "'schemaless schema upgrade' again"
        )


def _named(difference: Any) -> str:
    """Return what a difference that Alembic found is about, such as ``add_column cell.note``."""
    first = difference[0] if isinstance(difference, list) else difference
    what, *about = first
    words = [part if isinstance(part, str) else getattr(part, "name", None) for part in about]
    # A changed column stands there as schema, table, column, its facts, old, new; what is there or not as an object.
    words = words[:3] if what.startswith("modify_") else words
    table = getattr(getattr(about[-1], "table", None), "name", None)
    names = list(dict.fromkeys(word for word in [table, *words] if word))
    return f"{what} {'.'.join(names)}"


@contextmanager
def _turn(connection: sqlalchemy.Connection, pool: NodePool, database: str, turn_s: int, lock_s: int) -> Iterator[None]:
    """Hold a database's lock among upgrades for the block; where that fails, the end of the connection frees it.

    Raises:
        ServerTimeout: another upgrade holds it.
    """
    # Under 64 characters, as MySQL wants it: a database's name has 54 at most.
    name = f"upgrade.{database}"
    if _send(connection, take_lock(name, turn_s)).scalar() != 1:
        raise ServerTimeout(
            f"another upgrade is changing {database!r}; wait for its end, then run 'schemaless schema upgrade' again",
            node=str(pool.node),
        )
    _send(connection, set_session({"lock_wait_timeout": lock_s}))
    yield
    _send(connection, release_lock(name))
