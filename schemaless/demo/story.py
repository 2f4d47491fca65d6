"""The demo's steps, from empty servers to reclaimed bytes."""

from __future__ import annotations

import itertools
import shlex
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from schemaless.base.events import only
from schemaless.base.numbers import bytes_text, counted
from schemaless.bench.logbooks import fetch
from schemaless.cell import Cell
from schemaless.demo.capacity import DAYS
from schemaless.demo.capacity import report as capacity_report
from schemaless.errors import InvalidInput, SchemalessError
from schemaless.local import servers as local_servers
from schemaless.ops.admin.create import create
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.migrate.rebuild import run as rebuild
from schemaless.ops.migrate.reclaimed import reclaimed_report
from schemaless.ops.migrate.run import run as migrate
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.migrate.verify import Fault, check
from schemaless.planning.sampling.table_sizes import TableSize, cell_table_sizes, used_page_bytes
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.store.opening import connect
from schemaless.ui.pages.capacity_words import answer
from schemaless.ui.pages.reclaimed_page import reclaimed_html
from schemaless.ui.terminal.files import write_whole
from schemaless.ui.terminal.output import EXIT_FAILED, estimate_text, note, out, progress

if TYPE_CHECKING:
    from schemaless.planning.capacity.report import CapacityReport
from schemaless.demo.documents import check_file, load_file, load_logbooks
from schemaless.demo.gain import Size, command_name, next_steps, show_days, show_gain
from schemaless.demo.index_and_trigger import show as show_index_and_trigger

_NAME = "demo"

_SHARDS = 2
"""Number of shards. A rebuilt file keeps about 6 MiB free, which would dominate the figures with more shards."""

_SERVERS = 2

_READS = 200


def run(data: Path | None, row_key: str, ref_key: str, flavour: str, folder: Path, codec: str) -> int:
    """Run the demo, and return the exit status.

    Args:
        data: an NDJSON file; None for the built-in logbooks.
        row_key: expression for the row_key of each document.
        ref_key: expression for the ref_key of each document.
        flavour: ``"mysql"`` or ``"mariadb"``.
        folder: data directory of the servers; existing contents are deleted.
        codec: the codec to re-encode to.
    """
    if data is not None:
        # Check the file before deleting the data of an earlier demo.
        check_file(data, row_key, ref_key)
    with _report_leftovers(folder) as leaves:
        return _steps(data, row_key, ref_key, flavour, folder, codec, leaves)


def _steps(
    data: Path | None, row_key: str, ref_key: str, flavour: str, folder: Path, codec: str, leaves: Callable[[str], None]
) -> int:
    """Run the steps; ``leaves`` records a sentence about what is left if the demo is interrupted from then on."""
    started = time.monotonic()
    leaves(f"an earlier demo in {folder} may be partly deleted")
    local_servers.down(folder, delete=True, report=note)
    leaves(f"{folder} may contain servers without data")
    _step(f"1. two private {flavour} servers in {folder}")
    with ThreadPoolExecutor(1) as background:
        fetched = background.submit(fetch, report=note) if data is None else None
        servers = local_servers.up(folder, _SERVERS, flavour, report=note, progress=progress)
    if fetched is not None:
        fetched.result()
    out().print(f"   {servers[0].flavour} {servers[0].version}, on sockets, without root or Docker")

    leaves(f"the servers in {folder} are running, with an incomplete datastore")
    _step(f"2. a datastore of {_SHARDS} shards on both servers")
    url = create(_NAME, _SHARDS, [server.url for server in servers])
    out().print(f"   {url}")

    leaves(f"the servers in {folder} are running, with the documents loaded so far")
    with connect(url) as store:
        _step("3. load the documents as legacy JSON text, like data that has been stored for years")
        with _timed() as seconds:
            loaded = load_logbooks(store) if data is None else load_file(store, data, row_key, ref_key)
        cells = loaded.created
        if not cells:
            raise InvalidInput(f"--data: no document of {data} could be loaded")
        mean = loaded.body_bytes / cells
        out().print(
            f"   {cells:,} cells, {loaded.body_bytes:,} body bytes, {mean:,.0f} on average, in {seconds():.1f} s"
        )
        out().print(f"   with invented times: the last {DAYS} days, with a weekly pattern, growth and noise")
        before = _sizes(store)

        _step("4. read some back through the library")
        with _timed() as seconds:
            read = _read_back(store)
        out().print(f"   {len(read)} cells by key in {seconds() * 1000:.0f} ms")

        _step("5. measure, and forecast when disks one and a half times as large as the files would be full")
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
        out().print(f"   second run: {again.cells} cells to re-encode")
        changed = sum(store.get_cell(*cell.key) != cell for cell in read)
        out().print(
            f"   the {len(read)} cells of step 4 read again: {changed} differ in document, added_id or created_at"
        )

        _step("7. check every cell")
        with _timed() as seconds:
            checked = check(store, listener=only(Fault, lambda fault: note(str(fault))))
        verdict = "clean" if not checked.faults else counted(checked.faults.total(), "fault")
        codecs = ", ".join(f"{count:,} {name}" for name, count in checked.by_codec.most_common())
        out().print(f"   {verdict}: {checked.cells:,} cells decoded in {seconds():.1f} s ({codecs})")
        after = _sizes(store)

        _step("8. rebuild the tables online, to return free space to the disk")
        with _timed() as seconds:
            rebuilt = rebuild(store)
        done = sum(shard.state == "done" for shard in rebuilt)
        out().print(f"   {done} of {len(rebuilt)} tables rebuilt in {seconds():.1f} s, one at a time on each server")
        last = _sizes(store)
        predicted = None if outlook is None or outlook.after is None else outlook.after.file_bytes
        if predicted is not None:
            files = estimate_text(predicted, bytes_text)
            out().print(f"   file size {bytes_text(last.files.file_bytes)}; step 5 predicted {files}")
        page = folder.absolute() / "report.html"
        job = JobStore(store).job(report.job_id)
        write_whole(page, reclaimed_html(reclaimed_report(store, job, datetime.now(UTC))))

        if data is None:
            _step("9. query logbooks by their contents, and count the flights of each airline with a trigger")
            show_index_and_trigger(store)

    _step("Result")
    show_gain(report, before, after, last)
    show_days(report)
    out().print(f"\nReport with charts, by cluster, shard and column: {page}")
    out().print(f"\nThe demo took {time.monotonic() - started:.0f} s. The servers keep running; commands to try:\n")
    for line in next_steps(url, folder, data is None):
        out().print(f"   {line}", soft_wrap=True)
    if outlook is not None:
        out().print(f"\nCapacity report, before and after re-encoding: {folder.absolute() / 'capacity.html'}")
    return EXIT_FAILED if checked.faults or total.left or changed else 0


