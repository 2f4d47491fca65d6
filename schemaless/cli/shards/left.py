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
        found = left_behind(store, shards_of(shards_text, store.shard_count))
        ready = [each for each in found if each.refusal is None]
        if execute:
            with progress("dropping", len(ready), "shards") as listener:
                for each in ready:
                    drop(store, each, listener=listener)
    _show(found, execute, as_json)
    return EXIT_FAILED if len(ready) < len(found) else 0


def _show(found: list[LeftBehind], execute: bool, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "shards": [
                    {
                        **facts(each.record, "shard", "job_id", "source"),
                        "node": str(each.node),
                        **facts(each, "cells", "refusal"),
                        "dropped": execute and each.refusal is None,
                    }
                    for each in found
                ]
            }
        )
        return
    if not found:
        out().print("no move has left anything behind")
        return
    done = "dropped" if execute else "would be dropped"
    print_table(
        None,
        ["shard", "job", "left on", "cells", ""],
        [
            [
                str(each.record.shard),
                str(each.record.job_id),
                str(each.node),
                f"{each.cells:,}",
                done if each.refusal is None else "stays",
            ]
            for each in found
        ],
        text_columns=3,
    )
    for each in found:
        if each.refusal is not None:
            note(f"shard {each.record.shard} stays: {each.refusal}")
    if not execute:
        note("nothing was changed; add --execute to do it")
