"""What a follower does with cells, as a worker knows it: a trigger calls its function, an index keeps its entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from schemaless.cell import StoredCell
from schemaless.followers.lease_state import Owned

if TYPE_CHECKING:  # a worker has dealers, and they are given the worker
    from schemaless.followers.worker import Worker


class Dealer(Protocol):
    """What a follower does with cells: a trigger calls a function."""

    @property
    def name(self) -> str:
        """The follower's name in the tables."""

    @property
    def column(self) -> str | None:
        """Cells of this column only; None for all."""

    @property
    def timeout_s(self) -> float | None:
        """How long one call may take before the process is ended; None for ever."""

    def deal_together(self, worker: Worker, pages: Sequence[tuple[Owned, Sequence[StoredCell]]]) -> bool:
        """Do what can be done at once for the cells of several shards; return whether nothing is left to be done.

        In either case ``deal`` is called for each of them: it does what is left, and says how far its shard is.
        """

    def deal(self, worker: Worker, owned: Owned, cells: Sequence[StoredCell]) -> bool:
        """Deal with cells, in their order; return whether all of them were.

        Calls ``worker.go_on`` before each and ``worker.dealt`` behind it. What it raises of this package's errors is
        about the servers. In either case the cells behind ``owned.reached`` are given to it again.
        """

    def replay(self, worker: Worker, owned: Owned) -> None:
        """Try the parked cells again that somebody wants to be."""
