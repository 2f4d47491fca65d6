"""What is known about a private server: its values for callers, and ``server.json``, which describes it on disk."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from schemaless.errors import LocalServerError
from schemaless.local.binaries import Binary
from schemaless.local.processes import command_line, processes_on

_REPLICA_IDS = 1000
"""A replica's ``server_id`` is this many times its own number, plus the number of its primary."""


class _Server:
    """What a server's number and folders say of it, whatever else is known."""

    number: int
    replica: int
    socket: Path
    folder: Path

    @property
    def role(self) -> str:
        """Either "primary" or "replica"."""
        return "replica" if self.replica else "primary"

    @property
    def name(self) -> str:
        """What people call it: "server 1", "replica 1 of server 1"."""
        return f"replica {self.replica} of server {self.number}" if self.replica else f"server {self.number}"

    @property
    def url(self) -> str:
        """What to connect with, such as ``mysql://root@/?unix_socket=/run/user/1000/schemaless/3f2a.sock``."""
        return f"mysql://root@/?unix_socket={quote(str(self.socket), safe='/')}"

    @property
    def data(self) -> Path:
        """Its data folder."""
        return self.folder / "data"

    @property
    def log(self) -> Path:
        """Its error log."""
        return self.folder / "error.log"


@dataclass(frozen=True)
class LocalServer(_Server):
    """A running private server.

    Attributes:
        number: 1, 2, ...; a replica has the number of its primary.
        replica: 0 for a primary; 1, 2, ... for its replicas.
        flavour: "mysql" or "mariadb".
        version: such as "9.7.4".
        socket: where it listens.
        folder: holds its data, its log and its description.
        pid: its process.
        port: where a primary listens for its replicas, on 127.0.0.1 alone; None without.
        replicas: those of a primary, by number.
    """

    number: int
    flavour: str
    version: str
    socket: Path
    folder: Path
    pid: int
    replica: int = 0
    port: int | None = None
    replicas: tuple[LocalServer, ...] = ()


@dataclass(frozen=True)
class ServerStatus(_Server):
    """What is known about a server without changing anything.

    Attributes:
        number: as in ``LocalServer``; so are replica, flavour, version, socket and folder.
        state: "running", "stopped" (by ``down``, or never started) or "crashed" (it ended without a shutdown).
        pid: its process, or None.
        data_bytes: what its data folder takes on disk.
        of_group: whether it was made to be of a group.
        fault: why a running replica does not replicate, or a running member is not of its group; else None.
    """

    number: int
    replica: int
    flavour: str
    version: str
    state: str
    pid: int | None
    socket: Path
    folder: Path
    data_bytes: int
    of_group: bool
    fault: str | None


@dataclass(frozen=True)
class Description(_Server):
    """What ``server.json`` holds, and the files beside it."""

    number: int
    replica: int
    flavour: str
    asked: str
    version: str
    command: tuple[str, ...]
    root: Path | None
    program: str
    socket: Path
    port: int | None
    options: tuple[str, ...]
    folder: Path

    @property
    def server_id(self) -> int:
        """Its ``server_id``, which no other server of the folder has."""
        return self.number + _REPLICA_IDS * self.replica

    @property
    def pid_file(self) -> Path:
        """Where it writes its process id; gone after a shutdown."""
        return self.folder / "mysqld.pid"

    def running_pid(self) -> int | None:
        """Return its process, or None."""
        try:
            hint = int(self.pid_file.read_text())
        except (OSError, ValueError):
            hint = None
        pids = processes_on(self.data, hint=hint)
        return pids[0] if pids else None

    def binary(self) -> Binary:
        """Return the program that it was made with."""
        return Binary(self.flavour, self.version, self.command, self.root, self.program)

    def server(self, pid: int) -> LocalServer:
        """Return it as a running server."""
        # The running server's own command line knows best where it listens.
        arguments = command_line(pid)
        socket = next(
            (Path(part.removeprefix("--socket=")) for part in arguments if part.startswith("--socket=")), None
        )
        return LocalServer(
            self.number, self.flavour, self.version, socket or self.socket, self.folder, pid, self.replica, self.port
        )

    def write(self) -> None:
        """Write it beside its data, whole or not at all."""
        state = asdict(self)
        del state["folder"]
        state["name"] = state.pop("program")
        part = self.folder / "server.json.part"
        part.write_text(json.dumps(state, indent=1, default=str) + "\n", encoding="utf-8")
        part.replace(self.folder / "server.json")

    @classmethod
    def read(cls, folder: Path) -> Description | None:
        """Return what ``folder`` describes, or None where it describes nothing.

        Raises:
            LocalServerError: the description is damaged.
        """
        try:
            state = json.loads((folder / "server.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as problem:
            raise LocalServerError(
                f"{folder / 'server.json'} is damaged ({problem}); with 'schemaless local down --delete' all servers "
                "of the folder and their data go"
            ) from problem
        state["program"] = state.pop("name")
        state |= {name: tuple(state[name]) for name in ("command", "options")}
        state |= {name: state[name] and Path(state[name]) for name in ("root", "socket")}
        # Folders from before there were replicas have neither of the first two.
        return cls(**{"replica": 0, "port": None, **state, "folder": folder})
