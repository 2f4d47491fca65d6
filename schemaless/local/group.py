"""Group Replication between private servers: three of them, which decide among themselves who is the primary."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from schemaless.errors import LocalServerError
from schemaless.local import sql
from schemaless.local.description import Description, LocalServer
from schemaless.local.replication import HOST, Session, session
from schemaless.topology.sql import replicas
from schemaless.wire.sql.sessions import SELECT_PORT

REPLICAS: Final = 2
"""A group is a server and so many replicas of it: three, the fewest of which one may be lost."""

ARGUMENTS: Final = (
    "--plugin-load-add=group_replication.so",
    # Members meet on the servers' own ports, by an account with a password: nobody else can join.
    "--loose-group-replication-communication-stack=MYSQL",
    "--loose-group-replication-start-on-boot=OFF",
    "--loose-group-replication-recovery-get-public-key=ON",
    # A gigabyte of memory else, for members that are away.
    "--loose-group-replication-message-cache-size=134217728",
    f"--report-host={HOST}",
    # Whoever comes back takes no writes before the group has it.
    "--super-read-only=ON",
)
"""Servers are started with these; what a group is told of ports it is told when they listen."""

_ACCOUNT: Final = "group_member"
_WAIT_S: Final = 120.0
_POLL_S: Final = 0.05


def is_wanted(options: Sequence[str]) -> bool:
    """Return whether servers with these options are to be of a group."""
    return ARGUMENTS[0] in options


def is_member(server: LocalServer) -> bool:
    """Return whether a server was made to be of a group."""
    description = Description.read(server.folder)
    return description is not None and is_wanted(description.options)


def require_able(flavour: str) -> None:
    """Raise LocalServerError for a server that knows no groups."""
    if flavour != "mysql":
        raise LocalServerError(f"Group Replication is MySQL's, and this is {flavour}; --semi-sync works with both")


def fault(server: LocalServer) -> str | None:
    """Say why a running server is not of its group, or None where it is."""
    try:
        with session(server) as opened:
            state = _state(opened)
    except LocalServerError as problem:
        return str(problem)
    return None if state == "ONLINE" else f"it is {state} in its group"


def form(members: Sequence[LocalServer], say: Callable[[str], None]) -> None:
    """Have running servers be a group, and wait until all of them are in it.

    Where there is no group, as after all were stopped, and all of its members are here, the one that has most begins
    it. Who is the primary from then on is the group's own affair.

    Raises:
        LocalServerError: one does not get in.
    """
    with ExitStack() as stack:
        opened = {member: stack.enter_context(session(member)) for member in members}
        inside = [member for member in members if _state(opened[member]) == "ONLINE"]
        if not inside and len(members) <= REPLICAS:
            say(f"the group of server {members[0].number} is down: it begins again where all of its members run")
            return
        if not inside:
            inside = [_begin(opened, say)]
        for member in members:
            if member not in inside:
                _join(opened, member, inside[0])
        for member in members:
            _wait(member, opened[member], say)


def _begin(opened: dict[LocalServer, Session], say: Callable[[str], None]) -> LocalServer:
    """Begin a group with the server that lacks nothing, and return it; all of them get one account for it."""
    password = secrets.token_urlsafe(24)
    for member_session in opened.values():
        for statement in (
            sql.STOP_GROUP,  # of one that has lost its majority
            sql.set_global("super_read_only", 0),
            *sql.make_member_account(_ACCOUNT, HOST, password),
            sql.set_global("super_read_only", 1),
        ):
            member_session.run(statement)
    first = _most_advanced(opened)
    say(f"{first.name} begins a group of {len(opened)}")
    opened[first].run(sql.set_global("group_replication_bootstrap_group", 1))
    try:
        _join(opened, first, None)
    finally:
        opened[first].run(sql.set_global("group_replication_bootstrap_group", 0))
    _wait(first, opened[first], say)
    return first


def _most_advanced(opened: dict[LocalServer, Session]) -> LocalServer:
    applied = [str(member_session.run(replicas.SELECT_GTID_APPLIED)) for member_session in opened.values()]
    for member, member_session in opened.items():
        if not member_session.run(replicas.select_lacking(applied)):
            return member
    raise LocalServerError(
        f"each server of the group of server {next(iter(opened)).number} has what another one lacks; delete them with "
        "'schemaless local down --delete', and start again"
    )


def _join(opened: dict[LocalServer, Session], member: LocalServer, inside: LocalServer | None) -> None:
    """Have a server join the group of another one; without one, it is to begin its own."""
    name = str(uuid.uuid4()) if inside is None else str(opened[inside].run(sql.SELECT_GROUP_NAME))
    # The ports that they have now: one that was taken meanwhile is another one than at the last start.
    at = {server: f"{HOST}:{int(its.run(SELECT_PORT))}" for server, its in opened.items()}
    opened[member].run(sql.STOP_GROUP)
    opened[member].run(sql.set_global("group_replication_group_name", name))
    opened[member].run(sql.set_global("group_replication_local_address", at[member]))
    # Not itself: one that was killed and joins again would ask itself first, and take longer.
    seeds = [address for server, address in at.items() if server != member]
    opened[member].run(sql.set_global("group_replication_group_seeds", ",".join(seeds)))
    opened[member].run(sql.START_GROUP)


def _wait(member: LocalServer, opened: Session, say: Callable[[str], None]) -> None:
    said = began = time.monotonic()
    while (state := _state(opened)) != "ONLINE":
        now = time.monotonic()
        if state != "RECOVERING" or now - began > _WAIT_S:
            raise LocalServerError(f"{member.name} is {state} in its group; its log is {member.log}")
        if now - said > 5:
            said = now
            say(f"{member.name} is not in its group yet: it gets what it lacks")
        time.sleep(_POLL_S)


def _state(opened: Session) -> str:
    """Return a server's state in its group; UNREACHABLE where it is cut off from the majority."""
    (row,) = opened.rows(sql.SELECT_OWN_PLACE)
    state = str(row["state"])
    return state if row["majority"] or state != "ONLINE" else "UNREACHABLE"
