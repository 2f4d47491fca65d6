"""Statements about open transactions, and the sessions that use tables. Each selects threads, accounts and ages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from schemaless.wire.sql.parts import numbers, text, texts

Ages = Literal["mysql", "mariadb", "unknown"]
"""Where the age of a transaction is read; if it is unknown, the age of a session's last statement is the best there is.

MariaDB's needs PROCESS.
"""

READ_FOR_TRANSACTIONS: Final = ("events_transactions_current", "metadata_locks", "threads")
"""Tables of performance_schema that these statements read; MariaDB's has no transactions, only the other two."""

_MOST: Final = 5
"""Maximum number of threads that a statement selects: those with the oldest transactions."""

ACCOUNT: Final = b"CONCAT(t.PROCESSLIST_USER,'@',COALESCE(t.PROCESSLIST_HOST,'localhost'))"
"""A session's account and host; ``t`` is ``performance_schema.threads``."""

_BACKUPS_MARIADB: Final = ("BACKUP_BLOCK_DDL", "BACKUP_FTWRL1", "BACKUP_FTWRL2", "BACKUP_WAIT_COMMIT")
"""Locks of MariaDB's backups, and of FLUSH TABLES WITH READ LOCK, that others wait for."""

_AGE: Final = b"MAX(COALESCE(e.TIMER_WAIT/1e12,t.PROCESSLIST_TIME,0))"
_OPEN: Final = (
    b"LEFT JOIN performance_schema.events_transactions_current AS e ON e.THREAD_ID=t.THREAD_ID AND e.STATE='ACTIVE'"
)
_BEGAN_MARIADB: Final = b"CONVERT_TZ(e.trx_started,'SYSTEM','+00:00')"
"""When a transaction began, which INNODB_TRX says in the time zone of the server's process, whatever the session's."""

_AGE_MARIADB: Final = b"MAX(COALESCE(TIMESTAMPDIFF(MICROSECOND,%b,NOW(6))/1e6,t.PROCESSLIST_TIME,0))" % _BEGAN_MARIADB
_AGE_UNKNOWN: Final = b"MAX(COALESCE(t.PROCESSLIST_TIME,0))"
_OPEN_MARIADB: Final = b"LEFT JOIN information_schema.INNODB_TRX AS e ON e.trx_mysql_thread_id=t.PROCESSLIST_ID"


def select_transactions(older_than_s: float, last: str = "", *, mariadb: bool) -> bytes:
    """Select the transactions that have been open for longer, except those of single statements such as ALTER TABLE.

    Args:
        older_than_s: their minimum age, in seconds.
        last: name of an account whose transactions come after all others.
        mariadb: whether the server is MariaDB.
    """
    if mariadb:
        return (
            b"SELECT p.ID, CONCAT(p.USER,'@',p.HOST), TIMESTAMPDIFF(SECOND,%b,NOW()) AS age "
            b"FROM information_schema.INNODB_TRX AS e JOIN information_schema.PROCESSLIST AS p "
            b"ON p.ID=e.trx_mysql_thread_id WHERE p.ID<>CONNECTION_ID() AND COALESCE(p.INFO,'') NOT LIKE 'ALTER%%' "
            b"AND %b<NOW() - INTERVAL %d MICROSECOND ORDER BY p.USER=%b, age DESC LIMIT %d"
            % (_BEGAN_MARIADB, _BEGAN_MARIADB, round(older_than_s * 1e6), text(last), _MOST)
        )
    return (
        b"SELECT t.PROCESSLIST_ID, %b, e.TIMER_WAIT/1e12 AS age "
        b"FROM performance_schema.events_transactions_current AS e JOIN performance_schema.threads AS t "
        b"USING (THREAD_ID) WHERE e.STATE='ACTIVE' AND e.AUTOCOMMIT='NO' AND t.PROCESSLIST_ID<>CONNECTION_ID() "
        b"AND e.TIMER_WAIT>%d ORDER BY t.PROCESSLIST_USER=%b, age DESC LIMIT %d"
        % (ACCOUNT, round(older_than_s * 1e12), text(last), _MOST)
    )


def select_users(database: str, ages: Ages) -> bytes:
    """Select the other sessions that have a lock on a table of a database, or have locked the whole server."""
    locked = (
        b"m.LOCK_STATUS='GRANTED' AND (m.OBJECT_TYPE='TABLE' AND m.OBJECT_SCHEMA=%b OR m.OBJECT_TYPE IN ('GLOBAL',"
        b"'BACKUP LOCK') AND m.LOCK_TYPE='SHARED' OR m.LOCK_TYPE IN (%b))" % (text(database), texts(_BACKUPS_MARIADB))
    )
    locks = b"performance_schema.metadata_locks AS m JOIN performance_schema.threads AS t "
    return _threads(locks + b"ON t.THREAD_ID=m.OWNER_THREAD_ID", locked, ages)


def select_threads(threads: Iterable[int], ages: Ages) -> bytes:
    """Select threads by their numbers in performance_schema."""
    return _threads(b"performance_schema.threads AS t", b"t.THREAD_ID IN (%b)" % numbers(threads), ages)


def _threads(tables: bytes, condition: bytes, ages: Ages) -> bytes:
    age, transactions = {
        "mysql": (_AGE, _OPEN),
        "mariadb": (_AGE_MARIADB, _OPEN_MARIADB),
        "unknown": (_AGE_UNKNOWN, b""),
    }[ages]
    return (
        b"SELECT t.PROCESSLIST_ID, MAX(%b), %b AS age FROM %b %b WHERE t.PROCESSLIST_ID<>CONNECTION_ID() AND %b "
        b"GROUP BY t.PROCESSLIST_ID ORDER BY age DESC LIMIT %d" % (ACCOUNT, age, tables, transactions, condition, _MOST)
    )
