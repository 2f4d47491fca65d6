"""A server's view of its Group Replication group, and whether that view can be trusted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from schemaless.errors import AccessDenied
from schemaless.ops.failover.sql import SELECT_MEMBERS, SELECT_SERVER
from schemaless.wire.accounts import granting
from schemaless.wire.connection import Connection
from schemaless.wire.pool import NodePool

MEMBERS_TABLE: Final = "performance_schema.replication_group_members"

_PRESENT: Final = ("ONLINE", "RECOVERING")


class Member(NamedTuple):
    """A member of a group, as one server sees it.

    Attributes:
        server: its ``server_uuid``.
        host: its host.
        port: its port.
        state: ONLINE, RECOVERING, OFFLINE, ERROR, or UNREACHABLE.
        role: PRIMARY or SECONDARY; empty if unknown.
    """

    server: str
    host: str
    port: int
    state: str
    role: str

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group as one server sees it.

    Attributes:
        server: the server's own ``server_uuid``.
        members: all members that it knows, including itself; empty if it is in no group.
        single_primary: whether the group is configured for single-primary mode.
    """

    server: str
    members: tuple[Member, ...]
    single_primary: bool = True

    @classmethod
    def of(cls, server: str, rows: Iterable[Sequence[Any]], *, single_primary: bool = True) -> GroupView:
        """Build a view from the rows of ``SELECT_MEMBERS``."""
        members = tuple(Member(str(a), str(b), int(c or 0), str(d), str(e)) for a, b, c, d, e in rows)
        return cls(server, members, single_primary)

    @property
    def state(self) -> str:
        """The server's own state."""
        return next((member.state for member in self.members if member.server == self.server), "OFFLINE")

    @property
    def fault(self) -> str | None:
        """Reason not to trust the view, or None; a primary that is cut off still considers itself the primary."""
        if self.state != "ONLINE":
            return f"it is {self.state} in its group"
        if 2 * self.present <= len(self.members):
            return f"it sees {self.present} of the {len(self.members)} members of its group, which is not a majority"
        return None

    @property
    def present(self) -> int:
        """Number of members that the server sees as online or recovering."""
        return sum(member.state in _PRESENT for member in self.members)

    def has_replaced(self, old: GroupView) -> bool:
        """Whether the majority elected this server while ``old``, of the same group, is blocked without a majority.

        Commits on the old primary wait for a majority that it no longer gets, and are rolled back when it rejoins.
        """
        return (
            self.fault is None
            and [member.server for member in self.primaries] == [self.server]
            and old.state == "ONLINE"
            and old.fault is not None
            and self.server in [member.server for member in old.members]
        )

    @property
    def primaries(self) -> list[Member]:
        """Members that accept writes: one, none during an election, or several in multi-primary mode."""
        return [member for member in self.members if member.role == "PRIMARY" and member.state == "ONLINE"]


def group_view(pool: NodePool) -> GroupView | None:
    """Return a server's view of its group; None if it has been in no group since it started.

    Raises:
        AccessDenied: the account lacks a privilege; the message has the GRANT statement.
        ServerError: the server cannot be reached, or rejects a statement.
    """

    def ask(connection: Connection) -> GroupView | None:
        if connection.is_mariadb:
            return None
        with granting(connection, "read the members of the server's group", "SELECT", MEMBERS_TABLE):
            rows = connection.rows(SELECT_MEMBERS)
        if not rows:
            return None
        ((server, single_primary),) = connection.rows(SELECT_SERVER)
        return GroupView.of(str(server), rows, single_primary=bool(single_primary))

    return pool.run(ask)


def has_majority(pool: NodePool, servers: int) -> bool:
    """Whether a server sees a majority of its group and of the cluster's servers; False if unknown.

    Args:
        pool: pool of the server.
        servers: number of servers that the catalog has for the cluster. A group that does not contain a majority of
            them was cut down by an operator (``group_replication_force_members``), and may lack transactions that the
            others acknowledged.
    """
    try:
        view = group_view(pool)
    except AccessDenied:
        return False
    return view is not None and view.fault is None and 2 * view.present > servers


def has_replaced(new: NodePool, old: NodePool) -> bool:
    """Whether a group's majority elected ``new`` while ``old`` is blocked without a majority; False if unknown."""
    try:
        views = group_view(new), group_view(old)
    except AccessDenied:
        return False
    return views[0] is not None and views[1] is not None and views[0].has_replaced(views[1])
