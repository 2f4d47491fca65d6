"""Semi-synchronous replication between private servers: a commit waits until a replica has received it."""

from __future__ import annotations

import time
from typing import Final

from schemaless.errors import LocalServerError
from schemaless.local import sql
from schemaless.local.description import LocalServer
from schemaless.local.replication import session

TIMEOUT_MS: Final = 86_400_000
"""Time until a primary stops waiting for replicas, in milliseconds: a day, so that the waiting never ends unnoticed."""

ARGUMENTS: Final[dict[str, tuple[str, ...]]] = {
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
"""Start options. Waiting is enabled later; otherwise even creating the first replica's account would wait."""

_WAIT_S: Final = 30.0
_POLL_S: Final = 0.02


def enable(primary: LocalServer) -> None:
    """Make a primary wait for its replicas, which must be replicating.

    Raises:
        LocalServerError: its replicas do not register as semi-synchronous.
    """
    mariadb = primary.flavour == "mariadb"
    with session(primary) as opened:
        if not opened.rows(sql.SHOW_SEMI_SYNC):
            raise LocalServerError(
                f"{primary.name} was started without semi-synchronous replication; run 'schemaless local down', then "
                "the same command again"
            )
        opened.run(sql.begin_semi_sync(mariadb=mariadb))
        give_up_s = time.monotonic() + _WAIT_S
        while int(opened.rows(sql.SHOW_SEMI_SYNC_CLIENTS)[0]["Value"]) < len(primary.replicas):
            if time.monotonic() >= give_up_s:
                raise LocalServerError(
                    f"the replicas of {primary.name} do not acknowledge transactions; perhaps they were started "
                    "without --semi-sync: run 'schemaless local down', then the same command again"
                )
            time.sleep(_POLL_S)
