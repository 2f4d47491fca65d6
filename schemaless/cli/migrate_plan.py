"""``schemaless migrate plan``."""

from __future__ import annotations

from typing import Any, Final

import click

from schemaless.base.numbers import Interval, bytes_text, counted
from schemaless.cli.command import QueryCommand
from schemaless.cli.faults import failure_json
from schemaless.cli.option import option
from schemaless.cli.options import as_spec, codec_details, codec_option, with_options
from schemaless.codec.registry import codec_names
from schemaless.ops.migrate.plan import (
    Change,
    CodecFound,
    FilesForecast,
    LogCost,
    MigrationPlan,
    Superseded,
    plan_migration,
)
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.store.datastore import Datastore
from schemaless.ui.terminal.output import (
    change_text,
    estimate_json,
    estimate_text,
    facts,
    line_break,
    note,
    out,
    print_result,
    print_rows,
    progress,
)
from schemaless.ui.terminal.progress import duration

migrate_spec = as_spec(MigrateSpec, codec="to", dictionary_id="dictionary")


rewrite_options: Final = with_options(
    codec_option("--to", legacy=True, help_text="The codec to re-encode to; legacy goes back to bare JSON text."),
    *codec_details,
    option(
        "--from CODEC",
        "Only bodies stored in this codec; may be repeated.  [default: all codecs but --to]",
        name="sources",
        type=click.Choice(codec_names()),
        multiple=True,
    ),
    option("--column NAME", "Only cells of this column; may be repeated.", name="columns", multiple=True),
    option(
        "--history/--no-history",
        "Store versions that have a higher one as differences from it, or make such versions whole again.  "
        "[default: neither]",
        default=None,
    ),
)
"""The options that select cells and a codec."""


@click.command(cls=QueryCommand, before=migrate_spec)
@rewrite_options
@option("--exact", "Read and re-encode every cell instead of a sample.", is_flag=True)
@option("--seed N", "Seed of the sample; the same seed draws the same sample.", type=int)
def plan(store: Datastore, spec: MigrateSpec, shards: list[int], exact: bool, seed: int | None) -> None:
    """Predict what a migration would find, change and cost. Read-only.

    The command reads a sample of the cells from all shards and re-encodes it in memory. Each figure has a 95 %
    confidence interval. A small datastore is read completely, so its figures are exact.

    The plan shows how many bodies would be re-encoded and how much smaller they would get, the run time, the bytes
    written to binary logs, the size of the table files before and after, and the bodies that cannot be read. With
    --history, it also shows the number of versions and the effect of storing them as differences. To do the work, use
    'schemaless migrate run --execute'.

    \b
    Examples:
      schemaless migrate plan
      schemaless migrate plan --to msgpack+zstd --json
      schemaless migrate plan --history
      schemaless migrate plan --to legacy --from msgpack+zlib --column BASE
    """
    with progress("sampling", None, "windows") as listener:
        result = plan_migration(store, spec, shards, exact=exact, seed=seed, listener=listener)
    _show_plan(result)


def _show_plan(result: MigrationPlan) -> None:
    print_result(_plan_json(result))
    taken = result.sample
    if not result.columns:
        out().print("nothing to do: " + ("no" if taken.exact else "in the sample, no") + " body is left to re-encode")
    else:
        _show_change(result, result.total)
    if result.all_superseded is not None:
        show_superseded(result.all_superseded)
    if result.space is not None:
        _show_space(result.space, bool(result.columns))
    prefix = "" if taken.exact else "about "
    for reason, cells in result.kept_as_text.items():
        out().print(f"{prefix}{estimate_text(cells)} kept as compressed JSON text: {reason}")
    for reason, left in result.left.items():
        out().print(f"{prefix}{estimate_text(left.cells)} left as they are: {reason}")
    for example in result.examples:
        note(f"  shard {example.shard}, cell {example.key}: {example.message}")
    if not taken.exact:
        out().print(
            f"\nestimated from a sample of {counted(taken.rows, 'cell')} in {counted(len(taken.windows), 'window')}, "
            f"{bytes_text(taken.body_bytes)}, with 95 % intervals in brackets; --seed {taken.seed} repeats the sample"
        )
    _show_tables(result)


