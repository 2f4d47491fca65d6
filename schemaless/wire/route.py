"""``Route``: what a pool asks about the shard that a call is for; and what an error of a call means."""

from __future__ import annotations

from typing import Protocol

from schemaless.errors import OutcomeUnknown, ServerError, ServerUnavailable
from schemaless.wire.errors import Elsewhere
from schemaless.wire.node import Node


class Route(Protocol):
    """Knows whether a shard is still on the server that is asked for it."""

    def left(self, error: ServerError, node: Node, shard: int, lost: ServerError | None) -> Elsewhere | None:
        """Return that a shard is elsewhere by now, or may be on its way; None where ``error`` is to be taken as it is.

        Args:
            error: what the server, or the way to it, met.
            node: the server's address.
            shard: the shard.
            lost: the loss that leaves open whether an attempt at a write happened, if any.
        """

    def confirm(self, node: Node, shard: int) -> None:
        """Check that the catalog was read since the last alarm, where its servers' claims count.

        Raises:
            ServerUnavailable: it cannot be read.
        """


def speaks(failure: ServerError) -> bool:
    """Whether a connection that failed was refused by the server itself, which so answers."""
    return not isinstance(failure, ServerUnavailable) or (failure.code is not None and failure.code < 2000)


def follow(route: Route, error: ServerError, node: Node, shard: int, lost: ServerError | None) -> None:
    """Raise ``Elsewhere`` where the shard has left."""
    left = route.left(error, node, shard, lost)
    if left is not None:
        raise left from error


def outcome_unknown(lost: ServerError, then: str, last: ServerError) -> OutcomeUnknown:
    """Return the error for a write that may have happened: ``lost`` with its connection, and not found out since."""
    unknown = OutcomeUnknown(
        f"the reply to a write was lost ({lost.message}), and repeating it did not tell ({then}); "
        "make the same call again to settle it",
        node=last.node,
        shard=last.shard,
        code=last.code,
    )
    unknown.retry_after_s = last.retry_after_s if isinstance(last, ServerUnavailable) else None
    return unknown
