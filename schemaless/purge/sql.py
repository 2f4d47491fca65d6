"""Statements that make a server overwrite or delete what is left of replaced rows in its files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from schemaless.wire.sql.parts import insert, quoted_table, text

_FOLDERS: Final = (
    b"datadir",
    b"tmpdir",
    b"innodb_undo_directory",
    b"innodb_log_group_home_dir",
)
_FILES: Final = (b"log_bin_basename", b"relay_log_basename", b"log_error", b"slow_query_log_file", b"general_log_file")
SELECT_FOLDERS: Final = b"SELECT %b" % b", ".join(b"@@global.%b" % name for name in _FOLDERS)
"""Folders that a server writes to; relative ones are below the first."""

SELECT_FILES: Final = b"SELECT %b" % b", ".join(b"@@global.%b" % name for name in _FILES)
"""Files that a server writes, or prefixes of their names; each may be in a different folder."""

SELECT_DOUBLEWRITE_FOLDER: Final = b"SELECT @@global.innodb_doublewrite_dir"
"""MySQL only."""

SHOW_ROCKSDB_FOLDERS: Final = (
    b"SHOW GLOBAL VARIABLES WHERE Variable_name IN ('rocksdb_datadir', 'rocksdb_wal_dir', 'rocksdb_log_dir')"
)
"""MariaDB only; no row without MyRocks."""

SELECT_OLDEST_SNAPSHOT: Final = (
    b"SELECT COALESCE(MAX(VALUE),0), UNIX_TIMESTAMP() FROM information_schema.ROCKSDB_DBSTATS "
    b"WHERE STAT_TYPE='DB_OLDEST_SNAPSHOT_TIME'"
)
"""When the oldest open snapshot of MyRocks was taken (0 if none is open), and the time now, in seconds since 1970."""

SELECT_HISTORY: Final = b"SELECT `COUNT` FROM information_schema.INNODB_METRICS WHERE NAME='trx_rseg_history_len'"
"""Number of transactions whose undo logs have not been purged yet, on MySQL and MariaDB."""

SHOW_DIRTY_PAGES: Final = b"SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_pages_dirty'"

SHOW_REDO_RESIZE: Final = b"SHOW GLOBAL STATUS LIKE 'Innodb_redo_log_resize_status'"
"""MySQL only; the value is OK when no resize is in progress."""

SELECT_UNDO_TABLESPACES: Final = (
    b"SELECT NAME, STATE FROM information_schema.INNODB_TABLESPACES WHERE SPACE_TYPE='Undo' ORDER BY NAME"
)
"""MySQL only."""

FLUSH_BINARY_LOGS: Final = b"FLUSH BINARY LOGS"
FLUSH_RELAY_LOGS: Final = b"FLUSH RELAY LOGS"

FILLER: Final = "schemaless_purge"
"""Database of the filler table; dropped at the end of a purge."""

FILLER_ROW_BYTES: Final = 3_000
"""Size of a filler row: several fit in a page, so updates write undo records with the whole row."""

_TABLE: Final = quoted_table(FILLER, "filler")
CREATE_FILLER: Final = (
    b"CREATE DATABASE IF NOT EXISTS `%b`" % FILLER.encode(),
    b"DROP TABLE IF EXISTS %b" % _TABLE,
    b"CREATE TABLE %b (id INT UNSIGNED AUTO_INCREMENT PRIMARY KEY, content VARBINARY(%d) NOT NULL) ENGINE=InnoDB "
    b"ROW_FORMAT=DYNAMIC" % (_TABLE, FILLER_ROW_BYTES),
)
_SETTING: Final = quoted_table(FILLER, "setting")
CREATE_SETTINGS: Final = (
    b"CREATE DATABASE IF NOT EXISTS `%b`" % FILLER.encode(),
    b"CREATE TABLE IF NOT EXISTS %b (node VARCHAR(255) NOT NULL, name VARCHAR(64) NOT NULL, "
    b"value VARCHAR(64) NOT NULL, PRIMARY KEY (node, name)) ENGINE=InnoDB" % _SETTING,
)
"""Create the table that records the settings a purge changes; it is dropped with the filler when the purge ends."""

SELECT_SETTINGS: Final = b"SELECT node, name, value FROM %b" % _SETTING
"""Select the settings that a purge has recorded but not restored."""

UPDATE_FILLER: Final = b"UPDATE %b SET content=REVERSE(content)" % _TABLE
EXPORT_FILLER: Final = b"FLUSH TABLES %b FOR EXPORT" % _TABLE
"""Writes the changed pages of the table one by one."""

UNLOCK: Final = b"UNLOCK TABLES"
DROP_FILLER: Final = b"DROP DATABASE IF EXISTS `%b`" % FILLER.encode()


def insert_settings(node: str, values: Mapping[str, float]) -> bytes:
    """Record settings of a server, except those already recorded."""
    rows = [(node, name, str(value)) for name, value in values.items()]
    return insert(_SETTING, "node, name, value", rows, ignore=True)


def insert_filler(rows: int, content: str) -> bytes:
    """Insert rows of ``FILLER_ROW_BYTES`` that repeat a text of ASCII characters."""
    row = b"(REPEAT(%b, %d))" % (text(content), FILLER_ROW_BYTES // len(content))
    return b"INSERT INTO %b (content) VALUES %b" % (_TABLE, b",".join([row] * rows))


def select_globals(names: tuple[str, ...]) -> bytes:
    """Select global variables."""
    return b"SELECT %b" % b", ".join(b"@@global.%b" % name.encode() for name in names)


def set_globals(values: Mapping[str, float]) -> bytes:
    """Set global variables to numbers."""
    numbers = {name: b"%d" % value if value == int(value) else b"%.6f" % value for name, value in values.items()}
    return b"SET GLOBAL " + b", GLOBAL ".join(b"%b=%b" % (name.encode(), number) for name, number in numbers.items())


def create_undo_tablespace(name: str) -> bytes:
    """Create an undo tablespace; MySQL only."""
    return b"CREATE UNDO TABLESPACE %b ADD DATAFILE %b" % (name.encode(), text(f"{name}.ibu"))


def alter_undo_tablespace(name: str, *, active: bool) -> bytes:
    """Take an undo tablespace out of use, after which it is truncated, or put it back; MySQL only."""
    return b"ALTER UNDO TABLESPACE %b SET %b" % (name.encode(), b"ACTIVE" if active else b"INACTIVE")


def drop_undo_tablespace(name: str) -> bytes:
    """Drop an empty undo tablespace; MySQL only."""
    return b"DROP UNDO TABLESPACE %b" % name.encode()


def rebuild(database: str, name: str) -> bytes:
    """Rebuild a table into a new file; replicas repeat it."""
    return b"ALTER TABLE %b FORCE, ALGORITHM=INPLACE, LOCK=NONE" % quoted_table(database, name)


def purge_binary_logs(up_to: str) -> bytes:
    """Delete the binary logs before ``up_to``, except those that a replica is reading."""
    return b"PURGE BINARY LOGS TO %b" % text(up_to)
