"""Statements about servers and sessions: settings, transactions, named locks, load, logs, files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from schemaless.mysql.sql.parts import text, texts

START_TRANSACTION: Final = b"START TRANSACTION"
COMMIT: Final = b"COMMIT"
ROLLBACK: Final = b"ROLLBACK"

NOTHING: Final = b"DO 0"
"""It does nothing, and is counted."""

SELECT_ONE: Final = b"SELECT 1"
SELECT_ACCOUNT: Final = b"SELECT CURRENT_USER()"
SELECT_VERSION: Final = b"SELECT VERSION()"
SELECT_PORT: Final = b"SELECT @@global.port"
SELECT_SKIPS_NETWORKING: Final = b"SELECT @@global.skip_networking"
SELECT_READ_ONLY: Final = b"SELECT @@global.read_only"
SELECT_DATA_FOLDER: Final = b"SELECT @@datadir"
SELECT_PAGE_LAYOUT: Final = b"SELECT @@innodb_page_size, @@innodb_fill_factor"
SELECT_REBUILD_LOG_BYTES: Final = b"SELECT @@innodb_online_alter_log_max_size"
SELECT_TABLE_CACHE: Final = (
    b"SELECT @@global.table_open_cache, @@global.table_open_cache_instances, @@global.table_definition_cache"
)
SELECT_NOW: Final = b"SELECT CONCAT(UTC_TIMESTAMP(6),'+00:00')"
"""Its value is the server's clock, as text that says UTC."""

BEGIN_MARIADB: Final = b"create database if not exists mysql;\nuse mysql;\nSET @auth_root_socket=NULL;\n"
"""A new MariaDB server's own scripts expect this before them."""

END_MARIADB: Final = b"delete from global_priv where User='' or (User='root' and Host<>'localhost');\n"
"""These come behind them: no anonymous accounts, and root from its machine only."""

SHOW_BINARY_LOGS: Final = b"SHOW BINARY LOGS"
SHOW_BINARY_LOG_SETTINGS: Final = (
    b"SHOW SESSION VARIABLES WHERE Variable_name IN "
    b"('log_bin', 'binlog_format', 'binlog_row_image', 'binlog_rows_query_log_events', 'binlog_annotate_row_events')"
)
SHOW_ACTIVITY: Final = (
    b"SHOW GLOBAL STATUS WHERE Variable_name IN "
    b"('Threads_running', 'Innodb_history_list_length', 'Com_select', 'Com_insert', 'Com_update_multi', 'Com_do')"
)
SELECT_HISTORY_LENGTH: Final = (
    b"SELECT `COUNT` FROM information_schema.INNODB_METRICS WHERE NAME='trx_rseg_history_len' AND STATUS='enabled'"
)


def set_session(settings: Mapping[str, str | int | None]) -> bytes:
    """Set variables of the session; None sets the server's own value."""
    return b"SET SESSION " + b", ".join(b"%b=%b" % (name.encode(), _value(value)) for name, value in settings.items())


def _value(value: str | int | None) -> bytes:
    if value is None:
        return b"DEFAULT"
    return b"%d" % value if isinstance(value, int) else text(value)


NO_CLAIM: Final = b"NULL"
"""A connection that asks for no claim selects this in its place."""

FRESH_STATISTICS: Final = set_session({"information_schema_stats_expiry": 0})
"""It lets information_schema.TABLES say what is so now; MySQL only, MariaDB keeps nothing back."""


def select_session(names: Iterable[str], claim: bytes = NO_CLAIM) -> bytes:
    """Select what a new connection asks.

    Returns:
        A statement whose row is the longest statement that the server takes, the distance of its ids, its version, the
        epoch of its claim (``sql.replicas.own_claim``), and these variables.
    """
    return b"SELECT @@max_allowed_packet, @@auto_increment_increment, VERSION(), %b, %b" % (
        claim,
        b", ".join(b"@@session.%b" % name.encode() for name in names),
    )


def take_lock(name: str, wait_s: int) -> bytes:
    """Take a named lock, of 64 characters at most, for the session; the one value is 1 where it was to be had."""
    return b"SELECT GET_LOCK(%b, %d)" % (text(name), wait_s)


def lock_is_free(name: str) -> bytes:
    """Select whether nobody has a named lock."""
    return b"SELECT IS_FREE_LOCK(%b)" % text(name)


def release_lock(name: str) -> bytes:
    """Release a named lock of the session."""
    return b"SELECT RELEASE_LOCK(%b)" % text(name)


def select_tablespaces(databases: Iterable[str], *, mariadb: bool) -> bytes:
    """Select name, length and allocated bytes of the file of each shard's ``cell`` table."""
    view = b"INNODB_SYS_TABLESPACES" if mariadb else b"INNODB_TABLESPACES"
    return b"SELECT NAME, FILE_SIZE, ALLOCATED_SIZE FROM information_schema.%b WHERE NAME IN (%b)" % (
        view,
        texts(f"{database}/cell" for database in databases),
    )


def select_other_tablespaces(databases: Iterable[str], *, mariadb: bool) -> bytes:
    """Select name, and the files' length and allocated bytes, of the tables beside ``cell``: of all shards together."""
    view = b"INNODB_SYS_TABLESPACES" if mariadb else b"INNODB_TABLESPACES"
    return (
        b"SELECT SUBSTRING_INDEX(NAME,'/',-1) AS table_name, SUM(FILE_SIZE), SUM(ALLOCATED_SIZE) "
        b"FROM information_schema.%b WHERE SUBSTRING_INDEX(NAME,'/',1) IN (%b) AND NAME NOT LIKE '%%/cell' "
        b"GROUP BY table_name ORDER BY table_name" % (view, texts(databases))
    )
