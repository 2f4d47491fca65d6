"""``schemaless schema status``."""

from __future__ import annotations

from dataclasses import asdict

import click

from schemaless.admin.upgrades import DatabaseState, schema_status
from schemaless.cli.options import url_option
from schemaless.cli.schema.shown import names_by_message, some_names
from schemaless.terminal.output import EXIT_FAILED, json_option, note, out, print_json, print_table, progress
from schemaless.topology.configuration import datastore_url


@click.command()
@url_option
@json_option
def status(url: str, as_json: bool) -> int:
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
    if as_json:
        print_json([asdict(state) for state in states])
        return 0 if current else EXIT_FAILED
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
    """Print the number of databases per revision, with names of outdated ones."""
    groups: dict[tuple[str, str, bool], list[str]] = {}
    for state in states:
        revision = "not read" if state.error else state.revision or "none"
        groups.setdefault((state.branch, revision, state.current), []).append(state.database)
    print_table(
        None,
        ["branch", "revision", "which", "databases"],
        [
            [branch, revision, "this version's" if current else some_names(databases), f"{len(databases):,}"]
            for (branch, revision, current), databases in sorted(groups.items())
        ],
        text_columns=3,
    )
