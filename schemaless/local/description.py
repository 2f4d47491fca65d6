"""Descriptions of private servers: the objects that callers receive, and ``server.json`` on disk."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from schemaless.errors import LocalServerError
from schemaless.local.binaries import Binary
from schemaless.local.processes import command_line, processes_on

_REPLICA_IDS = 1000
"""A replica's ``server_id`` is this many times its own number, plus the number of its primary."""


@dataclass(frozen=True, kw_only=True)
class _Server:
    """Properties that derive from a server's number and folder."""

    number: int
    replica: int = 0
    socket: Path
    folder: Path
    features: tuple[str, ...] = ()

    @property
    def role(self) -> str:
        """Either "primary" or "replica"."""
        return "replica" if self.replica else "primary"

    @property
    def name(self) -> str:
        """Name for messages: "server 1", "replica 1 of server 1"."""
        return f"replica {self.replica} of server {self.number}" if self.replica else f"server {self.number}"

    @property
    def url(self) -> str:
        """URL to connect to, such as ``mysql://root@/?unix_socket=/run/user/1000/schemaless/3f2a.sock``."""
        return f"mysql://root@/?unix_socket={quote(str(self.socket), safe='/')}"

    @property
    def data(self) -> Path:
        """Data directory."""
        return self.folder / "data"

    @property
    def log(self) -> Path:
        """Error log."""
        return self.folder / "error.log"


@dataclass(frozen=True, kw_only=True)
class LocalServer(_Server):
    """A running private server.

    Attributes:
        number: 1, 2, ...; a replica has the number of its primary.
        replica: 0 for a primary; 1, 2, ... for its replicas.
        flavour: "mysql" or "mariadb".
        version: its version, such as "9.7.4".
        socket: path of its Unix socket.
        folder: folder with its data, log and description.
        features: features that it was created with; see ``options.FEATURES``.
        pid: its process id.
        port: port on 127.0.0.1 on which a primary listens for its replicas, or None.
        replicas: the replicas of a primary, by number.
    """

    flavour: str
    version: str
    pid: int
    port: int | None = None
    replicas: tuple[LocalServer, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ServerStatus(_Server):
    """State of a server.

    Attributes:
        number: as in ``LocalServer``, as are replica, flavour, version, socket, folder and features.
        state: "running", "stopped" (by ``down``, or never started) or "crashed" (it ended without a shutdown).
        pid: its process id, or None.
        data_bytes: size of its data directory on disk.
        fault: reason why a running replica does not replicate, or a running member is not in its group; else None.
    """

    flavour: str
    version: str
    state: str
    pid: int | None
    data_bytes: int
    fault: str | None


@dataclass(frozen=True, kw_only=True)
class Description(_Server):
    """Contents of ``server.json``, and paths of the files next to it."""

    binary: Binary
    asked: str
    port: int | None
    options: tuple[str, ...]

    @property
    def server_id(self) -> int:
        """``server_id``, unique within the folder."""
        return self.number + _REPLICA_IDS * self.replica

    @property
    def pid_file(self) -> Path:
        """File with the process id; the server removes it when it shuts down."""
        return self.folder / "mysqld.pid"

    def running_pid(self) -> int | None:
        """Return the server's process id if it is running, else None."""
        try:
            hint = int(self.pid_file.read_text())
        except (OSError, ValueError):
            hint = None
        pids = processes_on(self.data, hint=hint)
        return pids[0] if pids else None

    @property
    def facts(self) -> dict[str, Any]:
        """The attributes of a ``LocalServer`` or ``ServerStatus`` that do not depend on whether it is running."""
        facts = {name: getattr(self, name) for name in ("number", "replica", "socket", "folder", "features")}
        return facts | {"flavour": self.binary.flavour, "version": self.binary.version}

    def server(self, pid: int) -> LocalServer:
        """Return the ``LocalServer`` for this server, running as process ``pid``."""
        # The command line of the running process is authoritative for the socket.
        sockets = (Path(part.removeprefix("--socket=")) for part in command_line(pid) if part.startswith("--socket="))
        return LocalServer(**self.facts | {"socket": next(sockets, self.socket)}, pid=pid, port=self.port)

    def write(self) -> None:
        """Write ``server.json`` atomically."""
        state = asdict(self)
        del state["folder"]
        part = self.folder / "server.json.part"
        part.write_text(json.dumps(state, indent=1, default=str) + "\n", encoding="utf-8")
        part.replace(self.folder / "server.json")

    @classmethod
    def read(cls, folder: Path) -> Description | None:
        """Read ``server.json`` in ``folder``; None if there is none.

        Raises:
            LocalServerError: the description is damaged, or of another version of this package.
        """
        try:
            state = json.loads((folder / "server.json").read_text(encoding="utf-8"))
            program = state["binary"]
            program |= {"command": tuple(program["command"]), "root": program["root"] and Path(program["root"])}
            state |= {name: tuple(state[name]) for name in ("options", "features")}
            return cls(**state | {"binary": Binary(**program), "socket": Path(state["socket"]), "folder": folder})
        except FileNotFoundError:
            return None
        except (KeyError, TypeError, ValueError) as problem:
            raise LocalServerError(
                f"{folder / 'server.json'} is damaged, or of another version of this package ({problem!r}); "
                "'schemaless local down --delete' deletes all servers in the folder and their data"
            ) from problem
