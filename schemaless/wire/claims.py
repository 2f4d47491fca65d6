"""Claims, which prove that a server is the current primary of its cluster.

The catalog holds the epoch of the current claim, and the primary stores a claim with that epoch and its own identity. A
replaced primary that comes back has an older epoch, and a server promoted without ``topology adopt`` has the claim of
another server. New connections to either are closed before any statement of a call is sent. The check costs no round
trip, because it is part of the query that sets up every new connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from schemaless.errors import PrimaryNotClaimed
from schemaless.wire.sql.sessions import own_claim

NEVER: Final = -1
"""Epoch that no server holds; required of former primaries, so that connections to them are refused."""

RETRY_AFTER_S: Final = 0.25
"""Suggested retry delay after a missing claim, in seconds; a promotion takes moments."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim that a server must hold to be used as a cluster's primary.

    Attributes:
        database: database that holds the cluster's claims.
        cluster: the cluster's name.
        epoch: number of the claim.
    """

    database: str
    cluster: str
    epoch: int

    @property
    def sql(self) -> bytes:
        """SQL expression for the epoch that the server holds."""
        return own_claim(self.database, self.cluster)

    def check(self, held: int | None, node: str, shard: int | None) -> None:
        """Check the epoch that a server holds.

        Raises:
            PrimaryNotClaimed: the server holds another claim, or none.
        """
        if held == self.epoch:
            return
        found = "no claim" if held is None else f"claim {held}"
        required = "names another server now" if self.epoch == NEVER else f"requires claim {self.epoch}"
        refused = PrimaryNotClaimed(
            f"the server has {found} on {self.cluster}, but the catalog {required}, so nothing was sent. "
            "The server was replaced, or promoted by another tool. 'schemaless topology show' names the current "
            "primary; 'schemaless topology adopt' makes clients use a promoted server",
            node=node,
            shard=shard,
        )
        refused.retry_after_s = RETRY_AFTER_S
        raise refused
