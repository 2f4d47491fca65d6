"""Replies: what is read of them with less work than PyMySQL's is the same, and nothing that does not fit is used."""

from __future__ import annotations

import contextlib
import types

import pymysql
import pytest

from schemaless.mysql import driver
from schemaless.mysql.connect import SQL_MODE

pytestmark = pytest.mark.mysql

ALL_KINDS = (
    "SELECT NULL, 1, -1, 18446744073709551615, 1.5, 1.25e0, '', 'é漢😀', x'00FF27', _binary'text', b'101', "
    "DATE'2026-01-31', TIMESTAMP'2026-01-31 10:20:30.5', TIME'10:20:30', CAST('{\"a\": [1]}' AS {json}), "
    "REPEAT('a', 250), REPEAT('a', 251), REPEAT('a', 65535), REPEAT('a', 65536), REPEAT(x'FF', 20000000)"
)
"""A value of each kind, and texts on both sides of each limit at which their length is written otherwise."""


def test_rows_are_read_as_pymysql_reads_them(pool, flavour):
    """Whatever the kind and the length, the values and their types are the same, and so is what describes them."""
    sql = ALL_KINDS.replace("{json}", "JSON" if flavour == "mysql" else "CHAR")
    plain = pymysql.connect(
        unix_socket=pool.node.socket,
        host=pool.node.host or "",
        port=pool.node.port or 0,
        user="root",
        charset="utf8mb4",
    )
    with contextlib.closing(plain), plain.cursor() as cursor:
        for setting in (f"sql_mode='{SQL_MODE}'", "max_sort_length=1024"):
            cursor.execute(f"SET SESSION {setting}")
        cursor.execute(sql)
        expected, description = cursor.fetchall(), cursor.description
    with pool.connection() as connection:
        rows = connection.rows(sql.encode())
        with connection._raw.cursor() as cursor:
            cursor.execute(sql)
            described = cursor.description

    assert rows == expected
    assert [type(value) for value in rows[0]] == [type(value) for value in expected[0]]
    assert described == description


@pytest.mark.once
@pytest.mark.parametrize("data", [b"\x02ab\x01", b"\x02ab\x01cd", b"\x02ab", b"\xfc\x02", b"\xff\x01a"])
def test_a_row_that_does_not_fit_its_columns_is_refused(data):
    """One that is cut off, or goes on behind its last value, is not of this reply."""
    result = driver._Result(types.SimpleNamespace())
    result.converters = [("utf8", None), (None, None)]
    with pytest.raises((pymysql.InternalError, IndexError, KeyError)):
        result._read_row_from_packet(types.SimpleNamespace(get_all_data=lambda: data))
