"""``schemaless export``: writes all versions of all cells as Parquet files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

import click

from schemaless.base.numbers import bytes_text, counted, shards_text
from schemaless.cli.command import Command, JSONCommand, QueryCommand
from schemaless.cli.job_options import MIN_FREE, stop_option, workers_option
from schemaless.cli.option import option
from schemaless.cli.options import as_spec, execute_option, note_gave_up, note_waits
from schemaless.cli.quantities import FiniteRange, size_of
from schemaless.errors import ExportFailed, InvalidInput
from schemaless.ops.export.admin import (
    DEFAULT_NAME,
    ExportStatus,
    caught_up,
    export_status,
    export_supervisor,
    exports,
    file_names,
    infer,
    prepare,
)
from schemaless.ops.export.admin import remove as remove_export
from schemaless.ops.export.compact import compact as compact_files
from schemaless.ops.export.exporter import Pace
from schemaless.ops.export.manifest import Definition, read_definition
from schemaless.store.arrow.infer import Proposal
from schemaless.store.cold.targets import Target, open_target
from schemaless.store.datastore import Datastore
from schemaless.ui.terminal.output import EXIT_FAILED, error, facts, hint, note, out, print_result, print_rows, progress
from schemaless.ui.terminal.progress import duration

_SHOWN: Final = 16
"""Maximum number of shards, of missing files and of skipped cells that are shown."""

_target_option: Final = option("--to DIR|URI", "The target of the export.", name="uri", required=True)


def _bytes(text: str) -> int:
    return round(size_of(text))


def _file_bytes(text: str) -> int:
    size = _bytes(text)
    if size < 1:
        raise click.BadParameter(f"{text!r} is too small; a file has at least 1 byte")
    return size


_min_free_option: Final = option(
    "--min-free SIZE|off",
    "Wait while the disk of a local folder has less free than this.",
    name="min_free_bytes",
    type=MIN_FREE,
    default="1GB",
    callback=lambda context, option, value: None if value == "off" else value,
)


def _file_option(help_text: str) -> Callable[[Any], Any]:
    return option("--file-size SIZE", help_text, name="file_bytes", type=_file_bytes, default="256MB")


@click.group()
def export() -> None:
    """Write all versions of all cells as Parquet files, for analytics.

    An export follows the change feed. Each file has the cells of one shard in a range of added_ids, appears only when
    complete, and is listed in a manifest; no cell is missing or duplicated, even if a process is killed. Rows have the
    key, added_id, shard, created_at, the body as exact JSON text, and typed columns that you choose.

    \b
    Workflow:
      schemaless export parquet --to /data/mezzanine --field BASE.fare.total:float
      schemaless export status
      schemaless export compact --to /data/mezzanine

    \b
    In DuckDB:
      SELECT sum(total) FROM read_parquet('/data/mezzanine/cells/*/*.parquet')
    """


@export.command(cls=JSONCommand, before=as_spec(Pace, name="pace"))
@option("--to DIR|URI", "A folder, or a URI such as s3://bucket/path.  [required, except with --infer]", name="uri")
@option("--name NAME", "Name of the export.", default=DEFAULT_NAME)
@option("--column NAME", "Only cells of this column; may be repeated.  [default: all]", name="columns", multiple=True)
@option("--field FIELD", "A typed column; may be repeated.", name="fields", multiple=True)
@option("--infer", "Propose fields from the newest cells, and exit.", name="proposes", is_flag=True)
@option("--latest", "Also keep files of the latest version of each row and column.", is_flag=True)
@option("--once/--follow", "Exit once all cells stored so far are exported, or keep exporting new ones.", default=True)
@workers_option
@_file_option("Maximum size of a file, as JSON text, approximately.")
@option(
    "--min-size SIZE",
    "With --follow: collect as much JSON text before writing a file.",
    name="min_bytes",
    type=_bytes,
    default="32MB",
)
@option(
    "--max-age SECONDS",
    "With --follow: write a file anyway once a cell has waited this long.",
    name="max_age_s",
    type=FiniteRange(min=0),
    default=900,
)
@_min_free_option
@option("--skip-corrupt", "Export cells whose body does not decode, with a null body.", is_flag=True)
@stop_option
def parquet(
    uri: str | None,
    name: str,
    columns: tuple[str, ...],
    fields: tuple[str, ...],
    proposes: bool,
    latest: bool,
    workers: int,
    stop_s: float,
    pace: Pace,
    store: Datastore,
) -> int:
    """Export new cells to Parquet files.

    The first run exports all cells; later runs export the new ones. --once is for cron; --follow runs as a service
    until Ctrl-C. Workers on several machines share the shards if they can all access the target. You can kill the
    command at any moment: the next run rewrites the unfinished file.

    A FIELD is [NAME=][COLUMN.]PATH:TYPE, as for 'schemaless index create'. COLUMN may be left out if --column names
    exactly one. TYPE is uuid, int, float, bool, time, text, or text(N). A value that the type cannot hold exactly is
    null; the status counts such values by reason. You can add fields later; only new files will have them.

    A body that does not decode stops the export of its shard, unless you give --skip-corrupt. The account needs the
    role follow.

    \b
    Examples:
      schemaless export parquet --to /data/mezzanine
      schemaless export parquet --column BASE --infer
      schemaless export parquet --to /data/base --name base --column BASE \\
          --field fare.total:float --latest
      schemaless export parquet --to s3://lake/mezzanine --follow --workers 4

    Exit status: 3 if stopped; with --once, 0, or 1 if a shard has stopped, a cell was exported without its body, or
    erased cells could not be handled 8 times in a row, or killed 8 workers.
    """
    if proposes:
        _propose(infer(store, columns or None))
        return 0
    if uri is None:
        raise click.UsageError("Missing option '--to'.")
    wanted = Definition(name, store.name, store.shard_count, columns or None, fields, latest)
    definition = prepare(store, uri, wanted)
    supervisor = export_supervisor(store, uri, definition, pace, workers)
    if not pace.once:
        note(f"export {name} follows {counted(store.shard_count, 'shard')}")
        supervisor.run(stop_s=stop_s)
        return 0
    with progress(f"exporting to {uri}", None, "ids") as listener:
        ended = caught_up(store, definition, listener)
        supervisor.run(ended, stop_s=stop_s)
    status = export_status(store, name)
    print_result(_json(status))
    _show(status)
    note_gave_up(ended.gave_up)
    return EXIT_FAILED if status.has_faults or ended.gave_up else 0


@export.command(cls=QueryCommand)
@click.argument("name", required=False)
def status(name: str | None, store: Datastore) -> int:
    """Show the progress and content of exports.

    The status counts files, rows and bytes from the manifest, shows the lag of each shard, and
    counts the nulls of each typed column by reason: missing, null, wrong type, out of range, not finite, inexact,
    invalid, too long, not unicode, erased.

    \b
    Examples:
      schemaless export status
      schemaless export status parquet --json

    Exit status: 0, or 1 if a shard is not running, a file is missing, a cell was exported without its body, or, without
    NAME, a target cannot be read.
    """
    statuses: list[ExportStatus] = []
    unreadable: list[dict[str, Any]] = []
    targets = exports(store)
    for each in targets if name is None else [name]:
        try:
            statuses.append(export_status(store, each))
        except (InvalidInput, ExportFailed) as error:
            if name is not None:
                raise
            unreadable.append({"name": each, "uri": targets[each], "faults": True, "error": str(error)})
    print_result(_json(statuses[0]) if name is not None else [*map(_json, statuses), *unreadable])
    if not targets:
        out().print("there is no export yet; 'schemaless export parquet' creates one")
    else:
        for found in statuses:
            _show(found)
        for problem in unreadable:
            note(f"export {problem['name']}: {problem['error']}")
    return EXIT_FAILED if unreadable or any(found.has_faults for found in statuses) else 0


@export.command(cls=QueryCommand)
@_target_option
@option("--latest", "List the files of the latest versions instead.", is_flag=True)
def files(uri: str, latest: bool) -> None:
    """List the Parquet files of an export, as recorded in its manifest.

    Use it for object stores, where a reader that lists the folder may see a file that is not part of the export.

    \b
    Examples:
      schemaless export files --to s3://lake/mezzanine --json
    """
    target, definition = _existing(uri)
    names = [f"{target.uri}/{each}" for each in file_names(target, definition, latest=latest)]
    print_result(names)
    for each in names:
        out().print(each, soft_wrap=True)


@export.command(cls=JSONCommand)
@_target_option
@_file_option("Merge files into larger ones of up to about this size, as JSON text.")
@_min_free_option
def compact(uri: str, file_bytes: int, min_free_bytes: int | None) -> int:
    """Merge the small files of an export.

    Consecutive files are merged into one, and files that the manifest does not list are deleted. In a local folder, all
    files of a shard are replaced in one step; repeat a query that was reading the old ones. Exporters can keep running:
    a shard that one of them, or another compaction, keeps writing to is skipped. The command can be killed at any
    moment; run it again to continue.

    \b
    Examples:
      schemaless export compact --to /data/mezzanine

    Exit status: 0, or 1 if a shard was skipped because another process kept writing to it.
    """
    target, definition = _existing(uri)
    with progress("merging files", definition.shard_count, "shards") as listener:
        shards = range(definition.shard_count)
        done = compact_files(target, file_bytes, shards, listener, min_free_bytes=min_free_bytes)
    print_result(asdict(done))
    out().print(f"{counted(done.files_before, 'file')} before, {done.files_after:,} now")
    if done.busy:
        error(
            f"shards {shards_text(done.busy)} were skipped, because an exporter or another compaction kept writing to "
            "them; run the command again"
        )
    return EXIT_FAILED if done.busy else 0


@export.command(cls=Command)
@click.argument("name")
@execute_option()
def remove(name: str, execute: bool, store: Datastore) -> None:
    """Delete the progress of an export; its files stay.

    \b
    Examples:
      schemaless export remove parquet --execute
    """
    found = exports(store)
    if name not in found:
        raise InvalidInput(f"{store.name!r} has no export {name}; existing names: {', '.join(found) or 'none'}")
    if execute:
        remove_export(store, name)
    out().print(f"the progress of export {name} {'was' if execute else 'would be'} deleted")


def _propose(proposals: list[Proposal]) -> None:
    print_result([{"field": each.column.declared, "present": each.present} for each in proposals])
    if not proposals:
        note("no field of the newest cells fits a type exactly")
        return
    for each in proposals:
        out().print(f"--field '{each.column.declared}'", soft_wrap=True)
    note(
        "the types of these fields fit every sampled value; pass the fields that you need to 'schemaless export "
        "parquet'"
    )


def _existing(uri: str) -> tuple[Target, Definition]:
    target = open_target(uri)
    definition = read_definition(target)
    if definition is None:
        raise InvalidInput(f"{uri} has no export; 'schemaless export parquet --to {uri}' creates one")
    return target, definition


def _show(status: ExportStatus) -> None:
    definition, totals = status.definition, _totals(status)
    columns = "all columns" if definition.columns is None else f"column {', '.join(definition.columns)}"
    out().print(
        f"export {definition.name}: {columns} to {status.uri}: "
        f"{counted(totals['files'], 'file')}, {counted(totals['rows'], 'cell')}, "
        f"{bytes_text(totals['bytes'])} (JSON text: {bytes_text(totals['body_bytes'])})"
    )
    shards = sorted(status.shards, key=lambda shard: (shard.follower.state == "running", -shard.follower.ids_behind))
    rows = [
        {
            "shard": shard.follower.shard,
            "state": shard.follower.state,
            "ids behind": shard.follower.ids_behind,
            "for": duration(shard.follower.behind_s) if shard.follower.behind_s else "-",
            "files": len(shard.entry.files),
            "cells": sum(file.rows for file in shard.entry.files),
            "bytes": bytes_text(sum(file.bytes for file in shard.entry.files)),
            "location": shard.entry.location,
        }
        for shard in shards[:_SHOWN]
    ]
    print_rows(None, rows, text_columns=2)
    if len(shards) > _SHOWN:
        hint(f"{len(shards) - _SHOWN:,} more shards are not shown; --json lists them all")
    for shard in shards[:_SHOWN]:
        if shard.follower.cause is not None:
            note(f"shard {shard.follower.shard} {shard.follower.state}: {shard.follower.cause}")
    for column, counts in status.nulls.items():
        if counts:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(counts.items()))
            note(f"null in {column}: {reasons}")
    missing = [file for shard in status.shards for file in shard.missing]
    for file in missing[:_SHOWN]:
        note(f"{status.uri}/{file} is missing; 'schemaless export parquet' writes it again")
    for number, added_id, problem in status.skipped[:_SHOWN]:
        note(f"shard {number}, added_id {added_id} was exported without its body: {problem}")
    note_waits(status.workers)


def _totals(status: ExportStatus) -> dict[str, int]:
    every = [file for shard in status.shards for file in shard.entry.files]
    sums = {name: sum(getattr(file, name) for file in every) for name in ("rows", "bytes", "body_bytes")}
    return {"files": len(every), **sums}


def _json(status: ExportStatus) -> dict[str, Any]:
    return {
        **asdict(status.definition),
        "uri": status.uri,
        "state": status.setting.desired_state,
        "faults": status.has_faults,
        **_totals(status),
        "ids_behind": sum(shard.follower.ids_behind for shard in status.shards),
        "behind_s": max((shard.follower.behind_s for shard in status.shards), default=0.0),
        "nulls": {name: dict(counts) for name, counts in status.nulls.items()},
        "skipped": [
            {"shard": shard, "added_id": added_id, "error": error} for shard, added_id, error in status.skipped
        ],
        "workers": [worker.as_json() for worker in status.workers],
        "shards": [
            {
                **facts(shard.follower, "shard", "state", "cause", "ids_behind", "behind_s"),
                "location": shard.entry.location,
                "files": [asdict(file) for file in shard.entry.files],
                "missing": shard.missing,
            }
            for shard in status.shards
        ],
    }
