"""``schemaless trigger run``."""

from __future__ import annotations

import click

from schemaless.cli.options import open_store, url_option
from schemaless.cli.trigger.status import show_status, status_json
from schemaless.feed.operations import Triggers
from schemaless.feed.supervisor import CallTrigger, Supervisor, caught_up, prepare
from schemaless.feed.trigger import import_trigger
from schemaless.terminal.output import EXIT_FAILED, json_option, note, print_json


@click.command()
@click.argument("target", metavar="MODULE:NAME")
@click.option("--workers", type=int, default=1, show_default=True, help="Processes on this machine.")
@click.option("--once", is_flag=True, help="End when all that is there now has been dealt with.")
@url_option
@json_option
def run(target: str, workers: int, once: bool, url: str, as_json: bool) -> int:
    """Call a trigger's function for each cell, now and as they come, until Ctrl-C.

    MODULE is imported by each worker process, from the current folder or wherever Python finds it; NAME is the function
    in it that @schemaless.trigger made a trigger. A trigger that is run for the first time begins where its start=
    says. Later it continues where it is. The command may run on several machines at once: the shards are shared out
    again whenever a worker comes or goes.

    Ctrl-C lets the calls that are running end, and writes down how far they are; a call that has not ended after 30
    seconds is killed. After kill -9 the last cells come again, 100 ms or 500 cells of each worker at most.

    The account needs the role follow, and app as well where the function writes cells.

    \b
    Examples:
      schemaless trigger run billing:bill_rider --workers 4
      schemaless trigger run billing:bill_rider --once

    Exit status: 3 stopped; with --once 0, or 1 where a shard stands still.
    """
    loaded = import_trigger(target)
    with open_store(url) as store:
        supervisor = Supervisor(store, CallTrigger(target, loaded.name), workers)
        if prepare(store, loaded):
            note(f"trigger {loaded.name} is new, and begins at the {loaded.start} of {store.shard_count} shards")
        if not once:
            supervisor.run()
            return 0
        supervisor.run(caught_up(store, loaded))
        found = Triggers(store).status(loaded.name)
    if as_json:
        print_json(status_json(found))
    else:
        show_status(found, each_shard=False)
    return EXIT_FAILED if found.stands else 0
