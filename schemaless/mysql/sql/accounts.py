"""What an administrator is told to run about accounts: printed, and not sent, so these alone are text."""

from __future__ import annotations

from typing import Final

UNLOGGED: Final = "SET SESSION sql_log_bin = 0"
"""This keeps what follows out of the binary log."""


def grant(privileges: str, what: str, account: object) -> str:
    """Return a GRANT.

    >>> grant("SELECT, INSERT", "`trips_0000`.`cell`", "'app'@'%'")
    "GRANT SELECT, INSERT ON `trips_0000`.`cell` TO 'app'@'%'"
    """
    return f"GRANT {privileges} ON {what} TO {account}"


def create_account(account: object) -> str:
    """Create an account, locked and without a password, unless it is there."""
    return f"CREATE USER IF NOT EXISTS {account} ACCOUNT LOCK"
