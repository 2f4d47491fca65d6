"""Databases for the tests of tables and revisions."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import pytest

from schemaless.schema import databases as schema
from schemaless.wire.pool import NodePool
from tests.wire.conftest import pool

__all__ = ["definitions", "empty_database", "pool"]

_numbers = itertools.count(1)


@pytest.fixture
def empty_database(pool: NodePool) -> Callable[[], str]:
    """Factory for empty databases."""

    def make() -> str:
        name = f"schema_{next(_numbers)}x"
        schema.create_database(pool, name)
        return name

    return make


@pytest.fixture
def definitions(pool: NodePool) -> Callable[[str], dict[str, str]]:
    """Read the definition of each table from the server, and the database's revision."""

    def read(database: str) -> dict[str, str]:
        found = {"revision": str(schema.version_of(pool, database))}
        for name in schema.tables_of(pool, database):
            sql = f"SHOW CREATE TABLE `{database}`.`{name}`".encode()
            text = str(pool.run(lambda connection, sql=sql: connection.rows(sql))[0][1])
            found[name] = re.sub(r" AUTO_INCREMENT=\d+", "", text)
        return found

    return read
