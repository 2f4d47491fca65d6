"""``schemaless topology lost``."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from schemaless.admin.ndjson import dump_lines
from schemaless.cli.options import open_store, url_option
from schemaless.failover.lost import lost_cells, settle_lost, unsettled
from schemaless.terminal.files import OutputFile, whole_file
from schemaless.terminal.output import data_sink, note, progress


@click.command()
@click.option(
    "--from", "old", required=True, metavar="URL_OLD", help="The URL of the old primary, which answers again."
)
@click.option("--stored", is_flag=True, help="Write stored bytes (base64) instead of documents: an exact copy.")
@click.option("--settled", is_flag=True, help="Instead, record that these cells have been loaded or given up.")
@click.option("--output", type=OutputFile(Path), help="Write to this file instead of standard output.")
@url_option
def lost(old: str, stored: bool, settled: bool, output: Path | None, url: str) -> None:
    """Write the cells that a failover lost as NDJSON.

    These are the cells that the old primary has, but the datastore lacks or has with another document. The old primary
    may be read-only, and nothing is written to any server. The lines have the format of 'schemaless dump'. 'schemaless
    load --from-dump' puts the cells again, under new added_ids and with the times at which they were first stored. A
    cell that exists with another document is a conflict, which 'load' reports.

    The command compares every shard of which the old primary has cells, by digests of 10,000 rows, and transfers cells
    only if two digests differ. Run it before you rebuild the old primary.

    If the old primary did not answer or had more transactions at an adoption, the catalog records that, and no
    dictionary can be removed until it is settled: with --settled and the URL that the catalog had, or by adding the
    rebuilt server as a replica.

    \b
    Examples:
      schemaless topology lost --from mysql://db-2:3306/ --output lost.ndjson
      schemaless load --from-dump --keep-going lost.ndjson
      schemaless topology lost --from mysql://db-2:3306/ --settled
    """
    if settled:
        with open_store(url) as store:
            clusters, remaining = settle_lost(store, old), unsettled(store)
        note(f"settled for {', '.join(clusters)}" if clusters else "no adoption has recorded that server as lost")
        if remaining:
            note(f"not settled yet: {', '.join(remaining)}")
        return
    with open_store(url) as store, ExitStack() as stack:
        sink = data_sink() if output is None else stack.enter_context(whole_file(output))
        listener = stack.enter_context(progress("comparing", None, "ids"))
        count = 0
        for _, lines in dump_lines(store, lost_cells(store, old, listener=listener), stored=stored):
            sink.write(lines)
            count += 1
        sink.flush()
    note(f"{count:,} cells exist only on the old primary, or differ there" if count else "nothing was lost")
