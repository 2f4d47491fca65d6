"""``schemaless local down``: stops private servers."""

from __future__ import annotations

from pathlib import Path

import click

from schemaless.cli.local.shown import folder_option, status_data
from schemaless.local import servers as local_servers
from schemaless.terminal.output import bytes_text, json_option, note, print_json


@click.command()
@click.option("--delete", is_flag=True, help="Also remove the folder, with all data of the servers.")
@folder_option
@json_option
def down(delete: bool, folder: Path, as_json: bool) -> None:
    """Stop the servers, and wait until they have stopped.

    Their data stays, and 'schemaless local up' starts them again, unless --delete is given.

    \b
    Examples:
      schemaless local down
      schemaless local down --delete
    """
    before = local_servers.down(folder, delete=delete, report=note)
    if as_json:
        servers = [status_data(state) for state in before]
        print_json({"folder": str(folder.resolve()), "deleted": delete, "servers": servers})
        return
    running = [state for state in before if state.state == "running"]
    if not before:
        note(f"no servers in {folder.resolve()}")
    elif delete:
        size = bytes_text(sum(state.data_bytes for state in before))
        note(f"stopped {len(running)} of {len(before)} servers and removed {folder.resolve()}, {size}")
    else:
        note(f"stopped {len(running)} of {len(before)} servers; their data stays in {folder.resolve()}")
