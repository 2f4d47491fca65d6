"""``schemaless erase``: erases documents and verifies that they are gone."""

from __future__ import annotations

from pathlib import Path

import click

from schemaless.base.numbers import counted
from schemaless.cli.command import JSONCommand, QueryCommand, ReadOnlyCommand
from schemaless.cli.erase_run import run, target_options, targets_of
from schemaless.cli.erase_shown import (
    entry_json,
    plan_and_show,
    print_status,
    show_status,
    show_undone,
    status_json,
    undone_json,
)
from schemaless.cli.job_options import throttle_options, workers_options
from schemaless.cli.option import option
from schemaless.cli.options import execute_option
from schemaless.errors import InvalidInput
from schemaless.ops.erasure.archives import erase_from_archives
from schemaless.ops.erasure.ledger_file import Recorded, ledger_lines, load_ledger, read_ledger, taken_text
from schemaless.ops.erasure.receipt import receipt as receipt_of
from schemaless.ops.erasure.receipt import signed
from schemaless.ops.erasure.replay import replay as replay_undone
from schemaless.ops.erasure.replay import undone
from schemaless.ops.erasure.status import status as status_of
from schemaless.ops.erasure.verify import verify as verify_erasure
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.throttle import Thresholds
from schemaless.store.datastore import Datastore
from schemaless.store.erasures.ledger import Erasure
from schemaless.store.erasures.sql import STEPS
from schemaless.store.internals import internals_of
from schemaless.ui.pages.erasure_page import erasure_page
from schemaless.ui.terminal.files import OutputFile, data_output, write_whole
from schemaless.ui.terminal.job_progress import JobProgress
from schemaless.ui.terminal.output import EXIT_FAILED, facts, note, out, print_json, print_result, print_table, progress


@click.group(commands=[run])
def erase() -> None:
    """Erase documents, verify the erasure, and repeat it after a restore.

    An erased cell keeps its key, added_id and created_at; its body becomes a tombstone with the number of the erasure.
    Every erasure is recorded in the ledger before anything is changed, and the ledger holds no documents.

    \b
    Examples:
      schemaless erase plan uuid5:N14228
      schemaless erase run uuid5:N14228 --reason gdpr-art-17 --execute
      schemaless erase status 12
    """


@erase.command(cls=QueryCommand)
@target_options
def plan(row_key: str | None, column: str | None, ref_key: int | None, keys: str | None, store: Datastore) -> None:
    """Show what an erasure would erase, and where copies may remain.

    Without COLUMN, all columns of the row are erased; without REF_KEY, all versions.

    \b
    Examples:
      schemaless erase plan 71f0c4d2-2918-44cc-a2df-000000000001
      schemaless erase plan uuid5:N14228 LOG
      schemaless erase plan --keys subject.txt --json
    """
    targets = targets_of(row_key, column, ref_key, keys)
    plan_and_show(store, targets)


@erase.command(cls=QueryCommand)
@click.argument("number", type=click.IntRange(1), required=False)
def status(number: int | None, store: Datastore) -> None:
    """Show erasures and who has not acknowledged them.

    Without NUMBER, the command lists the ledger.

    \b
    Examples:
      schemaless erase status
      schemaless erase status 12
    """
    if number is not None:
        print_status(status_of(store, number))
        return
    entries = internals_of(store).erasures.ledger.entries()
    print_result([entry_json(entry) for entry in entries])
    if not entries:
        note("nothing has been erased yet")
    else:
        headings = ["reason", "kind", "asked for by", "intended", "executed", "acknowledged", "verified", "erasure"]
        print_table(None, headings, map(_row, entries), text_columns=7)


def _row(entry: Erasure) -> list[str]:
    times = (getattr(entry, step) for step in STEPS)
    steps = ("-" if at is None else f"{at:%Y-%m-%d %H:%M:%S}" for at in times)
    return [entry.reason, entry.kind, entry.requested_by, *steps, str(entry.number)]


@erase.command(cls=QueryCommand)
@click.argument("number", type=click.IntRange(1))
@option(
    "--archive",
    "A folder of originals to search besides the migrations' own folders on this machine; may be repeated.",
    name="folders",
    type=click.Path(path_type=Path),
    multiple=True,
)
def verify(number: int, store: Datastore, folders: tuple[Path, ...]) -> int:
    """Search for what an erasure should have removed.

    The command searches the cells on primaries and replicas, index entries, parked cells, tables left by moves,
    cold files, archives on this machine, and dictionaries. It records in the ledger who has acknowledged the erasure
    and, if nothing was found, that it was verified. Anything that only a person can settle is listed as outstanding.

    \b
    Examples:
      schemaless erase verify 12
      schemaless erase verify 12 --archive /backup/originals

    Exit status: 0, or 1 if something was found or a follower has not acknowledged the erasure yet.
    """
    shards = len(internals_of(store).erasures.ledger.entry(number).shards)
    with progress("verifying", shards, "shards") as listener:
        found = verify_erasure(store, number, archive_folders=folders, listener=listener)
    print_result(
        {
            **status_json(found.status),
            "cells_verified": found.cells,
            "faults": dict(found.faults),
            "outstanding": found.outstanding,
        }
    )
    show_status(found.status)
    out().print(f"{counted(found.cells, 'cell')} verified")
    for what, count in found.faults.items():
        out().print(f"left: {what}: {count:,}")
    for what in found.outstanding:
        note(f"outstanding: {what}")
    return 0 if found.clean and found.status.state in ("acknowledged", "verified") else EXIT_FAILED


