"""What commands about private servers share."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from schemaless.local.description import LocalServer, ServerStatus
from schemaless.terminal.output import facts

DEFAULT_FOLDER: Final = ".schemaless/local"

folder_option = click.option(
    "--folder",
    type=click.Path(path_type=Path),
    envvar="SCHEMALESS_LOCAL",
    default=DEFAULT_FOLDER,
    show_envvar=True,
    help="The folder of the servers and their data.",
)


def server_data(server: LocalServer) -> dict[str, Any]:
    """Return a private server, for ``--json``."""
    return {
        **facts(server, "number", "role", "flavour", "version", "url"),
        "socket": str(server.socket),
        "pid": server.pid,
        "folder": str(server.folder),
        **({"replica": server.replica} if server.replica else {"replicas": [server_data(r) for r in server.replicas]}),
    }


def status_data(state: ServerStatus) -> dict[str, Any]:
    """Return a private server and whether it runs, for ``--json``."""
    return {
        **facts(state, "number", "role", "replica", "state", "flavour", "version", "url"),
        "socket": str(state.socket),
        "pid": state.pid,
        "folder": str(state.folder),
        **facts(state, "data_bytes", "fault"),
    }
