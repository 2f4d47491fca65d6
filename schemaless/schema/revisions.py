"""Runner for schema revisions, one database at a time, usable from many threads.

Revision files and operations are Alembic's, but its runner is not used: it keeps the operations and the connection in
process globals, and cannot resume a revision that was interrupted halfway, as can happen because MySQL commits every
DDL statement. Here a revision receives its operations as an argument, ``upgrade(op)``. An operation whose work is
already done is accepted if the tables match this version's metadata at the end. ``migrations/README.md`` has the rules
for revisions.
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
from schemaless.schema.databases import version_of
from schemaless.schema.engine import inspection, session
from schemaless.schema.sql import CREATE_VERSION_TABLE, insert_first_version, update_version
from schemaless.schema.tables import catalog_metadata, shard_metadata
from schemaless.schema.versions import Branch, folders, head, known_revisions
from schemaless.wire.errors import error_code
from schemaless.wire.pool import NodePool
from schemaless.wire.sql.sessions import release_lock, set_session, take_lock
from schemaless.wire.transactions import naming_users

METADATA: Final[dict[Branch, MetaData]] = {"catalog": catalog_metadata, "shard": shard_metadata}

_UPGRADE_LOCK_WAIT_S: Final = 10
"""How long an upgrade waits for another upgrade of the same database, in seconds."""

_TABLE_LOCK_WAIT_S: Final = 10
"""How long a DDL statement waits for the table's metadata lock, in seconds; new queries queue up behind it."""

_ALREADY_DONE: Final = frozenset({1050, 1051, 1060, 1061, 1091})
"""Errors saying that a table, column or key to create already exists, or that one to drop does not."""


def check_known(pool: NodePool, database: str, branch: Branch, version: str | None) -> None:
    """Check that this version knows the revision of a database; None is accepted.

    Raises:
        SchemaMismatch: the revision is unknown.
    """
    if version is not None and version not in known_revisions(branch):
        raise SchemaMismatch(
            f"{database!r} on {pool.node} is at revision {version!r}, which this version does not know; "
            "use a later version of schemaless. Nothing was changed"
        )


def run(
    pool: NodePool,
    database: str,
    branch: Branch,
    *,
    turn_s: int = _UPGRADE_LOCK_WAIT_S,
    lock_s: int = _TABLE_LOCK_WAIT_S,
) -> bool:
    """Run the revisions that a database lacks, oldest first; safe to repeat after an interruption at any point.

    Args:
        pool: pool of the database's primary.
        database: the database.
        branch: the branch of its revisions.
        turn_s: how long to wait for another upgrade of the same database, in seconds.
        lock_s: how long a DDL statement waits for the table's metadata lock, in seconds.

    Returns:
        False if the database was already up to date.

    Raises:
        SchemaMismatch: this version does not know the database's revision, or an operation found its work already done
            and, at the end, the tables differ from this version's metadata.
        ServerError: the server failed or refused an operation; earlier revisions have been applied.
    """
    with (
        naming_users(pool, database),
        session(pool, database) as connection,
        _upgrade_lock(connection, pool, database, turn_s, lock_s),
    ):
        version = version_of(pool, database)
        check_known(pool, database, branch, version)
        known = [script.revision for script in _chain(branch)]
        lacking = _chain(branch)[0 if version is None else known.index(version) + 1 :]
        if not lacking:
            return False
        operations = _Repeatable(MigrationContext.configure(connection))
        for script in lacking:
            script.module.upgrade(operations)
            if operations.already_done and script is lacking[-1]:
                # Another program may have done this work, and differently.
                _compare(pool, database, branch, operations.already_done)
            _record(connection, database, version, script.revision)
            version = script.revision
    return True


def configuration() -> Config:
    """Return the Alembic configuration of both branches."""
    config = Config()
    # ConfigParser interpolates percent signs.
    config.set_main_option("script_location", str(files("schemaless.migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", "\n".join(map(str, folders())).replace("%", "%%"))
    return config


@cache
def _chain(branch: Branch) -> list[Script]:
    scripts = ScriptDirectory.from_config(configuration()).iterate_revisions(f"{branch}@head", "base")
    return list(scripts)[::-1]


class _Repeatable(Operations):
    """Alembic operations that succeed if their work is already done.

    An earlier run may have died after any of them, since DDL cannot be rolled back together with the recorded revision.
    The exception is ``op.execute``: each revision must make its own statements repeatable.

    Attributes:
        already_done: the server's errors for work that was already done.
    """

    def __init__(self, context: MigrationContext) -> None:
        super().__init__(context)
        self.already_done: list[str] = []

    def invoke(self, operation: MigrateOperation) -> Any:
        """Run an operation."""
        try:
            return super().invoke(operation)
        except sqlalchemy.exc.DBAPIError as error:
            if error_code(error.orig) not in _ALREADY_DONE or isinstance(operation, ExecuteSQLOp):
                raise
            self.already_done.append(str(error.orig.args[1]) if error.orig is not None else str(error))
        return operation.to_table(self.migration_context) if isinstance(operation, CreateTableOp) else None


def _record(connection: sqlalchemy.Connection, database: str, old: str | None, new: str) -> None:
    if old is None:
        _send(connection, CREATE_VERSION_TABLE)
        _send(connection, insert_first_version(database, new))
    else:
        _send(connection, update_version(database, old, new))


def _send(connection: sqlalchemy.Connection, sql: bytes) -> sqlalchemy.CursorResult[Any]:
    return connection.exec_driver_sql(sql.decode())


def _compare(pool: NodePool, database: str, branch: Branch, already: list[str]) -> None:
    """Check that the tables match this version's metadata.

    Raises:
        SchemaMismatch: they differ.
    """
    # A separate connection, because Alembic inspects the default database of the engine.
    with inspection(pool, database) as connection:
        differences = compare_metadata(MigrationContext.configure(connection), METADATA[branch])
    relevant = [difference for difference in differences if difference[0] != "remove_table"]
    if relevant:
        raise SchemaMismatch(
            f"the changes of a revision already exist in {database!r} on {pool.node} ({already[0]}), but the tables do "
            f"not match revision {head(branch)!r}: {_describe(relevant[0])}. Correct them by hand, then run "
            "'schemaless schema upgrade' again"
        )


def _describe(difference: Any) -> str:
    """Describe a difference found by Alembic, as in ``add_column cell.note``."""
    first = difference[0] if isinstance(difference, list) else difference
    kind, *details = first
    words = [part if isinstance(part, str) else getattr(part, "name", None) for part in details]
    # Modifications are (schema, table, column, attributes, old, new); additions and removals have the object itself.
    words = words[:3] if kind.startswith("modify_") else words
    table = getattr(getattr(details[-1], "table", None), "name", None)
    names = list(dict.fromkeys(word for word in [table, *words] if word))
    return f"{kind} {'.'.join(names)}"


@contextmanager
def _upgrade_lock(
    connection: sqlalchemy.Connection, pool: NodePool, database: str, turn_s: int, lock_s: int
) -> Iterator[None]:
    """Hold a database's upgrade lock during the block; after an error, closing the connection releases it.

    Raises:
        ServerTimeout: another upgrade holds the lock.
    """
    # MySQL allows 64 characters, and a database name has at most 54.
    name = f"upgrade.{database}"
    if _send(connection, take_lock(name, turn_s)).scalar() != 1:
        raise ServerTimeout(
            f"another upgrade is changing {database!r}; wait for it to finish, then repeat 'schemaless schema upgrade'",
            node=str(pool.node),
        )
    _send(connection, set_session({"lock_wait_timeout": lock_s}))
    yield
    _send(connection, release_lock(name))
