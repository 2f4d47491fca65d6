"""The handler protocol: what a follower does with cells. A trigger calls a function, an index updates its entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from schemaless.cell import StoredCell
from schemaless.store.followers.erasures import ErasureEvent
from schemaless.store.followers.handler_context import HandlerContext
from schemaless.store.followers.lease_state import LeaseState


class Handler(Protocol):
    """Handles the cells of a follower."""

    @property
    def name(self) -> str:
        """The follower's name."""

    @property
    def column(self) -> str | None:
        """The column whose cells are handled; None for all columns."""

    @property
    def timeout_s(self) -> float | None:
        """Timeout of a call, in seconds, after which the process is ended; None for no timeout."""

    def handle_batch(self, context: HandlerContext, pages: Sequence[tuple[LeaseState, Sequence[StoredCell]]]) -> bool:
        """Do the work that several shards can share; return True if ``handle`` has nothing left to do but advance.

        ``handle`` is called for each of the pages in any case.
        """

    def handle(self, context: HandlerContext, lease: LeaseState, cells: Sequence[StoredCell]) -> bool:
        """Handle cells in order; return True if all of them were handled.

        Calls ``context.check_active`` before each cell and ``context.advance`` after it, or each once for the whole
        page. Cells after ``lease.reached`` are delivered again.

        Raises:
            SchemalessError: a server failed; the shard backs off.
        """

    def handle_erased(self, context: HandlerContext, lease: LeaseState, events: Sequence[ErasureEvent]) -> bool:
        """Remove what was derived from cells that were erased after they were handled; return True if that was done.

        May be called again for the same events, and for cells that were never handled. A handler must call
        ``lease.retry_erasures`` before it returns False.

        Raises:
            SchemalessError: a server failed; the events are delivered again.
        """

    def replay(self, context: HandlerContext, lease: LeaseState) -> None:
        """Handle the parked cells that are to be tried again."""
