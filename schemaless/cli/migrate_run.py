"""``schemaless migrate run``."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from schemaless.base.events import only, together
from schemaless.base.numbers import bytes_text, counted
from schemaless.cli.command import JSONCommand
from schemaless.cli.faults import failure_json
from schemaless.cli.job_options import JobRun, run_options
from schemaless.cli.migrate_plan import migrate_spec, rewrite_options, show_superseded
from schemaless.cli.option import option
from schemaless.errors import InvalidInput
from schemaless.ops.jobs.driver import patiently
from schemaless.ops.jobs.job import RunStarted
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.migrate.plan import plan_migration
from schemaless.ops.migrate.reclaimed import record_plan
from schemaless.ops.migrate.run import MIGRATE
from schemaless.ops.migrate.run import run as run_migration
from schemaless.ops.migrate.spec import MOST_CHUNK_MS, MigrateSpec, with_settings
from schemaless.ops.migrate.tally import MigrateOutcome, Tally
from schemaless.store.cells.column_codecs import settings
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.ui.terminal.files import unwritable_folder
from schemaless.ui.terminal.output import EXIT_FAILED, hint, note, out, print_result, print_rows, progress

_FAILURES_SHOWN = 20


@click.command(cls=JSONCommand, before=migrate_spec)
@rewrite_options
@option("--execute", "Rewrite bodies. Without this option, nothing is changed.", is_flag=True)
@option(
    "--archive DIR",
    "Save every original body in this folder before it is replaced; 'migrate restore' can put it back.",
    type=click.Path(file_okay=False, resolve_path=True),
)
@option(
    "--verify-after",
    "Before each checkpoint, read new bodies back from the primary or a replica, and compare digests.",
    type=click.Choice(["primary", "replica"]),
)
@option("--follow", "Repeat passes over each shard until no body is left to re-encode.", is_flag=True)
@run_options("Continue this job with the options that it was started with; all other options are ignored.")
@option(
    "--chunk-ms",
    "Target duration of one statement, in milliseconds.",
    type=click.IntRange(1, MOST_CHUNK_MS),
    default=200,
)
@option("--full-row-images", "Write full row images to the binary log, for its consumers.", is_flag=True)
def run(store: Datastore, spec: MigrateSpec, shards: list[int], execute: bool, how: JobRun) -> int:
    """Re-encode every body that is not in the target codec.

    The command starts a job, or continues an unfinished one with the same options. Run it on several machines to share
    the work. Ctrl-C stops at a checkpoint, and running the same command again continues from there. Bodies that cannot
    be read are left as they are and listed.

    With --history, versions that have a higher one are stored as differences from it, which often take a tenth of the
    bytes. The latest version stays whole, so the usual reads are as fast as before; older ones take one more statement.

    Without --execute, the command changes nothing. With --archive, it saves each original body before replacing it, so
    that 'migrate restore' can undo the run.

    \b
    Examples:
      schemaless migrate run --execute --archive /backup/originals
      schemaless migrate run --execute --workers 4 --max-mb-per-s 50
      schemaless migrate run --execute --to legacy            # back to JSON text
      schemaless migrate run --execute --from legacy --column BASE \\
          --to msgpack+zstd --shards 0-255
      schemaless migrate run --execute --column LOG --to msgpack+zstd \\
          --dictionary 32768
      schemaless migrate run --execute --history
      schemaless migrate run --execute --dask tcp://scheduler:8786

    Exit status: 0 if done, 1 if some bodies were left as they are, 3 if stopped; run the same command again to
    continue.
    """
    job_store = JobStore(store)
    job, spec, shards = how.resumed(MIGRATE, job_store) or (None, replace(spec, thresholds=how.thresholds), shards)
    if job is None:
        _note_settings(store, spec)
    if spec.archive is not None and how.dask is None and (reason := unwritable_folder(Path(spec.archive))) is not None:
        # Checked before the job is created. With Dask, the folder is on the workers' machines.
        raise InvalidInput(f"cannot archive originals in {spec.archive}: {reason}; name a writable folder")
    if not execute:
        _show_dry_run(store, spec, shards)
        return 0

    def predict(begun: RunStarted) -> None:
        if begun.new:
            patiently(store, partial(record_plan, store, begun.job))

    with how.options(job_store, job) as options:
        options["listener"] = together(options["listener"], only(RunStarted, predict))
        outcome = run_migration(store, spec, shards, **options)
    _show_outcome(outcome)
    return EXIT_FAILED if outcome.total().left else 0


def _note_settings(store: Datastore, spec: MigrateSpec) -> None:
    """Print a note for each column whose new cells are written in a codec other than the migration's target."""
    for setting in settings(internals_of(store).catalog, store.name):
        same = (setting.codec, setting.dictionary_id) == (spec.to, spec.dictionary)
        if not same and (not spec.columns or setting.column_name in spec.columns):
            dictionary = "" if setting.dictionary_id is None else f" with dictionary {setting.dictionary_id}"
            note(
                f"new cells of {setting.column_name} are written in {setting.codec}{dictionary}, but this migration "
                f"re-encodes to {spec.target}; to select columns or a dictionary, use --column and --dictionary"
            )


