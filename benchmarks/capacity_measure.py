"""How close a measurement is to a full count, and what it reads.

    python benchmarks/capacity_measure.py accuracy [--histories 4] [--runs 25] [--flavour mysql]
    python benchmarks/capacity_measure.py cost [--cells 30000] [--times 100] [--flavour mysql mariadb]
    python benchmarks/capacity_measure.py pages [--flavour mysql mariadb]

accuracy: datastores of 16 shards with 180 days of synthetic history (_past_writes.py: growth, weekdays, noise, two
columns, gaps among added_ids in proportion to size), each counted in full by SQL and then measured repeatedly, each
time with another seed. For each figure: in how many runs its 95 % interval contained the count, half its width, and the
error of its middle (median and worst). Figures of single shards and days are pooled. Finally all tables are rebuilt,
and the predicted sizes of their files are compared with the actual ones.

cost: the same measurement of a datastore and of one with ``--times`` times as many cells: rows and pages that the
server read during it (Handler_read_*, Innodb_buffer_pool_read_requests and _reads of the whole server; nothing else ran
on it).

pages: how many pages of 2,000 cells of 16 KB the server reads for each column; just for its length, it reads a whole
body.
"""

from __future__ import annotations

import argparse
import statistics
import time
import uuid
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime

from _past_writes import Column, PastWrites, cells, write

from schemaless.base.numbers import Interval, added
from schemaless.cell import NewStoredCell
from schemaless.ops.admin.create import create
from schemaless.ops.migrate.sql import rebuild_table
from schemaless.planning.capacity.measure import measure
from schemaless.planning.capacity.measurement import Measurement
from schemaless.planning.sampling.table_sizes import cell_table_sizes
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.store.opening import connect
from schemaless.testing.servers import private_servers

SHARDS = 16
COLUMNS = (
    Column("BASE", 700, 1_800, 0.7, weekend_share=0.55, legacy_days=90),
    Column("NOTES", 250, 500, 1.2),
)
Key = tuple[object, ...]


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["accuracy", "cost", "pages"])
    parser.add_argument("--histories", type=int, default=4)
    parser.add_argument("--runs", type=int, default=25, help="for each history")
    parser.add_argument("--cells", type=int, default=30_000)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--flavour", nargs="*", default=["mysql"])
    arguments = parser.parse_args()
    for flavour in arguments.flavour:
        with private_servers(flavour, 1) as (server,):
            print(f"{flavour} {server.version}")
            if arguments.what == "accuracy":
                accuracy(server.url, arguments.histories, arguments.runs)
            elif arguments.what == "cost":
                cost(server.url, arguments.cells, arguments.times)
            else:
                pages(server.url)


# ---- accuracy


@dataclass
class Seen:
    """Results of one figure over the runs."""

    inside: int = 0
    of: int = 0
    widths: list[float] = field(default_factory=list)
    off: list[float] = field(default_factory=list)

    def add(self, estimate: Interval, counted: float) -> None:
        """Add one run."""
        self.of += 1
        self.inside += estimate.low - 0.5 <= counted <= estimate.high + 0.5
        if counted:
            self.widths.append((estimate.high - estimate.low) / 2 / counted)
            self.off.append(abs(estimate.mid / counted - 1))


def accuracy(server: str, histories: int, runs: int) -> None:
    """Count, measure, compare."""
    figures: defaultdict[str, Seen] = defaultdict(Seen)
    found: Measurement | None = None
    started = time.monotonic()
    for number in range(histories):
        history = PastWrites(number + 1, 180, datetime.now(UTC).date(), COLUMNS)
        with connect(create(f"h{number}", SHARDS, [server])) as store:
            count = write(store, history)
            truth = counted(store, history)
            said = []
            for run in range(runs):
                found = measure(store, seed=1_000 * number + run, trials=False)
                compare(found, truth, figures)
                said.append(added(space.rebuilt_bytes for space in found.clusters if space.rebuilt_bytes is not None))
            files = rebuilt(store)
            for each in said:
                figures["files, rebuilt"].add(each, files)
        print(
            f"history {number + 1}: {count:,} cells, {truth['body_bytes',] / 1e6:,.0f} MB of bodies; measured {runs} "
            f"times, the last one {found.rows_read:,} rows, {found.pages_read:,} pages, {found.seconds:.1f} s"
            if found
            else "",
            flush=True,
        )
    print(f"{'figure':32}{'within':>15}{'half width':>12}{'off, median':>13}{'worst':>8}")
    for name, seen in figures.items():
        print(
            f"{name:32}{f'{seen.inside:,} of {seen.of:,}':>15}{statistics.median(seen.widths):12.1%}"
            f"{statistics.median(seen.off):13.1%}{max(seen.off):8.1%}"
        )
    print(f"{time.monotonic() - started:,.0f} s in all")


