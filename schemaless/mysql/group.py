"""What a server says of its group (Group Replication), and whether that may be believed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from schemaless.errors import AccessDenied
from schemaless.mysql.connection import Connection
from schemaless.mysql.grants import own_grant
from schemaless.mysql.pool import NodePool
from schemaless.mysql.sql.groups import SELECT_MEMBERS, SELECT_SERVER

MEMBERS_TABLE: Final = "performance_schema.replication_group_members"

_PRESENT: Final = ("ONLINE", "RECOVERING")


class Member(NamedTuple):
    """A member of a group, as another one sees it.

    Attributes:
        server: its ``server_uuid``.
        state: ONLINE, RECOVERING, OFFLINE, ERROR, or UNREACHABLE.
        role: PRIMARY or SECONDARY, empty where nobody knows.
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
        members: all that it knows of, itself too; none where it is of no group.
    """

    server: str
    members: tuple[Member, ...]

    @classmethod
    def of(cls, server: str, rows: Iterable[Sequence[Any]]) -> GroupView:
        """Return what rows of ``SELECT_MEMBERS`` say."""
        return cls(server, tuple(Member(str(a), str(b), int(c or 0), str(d), str(e)) for a, b, c, d, e in rows))

    @property
    def state(self) -> str:
        """The server's own state."""
        return next((member.state for member in self.members if member.server == self.server), "OFFLINE")

    @property
    def fault(self) -> str | None:
        """Why it is not to be believed, or None: a server that is cut off still takes itself for the primary."""
        present = sum(member.state in _PRESENT for member in self.members)
        if self.state != "ONLINE":
            return f"it is {self.state} in its group"
        if 2 * present <= len(self.members):
            return f"it sees {present} of the {len(self.members)} members of its group, and no majority"
        return None

    @property
    def primaries(self) -> list[Member]:
        """The members that take writes: one, or none while one is chosen, or all where the group has several."""
        return [member for member in self.members if member.role == "PRIMARY" and member.state == "ONLINE"]


def group_view(pool: NodePool) -> GroupView | None:
    """Return the group of a server as it sees it; None where it is of none, and never was since it started.

    Raises:
        AccessDenied: the account may not see it; says which GRANT lets it.
        ServerError: the server cannot be reached, or refuses.
    """

    def ask(connection: Connection) -> GroupView | None:
        if connection.is_mariadb:
            return None
        try:
            rows = connection.rows(SELECT_MEMBERS)
        except AccessDenied as refusal:
            granted = own_grant(connection, "SELECT", MEMBERS_TABLE)
            raise AccessDenied(
                f"the account may not see the members of the server's group; run there: {granted}",
                node=connection.node,
                code=refusal.code,
            ) from refusal
        ((server,),) = connection.rows(SELECT_SERVER)
        return GroupView.of(str(server), rows) if rows else None

    return pool.run(ask)
