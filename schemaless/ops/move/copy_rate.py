"""Rate control for copying a shard: pauses between steps leave server capacity for applications.

If new cells arrive at more than half the copy rate, the pauses get shorter, since the copy would otherwise barely catch
up. A copy that falls behind even without pauses logs a warning and gives up after a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from schemaless.errors import MoveRefused, ServerError, TopologyError
from schemaless.ops.jobs.runner import ShardRun
from schemaless.ops.jobs.throttle import ClusterWatch, Look
from schemaless.ops.move.sql import CellRow
from schemaless.store.cells.paging import MAX_PAGE_CELLS
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of

WINDOW_S: Final = 2.0
"""Copying time per measurement of the rates, in seconds."""

_MIN_SHARE: Final = 1 / 16
"""Minimum share of the regular pause; below it, the copy does not pause at all."""

_STEP_BYTES: Final = 128 << 10
"""Target size of a step while applications use the servers, in bytes; small, so that their calls wait only briefly."""

_ROW_BYTES: Final = 200
"""Estimated size of a cell without its body, in bytes."""

_STORE_S: Final = 2.0
"""Interval at which an unchanged reason to wait is stored, in seconds."""

_CHECK_S: Final = 0.5
"""Interval between checks of the target cluster's servers, in seconds."""


class CopyRate:
    """Adjusts the pauses while one shard is copied.

    Args:
        shard: number of the shard.
        give_up_s: seconds of copying after which a backlog that has not shrunk ends the move.
        warn: receives each kind of warning once.

    Attributes:
        share: fraction of the regular pause to take after each step, from 0 to 1.
    """

    def __init__(self, shard: int, give_up_s: float, warn: Callable[[str], None]) -> None:
        self.share: float = 1.0
        self._shard = shard
        self._give_up_s = give_up_s
        self._worked_s = 0.0
        self._previous: tuple[int, int] | None = None
        self._min_backlog: int | None = None
        self._stalled_s = 0.0
        self._warned: set[str] = set()
        self._pass_on = warn

    def begin(self) -> None:
        """Start a new pass; earlier measurements say nothing about the current arrival rate."""
        self._worked_s, self._previous = 0.0, None

    def due(self, worked_s: float) -> bool:
        """Add the duration of a step and its pause; return True if it is time to call ``adjust``."""
        self._worked_s += worked_s
        return self._worked_s >= WINDOW_S

    def step_cells(self, rows: Sequence[CellRow], *, busy: bool) -> int:
        """Return the number of cells for the next step: few while applications are active and pauses are not shortened.

        Args:
            rows: the rows of the last step.
            busy: whether applications use the servers.
        """
        if not busy or not rows or self.share < 1:
            return MAX_PAGE_CELLS
        mean_bytes = sum(len(row[4]) + _ROW_BYTES for row in rows) // len(rows)
        return max(1, min(MAX_PAGE_CELLS, _STEP_BYTES // mean_bytes))

    def adjust(self, settled: int, top: int, copied: int, *, pauses: bool = True) -> None:
        """Adjust ``share`` to the numbers of cells that have arrived and been copied since the last call.

        Args:
            settled: the id up to which everything is copied.
            top: the highest id on the source.
            copied: total number of cells copied so far; never decreases.
            pauses: whether the job pauses between steps at all.

        Raises:
            MoveRefused: the backlog has not shrunk for ``give_up_s``.
        """
        seconds, self._worked_s = max(self._worked_s, 1e-6), 0.0
        if self._min_backlog is None or top - settled < self._min_backlog:
            self._min_backlog, self._stalled_s = top - settled, 0.0
        else:
            self._stalled_s += seconds
        previous, self._previous = self._previous, (top, copied)
        if previous is None:
            return
        arrived, done = top - previous[0], copied - previous[1]
        rates = (
            f"shard {self._shard} receives {arrived / seconds:,.0f} cells a second, and {done / seconds:,.0f} are "
            "copied"
        )
        if self._stalled_s > self._give_up_s:
            raise MoveRefused(
                f"{rates}; the backlog has not shrunk in {self._give_up_s:g} s of copying. The shard is still on its "
                "source, and the copied cells are kept. Run the same command again when fewer cells are written, or "
                "raise --max-mb-per-s if it is set ('schemaless job set')"
            )
        if 2 * arrived > done:
            self.share = self.share / 2 if self.share > _MIN_SHARE else 0.0
            if pauses:
                self._warn(f"{rates}: pauses between steps are shortened, so applications may notice the move")
            if self.share == 0 and arrived >= done:
                self._warn(
                    f"{rates} without pauses: the copy does not catch up; raise --max-mb-per-s if it is set, or write "
                    "fewer cells"
                )
        elif 4 * arrived < done:
            self.share = min(1.0, max(2 * self.share, _MIN_SHARE))

    def _warn(self, warning: str) -> None:
        # The rates in front of the colon vary; each kind of warning is issued once.
        kind = warning.rpartition(":")[2]
        if kind not in self._warned:
            self._warned.add(kind)
            self._pass_on(warning)


class TargetServers:
    """Monitors the target cluster's servers, at most twice a second; the run itself monitors the source cluster.

    Attributes:
        lags: replica lags at the last check, in seconds; None for a replica whose lag is unknown.
    """

    def __init__(self, store: Datastore, run: ShardRun, target: str) -> None:
        self.lags: list[float | None] = []
        self._run = run
        self._busy = False
        self._target = target
        self._writer = f"{run.state.runner} to"[-255:]
        self._waits: dict[str, float] = {}
        self._waiting: tuple[str, float] | None = None
        self._watch = ClusterWatch(internals_of(store).shards, target, self._writer, cache_s=_CHECK_S)
        for cluster in run.job_store.clusters(run.job.job_id):
            if cluster.cluster == target:
                self._watch.proven.update(cluster.figures.get("proven", ()))
                self._waits.update(cluster.waits)

    def gate(self) -> None:
        """Wait until the servers of both clusters permit more work; raises the same errors as ``ShardRun.gate``."""
        self._run.gate()
        while self._check() is not None:
            self._run.pause(_CHECK_S)

    def rest(self, worked_s: float, share: float = 1.0) -> None:
        """Pause to leave capacity on both clusters' servers for applications; see ``ShardRun.rest``."""
        self._run.rest(worked_s, share, called=self._busy)

    def rest_ungated(self, worked_s: float) -> None:
        """Pause after work that is done without ``gate``, and so without waiting for lagging replicas."""
        # The next gate reports server errors.
        with suppress(TopologyError, ServerError):
            self._check()
        self.rest(worked_s)

    def close(self) -> None:
        """Close the monitoring connections."""
        self._watch.close()

    @property
    def busy(self) -> bool:
        """Whether applications use a primary of either cluster, in which case the job pauses between steps."""
        return self._busy or self._run.yields

    def _check(self) -> str | None:
        look = self._watch.look(self._run.thresholds)
        self.lags = list(look.figures["lag_s"].values())
        self._busy = look.yields
        self._record(look)
        return look.reason

    def _record(self, look: Look) -> None:
        """Store a reason to wait, and once that there is none anymore."""
        now_s = time.monotonic()
        if look.reason is None and self._waiting is None:
            return
        if self._waiting is not None:
            kind, since_s = self._waiting
            if look.kind == kind and now_s - since_s < _STORE_S:
                return
            self._waits[kind] = round(self._waits.get(kind, 0.0) + now_s - since_s, 3)
        self._waiting = None if look.kind is None else (look.kind, now_s)
        leases, job_id = self._run.job_store.leases, self._run.job.job_id
        leases.claim_watch(job_id, self._target, self._writer)
        leases.record_poll(job_id, self._target, self._writer, look, self._waits)
