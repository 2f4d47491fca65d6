"""SQL for administration. Statements about accounts are printed for the administrator, so they are ``str``."""

from __future__ import annotations

import re
from typing import Final

from schemaless.wire.sql.parts import table, text

UNLOGGED: Final = "SET SESSION sql_log_bin = 0"
"""Keeps the statements that follow out of the binary log."""


def create_account(account: object) -> str:
    """Create an account, locked and without a password, unless it exists."""
    return f"CREATE USER IF NOT EXISTS {account} ACCOUNT LOCK"


def count_accounts(name: str, host: str) -> bytes:
    """Count the accounts with a name and a host: one or none."""
    return b"SELECT COUNT(*) FROM mysql.user WHERE User=%b AND Host=%b" % (text(name), text(host))


def select_unfinished_specs(catalog: str) -> bytes:
    """Select job_id, kind and spec of all unfinished jobs."""
    return b"SELECT job_id, kind, spec FROM %b WHERE state IN ('running','paused')" % table(catalog, b"job")


SHARD_DATABASES: Final = (
    "SELECT schema_name FROM information_schema.schemata WHERE schema_name REGEXP '^%s_([0-9]{4,}|heartbeat)$'"
)
"""Printed; selects the databases of a datastore on a server, except the catalog."""

CLONE: Final = "CLONE LOCAL DATA DIRECTORY = '%s'"
"""Printed; copies a MySQL server's files to a folder on its machine."""

IN_DUMP_DATABASE: Final = re.compile(rb"USE `([^`]+)`;")
IN_DUMP_TABLE: Final = re.compile(rb"CREATE TABLE `([^`]+)`")
IN_DUMP_RANGES: Final = b"INSERT INTO `shard_range` "
"""Beginnings of lines of a dump: of a database, of a table, and with the catalog's ranges of shards."""
