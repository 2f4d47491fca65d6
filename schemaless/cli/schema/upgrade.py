"""``schemaless schema upgrade``."""

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
    help="Number of databases to upgrade at a time on each server.",
)
@json_option
def upgrade(url: str, at_once: int, as_json: bool) -> int:
    """Upgrade all databases to this version's schema revision.

    The catalog is upgraded first, then the shards, several at a time on each server. If a database fails, the command
    reports it and still upgrades the others. After an interruption, run the same command again. The account needs the
    role admin.

    \b
    Example:
      schemaless schema upgrade

    Exit status: 0 if all databases have this version's revision, 1 if one failed.
    """
    with progress("upgrading", None, "databases") as listener:
        outcome = upgrade_schema(datastore_url(url)[0], at_once=at_once, listener=listener)
    if as_json:
        print_json({"upgraded": outcome.upgraded, "current": outcome.current, "failed": outcome.failed})
    else:
        out().print(
            f"upgraded {len(outcome.upgraded):,} databases; {outcome.current:,} already had this version's revision"
        )
        for message, names in names_by_message(outcome.failed):
            note(f"failed: {names}: {message}")
    if outcome.failed:
        note(
            f"{len(outcome.failed):,} databases failed, and all others are done; fix the errors and run the same "
            "command again to upgrade these"
        )
    return EXIT_FAILED if outcome.failed else 0
