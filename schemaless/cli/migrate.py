"""``schemaless migrate``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from schemaless.cli.options import codec_of, codec_option, id_total, open_store, shards_of, shards_option, url_option
from schemaless.cli.output import EXIT_FAILED, bytes_text, json_option, note, out, print_json, print_table, progress
from schemaless.jobs.migrate import MigrateReport, Plan, Tally
from schemaless.jobs.migrate import plan as make_plan
from schemaless.jobs.migrate import run as run_migration

_ROWS_SHOWN = 40


@click.group()
def migrate() -> None:
    """Re-encode bodies in place.

    Legacy bodies (bare JSON text) become MessagePack + zlib, or another codec, while readers and writers go on. Keys,
    added_id and created_at stay. Each new body is decoded again and compared before it replaces the old one, and only
    where the stored bytes are still those that were read. Killed at any moment, the same command goes on.

    \b
    The order of work:
      schemaless migrate plan
      schemaless migrate run --execute
      schemaless check
    """


@migrate.command()
@url_option
@codec_option("--to", legacy=False, help_text="What a run would re-encode to.")
@shards_option
@json_option
def plan(url: str, codec: str, shards_text: str | None, as_json: bool) -> None:
    """Count what is stored, and estimate what a run would reclaim. Changes nothing.

    Cells and bytes are counted exactly; the bytes after are estimated from a sample that is re-encoded here.

    \b
    Examples:
      schemaless migrate plan
      schemaless migrate plan --to msgpack+zstd --json
    """
    with open_store(url) as store:
        shards = shards_of(shards_text, store.shard_count)
        with progress("counting", id_total(store, shards), "ids") as advance:
            result = make_plan(store, codec_of(codec), shards, on_ids=advance)
    _show_plan(result, as_json)


@migrate.command()
@url_option
@codec_option("--to", legacy=False, help_text="What to re-encode to.")
@shards_option
@click.option("--execute", is_flag=True, help="Really rewrite bodies; without it, this is 'migrate plan'.")
@json_option
def run(url: str, codec: str, shards_text: str | None, execute: bool, as_json: bool) -> int:
    """Re-encode every legacy body.

    Bodies that cannot be read are left as they are, and named. The report counts this run; what an interrupted run did
    before is in 'migrate plan' and 'check' as stored in the new codec.

    \b
    Examples:
      schemaless migrate run --execute
      schemaless migrate run --execute --shards 0-255 --to msgpack+zstd

    Exit status: 0 done, 1 some bodies were left, 3 stopped; the same command goes on.
    """
    with open_store(url) as store:
        shards = shards_of(shards_text, store.shard_count)
        if not execute:
            with progress("counting", id_total(store, shards), "ids") as advance:
                result = make_plan(store, codec_of(codec), shards, on_ids=advance)
            _show_plan(result, as_json)
            note("nothing was changed; add --execute to do it")
            return 0
        with progress("migrating", id_total(store, shards), "ids") as advance:
            report = run_migration(store, codec_of(codec), shards, on_ids=advance)
    _show_report(report, as_json)
    return EXIT_FAILED if report.total().left else 0


def _show_plan(result: Plan, as_json: bool) -> None:
    total = result.report.total()
    if as_json:
        print_json(
            {
                "to": result.report.codec,
                "sampled_cells": result.sampled_cells,
                "stored": [
                    {"column_name": column, "codec": name, "cells": cells, "body_bytes": size}
                    for (column, name), (cells, size) in sorted(result.stored.items())
                ],
                **_report_json(result.report, estimated=True),
            }
        )
        return
    print_table(
        "stored now",
        ["column", "codec", "cells", "body bytes", "mean"],
        [
            [column, name, f"{cells:,}", bytes_text(size), bytes_text(size / cells)]
            for (column, name), (cells, size) in sorted(result.stored.items())
        ],
        text_columns=2,
    )
    if not total.cells:
        out().print("nothing to do: no legacy body is left")
        return
    share = total.reclaimed_bytes / total.bytes_before
    out().print(
        f"\na run to {result.report.codec} would re-encode {total.cells:,} legacy bodies: "
        f"{bytes_text(total.bytes_before)} to about {bytes_text(total.bytes_after)}, {share:.1%} less\n"
        f"(estimated from {result.sampled_cells:,} of them, re-encoded here)"
    )
    _show_exceptions(result.report, total, "in the sample, ")


def _show_report(report: MigrateReport, as_json: bool) -> None:
    total = report.total()
    if as_json:
        print_json({"to": report.codec, **_report_json(report, estimated=False)})
        return
    if not total.cells and not total.left:
        out().print("nothing to do: no legacy body is left")
        return
    rows = [
        [
            str(shard),
            column,
            f"{tally.cells:,}",
            bytes_text(tally.bytes_before),
            bytes_text(tally.bytes_after),
            _less(tally),
            f"{tally.left.total():,}",
        ]
        for (shard, column), tally in sorted(report.tallies.items())
    ]
    if len(rows) <= _ROWS_SHOWN:
        print_table(
            "by shard and column", ["shard", "column", "cells", "before", "after", "less", "left"], rows, text_columns=2
        )
    else:
        note(f"{len(rows)} shards and columns: --json lists them all")
    print_table(
        "by column",
        ["column", "cells", "before", "after", "less", "left"],
        [
            [
                column,
                f"{tally.cells:,}",
                bytes_text(tally.bytes_before),
                bytes_text(tally.bytes_after),
                _less(tally),
                f"{tally.left.total():,}",
            ]
            for column, tally in report.by_column().items()
        ],
    )
    out().print(
        f"\nre-encoded {total.cells:,} cells to {report.codec}: {total.bytes_before:,} body bytes became "
        f"{total.bytes_after:,}; [bold]{bytes_text(total.reclaimed_bytes)} reclaimed[/] ({_less(total)})"
    )
    _show_exceptions(report, total, "")


def _show_exceptions(report: MigrateReport, total: Tally, prefix: str) -> None:
    for reason, cells in total.kept_as_text.most_common():
        out().print(f"{prefix}{cells:,} kept as JSON text, compressed: {reason}")
    for reason, cells in total.left.most_common():
        out().print(f"{prefix}{cells:,} left as they are: {reason}")
    for failure in report.failures[:20]:
        note(f"  shard {failure.shard}, cell {failure.key}: {failure.message}")
    if len(report.failures) > 20:
        note("  ...; --json lists up to a thousand")


def _report_json(report: MigrateReport, *, estimated: bool) -> dict[str, Any]:
    after = "bytes_after_estimate" if estimated else "bytes_after"

    def tally_json(tally: Tally) -> dict[str, Any]:
        return {
            "cells": tally.cells,
            "bytes_before": tally.bytes_before,
            after: tally.bytes_after,
            "kept_as_text": dict(tally.kept_as_text),
            "left": dict(tally.left),
            "left_bytes": tally.left_bytes,
        }

    return {
        "total": tally_json(report.total()),
        "tallies": [
            {"shard": shard, "column_name": column, **tally_json(tally)}
            for (shard, column), tally in sorted(report.tallies.items())
        ],
        "failures": [
            {**asdict(failure), "key": {**failure.key._asdict(), "row_key": str(failure.key.row_key)}}
            for failure in report.failures
        ],
    }


def _less(tally: Tally) -> str:
    return f"{tally.reclaimed_bytes / tally.bytes_before:.1%}" if tally.bytes_before else "-"
