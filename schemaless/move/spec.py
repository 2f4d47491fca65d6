"""What a move of shards is to do, and what becomes of each table that a shard has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from schemaless.errors import InvalidInput
from schemaless.jobs.kind import JobSpec
from schemaless.topology.sql import moving

Phase = Literal["preparing", "copying", "cutting", "moved", "verified", "dropped", "aborting", "aborted"]

BEFORE_COMMIT: Final[tuple[Phase, ...]] = moving.BEFORE_COMMIT
"""In these phases the shard is where it was, as far as the catalog knows; the servers may know better."""

TABLES: Final[dict[str, str]] = {
    "cell": "copied by the change feed, fenced, renamed last on the source and then last on the target",
    "follower": "carried over under the fence with a higher epoch, renamed before cell",
    "parked": "carried over under the fence, renamed before cell",
    "shard_identity": "made new",
    "alembic_version": "made new",
}
"""A shard has these tables, and this is what a move does with each; it is refused where there is another.

Besides, it has one for each secondary index: copied beside its writers, renamed before ``cell`` (``indexes.py``).
"""


@dataclass(frozen=True, slots=True)
class MoveSpec(JobSpec):
    """What a move is to do; stands in the job.

    Attributes:
        target: the cluster that the shards are to be on.
        max_pause_s: how long readers and writers of a shard may be held off by one try, in seconds.
        give_up_s: how long a shard may take to be cut over once it is copied, in seconds; and for how long, while it is
            copied, what is left may get no less.
        accounts: whether to refuse where accounts that may use a shard on its cluster may not on the target.
    """

    target: str = ""
    max_pause_s: float = 1.0
    give_up_s: float = 3600.0
    accounts: bool = True

    def __post_init__(self) -> None:
        if not self.target:
            raise InvalidInput("name the cluster that the shards are to be moved to; 'schemaless topology show'")
        for name in ("max_pause_s", "give_up_s"):
            if not getattr(self, name) > 0:
                raise InvalidInput(f"{name} must be seconds, over 0, got {getattr(self, name)!r}")
