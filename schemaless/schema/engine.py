"""SQLAlchemy connections for Alembic, whose operations require them. Everything else uses the pool directly.

SQLAlchemy's connections are opened like the pool's, but are not part of it, and are closed at the end of their block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy
from sqlalchemy.engine import Engine
from sqlalchemy.pool import NullPool

from schemaless.schema.sql import use
from schemaless.wire.errors import translated
from schemaless.wire.pool import NodePool
from schemaless.wire.session import sqlalchemy_url


@contextmanager
def session(pool: NodePool, database: str) -> Iterator[sqlalchemy.Connection]:
    """Open a connection in autocommit mode for schema changes, with ``database`` as its default database.

    SQLAlchemy does not know the default database and cannot inspect its tables; use ``inspection`` for that, which
    takes 35 ms longer.

    Raises:
        ServerError: an error of the server or the driver.
    """
    engine = pool.engine
    if not isinstance(engine, Engine):
        engine = pool.engine = _engine(pool, None, isolation_level="AUTOCOMMIT")
    with _translating(pool), engine.connect() as connection:
        try:
            connection.exec_driver_sql(use(database).decode())
            yield connection
        except BaseException:
            connection.invalidate()
            raise


@contextmanager
def inspection(pool: NodePool, database: str) -> Iterator[sqlalchemy.Connection]:
    """Open a connection to one database in a transaction; Alembic can inspect the database's tables through it.

    Raises:
        ServerError: an error of the server or the driver.
    """
    with _translating(pool), _engine(pool, database).begin() as connection:
        yield connection


def _engine(pool: NodePool, database: str | None, **options: Any) -> Engine:
    autocommit = "isolation_level" in options
    return sqlalchemy.create_engine(
        sqlalchemy_url(pool.node, pool.credentials, database),
        poolclass=NullPool,
        hide_parameters=True,
        creator=lambda: pool.open(database=database, autocommit=autocommit)[0],
        **options,
    )


@contextmanager
def _translating(pool: NodePool) -> Iterator[None]:
    """Translate SQLAlchemy's exceptions."""
    try:
        yield
    except sqlalchemy.exc.SQLAlchemyError as error:
        cause = error.orig if isinstance(error, sqlalchemy.exc.DBAPIError) and error.orig is not None else error
        raise translated(cause, str(pool.node), None, connecting=False) from error
