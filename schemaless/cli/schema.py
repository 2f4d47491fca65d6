"""``schemaless schema``: schema revisions of the catalog and of the shards."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

import click

from schemaless.base.numbers import counted
from schemaless.base.parts import grouped
from schemaless.cli.command import JSONCommand, QueryCommand
from schemaless.cli.option import option
from schemaless.ops.admin.upgrades import DatabaseState, schema_status, upgrade_schema
from schemaless.topology.configuration import datastore_url
from schemaless.ui.terminal.output import EXIT_FAILED, note, out, print_result, print_table, progress
from schemaless.wire.parallel import AT_ONCE


@click.group()
def schema() -> None:
    """Upgrade tables, or show their versions.

    Run 'upgrade' after installing a new version of this package; 'status' shows whether it is needed.
    """


@schema.command(cls=QueryCommand)
def status(url: str) -> int:
    """Show the schema revisions of the catalog and of the shards.

    The command shows how many databases have each revision, and names those that do not have this version's revision;
    --json lists all of them. If a server cannot be reached, the others are still read. 'schemaless schema upgrade'
    upgrades outdated databases.

    \b
    Example:
      schemaless schema status

    Exit status: 0 if all databases have this version's revision, else 1.
    """
    with progress("reading", None, "databases") as listener:
        states = schema_status(datastore_url(url)[0], listener=listener)
    current = all(state.current for state in states)
    print_result([asdict(state) for state in states])
    outdated = [state for state in states if not state.current]
    out().print(f"{len(states) - len(outdated):,} of {len(states):,} databases have this version's revision")
    if outdated:
        _print_revisions(states)
        for message, names in names_by_message({state.database: state.error for state in outdated if state.error}):
            note(f"not read: {names}: {message}")
        if any(state.error is None for state in outdated):
            note("next: schemaless schema upgrade")
    return 0 if current else EXIT_FAILED


def _print_revisions(states: list[DatabaseState]) -> None:
    groups: dict[tuple[str, str, bool], list[str]] = {}
    for state in states:
        revision = "not read" if state.error else state.revision or "none"
        groups.setdefault((state.branch, revision, state.current), []).append(state.database)
    print_table(
        None,
        ["branch", "revision", "which", "databases"],
        [
            [branch, revision, "this version's" if current else some_names(databases), len(databases)]
            for (branch, revision, current), databases in sorted(groups.items())
        ],
        text_columns=3,
    )


@schema.command(cls=JSONCommand)
@option(
    "--at-once", "Number of databases to upgrade at a time on each server.", type=click.IntRange(min=1), default=AT_ONCE
)
def upgrade(url: str, at_once: int) -> int:
    """Upgrade all databases to this version's schema revision.

    The catalog is upgraded first, then the shards, several at a time on each server. If a database fails, the command
    reports it and still upgrades the others. After an interruption, run the same command again. The account needs the
    role admin.

    \b
    Example:
      schemaless schema upgrade

    Exit status: 0 if all databases have this version's revision, 1 if any failed.
    """
    with progress("upgrading", None, "databases") as listener:
        outcome = upgrade_schema(datastore_url(url)[0], at_once=at_once, listener=listener)
    print_result({"upgraded": outcome.upgraded, "current": outcome.current, "failed": outcome.failed})
    out().print(
        f"upgraded {counted(len(outcome.upgraded), 'database')}; "
        f"{outcome.current:,} already had this version's revision"
    )
    for message, names in names_by_message(outcome.failed):
        note(f"failed: {names}: {message}")
    if outcome.failed:
        note(
            f"{counted(len(outcome.failed), 'database')} could not be upgraded, and all others are up to date; "
            "fix the errors and run the same command again to upgrade these"
        )
    return EXIT_FAILED if outcome.failed else 0


_MAX_MESSAGES: Final = 20

_MAX_NAMES: Final = 3


def names_by_message(messages: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each message once with the names it applies to; after 20 messages, yield the number of others."""
    by_message = grouped((message, name) for name, message in messages.items())
    for message, names in itertools.islice(by_message.items(), _MAX_MESSAGES):
        yield message, some_names(names)
    if len(by_message) > _MAX_MESSAGES:
        yield "other messages; --json lists them all", f"{len(by_message) - _MAX_MESSAGES:,} more"


def some_names(names: list[str]) -> str:
    """Return the first three names and the number of others."""
    shown = ", ".join(names[:_MAX_NAMES])
    return shown if len(names) <= _MAX_NAMES else f"{shown} and {len(names) - _MAX_NAMES:,} more"
