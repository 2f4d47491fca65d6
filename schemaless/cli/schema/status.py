"""``schemaless schema status``: which revision each database is at."""

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
    """Show the revisions of the catalog and of the shards.

    The command shows how many databases are at which revision, and names those that are not at the revision of this
    version; --json lists them all. If one server cannot be reached, the others are still asked. 'schemaless schema
    upgrade' upgrades databases that are behind.

    \b
    Example:
      schemaless schema status

    Exit status: 0 if all are at this version's revision, else 1.
    """
    with progress("asking", None, "databases") as listener:
        states = schema_status(datastore_url(url)[0], listener=listener)
    current = all(state.current for state in states)
    if as_json:
        print_json([asdict(state) for state in states])
        return 0 if current else EXIT_FAILED
    behind = [state for state in states if not state.current]
    out().print(f"{len(states) - len(behind):,} of {len(states):,} databases are at this version's revision")
    if behind:
        _print_revisions(states)
        for message, names in names_by_message({state.database: state.error for state in behind if state.error}):
            note(f"not asked: {names}: {message}")
        if any(state.error is None for state in behind):
            note("next: schemaless schema upgrade")
    return 0 if current else EXIT_FAILED


def _print_revisions(states: list[DatabaseState]) -> None:
    """Print how many databases are at which revision, with the names of those that are behind."""
    groups: dict[tuple[str, str, bool], list[str]] = {}
    for state in states:
        revision = "not asked" if state.error else state.revision or "none"
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
