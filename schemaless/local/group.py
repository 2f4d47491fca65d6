"""Group Replication among three private servers, which elect their primary."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from schemaless.errors import LocalServerError
from schemaless.local import sql
from schemaless.local.description import LocalServer
from schemaless.local.replication import HOST, Session, session
from schemaless.topology.sql import replicas
from schemaless.wire.sql.sessions import SELECT_PORT

REPLICAS: Final = 2
"""Replicas per group: with the server itself, three members, the fewest that can survive the loss of one."""

ARGUMENTS: Final = (
    "--plugin-load-add=group_replication.so",
    # Members connect to the servers' own ports with an account and a password, so that no other server can join.
    "--loose-group-replication-communication-stack=MYSQL",
    "--loose-group-replication-start-on-boot=OFF",
    "--loose-group-replication-recovery-get-public-key=ON",
    # The default is one gigabyte of memory, for members that are temporarily unreachable.
    "--loose-group-replication-message-cache-size=134217728",
    f"--report-host={HOST}",
    # A restarted server must not accept writes before it has joined the group.
    "--super-read-only=ON",
)
"""Start options of members. Ports are configured later, once the servers listen."""

_ACCOUNT: Final = "group_member"
_WAIT_S: Final = 120.0
_POLL_S: Final = 0.05


def require_able(flavour: str) -> None:
    """Raise LocalServerError for a server without Group Replication."""
    if flavour != "mysql":
        raise LocalServerError(f"{flavour} has no Group Replication; use --flavour mysql, or --semi-sync instead")


def fault(server: LocalServer) -> str | None:
    """Return the reason why a running server is not in its group; None if it is."""
    try:
        with session(server) as opened:
            state = _state(opened)
    except LocalServerError as problem:
        return str(problem)
    return None if state == "ONLINE" else f"its state in the group is {state}"


def form(members: Sequence[LocalServer], say: Callable[[str], None]) -> None:
    """Make running servers join their group, and wait until all of them are online in it.

    If the group is down, for example because all its servers were stopped, and all its members are running again, the
    member with the most transactions bootstraps it. The group then elects its primary.

    Raises:
        LocalServerError: a server cannot join.
    """
    with ExitStack() as stack:
        opened = {member: stack.enter_context(session(member)) for member in members}
        inside = [member for member in members if _state(opened[member]) == "ONLINE"]
        if not inside and len(members) <= REPLICAS:
            say(f"the group of server {members[0].number} is down; it restarts once all its members are running")
            return
        if not inside:
            inside = [_bootstrap(opened, say)]
        for member in members:
            if member not in inside:
                _join(opened, member, inside[0])
        for member in members:
            _wait(member, opened[member], say)


def _bootstrap(opened: dict[LocalServer, Session], say: Callable[[str], None]) -> LocalServer:
    """Create the group's account on all servers, and bootstrap the group on the most advanced one."""
    password = secrets.token_urlsafe(24)
    for member_session in opened.values():
        for statement in (
            sql.STOP_GROUP,  # a member that has lost the majority must leave first
            sql.set_global("super_read_only", 0),
            *sql.make_member_account(_ACCOUNT, HOST, password),
            sql.set_global("super_read_only", 1),
        ):
            member_session.run(statement)
    first = _most_advanced(opened)
    say(f"{first.name} bootstraps a group of {len(opened)}")
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
        f"the members of the group of server {next(iter(opened)).number} have diverged: each lacks transactions from "
        "another; delete the servers with 'schemaless local down --delete', and start again"
    )


def _join(opened: dict[LocalServer, Session], member: LocalServer, inside: LocalServer | None) -> None:
    """Join a server to the group of the member ``inside``, or to a new group."""
    name = str(uuid.uuid4()) if inside is None else str(opened[inside].run(sql.SELECT_GROUP_NAME))
    # Ask for the current ports: a server gets another port if its previous one is taken.
    at = {server: f"{HOST}:{int(its.run(SELECT_PORT))}" for server, its in opened.items()}
    opened[member].run(sql.STOP_GROUP)
    opened[member].run(sql.set_global("group_replication_group_name", name))
    opened[member].run(sql.set_global("group_replication_local_address", at[member]))
    # A seed list with the server itself would delay rejoining after a crash: it would contact itself first.
    seeds = [address for server, address in at.items() if server != member]
    opened[member].run(sql.set_global("group_replication_group_seeds", ",".join(seeds)))
    opened[member].run(sql.START_GROUP)


def _wait(member: LocalServer, opened: Session, say: Callable[[str], None]) -> None:
    said = began = time.monotonic()
    while (state := _state(opened)) != "ONLINE":
        now = time.monotonic()
        if state != "RECOVERING" or now - began > _WAIT_S:
            raise LocalServerError(f"{member.name} is in state {state} in its group; see its log, {member.log}")
        if now - said > 5:
            said = now
            say(f"{member.name} is still recovering; it joins its group afterwards")
        time.sleep(_POLL_S)


def _state(opened: Session) -> str:
    """Return a server's state in its group; UNREACHABLE if it is cut off from the majority."""
    (row,) = opened.rows(sql.SELECT_MEMBER_STATE)
    state = str(row["state"])
    return state if row["majority"] or state != "ONLINE" else "UNREACHABLE"
