"""``schemaless index run``."""

from __future__ import annotations

from contextlib import nullcontext

import click

from schemaless.cli.index.status import show_statuses, status_json
from schemaless.cli.options import open_store, url_option
from schemaless.errors import InvalidInput
from schemaless.events import nobody
from schemaless.feed.indexes import Indexes, KeepIndexes, Watch
from schemaless.feed.supervisor import Supervisor
from schemaless.store.registry import BACKFILLING
from schemaless.terminal.output import EXIT_FAILED, json_option, note, print_json, progress


@click.command()
@click.argument("names", nargs=-1)
@click.option("--workers", type=int, default=1, show_default=True, help="Processes on this machine.")
@click.option("--once", is_flag=True, help="End when all that is there now has been dealt with.")
@url_option
@json_option
def run(names: tuple[str, ...], workers: int, once: bool, url: str, as_json: bool) -> int:
    """Fill indexes, and keep them up to date, until Ctrl-C; all of them unless some are named.

    The shards are shared out over all workers, on any number of machines, and taken over from those that die. An index
    is filled from the change feed's beginning, beside writers; when every cell that was there has been dealt with, it
    is ready, and can be asked. How far that is, how fast, and how much longer it takes is shown.

    Killed at any moment, it goes on where it was, 100 ms or 500 cells of each worker earlier at most, which changes
    nothing. The account needs the role follow, with grants for the tables of these indexes.

    \b
    Examples:
      schemaless index run --workers 4
      schemaless index run client_trips --once

    Exit status: 3 stopped; with --once 0, or 1 where a shard cannot be kept.
    """
    with open_store(url) as store:
        indexes = Indexes(store)
        for name in names:
            indexes.named(name)
        while True:
            entries = indexes.kept(names)
            if not entries:
                raise InvalidInput("there is no index to keep; 'schemaless index create' makes one")
            filling = [entry.name for entry in entries if entry.state == BACKFILLING]
            supervisor = Supervisor(store, KeepIndexes(names), workers)
            note(f"keeping {', '.join(f'{entry.name} ({entry.number})' for entry in entries)}")
            title = f"filling {', '.join(filling)}"
            with progress(title, None, "ids") if filling else nullcontext(nobody) as listener:
                supervisor.run(Watch(indexes, names, listener, once=once))
            if once:
                break
        found = [indexes.status(entry) for entry in indexes.kept(names)]
    if as_json:
        print_json([status_json(each) for each in found])
    else:
        show_statuses(found)
    return EXIT_FAILED if any(each.stands for each in found) else 0
