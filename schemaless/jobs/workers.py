"""Who does the work of a job: a thread here, processes here, or a Dask cluster; and the driver that hands out shards.

Each shard is one call, claimed by the runner that makes it, so it does not matter how many drivers there are, or where.
A runner that dies takes nothing along but the second since its last checkpoint.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from schemaless.errors import InvalidInput, LeaseLost, SchemalessError, ServerError, WorkersDied
from schemaless.events import Listener, nobody
from schemaless.jobs.job import Job, RunGoesOn
from schemaless.jobs.ledger import Ledger
from schemaless.jobs.names import is_dead_here, runner_name
from schemaless.jobs.runner import ShardRun, Stopped, Watch
from schemaless.jobs.throttle import Look, Thresholds
from schemaless.store.datastore import Datastore, Opening

_log = logging.getLogger("schemaless")

_TURN_S: Final = 0.5
_LOOK_S: Final = 0.25
"""Half of what a runner waits between two looks."""

_STOP_S: Final = 30.0
_MOST_PAUSE_S: Final = 30.0
_DASK_S: Final = 10.0
_MOST_DEATHS: Final = 5
"""Workers that may die in a row without a shard getting through in between."""

_NICE: Final = 10
"""What ``nice`` takes by default: the 99th percentile of clients beside a migration fell by a sixth."""

GIVE_UP_S: Final = 600.0
"""How long a server may be unreachable before a run ends."""

Work = Callable[[Datastore, ShardRun], None]
"""What a kind of job does on a shard; calls ``finish`` of the run when it is through. A function of a module."""

MakeWatch = Callable[[Datastore, Job, str, str, Thresholds], Watch]
"""Takes a store, a job, a cluster, a runner and thresholds; gives a watch over that cluster. A function of a module."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a call.

    Attributes:
        shard: its shard.
        kind: "through", "busy" (somebody else has it), "stopped" or "failed".
        error: what it failed with.
    """

    shard: int
    kind: str
    error: SchemalessError | None = None


@dataclass(slots=True)
class _Kept:
    """What a worker keeps from one shard to the next."""

    store: Datastore | None = None
    opening: Opening | None = None
    ledger: Ledger | None = None
    learned: dict[int, dict[str, Any]] = field(default_factory=dict)
    watches: dict[tuple[int, str], tuple[Thresholds, _KeptWatch]] = field(default_factory=dict)


class _KeptWatch:
    """A worker's watch over a cluster, which goes on from one shard to the next.

    A shard begins with a look; where shards are small, that of the shard before is taken.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._look: Look | None = None
        self._looked_s = -math.inf

    def look(self, reads: int = 0, runners: int = 1) -> Look:
        """Look, or return what was seen a moment ago; see ``Watch``."""
        if self._look is None or time.monotonic() - self._looked_s >= _LOOK_S:
            self._look = None
            look = self._watch.look(reads, runners)
            self._look, self._looked_s = replace(look, notes=()), time.monotonic()
            return look
        return self._look

    def close(self) -> None:
        """Let its connections go."""
        self._watch.close()


_kept = threading.local()


def work_on(
    opening: Opening, job_id: int, shard: int, driver: str, work: Work, make_watch: MakeWatch | None
) -> Outcome:
    """Claim a shard and work on it; runs in a worker."""
    try:
        kept = _kept_for(opening)
        store, ledger = kept.store, kept.ledger
        assert store is not None
        assert ledger is not None
        job = ledger.job(job_id)
        # The same for all shards of a worker: its watch over a cluster goes on from one to the next.
        runner = f"{driver}/{os.getpid()}.{threading.get_native_id()}"
        state = ledger.claim(job_id, shard, runner)
        if state is None:
            return Outcome(shard, "busy")
        cluster = store.topology.cluster_of(shard).name

        def watch(thresholds: Thresholds) -> Watch:
            key = job_id, cluster
            before = kept.watches.get(key)
            if before is not None and before[0] == thresholds:
                return before[1]
            if before is not None:
                before[1].close()
            assert make_watch is not None
            kept.watches[key] = thresholds, _KeptWatch(make_watch(store, job, cluster, runner, thresholds))
            return kept.watches[key][1]

        with ShardRun(
            ledger,
            job,
            state,
            cluster,
            watch if make_watch is not None else None,
            kept.learned.setdefault(job_id, {}),
        ) as run:
            work(store, run)
    except Stopped:
        return Outcome(shard, "stopped")
    except LeaseLost as error:
        _log.warning("%s", error)
        return Outcome(shard, "busy")
    except SchemalessError as error:
        return Outcome(shard, "failed", error)
    return Outcome(shard, "through")


