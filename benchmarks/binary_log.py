"""What a migration writes to the binary log, for each way of logging it.

    python benchmarks/binary_log.py [--documents N] [--rows N]

Legacy bodies are replaced with the statement that a migration uses, ``--rows`` bodies per statement. Before the next
way is measured, the old bodies are restored without logging. Documents: the demo's aircraft logbooks, about 19 KB of
JSON each, and the flights in them, about 300 bytes each.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import closing

from sqlalchemy import make_url
from store import flights

import schemaless
from schemaless import NewStoredCell
from schemaless.base.keys import row_key_for
from schemaless.bench.logbooks import documents as logbook_documents
from schemaless.codec.recode import recode
from schemaless.ops.migrate.archive import digest_of
from schemaless.ops.migrate.binlog_cost import binary_log_in_force, binary_log_point, bytes_between, predicted_bytes
from schemaless.ops.migrate.sql import update_bodies
from schemaless.store.internals import internals_of
from schemaless.testing.servers import private_servers
from schemaless.wire.connection import Connection

WAYS = {
    "mysql": {
        "as it comes": "",
        "with the text of statements": "binlog_rows_query_log_events=ON",
        "NOBLOB": "binlog_row_image=NOBLOB",
        "MINIMAL": "binlog_row_image=MINIMAL",
        "FULL, compressed": "binlog_transaction_compression=ON",
        "format MIXED": "binlog_format=MIXED",
        "format STATEMENT": "binlog_format=STATEMENT",
    },
    "mariadb": {
        "as it comes": "",
        "without the text of statements": "binlog_annotate_row_events=OFF",
        "NOBLOB, with the text": "binlog_row_image=NOBLOB",
        "NOBLOB": "binlog_row_image=NOBLOB, binlog_annotate_row_events=OFF",
        "MINIMAL": "binlog_row_image=MINIMAL, binlog_annotate_row_events=OFF",
        "format MIXED": "binlog_format=MIXED",
        "format STATEMENT": "binlog_format=STATEMENT",
    },
}


def main() -> None:
    """Measure on both kinds of servers and print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=400, help="logbooks, and as many times 10 flights")
    parser.add_argument("--rows", type=int, default=100, help="of one UPDATE")
    options = parser.parse_args()
    logbooks = [logbook.body for logbook in logbook_documents(limit=options.documents)]
    sets = {"logbooks": logbooks, "flights": flights(logbooks)[: 10 * options.documents]}
    for flavour, ways in WAYS.items():
        with private_servers(flavour, 1) as (server,):
            print(f"{flavour} {server.version}, UPDATEs of {options.rows} rows")
            for name, documents in sets.items():
                url = schemaless.create(name, 1, [server.url])
                cells = [
                    NewStoredCell(row_key_for(f"{name} {number}"), "BASE", 1, json.dumps(document).encode())
                    for number, document in enumerate(documents)
                ]
                measure(url, cells, ways, options.rows)
        print()


def measure(url: str, cells: Sequence[NewStoredCell], ways: dict[str, str], rows: int) -> None:
    """Print what each way of logging writes for these cells."""
    name = str(make_url(url).database)
    with closing(schemaless.connect(url)) as store:
        store.put_stored_cells(cells)
        stored = [(cell.added_id, cell.body, recode(cell.body).body) for cell in store.scan_shard(0)]
        before = sum(len(old) for _, old, _ in stored)
        after = sum(len(new) for _, _, new in stored)
        print(f"\n{len(stored):,} {name}: {before:,} bytes of legacy text, {after / before:.3f} of that afterwards")
        print(f"{'':32}{'row image':>10}{'bytes':>13}{'of legacy':>11}{'a row beside bodies':>21}{'predicted':>11}")
        back = [(added_id, new, old) for added_id, old, new in stored]
        for way, settings in ways.items():
            with (
                internals_of(store)
                .shards.pool_for(internals_of(store).topology.clusters[0].primary)
                .connection() as connection
            ):
                connection.unfinished = True  # its settings must not affect others
                if settings:
                    connection.execute(f"SET SESSION {settings}".encode())
                start = binary_log_point(connection)
                replace(connection, internals_of(store).shards.database(0), stored, rows)
                end = binary_log_point(connection)
                assert start is not None
                assert end is not None
                written = bytes_between(connection, start, end)
                assert written is not None
                log = binary_log_in_force(connection)
                # A migration leaves MINIMAL and statement text as they are, and predicts neither.
                predicted = predicted_bytes(len(stored), before, after, full_images=log.row_image == "FULL")
                bodies = after + (before if log.row_image == "FULL" and log.by_rows else 0)
                print(
                    f"{way:32}{log.row_image if log.by_rows else '':>10}{written:13,}{written / before:11.3f}"
                    f"{(written - bodies) / len(stored):21.0f}{predicted / written:11.3f}",
                    flush=True,
                )
                connection.execute(b"SET SESSION sql_log_bin=0")
                replace(connection, internals_of(store).shards.database(0), back, rows)


def replace(connection: Connection, database: str, changes: Sequence[tuple[int, bytes, bytes]], rows: int) -> None:
    """Replace bodies; a change is an added_id, the stored body and the new one."""
    for chunk in chunks(changes, rows):
        done = connection.execute(update_bodies(database, [(place, digest_of(old), new) for place, old, new in chunk]))
        assert done.affected == len(chunk), done


def chunks(changes: Sequence[tuple[int, bytes, bytes]], rows: int) -> Iterator[Sequence[tuple[int, bytes, bytes]]]:
    """Yield this many changes at a time."""
    for start in range(0, len(changes), rows):
        yield changes[start : start + rows]


if __name__ == "__main__":
    main()
