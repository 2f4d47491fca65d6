"""Semi-synchronous replication between private servers: a commit is acknowledged once a replica has it."""

from __future__ import annotations

import time
from typing import Final

from schemaless.errors import LocalServerError
from schemaless.local import sql
from schemaless.local.description import Description, LocalServer
from schemaless.local.replication import session
from schemaless.topology.sql import replicas

TIMEOUT_MS: Final = 86_400_000
"""A primary waits so long for a replica before it falls back: a day, so that nobody takes it for waiting who is not."""

ARGUMENTS: Final = {
    "mysql": (
        "--plugin-load-add=semisync_source.so",
        "--plugin-load-add=semisync_replica.so",
        f"--loose-rpl-semi-sync-source-timeout={TIMEOUT_MS}",
        "--loose-rpl-semi-sync-replica-enabled=ON",
    ),
    "mariadb": (
        f"--rpl-semi-sync-master-timeout={TIMEOUT_MS}",
        "--rpl-semi-sync-master-wait-point=AFTER_SYNC",
        "--rpl-semi-sync-slave-enabled=ON",
    ),
}
"""Servers are started with these, and wait later: the account of a first replica is made when none is there."""

_WAIT_S: Final = 30.0
_POLL_S: Final = 0.02


def is_wanted(server: LocalServer) -> bool:
    """Return whether a server was made, or started, to replicate so."""
    description = Description.read(server.folder)
    return description is not None and set(ARGUMENTS[server.flavour]) <= set(description.options)


def begin(primary: LocalServer) -> None:
    """Have a primary, whose replicas replicate, wait for them from now on.

    Raises:
        LocalServerError: its replicas do not say that they acknowledge.
    """
    mariadb = primary.flavour == "mariadb"
    with session(primary) as opened:
        if not opened.rows(replicas.SHOW_SEMI_SYNC):
            raise LocalServerError(
                f"{primary.name} runs without semi-synchronous replication: it is begun where servers start; run "
                "'schemaless local down', and the same command again"
            )
        opened.run(sql.begin_semi_sync(mariadb=mariadb))
        give_up_s = time.monotonic() + _WAIT_S
        while int(opened.rows(sql.SHOW_SEMI_SYNC_CLIENTS)[0]["Value"]) < len(primary.replicas):
            if time.monotonic() >= give_up_s:
                raise LocalServerError(
                    f"the replicas of {primary.name} do not acknowledge what they receive; were they started without "
                    "--semi-sync? Run 'schemaless local down', and the same command again"
                )
            time.sleep(_POLL_S)
