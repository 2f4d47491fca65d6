"""What a server says of its group (Group Replication), and whether that may be believed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from schemaless.errors import AccessDenied
from schemaless.failover.sql import SELECT_MEMBERS, SELECT_SERVER
from schemaless.wire.accounts import own_grant
from schemaless.wire.connection import Connection
from schemaless.wire.pool import NodePool

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
        single_primary: whether it is told that one member at a time takes writes.
    """

    server: str
    members: tuple[Member, ...]
    single_primary: bool = True

    @classmethod
    def of(cls, server: str, rows: Iterable[Sequence[Any]], *, single_primary: bool = True) -> GroupView:
        """Return what rows of ``SELECT_MEMBERS`` say."""
        members = tuple(Member(str(a), str(b), int(c or 0), str(d), str(e)) for a, b, c, d, e in rows)
        return cls(server, members, single_primary)

    @property
    def state(self) -> str:
        """The server's own state."""
        return next((member.state for member in self.members if member.server == self.server), "OFFLINE")

    @property
    def fault(self) -> str | None:
        """Why it is not to be believed, or None: a server that is cut off still takes itself for the primary."""
        if self.state != "ONLINE":
            return f"it is {self.state} in its group"
        if 2 * self.present <= len(self.members):
            return f"it sees {self.present} of the {len(self.members)} members of its group, and no majority"
        return None

    @property
    def present(self) -> int:
        """How many members it sees."""
        return sum(member.state in _PRESENT for member in self.members)

    def has_replaced(self, old: GroupView) -> bool:
        """Whether the majority has chosen this server while ``old``, of the same group, waits without one.

        What is committed there waits for a majority that it never gets again: it is undone when it joins again.
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
        if not rows:
            return None
        ((server, single_primary),) = connection.rows(SELECT_SERVER)
        return GroupView.of(str(server), rows, single_primary=bool(single_primary))

    return pool.run(ask)


def has_majority(pool: NodePool, servers: int) -> bool:
    """Whether a server sees a majority of its group, and of so many servers that the catalog names; False if unknown.

    The second is so unless somebody had a minority go on by force, which may lack what the others acknowledged.
    """
    try:
        view = group_view(pool)
    except AccessDenied:
        return False
    return view is not None and view.fault is None and 2 * view.present > servers


def has_replaced(new: NodePool, old: NodePool) -> bool:
    """Whether a group's majority has chosen ``new`` in place of ``old``, which waits without one; False if unknown."""
    try:
        views = group_view(new), group_view(old)
    except AccessDenied:
        return False
    return views[0] is not None and views[1] is not None and views[0].has_replaced(views[1])
