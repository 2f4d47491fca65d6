"""SQL for administration. Statements about accounts are printed for the administrator, so they are ``str``."""

from __future__ import annotations

from typing import Final

from schemaless.wire.sql.parts import table

UNLOGGED: Final = "SET SESSION sql_log_bin = 0"
"""Keeps the statements that follow out of the binary log."""


def create_account(account: object) -> str:
    """Create an account, locked and without a password, unless it exists."""
    return f"CREATE USER IF NOT EXISTS {account} ACCOUNT LOCK"


def select_unfinished_specs(catalog: str) -> bytes:
    """Select job_id, kind and spec of all unfinished jobs."""
    return b"SELECT job_id, kind, spec FROM %b WHERE state IN ('running','paused')" % table(catalog, b"job")