def show_superseded(found: Superseded) -> None:
    """Print how many versions have a higher one, and what a run with ``--history`` would make of them."""
    versions = "unknown" if found.versions is None else estimate_text(found.versions, "{:,.1f}".format)
    out().print(f"versions per row and column: {versions}")
    deltas = found.deltas
    as_deltas = "a run would store none of them as a difference"
    if deltas.cells.high:
        as_deltas = (
            f"as differences, {estimate_text(deltas.cells)} of them would take "
            f"{estimate_text(deltas.bytes_after, bytes_text)} instead of "
            f"{estimate_text(deltas.bytes_before, bytes_text)}, {_less(deltas)}"
        )
    out().print(
        f"versions that have a higher one: {estimate_text(found.cells)}, with "
        f"{estimate_text(found.body_bytes, bytes_text)}; {as_deltas}"
    )


def _show_change(result: MigrationPlan, total: Change) -> None:
    about = "" if result.sample.exact else "about "
    out().print(
        f"a run with --to {result.codec} would re-encode {about}{estimate_text(total.cells)} "
        f"{'body' if total.cells.high == 1 else 'bodies'}: "
        f"{estimate_text(total.bytes_before, bytes_text)} to {estimate_text(total.bytes_after, bytes_text)}, "
        f"{_less(total)}"
    )
    if result.run_time is not None:
        run = result.run_time
        out().print(
            f"run time with one worker, without throttling: {estimate_text(run.seconds, duration)}{line_break()}"
            f"(measured just now on this machine: bodies read at {run.read_bytes_per_s / 1e6:,.0f} MB/s, re-encoded "
            f"and verified at {run.recode_bytes_per_s / 1e6:,.0f} MB/s; the UPDATEs are assumed to take 40 to 75 % of "
            "the time)"
        )
    if result.binary_log is not None:
        _show_log(result.binary_log)


def _show_tables(result: MigrationPlan) -> None:
    def mean(stored: CodecFound) -> str:
        name = stored.column_name, stored.codec
        ratio = result.sample.ratio([("stored bytes", *name)], [("stored", *name)])
        return "-" if ratio is None else estimate_text(ratio, bytes_text)

    stored_now = [
        {
            "column": stored.column_name,
            "codec": stored.codec,
            "cells": estimate_text(stored.cells),
            "body bytes": estimate_text(stored.body_bytes, bytes_text),
            "mean": mean(stored),
        }
        for stored in result.stored
    ]
    print_rows("\nstored now", stored_now, "columns and codecs", text_columns=2)
    superseded = [
        {
            "column": name,
            "versions": "-" if found.versions is None else estimate_text(found.versions, "{:,.1f}".format),
            "superseded": estimate_text(found.cells),
            "bytes": estimate_text(found.body_bytes, bytes_text),
            "differences": estimate_text(found.deltas.cells),
            "before": estimate_text(found.deltas.bytes_before, bytes_text),
            "after": estimate_text(found.deltas.bytes_after, bytes_text),
        }
        for name, found in result.superseded.items()
    ]
    if len(superseded) > 1:
        print_rows("\nversions that have a higher one", superseded, "columns")
    if len(result.columns) > 1:
        to_do = [
            {
                "column": name,
                "cells": estimate_text(change.cells),
                "before": estimate_text(change.bytes_before, bytes_text),
                "after": estimate_text(change.bytes_after, bytes_text),
                "less": _less(change, less=""),
            }
            for name, change in result.columns.items()
        ]
        print_rows("\nto do", to_do, "columns")


