"""``schemaless shards verify``."""

from __future__ import annotations

import click

from schemaless.cli.options import open_store, shards_of, shards_option, url_option
from schemaless.move.compare import Compared, compare
from schemaless.move.run import left_behind
from schemaless.terminal.output import EXIT_FAILED, facts, json_option, note, out, print_json, print_table, progress

_NAMED = 5


@click.command()
@shards_option
@url_option
@json_option
def verify(shards_text: str | None, url: str, as_json: bool) -> int:
    """Compare moved shards with what they left behind, cell by cell. Changes nothing.

    A move compares each shard before it ends. This command does that again, from the beginning, as long as 'shards
    drop-moved' has not dropped the old tables. It compares ids, keys, times and bytes, by digests that the two servers
    compute. A body that was re-encoded since counts as the same if its document is the same. The command shows the
    SHA-256 of all cells that were left behind. It does not look at cells that were written after the move.

    \b
    Examples:
      schemaless shards verify
      schemaless shards verify --shards 0-255 --json

    Exit status: 0, or 1 where a shard differs.
    """
    with open_store(url) as store:
        left = [place for place in left_behind(store, shards_of(shards_text, store.shard_count)) if place.has_cells]
        with progress("comparing", len(left), "shards") as listener:
            comparisons = [compare(store, place, listener=listener) for place in left]
    if as_json:
        print_json({"shards": [_data(comparison) for comparison in comparisons]})
    else:
        _show(comparisons)
    return 0 if all(comparison.same for comparison in comparisons) else EXIT_FAILED


def _data(compared: Compared) -> dict[str, object]:
    own = facts(compared, "cells", "same", "left_digest", "digest", "re_encoded", "lacking", "differing", "strange")
    return {**facts(compared.record, "shard", "job_id", "source", "target"), **own}


def _show(comparisons: list[Compared]) -> None:
    if not comparisons:
        out().print("no move has left anything behind to compare with")
        return
    print_table(
        None,
        ["shard", "job", "from", "sha-256", "", "cells", "re-encoded"],
        [
            [
                str(compared.record.shard),
                str(compared.record.job_id),
                compared.record.source,
                compared.left_digest[:16],
                "same" if compared.same else "differs",
                f"{compared.cells:,}",
                f"{compared.re_encoded:,}",
            ]
            for compared in comparisons
        ],
        text_columns=5,
    )
    for compared in comparisons:
        for what, ids in (
            ("are no longer there", compared.lacking),
            ("differ there", compared.differing),
            ("are there, but were not left behind", compared.strange),
        ):
            if ids:
                named = ", ".join(map(str, ids[:_NAMED])) + (", ..." if len(ids) > _NAMED else "")
                note(f"shard {compared.record.shard}: {len(ids):,} cells {what}, by added_id: {named}")
