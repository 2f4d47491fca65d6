"""Address and role of a MySQL server."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from schemaless.errors import TopologyError

Role = Literal["primary", "replica"]


@dataclass(frozen=True, slots=True)
class Node:
    """A MySQL server, reached by host and port or by a local socket. Never holds a password.

    Attributes:
        role: its role in its cluster.
        host: its host, unless it is reached by a socket.
        port: its port.
        socket: path of its socket.
        server: identity of the server that last had this address, as recorded in the catalog; not compared.
    """

    role: Role
    host: str | None = None
    port: int | None = None
    socket: str | None = None
    server: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if (self.host is None) == (self.socket is None):
            raise TopologyError(f"a node has either a host or a socket, got host {self.host!r}, socket {self.socket!r}")

    def __str__(self) -> str:
        return self.socket if self.socket is not None else f"{self.host}:{self.port or 3306}"

    def having(self, role: Role) -> Node:
        """Return the same server with another role."""
        return replace(self, role=role)
