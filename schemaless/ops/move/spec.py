"""Options of a move, and the treatment of each of a shard's tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from schemaless.errors import InvalidInput
from schemaless.ops.jobs.kind import JobSpec
from schemaless.topology.sql import moving

Phase = Literal["preparing", "copying", "cutting", "moved", "verified", "dropped", "aborting", "aborted"]

BEFORE_COMMIT: Final[tuple[Phase, ...]] = moving.BEFORE_COMMIT
"""Phases in which the catalog still assigns the shard to the source; on the servers, the move may be further along."""

CREATED_NEW: Final = "created new"

MOST_PAUSE_S: Final = 3_600
"""Upper limit of ``MoveSpec.max_pause_s``, in seconds."""

MOST_GIVE_UP_S: Final = 366 * 86_400
"""Upper limit of ``MoveSpec.give_up_s``, in seconds."""

TABLES: Final[dict[str, str]] = {
    "cell": "copied from the change feed, fenced, renamed last on the source and then last on the target",
    "follower": "copied under the fence with a higher epoch, renamed before cell",
    "erased_cell": "copied with the tombstones before the fence and again under it, renamed before cell",
    "cold_file": "copied under the fence, renamed before cell; the files stay where they are",
    "parked": "copied under the fence, renamed before cell",
    "shard_identity": CREATED_NEW,
    "alembic_version": CREATED_NEW,
}
"""How a move treats each table of a shard; a shard with any other table is refused.

Index tables are not listed: they are copied while they are in use, and renamed before ``cell`` (``index_tables.py``).
"""


@dataclass(frozen=True, slots=True)
class MoveSpec(JobSpec):
    """Options of a move, stored in its job.

    Attributes:
        target: name of the cluster that the shards move to.
        max_pause_s: maximum time that one attempt to cut over may block a shard's readers and writers, in seconds.
        give_up_s: time limit for cutting a shard over once it is copied, and for a copy whose backlog does not shrink,
            in seconds.
        accounts: whether to refuse the move if accounts that use a shard lack privileges on the target.
        drain: the cluster that the move empties; None if it only moves given shards. Ignored when specs are compared:
            draining a cluster and moving the same shards by number are the same job.
    """

    target: str = ""
    max_pause_s: float = 1.0
    give_up_s: float = 3600.0
    accounts: bool = True
    drain: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.target:
            raise InvalidInput("no target cluster is given; 'schemaless topology show' lists the clusters")
        if self.drain == self.target:
            raise InvalidInput(f"{self.target} cannot be drained to itself; name another cluster as the target")
        for name, most in (("max_pause_s", MOST_PAUSE_S), ("give_up_s", MOST_GIVE_UP_S)):
            if not 0 < getattr(self, name) <= most:
                raise InvalidInput(
                    f"{name} must be a number of seconds above 0 and at most {most:,}, got {getattr(self, name)!r}"
                )