def _kept_for(opening: Opening) -> _Kept:
    kept: _Kept | None = getattr(_kept, "kept", None)
    if kept is None or kept.opening != opening or kept.store is None:
        _let_go()
        _step_aside()
        store = opening.open()
        kept = _Kept(store, opening, Ledger(store))
        _kept.kept = kept
    return kept


def _make_ready(opening: Opening) -> None:
    """Do what this worker's first call would have to wait for."""
    store = store_for(opening)
    store.catalog.run(lambda connection: connection.version)


def store_for(opening: Opening) -> Datastore:
    """Return a datastore that stays open in this worker from one call to the next."""
    store = _kept_for(opening).store
    assert store is not None
    return store


def _step_aside() -> None:
    """Have this thread's work wait for that of servers and clients on the same machine, for the rest of its life."""
    if sys.platform == "linux":  # where a thread has a priority of its own
        thread = threading.get_native_id()
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, max(_NICE, os.getpriority(os.PRIO_PROCESS, thread)))


def _let_go() -> None:
    """Close what this thread has kept."""
    kept: _Kept | None = getattr(_kept, "kept", None)
    if kept is not None:
        _kept.kept = None
        for _, watch in kept.watches.values():
            with suppress(SchemalessError):
                watch.close()
        if kept.store is not None:
            kept.store.close()


class Workers:
    """A number of workers, wherever they are."""

    def __init__(self, size: int, make: Callable[[], Executor], end: Callable[[], None] = lambda: None) -> None:
        self.size = size
        self._make = make
        self._end = end
        self._executor = make()
        self._going: threading.Thread | None = None

    def submit(self, function: Callable[..., Outcome], *arguments: Any) -> Future[Outcome]:
        """Have a worker call a function."""
        return self._executor.submit(function, *arguments)

    def prepare(self, opening: Opening) -> None:
        """Have processes start and open the datastore, while the caller does something else."""
        if isinstance(self._executor, ProcessPoolExecutor):
            for _ in range(self.size):
                # Where it cannot be opened, the first shard's call says so.
                self._executor.submit(_make_ready, opening)

    def let_go(self) -> None:
        """Have idle processes end, while the caller does something else; ``close`` waits for that."""
        if isinstance(self._executor, ProcessPoolExecutor):
            self._going = threading.Thread(target=self._executor.shutdown, name="letting workers go")
            self._going.start()

    def restart(self) -> None:
        """Make new workers where the old ones died."""
        with suppress(Exception):
            self._executor.shutdown(wait=False, cancel_futures=True)
        self._executor = self._make()

    def close(self, *, kill: bool = False) -> None:
        """Let the workers go."""
        if self._going is not None:
            self._going.join()
        if kill and isinstance(self._executor, ProcessPoolExecutor):
            for process in list((self._executor._processes or {}).values()):  # noqa: SLF001 - no public way
                process.kill()
        with suppress(RuntimeError, BrokenExecutor):
            if isinstance(self._executor, ThreadPoolExecutor) and not kill:
                self._executor.submit(_let_go).result()
        if isinstance(self._executor, ThreadPoolExecutor | ProcessPoolExecutor):
            self._executor.shutdown(wait=not kill, cancel_futures=True)
        else:
            # Dask's takes nothing else.
            self._executor.shutdown(wait=False)
        self._end()


@contextmanager
def workers(count: int = 1, dask: str | None = None) -> Iterator[Workers]:
    """Give workers for the block.

    Args:
        count: 1 works in a thread of this process; more are processes of this machine.
        dask: the address of a Dask scheduler, or "local" for ``count`` workers of a new one.

    Raises:
        InvalidInput: ``count`` is below 1, Dask is not installed, or its scheduler cannot be reached.
    """
    if count < 1:
        raise InvalidInput(f"workers must be 1 or more, got {count}")
    if dask is not None:
        made = _dask(count, dask)
    elif count == 1:
        made = Workers(1, lambda: ThreadPoolExecutor(1, thread_name_prefix="worker"))
    else:
        made = Workers(count, lambda: _processes(count))
    ended = False
    try:
        yield made
        ended = True
    finally:
        made.close(kill=not ended)


def _processes(count: int) -> Executor:
    # A fork is there in milliseconds, but where this process has threads it may find their locks taken.
    forks = threading.active_count() == 1 and "fork" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if forks else "spawn")
    return ProcessPoolExecutor(count, mp_context=context, initializer=_begin_worker, initargs=(os.getpid(),))


def _begin_worker(parent: int) -> None:
    # Ctrl-C reaches the whole group; the driver asks its workers to stop at a checkpoint.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # A worker whose driver was killed would wait for its next call for ever.
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_TURN_S)
    os._exit(1)


