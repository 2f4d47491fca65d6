"""``schemaless shards drop-moved``."""

from __future__ import annotations

import click

from schemaless.cli.options import open_store, shards_of, shards_option, url_option
from schemaless.move.run import LeftBehind, drop, left_behind
from schemaless.terminal.output import EXIT_FAILED, facts, json_option, note, out, print_json, print_table, progress


@click.command("drop-moved")
@shards_option
@click.option("--execute", is_flag=True, help="Really drop the tables; without it, the command only lists them.")
@url_option
@json_option
def drop_moved(shards_text: str | None, execute: bool, url: str, as_json: bool) -> int:
    """Drop the old tables that moves have left behind.

    They are on the clusters that the shards came from. The command drops an old table only if it was compared with the
    moved shard, still has as many cells as it had then, and is on a server where the catalog no longer has the shard.
    There is no way back, but the moved shard has all its cells.

    \b
    Examples:
      schemaless shards drop-moved
      schemaless shards drop-moved --shards 0-255 --execute

    Exit status: 0, or 1 if some tables had to stay.
    """
    with open_store(url) as store:
        leftovers = left_behind(store, shards_of(shards_text, store.shard_count))
        ready = [leftover for leftover in leftovers if leftover.refusal is None]
        if execute:
            with progress("dropping", len(ready), "shards") as listener:
                for leftover in ready:
                    drop(store, leftover, listener=listener)
    _show(leftovers, execute, as_json)
    return EXIT_FAILED if len(ready) < len(leftovers) else 0


def _show(leftovers: list[LeftBehind], execute: bool, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "shards": [
                    {
                        **facts(leftover.record, "shard", "job_id", "source"),
                        "node": str(leftover.node),
                        **facts(leftover, "cells", "refusal"),
                        "dropped": execute and leftover.refusal is None,
                    }
                    for leftover in leftovers
                ]
            }
        )
        return
    if not leftovers:
        out().print("no move has left anything behind")
        return
    done = "dropped" if execute else "would be dropped"
    print_table(
        None,
        ["shard", "job", "left on", "cells", ""],
        [
            [
                str(leftover.record.shard),
                str(leftover.record.job_id),
                str(leftover.node),
                f"{leftover.cells:,}",
                done if leftover.refusal is None else "stays",
            ]
            for leftover in leftovers
        ],
        text_columns=3,
    )
    for leftover in leftovers:
        if leftover.refusal is not None:
            note(f"shard {leftover.record.shard} stays: {leftover.refusal}")
    if not execute:
        note("nothing was changed; add --execute to do it")
