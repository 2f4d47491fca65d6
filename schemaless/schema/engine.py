"""SQLAlchemy over this package's own connections, for revisions alone: Alembic's operations want a connection of its.

Everything else goes through the pool. What is made here stands beside it and is closed at its block's end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy
from sqlalchemy.engine import Engine
from sqlalchemy.pool import NullPool

from schemaless.schema.sql import use
from schemaless.wire.errors import interruption, translated
from schemaless.wire.pool import NodePool
from schemaless.wire.urls import sqlalchemy_url


@contextmanager
def session(pool: NodePool, database: str) -> Iterator[sqlalchemy.Connection]:
    """Give a connection for the block, with ``database`` as its own, in AUTOCOMMIT; for changes of tables.

    SQLAlchemy takes it to be in no database, so it cannot look for tables there; for that there is ``inspection``,
    which takes 35 ms more to make.

    Raises:
        ServerError: whatever the server or the driver raised.
    """
    if pool.engine is None:
        pool.engine = _engine(pool, None, isolation_level="AUTOCOMMIT")
    connecting = [True]
    with _translating(pool, connecting), pool.engine.connect() as connection:
        try:
            connection.exec_driver_sql(use(database).decode())
            connecting.clear()
            yield connection
        except BaseException:
            connection.invalidate()
            raise


@contextmanager
def inspection(pool: NodePool, database: str) -> Iterator[sqlalchemy.Connection]:
    """Give a connection to one database for the block, in one transaction; Alembic looks for tables in that one.

    Raises:
        ServerError: whatever the server or the driver raised.
    """
    connecting = [True]
    with _translating(pool, connecting), _engine(pool, database).begin() as connection:
        connecting.clear()
        yield connection


def _engine(pool: NodePool, database: str | None, **more: Any) -> Engine:
    autocommit = "isolation_level" in more
    return sqlalchemy.create_engine(
        sqlalchemy_url(pool.node, pool.credentials, database),
        poolclass=NullPool,
        hide_parameters=True,
        creator=lambda: pool.open(database, autocommit=autocommit)[0],
        **more,
    )


@contextmanager
def _translating(pool: NodePool, connecting: list[bool]) -> Iterator[None]:
    """Raise our errors in place of SQLAlchemy's; ``connecting`` is empty once something may have been sent."""
    try:
        yield
    except sqlalchemy.exc.SQLAlchemyError as error:
        raised = None if error.__cause__ is None else interruption(error.__cause__)
        if raised is None:
            raise translated(error, str(pool.node), None, connecting=bool(connecting)) from error
    else:
        return
    raise raised
