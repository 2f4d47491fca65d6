"""Import from a JSON column of another database, keeping the rows' timestamps.

    python examples/import_json_column.py --from mysql://reader@old-db:3306/shop --table orders mezzanine

Reads ``id``, ``doc`` (JSON) and ``created_at`` (UTC) in the order of ``id``, and writes each row as version 1 under a
row_key derived from its id. It can be stopped and run again at any time: cells that already exist are not written
twice. Without the timestamps, every document would count as written today, which would spoil capacity forecasts.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pymysql

import schemaless

BATCH = 500
COLUMN = "ORDER"
ORDERS = uuid.uuid5(uuid.NAMESPACE_URL, "https://shop.example/orders")
"""Namespace of the row_keys, which are derived from order ids; never change it."""


def main() -> int:
    """Import all rows and print how many were new."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datastore", help="its URL, or its name in the configuration")
    parser.add_argument("--from", dest="source", required=True, metavar="URL")
    parser.add_argument("--table", required=True)
    arguments = parser.parse_args()
    if not re.fullmatch(r"\w+", arguments.table):
        parser.error("a table's name consists of letters, digits and _")
    written = there = 0
    with schemaless.connect(arguments.datastore) as store, closing(opened(arguments.source)) as source:
        for batch in batches(source, arguments.table):
            puts = store.put_cells(batch, look_first=True)
            written += sum(each.created for each in puts)
            there += sum(not each.created for each in puts)
            print(f"{written:,} written, {there:,} there before", end="\r", file=sys.stderr)
    print(f"{written:,} written, {there:,} there before")
    return 0


def batches(source: pymysql.Connection, table: str) -> Iterator[list[schemaless.NewCell]]:
    """Yield the rows of a table as batches of new cells, in the order of the primary key."""
    sql = f"SELECT id, doc, created_at FROM `{table}` WHERE id > %s ORDER BY id LIMIT {BATCH}"  # noqa: S608 - checked
    last = 0
    while True:
        with source.cursor() as cursor:
            cursor.execute(sql, (last,))
            rows: tuple[tuple[Any, ...], ...] = cursor.fetchall()
        if not rows:
            return
        yield [cell_of(*row) for row in rows]
        last = rows[-1][0]


def cell_of(order_id: int, text: str, created_at: Any) -> schemaless.NewCell:
    """Return a row as a new cell; the column has no time zone, so UTC is added."""
    row_key = uuid.uuid5(ORDERS, str(order_id))
    return schemaless.NewCell(row_key, COLUMN, 1, json.loads(text), created_at.replace(tzinfo=UTC))


def opened(url: str) -> pymysql.Connection:
    """Connect to the source with its timestamps in UTC."""
    parts = urlsplit(url)
    options: dict[str, Any] = {name: values[0] for name, values in parse_qs(parts.query).items()}
    if parts.hostname:
        options |= {"host": parts.hostname, "port": parts.port or 3306}
    return pymysql.connect(
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        database=parts.path.strip("/"),
        charset="utf8mb4",
        init_command="SET time_zone = '+00:00'",
        **options,
    )


if __name__ == "__main__":
    sys.exit(main())
