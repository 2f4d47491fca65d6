"""``Route``, through which a pool checks whether a shard is still on its server, and helpers to classify errors."""

from __future__ import annotations

from typing import Protocol

from schemaless.errors import OutcomeUnknown, ServerError, ServerUnavailable
from schemaless.wire.connection import Connection
from schemaless.wire.errors import Elsewhere
from schemaless.wire.node import Node


class Route(Protocol):
    """Checks whether a shard is still on the server that a call uses."""

    def moved(self, error: ServerError, node: Node, shard: int, lost: ServerError | None) -> Elsewhere | None:
        """Return an ``Elsewhere`` if an error means that the shard has moved or is being moved, else None.

        Args:
            error: the error of the server or of the connection to it.
            node: the server's address.
            shard: the shard's number.
            lost: the error of the lost connection that leaves the outcome of a write open, if any.
        """

    def confirm(self, node: Node, shard: int) -> None:
        """Check that the last attempt to read the catalog succeeded, if the shard's cluster uses claims.

        Raises:
            ServerUnavailable: the catalog cannot be read.
        """

    def verify(self, connection: Connection, shard: int) -> None:
        """Verify a shard's identity on a connection, and add it to ``Connection.verified``.

        Raises:
            DatabaseMissing: the database is missing.
            ShardIdentityMismatch: the database is not this shard.
        """


def answered(failure: ServerError) -> bool:
    """Return True if a failed connection attempt got an answer from the server itself."""
    return not isinstance(failure, ServerUnavailable) or (failure.code is not None and failure.code < 2000)


def raise_if_moved(route: Route, error: ServerError, node: Node, shard: int, lost: ServerError | None) -> None:
    """Raise ``Elsewhere`` if the shard has moved."""
    moved = route.moved(error, node, shard, lost)
    if moved is not None:
        raise moved from error


def outcome_unknown(lost: ServerError, retry_failure: str, last: ServerError) -> OutcomeUnknown:
    """Return the error for a write whose connection was lost and whose outcome no retry could settle.

    Args:
        lost: the error of the lost connection.
        retry_failure: why retries could not settle it.
        last: the last error; its node, shard and code are reported.
    """
    unknown = OutcomeUnknown(
        f"the reply to a write was lost ({lost.message}), and it is unknown whether the write took effect "
        f"({retry_failure}); make the same call again to settle it",
        node=last.node,
        shard=last.shard,
        code=last.code,
    )
    unknown.retry_after_s = last.retry_after_s if isinstance(last, ServerUnavailable) else None
    return unknown