def _capacity(store: Datastore, codec: str, file: Path) -> CapacityReport | None:
    """Write the capacity report, print when a disk will be full, and return it; None if it cannot be made."""
    try:
        report = capacity_report(store, codec, file)
    except SchemalessError as error:
        note(f"   no capacity report: {error}")
        return None
    now = answer(report.now)
    out().print(f"   time until a disk is full, with JSON text: {now.days}. {now.detail}")
    if report.after is not None:
        out().print(f"   with {report.codec}, rebuilt: {answer(report.after).days}")
        if report.after.file_bytes is not None:
            files = estimate_text(report.after.file_bytes, bytes_text)
            out().print(f"   predicted file size: {files}")
    return report


@contextmanager
def _report_leftovers(folder: Path) -> Iterator[Callable[[str], None]]:
    """Yield a function that records the current state, which is reported, with what to do next, if the block fails."""
    state = "nothing was changed"

    def now(text: str) -> None:
        nonlocal state
        state = text

    try:
        yield now
    except (KeyboardInterrupt, SchemalessError):
        note(
            f"the demo did not finish: {state}. Run the same command to start over, or delete the servers with: "
            f"{command_name()} local down --delete --folder {shlex.quote(str(folder))}"
        )
        raise


def _step(text: str) -> None:
    out().print(f"\n{text}", style="bold")


@contextmanager
def _timed() -> Iterator[Callable[[], float]]:
    """Yield a function that returns the seconds since the block began or, after the block, its duration."""
    started = time.monotonic()
    ended: float | None = None
    yield lambda: (time.monotonic() if ended is None else ended) - started
    ended = time.monotonic()


def _read_back(store: Datastore) -> list[Cell]:
    """Read several cells of each shard by key."""
    return [
        cell
        for shard in range(store.shard_count)
        for stored in itertools.islice(store.scan_shard(shard), _READS // store.shard_count + 1)
        if (cell := store.get_cell(*stored.key)) is not None
    ]


def _sizes(store: Datastore) -> Size:
    internals = internals_of(store)
    files, used_bytes = TableSize(0, 0), 0
    for cluster in internals.topology.clusters:
        databases = [internals.shards.database(shard) for shard in internals.topology.shards_of(cluster.name)]
        pool = internals.shards.pool_for(cluster.primary)
        files = sum(cell_table_sizes(pool, databases).values(), files)
        used_bytes += sum(used_page_bytes(pool, databases).values())
    return Size(files, used_bytes)
