"""``schemaless demo``: the main job on real data, from empty servers to reclaimed bytes."""

from __future__ import annotations

import itertools
import shlex
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from schemaless.bench.logbooks import COLUMN, DEMO_DOCUMENTS, documents
from schemaless.capacity.model import GB, TB, Plan, days_until_full
from schemaless.cell import Cell, CellKey, NewStoredCell, cell_key
from schemaless.cli.capacity_text import answer
from schemaless.cli.demo_capacity import DAYS, times
from schemaless.cli.demo_capacity import report as capacity_report
from schemaless.cli.files import write_whole
from schemaless.cli.options import codec_option, ref_key_in, row_key_in
from schemaless.cli.output import EXIT_FAILED, bytes_text, estimate_text, line_break, note, out, print_table, progress
from schemaless.cli.report_page import page as report_page
from schemaless.codec.lines import open_lines
from schemaless.codec.registry import LEGACY
from schemaless.errors import CorruptBody, InvalidCell, InvalidInput, SchemalessError
from schemaless.jobs.check import check
from schemaless.jobs.ledger import Ledger
from schemaless.jobs.load import LoadReport, document_reader, load
from schemaless.jobs.migrate import run as migrate
from schemaless.jobs.migrate_spec import MigrateSpec
from schemaless.jobs.rebuild import run as rebuild
from schemaless.jobs.space import report as space_report
from schemaless.jobs.tally import MigrateReport
from schemaless.local import servers as local_servers
from schemaless.mysql.sizes import TableSize, cell_table_sizes
from schemaless.store.create import create
from schemaless.store.datastore import Datastore, connect

if TYPE_CHECKING:
    from schemaless.capacity.report import Report

_NAME = "demo"
_SHARDS = 16
_SERVERS = 2
_DOCUMENTS_PER_DAY = 1_000_000
_READS = 200


@click.command()
@click.option("--data", type=click.Path(path_type=Path), metavar="FILE", help="NDJSON of your own, plain or gzipped.")
@click.option(
    "--row-key", metavar="EXPR", default="@line", show_default=True, help="With --data: as in 'schemaless load'."
)
@click.option(
    "--ref-key", metavar="EXPR", default="=1", show_default=True, help="With --data: as in 'schemaless load'."
)
@click.option("--flavour", type=click.Choice(["mysql", "mariadb"]), default="mysql", show_default=True)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path(".schemaless") / "demo",
    show_default=True,
    help="Where the two servers keep their data; emptied at the start.",
)
@codec_option("--to", legacy=False, help_text="What to re-encode to.")
def demo(data: Path | None, row_key: str, ref_key: str, flavour: str, folder: Path, codec: str) -> int:
    """The whole story on 2,219 real documents.

    Starts two private servers, creates a datastore of 16 shards on them, loads the logbooks of aircraft that left New
    York in 2013 as legacy JSON text, reads some back, says how long disks would last, re-encodes all of them, checks
    every cell, and says what that gained. The servers go on running afterwards, for you to look around.

    \b
    Examples:
      schemaless demo
      schemaless demo --data trips.ndjson.gz --row-key trip.uuid
    """
    if data is not None:
        # Before anything of an earlier demo is deleted.
        _check_file(data, row_key, ref_key)
    with _says_what_is_left(folder) as left:
        return _run(data, row_key, ref_key, flavour, folder, codec, left)


