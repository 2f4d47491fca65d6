"""``schemaless schema upgrade``: brings every database to the newest revision."""

from __future__ import annotations

import click

from schemaless.admin.upgrades import upgrade_schema
from schemaless.cli.options import url_option
from schemaless.cli.schema.shown import names_by_message
from schemaless.terminal.output import EXIT_FAILED, json_option, note, out, print_json, progress
from schemaless.topology.configuration import datastore_url
from schemaless.wire.parallel import AT_ONCE


@click.command()
@url_option
@click.option(
    "--at-once",
    type=click.IntRange(min=1),
    default=AT_ONCE,
    help="How many databases of each server are upgraded at a time.",
)
@json_option
def upgrade(url: str, at_once: int, as_json: bool) -> int:
    """Bring all tables to this version's revision.

    The catalog is upgraded first, then the shards, several at a time on each server. If a database fails, the command
    names it and upgrades the others all the same. If it is interrupted, the same command upgrades the rest. The account
    needs the role admin.

    \b
    Example:
      schemaless schema upgrade

    Exit status: 0 if all are at this version's revision, 1 if one failed.
    """
    with progress("upgrading", None, "databases") as listener:
        outcome = upgrade_schema(datastore_url(url)[0], at_once=at_once, listener=listener)
    if as_json:
        print_json({"upgraded": outcome.upgraded, "current": outcome.current, "failed": outcome.failed})
    else:
        out().print(
            f"upgraded {len(outcome.upgraded):,} databases; {outcome.current:,} were at this version's revision already"
        )
        for message, names in names_by_message(outcome.failed):
            note(f"failed: {names}: {message}")
    if outcome.failed:
        note(
            f"{len(outcome.failed):,} failed, all others are done; mend what is named and run the same command again: "
            "it goes on with those"
        )
    return EXIT_FAILED if outcome.failed else 0
