"""A worker that runs turn by turn, and a handler that records its cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from schemaless.cell import StoredCell
from schemaless.store.followers.handler import HandlerContext
from schemaless.store.followers.leases import Lease
from schemaless.store.followers.membership import Timing
from schemaless.store.followers.worker import Worker

NAME = "trigger:seen"
# Renewals are triggered by hand, so nothing here depends on the load of the machine.
CALM = Timing(lease_s=1_000, give_up_s=900, renew_s=1_000, note_s=0.0)
SHORT = Timing(lease_s=4.0, give_up_s=3.2, renew_s=1_000, note_s=0.0)


@dataclass
class Seen:
    """A handler that records its cells in order."""

    name: str = NAME
    column: str | None = None
    timeout_s: float | None = None
    cells: list[tuple[int, int]] = field(default_factory=list)
    careful: list[int] = field(default_factory=list)
    before: Callable[[StoredCell], None] = lambda cell: None

    def handle_batch(self, context: HandlerContext, pages: Sequence[tuple[Lease, Sequence[StoredCell]]]) -> bool:
        return False

    def handle(self, context: HandlerContext, lease: Lease, cells: Sequence[StoredCell]) -> bool:
        for cell in cells:
            context.check_active(lease)
            with context.calling(lease, cell):
                self.before(cell)
            self.careful.append(lease.careful)
            self.cells.append((cell.shard, cell.added_id))
            context.advance(lease, cell.added_id)
        return True

    def replay(self, context: HandlerContext, lease: Lease) -> None:
        raise AssertionError("nothing is to be tried again")


def turn(*workers: Worker, times: int = 1) -> None:
    """Renew each worker's membership, then run its poll and its handling of cells."""
    for _ in range(times):
        for worker in workers:
            worker.membership.renew()
        for worker in workers:
            worker.schedule.poll_now()
            worker.turn()


@contextmanager
def asleep(worker: Worker) -> Iterator[None]:
    """Suspend a worker's renewals for the block."""
    renew, worker.membership.renew = worker.membership.renew, lambda: None  # type: ignore[method-assign]
    yield
    worker.membership.renew = renew  # type: ignore[method-assign]


def shards_of(worker: Worker) -> set[int]:
    """Return the shards whose leases a worker believes to hold."""
    return {shard for _, shard in worker.leases.held}