def _run(
    data: Path | None, row_key: str, ref_key: str, flavour: str, folder: Path, codec: str, left: Callable[[str], None]
) -> int:
    """Run the steps; ``left`` takes what would be there if it ended now."""
    started = time.monotonic()
    left(f"an earlier demo in {folder}, if there was one, is deleted or half deleted")
    local_servers.down(folder, delete=True, report=note)
    left(f"servers in {folder} may be there, without data")
    _step(f"1. two private {flavour} servers in {folder}")
    servers = local_servers.up(folder, _SERVERS, flavour, report=note, progress=progress)
    out().print(f"   {servers[0].flavour} {servers[0].version}, on sockets, no root, no Docker")

    left(f"the servers in {folder} go on running, with a datastore that is not whole")
    _step(f"2. a datastore of {_SHARDS} shards over both")
    url = create(_NAME, _SHARDS, [server.url for server in servers])
    out().print(f"   {url}", markup=False)

    left(f"the servers in {folder} go on running, with what was loaded so far")
    with connect(url) as store:
        _step("3. load the documents as legacy JSON text, as they would have been stored for years")
        with _timed() as seconds:
            loaded = _load_logbooks(store) if data is None else _load_file(store, data, row_key, ref_key)
        cells = loaded.created
        if not cells:
            raise InvalidInput(f"--data: no document of {data} could be loaded")
        mean = loaded.body_bytes / cells
        out().print(
            f"   {cells:,} cells, {loaded.body_bytes:,} body bytes, {mean:,.0f} on average, in {seconds():.1f} s"
        )
        out().print(f"   their created_at is made up: the last {DAYS} days, with weeks, growth and noise")
        before = _sizes(store)

        _step("4. read some back through the library")
        with _timed() as seconds:
            read = _read_back(store)
        out().print(f"   {len(read)} cells by key in {seconds() * 1000:.0f} ms")

        _step("5. measure, forecast the growth, and say how long disks half as large again would last")
        with _timed() as seconds:
            outlook = _capacity(store, codec, folder.absolute() / "capacity.html")
        out().print(f"   in {seconds():.1f} s")

        _step(f"6. re-encode every body to {codec}, in place, each verified by decoding it again")
        with _timed() as seconds:
            report = migrate(store, MigrateSpec(codec))
        total = report.total()
        rate = total.bytes_before / max(seconds(), 1e-9) / 1_000_000
        out().print(f"   {total.cells:,} cells in {seconds():.1f} s, {rate:.1f} MB of legacy text a second")
        again = migrate(store, MigrateSpec(codec)).total()
        out().print(f"   run a second time: {again.cells} cells to do")
        changed = sum(store.get_cell(*cell.key) != cell for cell in read)
        out().print(
            f"   the {len(read)} cells of step 4 read again: {changed} differ in document, added_id or created_at"
        )

        _step("7. check every cell")
        with _timed() as seconds:
            checked = check(store, on_fault=lambda fault: note(str(fault)))
        verdict = "clean" if not checked.faults else f"{checked.faults.total()} faults"
        codecs = ", ".join(f"{count:,} {name}" for name, count in checked.by_codec.most_common())
        out().print(f"   {verdict}: {checked.cells:,} cells decoded in {seconds():.1f} s ({codecs})")
        after = _sizes(store)

        _step("8. rebuild the tables, online, so that the files give back what is free")
        with _timed() as seconds:
            rebuilt = rebuild(store)
        done = sum(shard.state == "done" for shard in rebuilt)
        out().print(f"   {done} of {len(rebuilt)} tables rebuilt in {seconds():.1f} s, one at a time on each server")
        last = _sizes(store)
        predicted = None if outlook is None or outlook.after is None else outlook.after.file_bytes
        if predicted is not None:
            files = estimate_text(predicted, bytes_text)
            out().print(f"   their files have {bytes_text(last.file_bytes)}; step 5 said {files}", markup=False)
        page = folder.absolute() / "report.html"
        job = Ledger(store.catalog, store.name).job(report.job_id)
        write_whole(page, report_page(space_report(store, job, datetime.now(UTC))))

    _step("What it gained")
    _show_gain(report, before, after, last)
    _show_days(report)
    out().print(f"\nWith pictures, by cluster, shard and column: {page}", markup=False)
    out().print(f"\nAll of it took {time.monotonic() - started:.0f} s. The servers go on running. Look around:\n")
    for line in _next_steps(url, folder, data is None):
        out().print(f"   {line}", markup=False, soft_wrap=True)
    if outlook is not None:
        out().print(
            f"\nHow long the disks last, before it was re-encoded and after: {folder.absolute() / 'capacity.html'}"
        )
    return EXIT_FAILED if checked.faults or total.left or changed else 0


