"""Claims: which server may be a cluster's primary. The catalog says which claim it has to have, the server has it.

A server that was the primary once comes back with the claim of that time, and one that was made a primary without
anybody having looked at it has the claim of another. Connections to either are closed before anything is sent on them.
It costs no round trip: the query that every new connection begins with asks for the claim, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from schemaless.errors import PrimaryNotClaimed
from schemaless.wire.sql.sessions import own_claim

NEVER: Final = -1
"""No server has a claim of this epoch: it is asked of what was a primary and is none any more."""

RETRY_AFTER_S: Final = 0.25
"""A caller whose server has not got its claim is told to wait this long: a takeover is a matter of moments."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a server has to have before it is used as a cluster's primary.

    Attributes:
        database: where the cluster's claims are.
        cluster: its name.
        epoch: which claim.
    """

    database: str
    cluster: str
    epoch: int

    @property
    def sql(self) -> bytes:
        """The expression that a connection asks for."""
        return own_claim(self.database, self.cluster)

    def check(self, held: int | None, node: str, shard: int | None) -> None:
        """Check what a server says.

        Raises:
            PrimaryNotClaimed: it has another claim, or none.
        """
        if held == self.epoch:
            return
        has = "no claim" if held is None else f"claim {held}"
        wanted = "names another server now" if self.epoch == NEVER else f"asks for claim {self.epoch}"
        refused = PrimaryNotClaimed(
            f"it has {has} on {self.cluster}, and the catalog {wanted}, so nothing was sent there. Was it replaced, or "
            "promoted by something else? 'schemaless topology show' says who is the primary; 'schemaless topology "
            "adopt' has clients write to what was promoted",
            node=node,
            shard=shard,
        )
        refused.retry_after_s = RETRY_AFTER_S
        raise refused
