"""Statements that show what servers still store of replaced bodies."""

from __future__ import annotations

from typing import Final

SHOW_LOG_EXPIRY: Final = (
    b"SHOW GLOBAL VARIABLES WHERE Variable_name IN ('log_bin', 'binlog_expire_logs_seconds', 'expire_logs_days')"
)
