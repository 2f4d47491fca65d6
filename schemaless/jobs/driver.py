"""The driver of a job: it hands out shards to workers until none is left.

Each shard is one call, claimed by the runner that makes it, so it does not matter how many drivers there are, or where.
A runner that dies takes nothing along but the second since its last checkpoint.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import suppress
from typing import Final

from schemaless.datastore import Datastore
from schemaless.errors import SchemalessError, ServerError, WorkersDied
from schemaless.events import Listener, nobody
from schemaless.internals import internals_of
from schemaless.jobs.job import Job, RunGoesOn
from schemaless.jobs.job_store import JobStore
from schemaless.jobs.worker import MakeWatch, Outcome, Work, work_on
from schemaless.jobs.workers import Workers
from schemaless.opening import opening_of
from schemaless.runner_names import is_dead_here, runner_name

_log = logging.getLogger("schemaless")

_TURN_S: Final = 0.5
_STOP_S: Final = 30.0
_MOST_PAUSE_S: Final = 30.0
_MOST_DEATHS: Final = 5

GIVE_UP_S: Final = 600.0
"""A server may be unreachable so long before a run ends."""


class Driver:
    """Hands out the shards of a job to workers until none is left.

    Args:
        make_watch: makes the watch over a cluster's servers; None for none.
        give_up_s: how long a server may be unreachable before the run ends.
        listener: told ``RunGoesOn`` at each turn.
        turn_s: how long a turn is.
        most_deaths: workers that may die in a row without a shard getting through in between.
    """

    def __init__(
        self,
        store: Datastore,
        job: Job,
        work: Work,
        make_watch: MakeWatch | None = None,
        *,
        give_up_s: float = GIVE_UP_S,
        listener: Listener = nobody,
        turn_s: float = _TURN_S,
        most_deaths: int = _MOST_DEATHS,
    ) -> None:
        self._store = store
        self._internals = internals_of(store)
        self._opening = opening_of(store)
        self._job = job
        self._work = work
        self._make_watch = make_watch
        self._give_up_s = give_up_s
        self._listener = listener
        self._turn_s = turn_s
        self._most_deaths = most_deaths
        self._name = runner_name()
        self._ledger = JobStore(store)
        self._calls: dict[Future[Outcome], int] = {}
        # By cluster: shards to hand out, the next one last, and how many others have in hand, both as of the last look.
        self._free: dict[str, list[int]] = {}
        self._held: Counter[str] = Counter()
        self._looked_s = -math.inf
        self._deaths = 0
        # By cluster; "" is the catalog.
        self._failing_since_s: dict[str, float] = {}
        self._not_before_s: dict[str, float] = {}

    def run(self, hands: Workers) -> Job:
        """Work until the job has ended, and return it.

        Raises:
            SchemalessError: what repeating does not mend, or did not for too long; the job can be continued.
        """
        job_id = self._job.job_id
        try:
            while True:
                try:
                    looks = not self._calls or time.monotonic() - self._looked_s >= self._turn_s
                    if looks:
                        self._look()
                    if self._job.unfinished:
                        self._hand_out(hands)
                    through = not self._calls and (not self._job.unfinished or self._ledger.complete(job_id))
                    if looks:
                        self._listener(RunGoesOn(self._job))
                        self._works("")
                except ServerError as error:
                    self._fails("", error)
                    through = False
                if through:
                    return self._ledger.job(job_id)
                self._collect(hands)
        except BaseException:
            self._stop()
            raise

    def _look(self) -> None:
        """See where the job is. What others do meanwhile shows when a shard is claimed."""
        job_id = self._job.job_id
        self._job = self._ledger.job(job_id)
        waiting = [state for state in self._ledger.shards(job_id, counters=False) if state.state == "waiting"]
        calls = set(self._calls.values())
        for runner in {state.runner for state in waiting if state.held and state.runner is not None}:
            if not runner.startswith(self._name) and is_dead_here(runner):
                self._ledger.release_dead(job_id, runner)
        self._free = {}
        self._held = Counter()
        for state in reversed(waiting):
            cluster = self._internals.topology.cluster_of(state.shard).name
            if state.held and state.shard not in calls:
                self._held[cluster] += 1
            elif state.shard not in calls:
                self._free.setdefault(cluster, []).append(state.shard)
        self._looked_s = time.monotonic()

    def _hand_out(self, hands: Workers) -> None:
        # One more than there are workers each: the next shard is at hand when one is through.
        most = 2 * hands.size
        if len(self._calls) > hands.size:
            return
        topology = self._internals.topology
        load = self._held + Counter(topology.cluster_of(shard).name for shard in self._calls.values())
        now_s = time.monotonic()
        while len(self._calls) < most:
            ready = [name for name, shards in self._free.items() if shards and self._not_before_s.get(name, 0) <= now_s]
            if not ready:
                return
            cluster = min(ready, key=lambda name: (load[name], name))
            shard = self._free[cluster].pop()
            load[cluster] += 1
            call = hands.submit(
                work_on, self._opening, self._job.job_id, shard, self._name, self._work, self._make_watch
            )
            self._calls[call] = shard

    def _collect(self, hands: Workers) -> None:
        """Wait for a moment, and see what became of calls."""
        if not self._calls:
            time.sleep(self._turn_s)
            return
        done, _ = wait(self._calls, timeout=self._turn_s, return_when=FIRST_COMPLETED)
        for call in done:
            shard = self._calls.pop(call)
            cluster = self._internals.topology.cluster_of(shard).name
            try:
                outcome = call.result()
            except Exception as error:
                if not _is_death(error):
                    raise
                self._mourn(hands, error)
                return
            if outcome.error is None:
                if outcome.kind == "through":
                    self._deaths = 0
                    self._works(cluster)
                elif outcome.kind == "busy":
                    self._not_before_s[cluster] = time.monotonic() + self._turn_s
            elif outcome.error.retryable:
                self._fails(cluster, outcome.error)
            else:
                raise outcome.error

    def _mourn(self, hands: Workers, error: Exception) -> None:
        self._deaths += 1
        # All processes of a broken pool are gone.
        self._ledger.release_dead(self._job.job_id, self._name)
        if self._deaths > self._most_deaths:
            raise WorkersDied(
                f"workers died {self._deaths} times before any shard was finished, the last with shards "
                f"{sorted(self._calls.values())} ({error}); was there memory enough? Run the same command again, "
                "perhaps with fewer workers"
            ) from error
        _log.warning("a worker died (%s); its shards are taken over", error)
        self._calls.clear()
        hands.restart()

    def _works(self, what: str) -> None:
        self._failing_since_s.pop(what, None)
        self._not_before_s.pop(what, None)

    def _fails(self, what: str, error: SchemalessError) -> None:
        """Leave a cluster alone for a while that fails for now.

        Raises:
            SchemalessError: it has failed for too long.
        """
        now_s = time.monotonic()
        since_s = self._failing_since_s.setdefault(what, now_s)
        if not error.retryable or now_s - since_s > self._give_up_s:
            raise error
        pause_s = min(_MOST_PAUSE_S, max(self._turn_s, (now_s - since_s) / 2))
        self._not_before_s[what] = now_s + pause_s
        _log.warning("%s; trying again in %.0f s", error, pause_s)
        if not what:
            time.sleep(pause_s)

    def _stop(self) -> None:
        """Ask this driver's runners to stop, and wait for them."""
        for call in self._calls:
            call.cancel()
        running = {call for call in self._calls if not call.cancelled()}
        give_up_s = time.monotonic() + _STOP_S
        told = False
        while time.monotonic() < give_up_s:
            # Also what no call is known of: an interrupt can strike between handing a shard out and noting that.
            held = False
            with suppress(SchemalessError):
                # Again and again: one that is about to claim its shard has not heard it yet.
                self._ledger.ask_to_stop(self._job.job_id, self._name)
                states = self._ledger.shards(self._job.job_id, counters=False)
                held = any(state.held and (state.runner or "").startswith(self._name) for state in states)
            if not running and not held:
                return
            if not told:
                told = True
                _log.warning(
                    "stopping: runners finish their step and store how far they are; Ctrl-C again ends them at once"
                )
            if running:
                running = wait(running, timeout=self._turn_s).not_done
            else:
                time.sleep(self._turn_s)


def _is_death(error: BaseException) -> bool:
    """Whether a worker died under a call."""
    return isinstance(error, BrokenExecutor) or type(error).__name__ in ("KilledWorker", "CancelledError")