def _capacity(store: Datastore, codec: str, file: Path) -> Report | None:
    """Make the capacity report and print its answer; None where the extra [report] is not installed."""
    try:
        found = capacity_report(store, codec, file)
    except SchemalessError as error:
        note(f"   no capacity report: {error}")
        return None
    now = answer(found.now)
    out().print(f"   full as it is: {now.days}. {now.detail}", markup=False)
    if found.after is not None:
        out().print(f"   as {found.codec}, rebuilt: {answer(found.after).days}", markup=False)
        if found.after.file_bytes is not None:
            files = estimate_text(found.after.file_bytes, bytes_text)
            out().print(f"   their files would have {files} then", markup=False)
    return found


@contextmanager
def _says_what_is_left(folder: Path) -> Iterator[Callable[[str], None]]:
    """Give a function that takes the state of things; left early, the block says the last one and what to run."""
    state = "nothing was changed"

    def now(text: str) -> None:
        nonlocal state
        state = text

    try:
        yield now
    except (KeyboardInterrupt, SchemalessError):
        note(
            f"the demo did not come to its end: {state}. Run the same command again to begin anew, or, to be "
            f"rid of it: {_command(folder)} local down --delete --folder {shlex.quote(str(folder))}"
        )
        raise


def _step(text: str) -> None:
    out().print(f"\n[bold]{text}[/]")


@contextmanager
def _timed() -> Iterator[Callable[[], float]]:
    """Give a function that returns the seconds since the block began, or that it took."""
    started = time.monotonic()
    ended: float | None = None
    yield lambda: (time.monotonic() if ended is None else ended) - started
    ended = time.monotonic()


def _load_logbooks(store: Datastore) -> LoadReport:
    logbooks = documents(limit=DEMO_DOCUMENTS, report=note)
    keys: dict[int, CellKey] = {}
    at = times(DEMO_DOCUMENTS)

    def lines() -> Iterable[bytes]:
        for number, logbook in enumerate(logbooks, start=1):
            keys[number] = CellKey(logbook.row_key, COLUMN, logbook.ref_key)
            yield logbook.json_text()

    def to_cell(line: bytes, number: int) -> NewStoredCell:
        key = keys.pop(number)
        return NewStoredCell(key.row_key, key.column_name, key.ref_key, line, at(number))

    with progress("   loading", DEMO_DOCUMENTS, "documents") as advance:
        return load(store, lines(), to_cell, source="logbooks", on_line=lambda size: advance(1))


def _reader(row_key: str, ref_key: str) -> Callable[[bytes, int], NewStoredCell]:
    def key_of(document: object, line: bytes, number: int) -> CellKey:
        return CellKey(row_key_in(document, row_key, line), "DOC", ref_key_in(document, ref_key, number))

    return document_reader(key_of, LEGACY)


def _check_file(path: Path, row_key: str, ref_key: str) -> None:
    """Raise InvalidInput for a file that has no line to load; reads as far as the first that can be."""
    if not path.is_file():
        raise InvalidInput(f"--data: there is no file {path}; name an NDJSON file, one JSON document a line")
    to_cell = _reader(row_key, ref_key)
    first: SchemalessError | None = None
    with path.open("rb") as raw:
        for number, line in enumerate(open_lines(raw, str(path)), start=1):
            if not line.strip():
                continue
            try:
                cell = to_cell(line.rstrip(b"\r\n"), number)
                cell_key(cell.row_key, cell.column_name, cell.ref_key)
            except (InvalidInput, InvalidCell, CorruptBody) as error:
                first = first or error
            else:
                return
    why = "" if first is None else f" that can be loaded; the first line that is none: {first}"
    raise InvalidInput(f"--data: {path} holds no document{why}")


def _load_file(store: Datastore, path: Path, row_key: str, ref_key: str) -> LoadReport:
    with path.open("rb") as raw:
        at = times(sum(1 for _ in open_lines(raw, str(path))))
    read = _reader(row_key, ref_key)
    with path.open("rb") as raw, progress("   loading", None, "documents") as advance:
        return load(
            store,
            open_lines(raw, str(path)),
            lambda line, number: replace(read(line, number), created_at=at(number)),
            source=str(path),
            keep_going=True,
            on_line=lambda size: advance(1),
            on_failure=lambda number, message: note(f"   passed over line {number}: {message}"),
        )


