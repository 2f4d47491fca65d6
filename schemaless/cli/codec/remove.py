"""``schemaless codec remove``: retires a dictionary that nothing needs."""

from __future__ import annotations

import click

from schemaless.admin.dictionary_removal import remove as remove_dictionary
from schemaless.cli.codec.shown import entry_of
from schemaless.cli.options import note_dry, open_store, url_option
from schemaless.terminal.output import EXIT_FAILED, out, progress


@click.command()
@url_option
@click.argument("dictionary_id", metavar="N", type=int)
@click.option("--execute", is_flag=True, help="Really retire or remove the dictionary; without it, nothing is changed.")
def remove(url: str, dictionary_id: int, execute: bool) -> int:
    """Remove a dictionary that no cell needs, in two steps.

    The first run retires the dictionary: from then on, no writer begins to use it. An hour later, run the same command
    again: it looks through all cells, and removes the dictionary if no cell needs it, no column is set to it and no job
    writes with it. Its number is never given to another dictionary. If an archive or a dump may still need it, back it
    up first: 'schemaless codec export'. The account needs the role admin.

    \b
    Example:
      schemaless codec remove 32768 --execute

    Exit status: 0 removed; 1 still needed, or retired and not removed yet.
    """
    with open_store(url) as store:
        if not execute:
            entry = entry_of(store, dictionary_id)
            step = "retire" if entry.retired_at is None else "look through all cells for, and remove,"
            out().print(f"would {step} dictionary {dictionary_id} of {store.name}")
            note_dry()
            return 0
        with progress("looking for cells that need it", None, "cells") as listener:
            done = remove_dictionary(store, dictionary_id, listener=listener)
    if done.removed:
        out().print(f"dictionary {dictionary_id} removed: none of {done.cells:,} cells needs it")
        return 0
    out().print(
        f"dictionary {dictionary_id} is retired; run the same command in {done.wait_s / 60:,.0f} minutes, when nothing "
        "can be writing with it any more"
    )
    return EXIT_FAILED
