"""``schemaless local status``: which private servers run."""

from __future__ import annotations

from pathlib import Path

import click

from schemaless.cli.local.shown import folder_option, status_data
from schemaless.local import servers as local_servers
from schemaless.local.description import ServerStatus
from schemaless.terminal.output import EXIT_FAILED, bytes_text, json_option, note, print_json, print_table


@click.command()
@folder_option
@click.option(
    "--url", "number", type=click.IntRange(1), metavar="N", help="Print only the URL of server N, for use in a script."
)
@json_option
def status(folder: Path, number: int | None, as_json: bool) -> int:
    """Show the servers, and whether replicas replicate and members are of their group.

    The servers are those of --folder.

    \b
    Examples:
      schemaless local status
      schemaless local status --json
      schemaless create trips --shards 4 --cluster "$(schemaless local status --url 1)"

    Exit status: 0 if there are servers, all of them run, and all replicas and members are in order, else 1.
    """
    states = local_servers.status(folder)
    if number is not None:
        name = f"server {number}"
        url = next((state.url for state in states if state.name == name and state.state == "running"), None)
        if url is None:
            raise click.UsageError(f"no running {name} in {folder.resolve()}; start it with 'schemaless local up'")
        click.echo(url)
        return 0
    if as_json:
        print_json({"folder": str(folder.resolve()), "servers": [status_data(state) for state in states]})
    elif states:
        rows = [
            [
                state.name,
                f"{state.state}, not {_what(state)}" if state.fault else state.state,
                f"{state.flavour} {state.version}",
                state.url,
                "-" if state.pid is None else str(state.pid),
                bytes_text(state.data_bytes),
            ]
            for state in states
        ]
        print_table(None, ["server", "state", "version", "url", "process", "data"], rows, text_columns=4)
    else:
        note(f"no servers in {folder.resolve()}; 'schemaless local up' makes some")
    stopped = [state for state in states if state.state != "running"]
    broken = [state for state in states if state.fault]
    if not as_json:
        for state in broken:
            note(f"{state.name} is not {_what(state)}: {state.fault}")
        if stopped:
            note(f"{len(stopped)} of {len(states)} do not run; 'schemaless local up' starts them on their own data")
        elif broken:
            note("'schemaless local up' has members join their group, and points replicas at their primaries")
    return EXIT_FAILED if stopped or broken or not states else 0


def _what(state: ServerStatus) -> str:
    return "of its group" if state.of_group else "replicating"