def _read_back(store: Datastore) -> list[Cell]:
    """Read a few cells of each shard by their keys."""
    return [
        found
        for shard in range(store.shard_count)
        for stored in itertools.islice(store.scan_shard(shard), _READS // store.shard_count + 1)
        if (found := store.get_cell(*stored.key)) is not None
    ]


def _sizes(store: Datastore) -> TableSize:
    total = TableSize(0, 0)
    for cluster in store.topology.clusters:
        databases = [store.shards.database(shard) for shard in store.topology.shards_of(cluster.name)]
        for size in cell_table_sizes(store.shards.pool_for(cluster.primary), databases).values():
            total += size
    return total


def _show_gain(report: MigrateReport, before: TableSize, after: TableSize, last: TableSize) -> None:
    total = report.total()
    share = total.bytes_after / total.bytes_before if total.bytes_before else 1.0
    print_table(
        None,
        ["", "before", "re-encoded", "rebuilt", "rebuilt / before"],
        [
            [
                "body bytes",
                f"{total.bytes_before:,}",
                f"{total.bytes_after:,}",
                f"{total.bytes_after:,}",
                f"{share:.1%}",
            ],
            [
                "allocated on disk",
                f"{before.allocated_bytes:,}",
                f"{after.allocated_bytes:,}",
                f"{last.allocated_bytes:,}",
                f"{last.allocated_bytes / before.allocated_bytes:.1%}",
            ],
        ],
    )
    out().print(f"\n[bold]{bytes_text(total.reclaimed_bytes)} of body bytes reclaimed ({1 - share:.1%}).[/]")
    out().print(
        "Re-encoding alone does not shrink the files: a tablespace grows while it is rewritten, since new bodies need"
        f"{line_break()}pages before the old ones are free, and small files like these grow in steps of some MB. What "
        f"is free then{line_break()}takes the next cells, or is given back to the disk by a rebuild."
    )
    for reason, count in total.kept_as_text.most_common():
        out().print(f"{count:,} bodies kept as JSON text, compressed: {reason}")
    for reason, count in total.left.most_common():
        out().print(f"{count:,} bodies left as they are: {reason}")


def _show_days(report: MigrateReport) -> None:
    total = report.total()
    if not total.cells:
        return

    def days(body_bytes: int, overhead_share: float) -> str:
        plan = Plan(
            documents_per_day=_DOCUMENTS_PER_DAY,
            bytes_per_document=body_bytes / total.cells,
            disk_bytes_per_host=TB,
            overhead_share=overhead_share,
        )
        return f"{days_until_full(plan):,.0f} days"

    per_day = [_DOCUMENTS_PER_DAY * size / total.cells / GB for size in (total.bytes_before, total.bytes_after)]
    out().print("\nA disk of 1 TB (1,000 GB) at a million such documents a day, by body bytes:")
    print_table(
        None,
        ["", "JSON text", report.codec],
        [
            ["bytes a day", f"{per_day[0]:.1f} GB", f"{per_day[1]:.1f} GB"],
            ["full after", days(total.bytes_before, 0), days(total.bytes_after, 0)],
            ["full after, 40 % kept for the system", days(total.bytes_before, 0.4), days(total.bytes_after, 0.4)],
        ],
    )


def _next_steps(url: str, folder: Path, logbooks: bool) -> list[str]:
    command = _command(folder)
    first = f"{command} cell history uuid5:N14228" if logbooks else f"{command} dump | head -n 1"
    return [
        f"export SCHEMALESS_URL='{url}'",
        f"{command} info --count",
        first,
        f"{command} migrate plan --to msgpack+zstd",
        f"{command} migrate status",
        f"{command} capacity report",
        f"{command} local down --delete --folder {shlex.quote(str(folder))}        # when you have seen enough",
    ]


def _command(folder: Path) -> str:
    """Return what the command line is called where the demo was started: by make, from the clone, or otherwise."""
    return "schemaless" if folder.is_absolute() else ".venv/bin/schemaless"
