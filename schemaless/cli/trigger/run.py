"""``schemaless trigger run``."""

from __future__ import annotations

import click

from schemaless.cli.jobs import workers_option
from schemaless.cli.options import open_store, url_option
from schemaless.cli.trigger.status import show_status, status_json
from schemaless.terminal.output import EXIT_FAILED, json_option, note, print_json
from schemaless.triggers.admin import Triggers
from schemaless.triggers.declaration import import_trigger
from schemaless.triggers.supervision import caught_up, prepare, trigger_supervisor


@click.command()
@click.argument("target", metavar="MODULE:NAME")
@workers_option
@click.option("--once", is_flag=True, help="End once all cells that are stored now have been processed.")
@url_option
@json_option
def run(target: str, workers: int, once: bool, url: str, as_json: bool) -> int:
    """Call a trigger's function for each cell, until Ctrl-C.

    The function is called for cells that are stored already and for new ones. Each worker process imports MODULE from
    the current folder or from where Python finds it. NAME is the function in MODULE that has the decorator
    @schemaless.trigger. A trigger that runs for the first time begins where the start= of its decorator says; later it
    continues where it was. The command may run on several machines at once: the shards are shared out again whenever a
    worker starts or ends.

    On Ctrl-C, running calls may end, and the workers store how far they are; a call that has not ended after 30 seconds
    is killed. After kill -9, the last cells are delivered again, at most 100 ms or 500 cells of each worker.

    If a cell ends its worker process, its shard is quarantined: while that lasts, additional processes call the
    function for the cells of quarantined shards, one at a time, and all other shards continue.

    The account needs the role follow, and also app if the function writes cells.

    \b
    Examples:
      schemaless trigger run billing:bill_rider --workers 4
      schemaless trigger run billing:bill_rider --once

    Exit status: 3 stopped; 2 if MODULE cannot be imported, even if it raises SystemExit with another status; with
    --once 0, or 1 if a shard has stopped because of parked cells.
    """
    loaded = import_trigger(target)
    with open_store(url) as store:
        supervisor = trigger_supervisor(store, target, loaded.name, workers)
        if prepare(store, loaded):
            note(f"trigger {loaded.name} is new, and begins at the {loaded.start} of {store.shard_count} shards")
        if not once:
            supervisor.run()
            return 0
        supervisor.run(caught_up(store, loaded))
        trigger = Triggers(store).status(loaded.name)
    if as_json:
        print_json(status_json(trigger))
    else:
        show_status(trigger, each_shard=False)
    return EXIT_FAILED if trigger.stands else 0
