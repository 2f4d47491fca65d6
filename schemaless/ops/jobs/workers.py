"""Workers that execute the calls of a job: a thread or processes on this machine, or a Dask cluster."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
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
from contextlib import contextmanager, nullcontext, suppress
from itertools import chain, islice
from typing import Any, Final

from schemaless.base.interrupts import ignore_interrupts, starting_processes
from schemaless.base.logger import log
from schemaless.errors import InvalidInput, WorkersDied
from schemaless.ops.jobs.worker import Outcome, let_go, warm_up
from schemaless.store.opening import Opening

MOST_WORKERS: Final = 1_024
"""Maximum number of worker processes that one command starts on its machine."""

_PARENT_POLL_S: Final = 0.5
_DASK_TIMEOUT_S: Final = 10.0

MOST_DEATHS: Final = 5
"""Maximum number of workers that may die without a shard being completed in between."""


class Workers:
    """Pool of workers that execute calls.

    Args:
        size: number of workers.
        make: creates the executor; called again when workers have died.
        end: releases resources when the workers are closed.

    Attributes:
        deaths: number of workers that have died since a call completed its shard; callers reset it.
    """

    def __init__(self, size: int, make: Callable[[], Executor], end: Callable[[], None] = lambda: None) -> None:
        self.size = size
        self.deaths: int = 0
        self._make = make
        self._end = end
        self._executor: Executor | None = None

    def submit(self, function: Callable[..., Outcome], *arguments: Any) -> Future[Outcome]:
        """Schedule a call in a worker; if one has died since the last call, this one fails like those in progress."""
        executor = self._ready()
        try:
            with starting_processes() if isinstance(executor, ProcessPoolExecutor) else nullcontext():
                return executor.submit(function, *arguments)
        except BrokenExecutor as error:
            failed: Future[Outcome] = Future()
            failed.set_exception(error)
            return failed

    def _ready(self) -> Executor:
        # Created on first use: whether processes may be forked depends on the threads that exist by then.
        if self._executor is None:
            self._executor = self._make()
        return self._executor

    def prepare(self, opening: Opening) -> None:
        """Start processes and open the datastore in them, in the background."""
        executor = self._ready()
        if isinstance(executor, ProcessPoolExecutor):
            with starting_processes(), suppress(BrokenExecutor):
                for _ in range(self.size):
                    # If this fails, the call for the first shard reports the error.
                    executor.submit(warm_up, opening)

    def replace_dead(self, shards: Iterable[int], error: BaseException) -> None:
        """Replace the workers, one of which has died.

        Args:
            shards: the shards that the workers were working on.
            error: the error of a call whose worker died.

        Raises:
            WorkersDied: too many have died without a shard being completed in between.
        """
        self.deaths += 1
        if self.deaths > MOST_DEATHS:
            raise WorkersDied(
                f"workers died {self.deaths} times without completing a shard, most recently while working on shards "
                f"{sorted(shards)} ({error}); check whether workers ran out of memory, then run the same command "
                "again, perhaps with fewer workers"
            ) from error
        log.warning("a worker died (%s); new workers take over its shards", error)
        if self._executor is not None:
            with suppress(Exception):
                self._executor.shutdown(wait=False, cancel_futures=True)
        self._executor = self._make()

    def close(self, *, kill: bool = False) -> None:
        """End the workers.

        Args:
            kill: kill processes instead of waiting for their calls.
        """
        if kill and isinstance(self._executor, ProcessPoolExecutor):
            for process in list((self._executor._processes or {}).values()):  # noqa: SLF001 - no public API for this
                process.kill()
        with suppress(RuntimeError, BrokenExecutor):
            if isinstance(self._executor, ThreadPoolExecutor) and not kill:
                self._executor.submit(let_go).result()
        if isinstance(self._executor, ThreadPoolExecutor | ProcessPoolExecutor):
            self._executor.shutdown(wait=not kill, cancel_futures=True)
        elif self._executor is not None:
            # The executor of Dask accepts no other argument.
            self._executor.shutdown(wait=False)
        self._end()


@contextmanager
def workers(count: int = 1, dask: str | None = None, *, dask_s: float = _DASK_TIMEOUT_S) -> Iterator[Workers]:
    """Provide workers for the duration of the block.

    Args:
        count: number of workers: a single one is a thread of this process, several are processes on this machine.
        dask: address of a Dask scheduler, or "local" for a new one with ``count`` workers.
        dask_s: timeout for the scheduler to answer, in seconds.

    Raises:
        InvalidInput: ``count`` is not from 1 to ``MOST_WORKERS``, Dask is not installed, or its scheduler cannot be
            reached.
        OSError: processes cannot be started here.
    """
    if not 1 <= count <= MOST_WORKERS:
        raise InvalidInput(f"workers must be from 1 to {MOST_WORKERS:,}, got {count}")
    if dask is not None:
        pool = _dask(count, dask, dask_s)
    elif count == 1:
        pool = Workers(1, lambda: ThreadPoolExecutor(1, thread_name_prefix="worker"))
    else:
        with _lacking():
            # Before there is a job. The executor itself is created later: see ``Workers._ready``.
            multiprocessing.get_context("fork").Lock()
        pool = Workers(count, lambda: _processes(count))
    succeeded = False
    try:
        yield pool
        succeeded = True
    finally:
        pool.close(kill=not succeeded)


def _processes(count: int) -> Executor:
    # fork starts in milliseconds, but if this process has threads, the child may inherit locks that they hold.
    forks = threading.active_count() == 1 and "fork" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if forks else "spawn")
    with _lacking():
        return ProcessPoolExecutor(count, mp_context=context, initializer=_begin_worker, initargs=(os.getpid(),))


@contextmanager
def _lacking() -> Iterator[None]:
    """Say what is missing where processes cannot be started."""
    try:
        yield
    except OSError as error:
        # Their locks are in /dev/shm, which a container may lack or have read-only.
        reason = f"{error.strerror}; a single worker needs no processes, several need /dev/shm"
        raise OSError(error.errno, reason, "starting worker processes") from error


def _begin_worker(parent: int) -> None:
    # Ctrl-C signals the whole process group, but workers stop at a checkpoint when the driver asks them to.
    ignore_interrupts()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # If the driver is killed, nothing else ends a worker that waits for its next call.
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()


def _exit_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_S)
    os._exit(1)


def _dask(count: int, address: str, timeout_s: float) -> Workers:
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
            # dashboard_address=None does not stop the scheduler from serving HTTP on port 8787 of all interfaces.
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
            silence_logs=logging.CRITICAL,
        )
        client = Client(cluster)
    else:
        cluster = None
        try:
            client = Client(address, timeout=timeout_s)
        except (OSError, TimeoutError, ValueError) as error:
            raise InvalidInput(
                f"no Dask scheduler answers at {address!r}: {error}; start one with 'dask scheduler', or check the "
                "address"
            ) from error

    def end() -> None:
        client.close()
        if cluster is not None:
            cluster.close()

    size = sum(client.nthreads().values())
    if not size:
        end()
        raise InvalidInput(f"the Dask scheduler at {address!r} has no workers; start them with 'dask worker {address}'")
    return Workers(size, lambda: client.get_executor(pure=False, retries=0), end)


def is_death(error: BaseException) -> bool:
    """Whether an exception raised by a call means that the call's worker died."""
    return isinstance(error, BrokenExecutor) or type(error).__name__ in ("KilledWorker", "CancelledError")


