"""``schemaless migrate``: the verbs that run a migration and steer it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from schemaless.cli.archive import finalise, verify
from schemaless.cli.jobs import (
    JobProgress,
    chosen_job,
    job_option,
    show_status,
    thresholds_text,
    throttle_changes,
    throttle_options,
    workers_options,
)
from schemaless.cli.options import open_store, shards_of, url_option, what_options
from schemaless.cli.plan import plan
from schemaless.cli.report import report as space_report
from schemaless.cli.restore import restore
from schemaless.errors import InvalidInput, JobConflict
from schemaless.jobs.job import Job, check_goes_on, go_on_command
from schemaless.jobs.ledger import Ledger
from schemaless.jobs.names import who
from schemaless.jobs.status import status_of
from schemaless.jobs.throttle import Thresholds
from schemaless.migrate.reclaimed import note_prediction
from schemaless.migrate.run import run as run_migration
from schemaless.migrate.spec import MigrateSpec
from schemaless.migrate.tally import MigrateReport, Tally
from schemaless.store.columns import settings
from schemaless.store.datastore import Datastore
from schemaless.terminal.files import unwritable_folder
from schemaless.terminal.output import EXIT_FAILED, bytes_text, json_option, note, out, print_json, print_table

_ROWS_SHOWN = 40
_FAILURES_SHOWN = 20


@click.group()
def migrate() -> None:
    """Re-encode bodies in place.

    Legacy bodies (bare JSON text), or bodies in any codec, become MessagePack + zlib, or another codec, while readers
    and writers go on. Keys, added_id and created_at stay. Each new body is decoded again and compared before it
    replaces the old one, and only where the stored bytes are still those that were read.

    A migration is a job in the catalog. Any number of runs, on any machine, share its work; killed at any moment, the
    same command goes on.

    \b
    The order of work:
      schemaless migrate plan
      schemaless migrate run --execute --archive DIR
      schemaless migrate status               from any terminal; also pause, resume, abort, throttle
      schemaless migrate verify
      schemaless migrate finalise             what may be deleted, once all is proven
      schemaless rebuild                      gives the space back to the disk
      schemaless migrate report               what it did to space, also as a page with pictures
    """


for _verb in (plan, restore, verify, finalise, space_report):
    migrate.add_command(_verb)


@migrate.command()
@url_option
@what_options
@click.option("--execute", is_flag=True, help="Really rewrite bodies; without it, nothing is changed.")
@job_option("Go on with this job, as it was begun, whatever else it is about.")
@click.option(
    "--archive",
    type=click.Path(file_okay=False, resolve_path=True),
    metavar="DIR",
    help="Keep every original body in files there, before it is replaced; 'migrate restore' puts them back.",
)
@click.option(
    "--verify-after",
    type=click.Choice(["primary", "replica"]),
    help="Read every new body again, from there, before the next checkpoint, and compare digests.",
)
@click.option("--follow", is_flag=True, help="Go over each shard again until no body is left to re-encode.")
@workers_options
@throttle_options
@click.option("--chunk-ms", type=int, default=200, show_default=True, help="How long one statement should take.")
@click.option("--full-row-images", is_flag=True, help="For readers of the binary log that need whole rows: log them.")
@json_option
def run(
    url: str,
    codec: str,
    level: int | None,
    dictionary_id: int | None,
    sources: tuple[str, ...],
    columns: tuple[str, ...],
    shards_text: str | None,
    execute: bool,
    job_id: int | None,
    archive: str | None,
    verify_after: str | None,
    follow: bool,
    workers: int,
    dask: str | None,
    thresholds: Thresholds,
    chunk_ms: int,
    full_row_images: bool,
    as_json: bool,
) -> int:
    """Re-encode every body that is not in the codec asked for.

    Begins a job, or goes on with the unfinished one that is the same; run it in several places to share the work.
    Bodies that cannot be read are left as they are, and named. Ctrl-C stops at a checkpoint.

    \b
    Examples:
      schemaless migrate run --execute --archive /backup/originals
      schemaless migrate run --execute --workers 4 --max-mb 50
      schemaless migrate run --execute --to legacy              back to JSON text
      schemaless migrate run --execute --from legacy --column BASE --to msgpack+zstd --shards 0-255
      schemaless migrate run --execute --column LOG --to msgpack+zstd --dictionary 32768
      schemaless migrate run --execute --dask tcp://scheduler:8786

    Exit status: 0 done, 1 some bodies were left, 3 stopped; the same command goes on.
    """
    with open_store(url) as store:
        ledger = Ledger(store.catalog, store.name)
        spec = MigrateSpec(
            codec,
            sources,
            columns,
            archive,
            verify_after,  # type: ignore[arg-type]
            follow,
            full_row_images,
            chunk_ms,
            thresholds,
            level,
            dictionary_id,
        )
        shards = None if shards_text is None else shards_of(shards_text, store.shard_count)
        job = None if job_id is None else ledger.job(job_id)
        if job is None:
            _note_settings(store, spec)
        else:
            # As it was begun, whatever else is asked for.
            check_goes_on(job, "migrate")
            spec = MigrateSpec.from_json(job.spec)
            shards = [state.shard for state in ledger.shards(job.job_id, counters=False)]
        if spec.archive is not None and dask is None and (reason := unwritable_folder(Path(spec.archive))) is not None:
            # Before there is a job that keeps its originals there. Where Dask's workers are, nobody can look.
            raise InvalidInput(f"cannot keep originals in {spec.archive}: {reason}")
        if not execute:
            _show_dry_run(store, spec, shards)
            return 0
        with JobProgress(ledger) as shown:

            def begin(begun: Job, new: bool) -> None:
                shown.begin(begun, new)
                if new:
                    note_prediction(store, begun)

            report = run_migration(
                store, spec, shards, job=job, count=workers, dask=dask, on_job=begin, on_turn=shown.turn
            )
    _show_report(report, as_json)
    return EXIT_FAILED if report.total().left else 0


def _note_settings(store: Datastore, spec: MigrateSpec) -> None:
    """Say which columns would be re-encoded to something else than their new cells are written in."""
    for setting in settings(store.catalog, store.name):
        same = (setting.codec, setting.dictionary_id) == (spec.to, spec.dictionary)
        if not same and (not spec.columns or setting.column_name in spec.columns):
            dictionary = "" if setting.dictionary_id is None else f" with dictionary {setting.dictionary_id}"
            note(
                f"new cells of {setting.column_name} are written in {setting.codec}{dictionary}, and this is about "
                f"{spec.target}; --column and --dictionary say what is meant"
            )


def _show_dry_run(store: Datastore, spec: MigrateSpec, shards: list[int] | None) -> None:
    count = store.shard_count if shards is None else len(shards)
    sources = " or ".join(spec.sources) or f"anything but {spec.target}"
    columns = ", ".join(spec.columns) or "all columns"
    out().print(f"would re-encode bodies in {sources} to {spec.target}: {count:,} shards of {store.name}, {columns}")
    note("nothing was changed; 'schemaless migrate plan' estimates what it would give, add --execute to do it")


@migrate.command()
@url_option
@job_option("The job to show.  [default: the unfinished one, or the last that replaced a body]")
@click.option("--all", "show_all", is_flag=True, help="List all jobs.")
@click.option("--shards", "each_shard", is_flag=True, help="Show each shard.")
@json_option
def status(url: str, job_id: int | None, show_all: bool, each_shard: bool, as_json: bool) -> None:
    """Show how far a migration is.

    And how fast, what it waits for, and when it may be through: with its spread, as far as shards differ in speed.

    \b
    Examples:
      schemaless migrate status
      schemaless migrate status --shards --json
      watch schemaless migrate status
    """
    with open_store(url) as store:
        ledger = Ledger(store.catalog, store.name)
        if show_all:
            _show_jobs(ledger.jobs(), as_json)
            return
        job = chosen_job(ledger, job_id)
        show_status(status_of(ledger, job.job_id, counters=as_json), ledger.events(job.job_id), each_shard, as_json)


@migrate.command()
@url_option
@job_option("The job.  [default: the unfinished one]")
def pause(url: str, job_id: int | None) -> None:
    """Have a job wait.

    All its runners, wherever they are, stand still within a second or two, and keep their shards.

    \b
    Example:
      schemaless migrate pause
    """
    _steer(url, job_id, ("running",), "paused")


@migrate.command()
@url_option
@job_option("The job.  [default: the unfinished one]")
def resume(url: str, job_id: int | None) -> None:
    """Let a paused job go on.

    Where its runners are gone, 'schemaless migrate run --execute --job N' works on it.

    \b
    Example:
      schemaless migrate resume
    """
    _steer(url, job_id, ("paused",), "running")


@migrate.command()
@url_option
@job_option("The job.  [default: the unfinished one]")
def abort(url: str, job_id: int | None) -> None:
    """End a job for good.

    What it has re-encoded stays so, and is read as before; a new job does the rest, or the way back.

    \b
    Example:
      schemaless migrate abort --job 3
    """
    _steer(url, job_id, ("running", "paused"), "aborted")


@migrate.command()
@url_option
@job_option("The job.  [default: the unfinished one]")
@throttle_changes
def throttle(url: str, job_id: int | None, changes: dict[str, Any]) -> None:
    """Change when a running job waits.

    The thresholds that are named are changed, the others stay as they are; without any, they are shown. Its runners,
    wherever they are, take them within a second or two.

    \b
    Examples:
      schemaless migrate throttle --max-lag 1 --max-mb-per-s 20
      schemaless migrate throttle --max-mb-per-s off --job 3
    """
    Thresholds(**changes)  # refuses what is none
    with open_store(url) as store:
        ledger = Ledger(store.catalog, store.name)
        job = chosen_job(ledger, job_id, unfinished=True)
        if not job.unfinished:
            raise JobConflict(f"job {job.job_id} is {job.state}; only one that is running or paused waits", job.job_id)
        now = ledger.change_thresholds(job.job_id, changes) if changes else job.spec["thresholds"]
    out().print(f"job {job.job_id} waits by: {thresholds_text(now)}", markup=False)


def _steer(url: str, job_id: int | None, before: tuple[Any, ...], after: Any) -> None:
    with open_store(url) as store:
        ledger = Ledger(store.catalog, store.name)
        job = chosen_job(ledger, job_id, unfinished=True)
        if not ledger.change_state(job.job_id, before, after, f"by {who()}"):
            now = ledger.job(job.job_id)
            if now.state == after:
                note(f"job {job.job_id} is {after} already")
                return
            raise JobConflict(f"job {job.job_id} is {now.state}; only one that is {' or '.join(before)} can be {after}")
        runners = sum(state.held for state in ledger.shards(job.job_id, counters=False))
        out().print(f"job {job.job_id} is {after}; {runners} runners hear of it within a second or two")
        if after == "running" and not runners:
            note(f"nobody works on it now: '{go_on_command(job.kind, job.job_id)}' does")


def _show_jobs(jobs: list[Job], as_json: bool) -> None:
    if as_json:
        print_json({"jobs": [asdict(job) for job in jobs]})
        return
    print_table(
        None,
        ["job", "kind", "state", "begun", "ended", "by"],
        [
            [
                str(job.job_id),
                job.kind,
                job.state,
                f"{job.created_at:%Y-%m-%d %H:%M}",
                "" if job.ended_at is None else f"{job.ended_at:%Y-%m-%d %H:%M}",
                job.created_by,
            ]
            for job in jobs
        ],
        text_columns=6,
    )


def _show_report(report: MigrateReport, as_json: bool) -> None:
    total = report.total()
    if as_json:
        print_json({"job": report.job_id, "to": report.codec, **_report_json(report)})
        return
    if not total.cells and not total.left:
        out().print(f"nothing to do: every body is in {report.codec}")
        _show_exceptions(report, total, "")
        return
    rows = [
        [
            str(shard),
            column,
            f"{tally.cells:,}",
            bytes_text(tally.bytes_before),
            bytes_text(tally.bytes_after),
            _change(tally),
            f"{tally.left.total():,}",
        ]
        for (shard, column), tally in sorted(report.tallies.items())
    ]
    if len(rows) <= _ROWS_SHOWN:
        print_table(
            "by shard and column",
            ["shard", "column", "cells", "before", "after", "change", "left"],
            rows,
            text_columns=2,
        )
    else:
        note(f"{len(rows)} shards and columns: --json lists them all")
    print_table(
        "by column",
        ["column", "cells", "before", "after", "change", "left"],
        [
            [
                column,
                f"{tally.cells:,}",
                bytes_text(tally.bytes_before),
                bytes_text(tally.bytes_after),
                _change(tally),
                f"{tally.left.total():,}",
            ]
            for column, tally in report.by_column().items()
        ],
    )
    out().print(
        f"\njob {report.job_id} re-encoded {total.cells:,} cells to {report.codec}: {total.bytes_before:,} body bytes "
        f"became {total.bytes_after:,}; [bold]{_gain(total)}[/] ({_change(total)})"
    )
    if report.interruptions:
        note(
            f"{report.interruptions} runners ended without a word: what each had done since its last checkpoint, about "
            "a second's work, is done but not in these counts"
        )
    _show_exceptions(report, total, "")


def _show_exceptions(report: MigrateReport, total: Tally, prefix: str) -> None:
    for reason, cells in total.kept_as_text.most_common():
        out().print(f"{prefix}{cells:,} kept as JSON text, compressed: {reason}")
    for reason, cells in total.left.most_common():
        out().print(f"{prefix}{cells:,} left as they are: {reason}")
    if total.erased:
        out().print(f"{prefix}{total.erased:,} erased meanwhile: nothing is left of them to re-encode")
    for failure in report.failures[:_FAILURES_SHOWN]:
        note(f"  shard {failure.shard}, cell {failure.key}: {failure.message}")
    if len(report.failures) > _FAILURES_SHOWN:
        note("  ...; --json lists up to a thousand")


def _report_json(report: MigrateReport) -> dict[str, Any]:
    return {
        "total": report.total().as_json(),
        "interruptions": report.interruptions,
        "tallies": [
            {"shard": shard, "column_name": column, **tally.as_json()}
            for (shard, column), tally in sorted(report.tallies.items())
        ],
        "failures": [
            {
                "key": {**failure.key._asdict(), "row_key": str(failure.key.row_key)},
                "shard": failure.shard,
                "added_id": failure.added_id,
                "reason": failure.reason,
                "message": failure.message,
            }
            for failure in report.failures
        ],
    }


def _gain(tally: Tally) -> str:
    if tally.reclaimed_bytes < 0:
        return f"{bytes_text(-tally.reclaimed_bytes)} more"
    return f"{bytes_text(tally.reclaimed_bytes)} reclaimed"


def _change(tally: Tally) -> str:
    return f"{-tally.reclaimed_bytes / tally.bytes_before:+.1%}" if tally.bytes_before else "-"
