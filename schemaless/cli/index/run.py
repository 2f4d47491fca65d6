"""``schemaless index run``."""

from __future__ import annotations

from contextlib import nullcontext

import click

from schemaless.admin.indexes import index_supervisor, indexes_of
from schemaless.cli.index.status import show_statuses, status_json
from schemaless.cli.jobs import workers_option
from schemaless.cli.options import open_store, url_option
from schemaless.errors import InvalidInput
from schemaless.events import nobody
from schemaless.indexes.admin import Watch
from schemaless.indexes.registry import BACKFILLING
from schemaless.terminal.output import EXIT_FAILED, json_option, note, print_json, progress


@click.command()
@click.argument("names", nargs=-1)
@workers_option
@click.option("--once", is_flag=True, help="End once all cells that are stored now have been processed.")
@url_option
@json_option
def run(names: tuple[str, ...], workers: int, once: bool, url: str, as_json: bool) -> int:
    """Fill indexes and keep them up to date, until Ctrl-C.

    Without NAMES, the command keeps all indexes. All workers share the shards out between them, on any number of
    machines, and take over the shards of a worker that dies. An index is filled from the beginning of the change feed,
    while applications write; once every cell that was there has been read, the index is ready and accepts queries. The
    command shows how far that is, how fast, and how long it will still take.

    Kill it at any moment: the next run continues at most 100 ms or 500 cells of each worker earlier, which does no
    harm. The account needs the role follow, with grants for the tables of these indexes.

    \b
    Examples:
      schemaless index run --workers 4
      schemaless index run client_trips --once

    Exit status: 3 stopped; with --once 0, or 1 if the index cannot be kept up to date in some shard.
    """
    with open_store(url) as store:
        indexes = indexes_of(store)
        for name in names:
            indexes.named(name)
        while True:
            entries = indexes.maintained(names)
            if not entries:
                raise InvalidInput("there is no index yet; 'schemaless index create' makes one")
            filling = [entry.name for entry in entries if entry.state == BACKFILLING]
            supervisor = index_supervisor(store, names, workers)
            note(f"keeping {', '.join(f'{entry.name} ({entry.number})' for entry in entries)}")
            title = f"filling {', '.join(filling)}"
            with progress(title, None, "ids") if filling else nullcontext(nobody) as listener:
                supervisor.run(Watch(indexes, names, listener, once=once))
            if once:
                break
        statuses = [indexes.status(entry) for entry in indexes.maintained(names)]
    if as_json:
        print_json([status_json(index) for index in statuses])
    else:
        show_statuses(statuses)
    return EXIT_FAILED if any(index.stands for index in statuses) else 0