@erase.command(cls=JSONCommand)
@click.argument("folders", type=click.Path(path_type=Path), nargs=-1, required=True)
@execute_option()
def archive(folders: tuple[Path, ...], store: Datastore, execute: bool) -> int:
    """Erase the originals of erased cells from archives.

    A migration with --archive keeps the bodies that it replaces. Run this on each machine that has a part of an
    archive, after each erasure. Each file is rewritten with tombstones, and the new file then replaces the old one.

    \b
    Examples:
      schemaless erase archive /backup/originals
      schemaless erase archive /backup/originals --execute

    Exit status: 0, or 1 if a file was left unchanged because its migration has not ended.
    """
    with progress("reading", None, "files") as listener:
        files = erase_from_archives(store, folders, execute=execute, listener=listener)
    print_result([{"file": str(each.path), **facts(each, "originals", "skipped")} for each in files])
    for each in files:
        what = f"left: {each.skipped}" if each.skipped else "erased" if execute else "to erase"
        out().print(f"{each.path}: {counted(each.originals, 'original')} {what}")
    originals = counted(sum(each.originals for each in files), "original")
    out().print(f"{originals} of erased cells in {counted(len(files), 'file')}")
    return EXIT_FAILED if any(each.skipped for each in files) else 0


@erase.command(cls=JSONCommand)
@option(
    "--from FILE",
    "First add to the catalog the erasures, holds and releases of holds in this file, written by 'erase ledger'.",
    name="ledger_file",
    type=click.Path(allow_dash=True),
)
@execute_option()
@workers_options
@throttle_options
def replay(
    store: Datastore, ledger_file: str | None, execute: bool, workers: int, dask: str | None, thresholds: Thresholds
) -> None:
    """Repeat erasures after restoring a backup.

    The command finds erasures and retention runs whose cells are back, and erases those cells again; cells written
    after the erasure stay, and so do rows that were held during a retention run or are held now. Run it before
    applications use the restored datastore, and once more after a failover that lost transactions.

    If the catalog was restored, too, it lacks the latest erasures, legal holds and releases of holds: name a file
    written by 'erase ledger' after the backup. Without --execute, the command shows what would be erased after loading
    that file.

    \b
    Examples:
      schemaless erase replay
      schemaless erase replay --from ledger.ndjson --execute
    """
    recorded = Recorded()
    if ledger_file is not None:
        with click.open_file(ledger_file, "rb") as lines:
            recorded = load_ledger(store, lines) if execute else read_ledger(store, lines)
    if recorded.taken:
        raise InvalidInput(taken_text(store, recorded.taken, "nothing was changed"))
    entries = internals_of(store).erasures.ledger.entries()
    to_compare = len(entries) + (0 if execute else len(recorded.erasures))
    with progress("comparing", to_compare, "erasures") as listener:
        found = undone(store, Recorded() if execute else recorded, listener=listener)
    if execute:
        with JobProgress(JobStore(store)) as shown:
            replay_undone(store, found, thresholds, count=workers, dask=dask, listener=shown)
    print_result(
        {
            "added": len(recorded.erasures),
            "holds": [facts(hold, "row_key", "held_by", "reason", "released_at") for hold in recorded.holds],
            "executed": execute,
            "undone": [undone_json(each) for each in found],
        }
    )
    show_undone(recorded, found, executed=execute)
    unfinished = [entry.number for entry in entries if entry.kind == "range" and entry.executed_at is None]
    if unfinished:
        note(f"retention run {unfinished[-1]} has not finished; 'schemaless retention run --execute' continues it")


@erase.command(cls=ReadOnlyCommand)
def ledger(store: Datastore) -> None:
    """Write the ledger as NDJSON, to be kept apart from the backups.

    After a restore, 'erase replay --from FILE' erases again everything that the ledger lists. The file has the keys of
    erased rows and the legal holds, and no documents.

    \b
    Example:
      schemaless erase ledger > ledger.ndjson
    """
    with data_output(None) as sink:
        for line in ledger_lines(store):
            sink.write(line + b"\n")


@erase.command(cls=ReadOnlyCommand)
@click.argument("number", type=click.IntRange(1))
@option(
    "--sign KEY",
    "Sign with this Ed25519 key, a PEM file that 'openssl genpkey -algorithm ed25519' writes.",
    name="key_file",
    type=click.Path(path_type=Path),
)
@option("--html FILE", "Also write the receipt as an HTML page.", name="page", type=OutputFile(Path))
def receipt(number: int, store: Datastore, key_file: Path | None, page: Path | None) -> None:
    """Print what an erasure has removed, and what remains.

    The receipt is JSON: what is gone, what remains in binary logs, undo logs and free pages and until when, who has not
    acknowledged, which files of exports were rewritten, and which copies only their owner can delete. It has the keys
    of erased rows, and no documents. Run the command where the exports' targets can be read.

    \b
    Examples:
      schemaless erase receipt 12 > receipt.json
      schemaless erase receipt 12 --sign key.pem --html receipt.html
    """
    issued = receipt_of(store, number)
    if key_file is not None:
        issued = signed(issued, key_file)
    if page is not None:
        write_whole(page, erasure_page(issued))
    print_json(issued)