def run_shards(
    pool: Workers, function: Callable[..., Any], arguments: Iterable[tuple[Opening, int, Any]]
) -> Iterator[Any]:
    """Yield the result of each call of the function, in order of completion; for work without checkpoints.

    Calls whose worker died are repeated.

    Args:
        pool: the workers.
        function: called in a worker.
        arguments: arguments of each call; the second one is the number of the shard.

    Raises:
        SchemalessError: raised by the function; calls that have not started are cancelled.
        WorkersDied: workers died repeatedly without completing a shard.
    """
    waiting = iter(arguments)
    calls: dict[Future[Any], tuple[Opening, int, Any]] = {}
    try:
        while True:
            for call_arguments in islice(waiting, max(0, 2 * pool.size - len(calls))):
                calls[pool.submit(function, *call_arguments)] = call_arguments
            if not calls:
                return
            death: BaseException | None = None
            for call in wait(calls, return_when=FIRST_COMPLETED).done:
                try:
                    result = call.result()
                except Exception as error:
                    if not is_death(error):
                        raise
                    death = error
                else:
                    pool.deaths = 0
                    del calls[call]
                    yield result
            if death is not None:
                # When one process of a pool dies, the pool terminates the others.
                pool.replace_dead((shard for _, shard, _ in calls.values()), death)
                waiting, calls = chain(calls.values(), waiting), {}
    finally:
        for call in calls:
            call.cancel()