def _show_log(log: LogCost) -> None:
    if not log.kept:
        out().print("binary log: the servers keep none")
        return
    out().print(
        f"binary log written: {estimate_text(log.noblob, bytes_text)} with binlog_row_image=NOBLOB, "
        f"{estimate_text(log.full, bytes_text)} with full row images"
    )
    for cluster, grant in log.grants.items():
        note(
            f"this account may not set binlog_row_image on {cluster}, so a run there would write full row images; to "
            f"allow it: {grant}"
        )


def _show_space(space: FilesForecast, changes: bool) -> None:
    known = "" if space.files.measured else " or more (the exact size requires the PROCESS privilege)"
    out().print(f"\ntable files now: {bytes_text(space.files.file_bytes)}{known}")
    if changes:
        out().print(
            f"growth during the run: about {bytes_text(space.growth.mid)}, up to {bytes_text(space.growth.high)} if "
            "the servers cannot purge old rows"
        )
    now, after = estimate_text(space.rebuilt_now, bytes_text), estimate_text(space.rebuilt_after, bytes_text)
    rebuilt = f"{after} (without the run: {now})" if changes else now
    out().print(
        f"after a rebuild: {rebuilt}; rebuilding the largest shard needs {bytes_text(space.largest_rebuild_bytes)} of "
        "free disk space"
    )


def _less(change: Change, less: str = "less") -> str:
    share = change.after_share
    if share is None:
        return "-"
    decrease = Interval(1 - share.high, 1 - share.mid, 1 - share.low)
    return change_text(decrease, lambda each: estimate_text(each, "{:.1%}".format), less)


def _plan_json(result: MigrationPlan) -> dict[str, Any]:
    taken = result.sample
    return {
        "to": result.codec,
        "shards": result.shards,
        "sample": {
            **facts(taken, "exact", "seed", "body_bytes", confidence="level", of_windows="tiles", cells="rows"),
            "windows": len(taken.windows),
        },
        "cells": estimate_json(result.cells),
        "stored": [facts(stored, "column_name", "codec", "cells", "body_bytes") for stored in result.stored],
        "total": _change_json(result.total),
        "columns": [{"column_name": name, **_change_json(change)} for name, change in result.columns.items()],
        "superseded": result.all_superseded and _superseded_json(result.all_superseded),
        "superseded_by_column": [
            {"column_name": name, **_superseded_json(found)} for name, found in result.superseded.items()
        ],
        "kept_as_text": {reason: estimate_json(cells) for reason, cells in result.kept_as_text.items()},
        "left": {reason: facts(left, "cells", "body_bytes") for reason, left in result.left.items()},
        "examples": [failure_json(example) for example in result.examples],
        "run_time": result.run_time
        and {
            "seconds_of_one_worker": estimate_json(result.run_time.seconds, digits=2),
            "read_bytes_per_s": round(result.run_time.read_bytes_per_s),
            "recode_bytes_per_s": round(result.run_time.recode_bytes_per_s),
        },
        "binary_log_bytes": result.binary_log and facts(result.binary_log, "noblob", "full", "kept", "grants"),
        "space": result.space
        and {
            **facts(result.space.files, "file_bytes", "allocated_bytes", file_bytes_measured="measured"),
            **facts(
                result.space,
                growth_bytes="growth",
                rebuilt_now_bytes="rebuilt_now",
                rebuilt_after_bytes="rebuilt_after",
            ),
            "largest_rebuild_bytes": round(result.space.largest_rebuild_bytes),
        },
    }


def _change_json(change: Change) -> dict[str, Any]:
    return {
        **facts(change, "cells", "bytes_before", "bytes_after"),
        "after_share": change.after_share and estimate_json(change.after_share, digits=4),
    }


def _superseded_json(found: Superseded) -> dict[str, Any]:
    return {
        "versions_per_row_and_column": found.versions and estimate_json(found.versions, digits=2),
        **facts(found, "cells", "body_bytes"),
        "deltas": _change_json(found.deltas),
    }
