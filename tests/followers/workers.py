"""A follower's worker that does one turn when it is told to, and a dealer that keeps what it was given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from schemaless.cell import StoredCell
from schemaless.followers.lease_state import Owned
from schemaless.followers.membership import Timing
from schemaless.followers.worker import Worker

NAME = "trigger:seen"
# Signs of life are given by hand: nothing here depends on how busy the machine is.
CALM = Timing(lease_s=1_000, give_up_s=900, renew_s=1_000, note_s=0.0)
SHORT = Timing(lease_s=2.0, give_up_s=1.6, renew_s=1_000, note_s=0.0)


@dataclass
class Seen:
    """A dealer that keeps what it was given, in its order."""

    name: str = NAME
    column: str | None = None
    timeout_s: float | None = None
    cells: list[tuple[int, int]] = field(default_factory=list)
    careful: list[int] = field(default_factory=list)
    before: Callable[[StoredCell], None] = lambda cell: None

    def deal_together(self, worker: Worker, pages: Sequence[tuple[Owned, Sequence[StoredCell]]]) -> bool:
        return False

    def deal(self, worker: Worker, owned: Owned, cells: Sequence[StoredCell]) -> bool:
        for cell in cells:
            worker.go_on(owned)
            with worker.calling(owned, cell):
                self.before(cell)
            self.careful.append(owned.careful)
            self.cells.append((cell.shard, cell.added_id))
            worker.dealt(owned, cell.added_id)
        return True

    def replay(self, worker: Worker, owned: Owned) -> None:
        raise AssertionError("nothing is to be tried again")


def turn(*workers: Worker, times: int = 1) -> None:
    """Have each see who lives, then look and work, one after the other."""
    for _ in range(times):
        for worker in workers:
            worker._members.renew()
        for worker in workers:
            worker._pace.now()
            worker.turn()


@contextmanager
def asleep(worker: Worker) -> Iterator[None]:
    """Have a worker give no sign of life for the block."""
    renew, worker._members.renew = worker._members.renew, lambda: None  # type: ignore[method-assign]
    yield
    worker._members.renew = renew  # type: ignore[method-assign]


def shards_of(worker: Worker) -> set[int]:
    """Return the shards that a worker takes for its own."""
    return {shard for _, shard in worker.owned}
