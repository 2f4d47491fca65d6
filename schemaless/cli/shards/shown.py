"""How moves look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from schemaless.move.record import MoveRecord
from schemaless.terminal.output import out, print_json, print_table


def show_records(records: Sequence[MoveRecord], as_json: bool) -> None:
    """Print what became of the shards of a job."""
    if as_json:
        print_json({"shards": [asdict(record) for record in records]})
        return
    if not records:
        out().print("no shard was begun to be moved")
        return
    print_table(
        None,
        ["shard", "from", "to", "phase", "cells", "paused for"],
        [
            [
                str(record.shard),
                record.source,
                record.target,
                record.phase,
                "-" if record.fence_rows is None else f"{record.fence_rows:,}",
                "-" if record.pause_s is None else f"{record.pause_s * 1000:,.0f} ms",
            ]
            for record in records
        ],
        text_columns=4,
    )
