"""How fast a shard is copied: with rests that leave its servers to applications, as long as that is fast enough.

Where more cells come than half of those that are copied meanwhile, rests get shorter: a copy that rested on would take
for ever, or nearly so. Where even a copy without rests does not get on, it says so, and ends after a while.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from schemaless.cells.paging import MAX_PAGE_CELLS
from schemaless.datastore import Datastore
from schemaless.errors import MoveRefused, ServerError, TopologyError
from schemaless.jobs.runner import ShardRun, Watch, make_watch
from schemaless.move.sql import CellRow

WINDOW_S: Final = 2.0
"""So much work is looked at together."""

_LEAST_SHARE: Final = 1 / 16
"""A shorter rest is none."""

_STEP_BYTES: Final = 128 << 10
"""A step takes so much where applications call: what they wait for is over soon."""

_ROW_BYTES: Final = 200
_LOOK_S: Final = 0.5


class Pace:
    """Of the copying of one shard.

    Args:
        shard: its number.
        give_up_s: for so long, in seconds of work, what is left to copy may get no less.

    Attributes:
        share: how much of its rest the job takes after each step.
        told: what is to be said to people, for who looks to take; None where nothing is.
    """

    def __init__(self, shard: int, give_up_s: float) -> None:
        self.share = 1.0
        self.told: str | None = None
        self._shard = shard
        self._give_up_s = give_up_s
        self._worked_s = 0.0
        self._before: tuple[int, int] | None = None
        self._least: int | None = None
        self._least_for_s = 0.0
        self._said: set[str] = set()

    def begin(self) -> None:
        """Begin to go over what has come: what was before says nothing of how fast cells come."""
        self._worked_s, self._before = 0.0, None

    def due(self, worked_s: float) -> bool:
        """Take account of a step, and its rest; return whether it is time to look."""
        self._worked_s += worked_s
        return self._worked_s >= WINDOW_S

    def cells(self, rows: Sequence[CellRow], *, called: bool) -> int:
        """Return how many cells the next step is to have: few where applications call, and few enough come.

        Args:
            rows: of the last step.
            called: whether applications call.
        """
        if not called or not rows or self.share < 1:
            return MAX_PAGE_CELLS
        mean_bytes = sum(len(row[4]) + _ROW_BYTES for row in rows) // len(rows)
        return max(1, min(MAX_PAGE_CELLS, _STEP_BYTES // mean_bytes))

    def look(self, settled: int, top: int, copied: int, *, rests: bool = True) -> None:
        """Set the share by what has come since the last look.

        Args:
            settled: the id up to which all is copied.
            top: the highest id that there is.
            copied: how many cells were copied altogether; only grows.
            rests: whether the job rests between steps at all.

        Raises:
            MoveRefused: for too long, what is left has not become less.
        """
        seconds, self._worked_s = max(self._worked_s, 1e-6), 0.0
        if self._least is None or top - settled < self._least:
            self._least, self._least_for_s = top - settled, 0.0
        else:
            self._least_for_s += seconds
        before, self._before = self._before, (top, copied)
        if before is None:
            return
        came, done = top - before[0], copied - before[1]
        rates = f"cells of shard {self._shard} come at {came / seconds:,.0f} a second, {done / seconds:,.0f} are copied"
        if self._least_for_s > self._give_up_s:
            raise MoveRefused(
                f"{rates}, and for {self._give_up_s:g} s of work what is left has not become less. The shard is where "
                "it was, and what is copied is kept: run the same command again when less is written, or with a higher "
                "--max-mb-per-s where that is set ('schemaless shards throttle')"
            )
        if 2 * came > done:
            self.share = self.share / 2 if self.share > _LEAST_SHARE else 0.0
            if rests:
                self._say(f"{rates}: it rests less between steps than applications would like")
            if self.share == 0 and came >= done:
                self._say(f"{rates}, without rests: it does not catch up; raise --max-mb-per-s if set, or write less")
        elif 4 * came < done:
            self.share = min(1.0, max(2 * self.share, _LEAST_SHARE))

    def _say(self, what: str) -> None:
        """Have it told, each kind of message once."""
        kind = what.rpartition(":")[2]
        if kind not in self._said:
            self._said.add(kind)
            self.told = what


class TargetServers:
    """The servers of the cluster that a shard goes to, looked at twice a second at most; its own are the run's matter.

    Attributes:
        lags: how far its replicas lagged at the last look, in seconds; None for one that does not tell.
    """

    def __init__(self, store: Datastore, run: ShardRun, target: str, look_s: float = _LOOK_S) -> None:
        self.lags: list[float | None] = []
        self._store = store
        self._run = run
        self._target = target
        self._look_s = look_s
        self._watch: Watch | None = None
        self._looked_s = 0.0
        self._called = False

    def gate(self) -> None:
        """Return when work may go on, by both clusters' servers; raises what the run's gate raises."""
        self._run.gate()
        if self._due:
            while self._look() is not None:
                self._run.pause(self._look_s)

    def rest(self, worked_s: float, share: float = 1.0) -> None:
        """Leave both clusters' servers to applications for a while; see ``ShardRun.rest``."""
        self._run.rest(worked_s, share, called=self._called)

    def rest_anyhow(self, worked_s: float) -> None:
        """Leave them to applications, too, where nobody passes a gate: replicas that lag keep nobody waiting here."""
        if self._due:
            # What is the matter with these servers is for the next gate to say.
            with suppress(TopologyError, ServerError):
                self._look()
        self.rest(worked_s)

    def close(self) -> None:
        """Let connections go."""
        if self._watch is not None:
            self._watch.close()

    @property
    def called(self) -> bool:
        """Whether applications call a primary of the two clusters, so that there are rests."""
        return self._called or self._run.yields

    @property
    def _due(self) -> bool:
        return time.monotonic() - self._looked_s >= self._look_s

    def _look(self) -> str | None:
        run = self._run
        if self._watch is None:
            runner = f"{run.state.runner} to"[-255:]
            self._watch = make_watch(self._store, run.job, self._target, runner, run.job.thresholds)
        look = self._watch.look(run.job_store.reads)
        self._looked_s = time.monotonic()
        self.lags = list(look.figures["lag_s"].values())
        self._called = look.yields
        return look.reason