def _show_dry_run(store: Datastore, spec: MigrateSpec, shards: list[int]) -> None:
    sources = " or ".join(spec.sources) or f"any codec except {spec.target}"
    columns = ", ".join(spec.columns) or "all columns"
    out().print(
        f"would re-encode bodies in {sources} to {spec.target}: {counted(len(shards), 'shard')} of {store.name}, "
        f"{columns}"
    )
    if with_settings(store, spec).stores_deltas():
        with progress("sampling", None, "windows") as listener:
            found = plan_migration(store, spec, shards, listener=listener).all_superseded
        assert found is not None
        show_superseded(found)
    note("nothing was changed; add --execute to re-encode, or run 'schemaless migrate plan' to estimate the savings")


def _show_outcome(outcome: MigrateOutcome) -> None:
    total = outcome.total()
    print_result({"job": outcome.job_id, "to": outcome.codec, **_outcome_json(outcome)})
    if not total.cells and not total.left:
        out().print(f"nothing to do: every body is in {outcome.codec}")
        _show_exceptions(outcome, total)
        return
    rows = [
        {"shard": shard, "column": column, **_figures(tally)}
        for (shard, column), tally in sorted(outcome.tallies.items())
    ]
    print_rows("by shard and column", rows, "shards and columns", text_columns=2, most=40)
    columns = [{"column": column, **_figures(tally)} for column, tally in outcome.by_column().items()]
    print_rows("by column", columns, "columns")
    out().print(
        f"\njob {outcome.job_id} re-encoded {counted(total.cells, 'cell')} to {outcome.codec}: {total.bytes_before:,} "
        f"body bytes became {total.bytes_after:,}; [bold]{_gain(total)}[/] ({_change(total)})",
        markup=True,
    )
    if outcome.interruptions:
        note(
            f"killed runners: {outcome.interruptions}; the work of each after its last checkpoint (about a second's "
            "worth) is done but not included in these counts"
        )
    _show_exceptions(outcome, total)


def _figures(tally: Tally) -> dict[str, Any]:
    return {
        "cells": tally.cells,
        "before": bytes_text(tally.bytes_before),
        "after": bytes_text(tally.bytes_after),
        "change": _change(tally),
        "left": tally.left.total(),
    }


def _show_exceptions(outcome: MigrateOutcome, total: Tally) -> None:
    for reason, cells in total.kept_as_text.most_common():
        out().print(f"{counted(cells, 'cell')} kept as compressed JSON text: {reason}")
    for reason, cells in total.left.most_common():
        out().print(f"{cells:,} left as they are: {reason}")
    if total.cold:
        out().print(f"{counted(total.cold, 'cell')} in cold files, which stay as they are")
    if total.erased:
        out().print(f"{counted(total.erased, 'cell')} erased during the run")
    for failure in outcome.failures[:_FAILURES_SHOWN]:
        note(f"  shard {failure.shard}, cell {failure.key}: {failure.message}")
    if len(outcome.failures) > _FAILURES_SHOWN:
        hint("  ... (--json lists up to 1,000)")


def _outcome_json(outcome: MigrateOutcome) -> dict[str, Any]:
    return {
        "total": outcome.total().as_json(),
        "interruptions": outcome.interruptions,
        "tallies": [
            {"shard": shard, "column_name": column, **tally.as_json()}
            for (shard, column), tally in sorted(outcome.tallies.items())
        ],
        "failures": [failure_json(failure) for failure in outcome.failures],
    }


def _gain(tally: Tally) -> str:
    if tally.reclaimed_bytes < 0:
        return f"{bytes_text(-tally.reclaimed_bytes)} more"
    return f"{bytes_text(tally.reclaimed_bytes)} reclaimed"


def _change(tally: Tally) -> str:
    return f"{-tally.reclaimed_bytes / tally.bytes_before:+.1%}" if tally.bytes_before else "-"