def _dask(count: int, address: str) -> Workers:
    try:
        from distributed import Client, LocalCluster
    except ModuleNotFoundError:
        raise InvalidInput("--dask needs the extra 'dask': pip install 'schemaless-store[dask]'") from None
    if address == "local":
        cluster = LocalCluster(
            n_workers=count,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            # Its scheduler serves HTTP all the same: on port 8787, to everybody, with a warning where that is taken.
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
            silence_logs=logging.CRITICAL,
        )
        client = Client(cluster)
    else:
        cluster = None
        try:
            client = Client(address, timeout=_DASK_S)
        except (OSError, TimeoutError, ValueError) as error:
            raise InvalidInput(f"no Dask scheduler answers at {address!r}: {error}") from error

    def end() -> None:
        client.close()
        if cluster is not None:
            cluster.close()

    size = sum(client.nthreads().values())
    if not size:
        end()
        raise InvalidInput(f"the Dask scheduler at {address!r} has no workers; start some with 'dask worker {address}'")
    return Workers(size, lambda: client.get_executor(pure=False, retries=0), end)


def opening_of(store: Datastore) -> Opening:
    """Return how workers open a datastore: with the topology that it was opened with here."""
    return replace(store.opening, topology=store.topology)


class Driver:
    """Hands out the shards of a job to workers until none is left.

    Args:
        store: the datastore.
        job: the job.
        work: what to do on a shard.
        make_watch: makes the watch over a cluster's servers; None for none.
        give_up_s: how long a server may be unreachable before the run ends.
        listener: told ``RunGoesOn``.
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
    ) -> None:
        self._store = store
        self._opening = opening_of(store)
        self._job = job
        self._work = work
        self._make_watch = make_watch
        self._give_up_s = give_up_s
        self._listener = listener
        self._name = runner_name()
        self._ledger = Ledger(store)
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
            SchemalessError: what repeating does not mend, or did not for too long; the job can be gone on with.
        """
        job_id = self._job.job_id
        try:
            while True:
                try:
                    looks = not self._calls or time.monotonic() - self._looked_s >= _TURN_S
                    if looks:
                        self._look()
                    if self._job.unfinished:
                        self._hand_out(hands)
                    through = not self._calls and self._turn_ended(self._job)
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

    def _turn_ended(self, job: Job) -> bool:
        return not job.unfinished or (self._ledger.complete(job.job_id))

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
            cluster = self._store.topology.cluster_of(state.shard).name
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
        topology = self._store.topology
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
            time.sleep(_TURN_S)
            return
        done, _ = wait(self._calls, timeout=_TURN_S, return_when=FIRST_COMPLETED)
        for call in done:
            shard = self._calls.pop(call)
            cluster = self._store.topology.cluster_of(shard).name
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
                    self._not_before_s[cluster] = time.monotonic() + _TURN_S
            elif outcome.error.retryable:
                self._fails(cluster, outcome.error)
            else:
                raise outcome.error

    def _mourn(self, hands: Workers, error: Exception) -> None:
        self._deaths += 1
        # All processes of a broken pool are gone.
        self._ledger.release_dead(self._job.job_id, self._name)
        if self._deaths > _MOST_DEATHS:
            raise WorkersDied(
                f"workers died {self._deaths} times without a shard getting through, the last with shards "
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
        pause_s = min(_MOST_PAUSE_S, max(_TURN_S, (now_s - since_s) / 2))
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
                    "stopping: runners end what they are at and note how far they are; again ends them at once"
                )
            if running:
                running = wait(running, timeout=_TURN_S).not_done
            else:
                time.sleep(_TURN_S)


def _is_death(error: BaseException) -> bool:
    """Whether a worker died under a call."""
    return isinstance(error, BrokenExecutor) or type(error).__name__ in ("KilledWorker", "CancelledError")


def run_shards(hands: Workers, function: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
    """Yield ``function(*each)`` for each of the arguments, as they come to their ends: for work that keeps no state.

    Raises:
        SchemalessError: what the function raised; the others are not waited for.
    """
    waiting = iter(arguments)
    calls: set[Future[Any]] = set()
    more = True
    try:
        while more or calls:
            while more and len(calls) < 2 * hands.size:
                each = next(waiting, None)
                if each is None:
                    more = False
                else:
                    calls.add(hands.submit(function, *each))
            done, calls = wait(calls, return_when=FIRST_COMPLETED) if calls else (set(), calls)
            for call in done:
                yield call.result()
    finally:
        for call in calls:
            call.cancel()