def counted(store: Datastore, history: PastWrites) -> dict[Key, float]:
    """Count everything: cells and bodies by SQL, JSON text as it was made."""
    truth: defaultdict[Key, float] = defaultdict(float)
    for shard in range(store.shard_count):
        table = b"`%b`.cell" % internals_of(store).shards.database(shard).encode()
        rows = internals_of(store).shards.rows(
            shard,
            b"SELECT column_name, SUBSTRING(body,1,1)=x'C1', DATE(created_at), COUNT(*), SUM(LENGTH(body)) FROM %b "
            b"GROUP BY 1, 2, 3" % table,
        )
        for column, enveloped, day, count, size in rows:
            for key in ((), (column,), (column, "new" if enveloped else "legacy"), (shard,), (day, column)):
                truth["cells", *key] += int(count)
                truth["body_bytes", *key] += int(size)
    for made in cells(history, store.shard_count):
        truth["json_bytes",] += made.text_bytes
        truth["json_bytes", made.column_name] += made.text_bytes
    return truth


def rebuilt(store: Datastore) -> int:
    """Rebuild every shard's table; return the size of the files afterwards."""
    names = [internals_of(store).shards.database(shard) for shard in range(store.shard_count)]
    for shard, name in enumerate(names):
        internals_of(store).shards.execute(shard, rebuild_table(name))
    pool = internals_of(store).shards.pool_for(internals_of(store).shards.node_of(0))
    return sum(size.file_bytes for size in cell_table_sizes(pool, names).values())


def compare(found: Measurement, truth: dict[Key, float], figures: defaultdict[str, Seen]) -> None:
    """Compare a measurement with a full count."""
    for what in ("cells", "body_bytes", "json_bytes"):
        figures[f"{what}, all"].add(added(getattr(each, what) for each in found.groups), truth[what,])
        for column in found.column_names:
            groups = [each for each in found.groups if each.column_name == column]
            figures[f"{what}, {column}"].add(added(getattr(each, what) for each in groups), truth[what, column])
    for what in ("cells", "body_bytes"):
        old = [each for each in found.groups if each.codec == "legacy"]
        figures[f"{what}, BASE legacy"].add(added(getattr(each, what) for each in old), truth[what, "BASE", "legacy"])
        for shard in range(found.shard_count):
            groups = [each for each in found.groups if each.shard == shard]
            figures[f"{what}, of a shard"].add(added(getattr(each, what) for each in groups), truth[what, shard])
        for each in found.growth:
            figures[f"{what}, {each.column_name}, of a day"].add(
                getattr(each, what), truth[what, each.day, each.column_name]
            )


# ---- cost


def cost(server: str, count: int, times: int) -> None:
    """Measure a datastore and one with many times the cells."""
    print(f"{'cells':>12}{'rows read':>11}{'pages':>9}{'from disk':>11}{'said: rows':>12}{'pages':>8}{'seconds':>9}")
    for cells_in_all in (count, count * times):
        days = 180
        a_day = cells_in_all / days / 1.45
        columns = (Column("BASE", a_day, 260, 0.6, 0.6), Column("NOTES", a_day / 8, 160, 0.8))
        history = PastWrites(1, days, datetime.now(UTC).date(), columns)
        with connect(create(f"c{cells_in_all}", SHARDS, [server]), read_timeout_s=600) as store:
            written = write(store, history)
            measure(store, seed=1, trials=False)
            before = status(store)
            found = measure(store, seed=2, trials=False)
            rows, asked, read = (after - was for after, was in zip(status(store), before, strict=True))
        print(
            f"{written:12,}{rows:11,}{asked:9,}{read:11,}{found.rows_read:12,}{found.pages_read:8,}{found.seconds:9.2f}",
            flush=True,
        )


# ---- pages


def pages(server: str) -> None:
    """Select columns of the same rows, one after the other, and print the pages read for each."""
    with connect(create("pages", 1, [server])) as store:
        body = b'"%b"' % (b"x" * 15_998)
        for _ in range(10):
            batch = [NewStoredCell(uuid.uuid4(), "BASE", 1, body) for _ in range(200)]
            store.put_stored_cells(batch, trusted=True)
        print(f"{'of 2,000 cells of 16,000 bytes':34}{'pages':>8}")
        for asked in ("created_at", "column_name", "LENGTH(body)", "SUBSTRING(body,1,2)", "body"):
            sql = f"SELECT {asked} FROM pages_0000.cell FORCE INDEX (PRIMARY)".encode()
            internals_of(store).shards.rows(0, sql)  # first, let the server finish with what was just written
            before = status(store)[1]
            internals_of(store).shards.rows(0, sql)
            print(f"{asked:34}{status(store)[1] - before:8,}")


def status(store: Datastore) -> tuple[int, int, int]:
    """Return rows, pages asked for and pages read from disk, by all sessions since the server's start."""
    rows = internals_of(store).catalog.run(lambda connection: connection.rows(b"SHOW GLOBAL STATUS"))
    values = {str(name): value for name, value in rows}
    handlers = sum(int(value) for name, value in values.items() if name.startswith("Handler_read_"))
    return (
        handlers,
        int(values["Innodb_buffer_pool_read_requests"]),
        int(values["Innodb_buffer_pool_reads"]),
    )


if __name__ == "__main__":
    main()
