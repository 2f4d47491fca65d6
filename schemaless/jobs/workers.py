"""Who does the work: a thread here, processes here, or a Dask cluster."""

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
from typing import Any, Final

from schemaless.errors import InvalidInput
from schemaless.interrupts import ignore_interrupts, starting_processes
from schemaless.jobs.worker import Outcome, let_go, make_ready
from schemaless.opening import Opening

MOST_WORKERS: Final = 1_024
"""Maximum number of worker processes that one command starts on its machine."""

_TURN_S: Final = 0.5
_DASK_S: Final = 10.0


class Workers:
    """A number of workers, wherever they are."""

    def __init__(self, size: int, make: Callable[[], Executor], end: Callable[[], None] = lambda: None) -> None:
        self.size = size
        self._make = make
        self._end = end
        self._executor: Executor | None = None
        self._going: threading.Thread | None = None

    def submit(self, function: Callable[..., Outcome], *arguments: Any) -> Future[Outcome]:
        """Have a worker call a function."""
        executor = self._ready()
        with starting_processes() if isinstance(executor, ProcessPoolExecutor) else nullcontext():
            return executor.submit(function, *arguments)

    def _ready(self) -> Executor:
        # Made when first used: whether processes may be forked depends on the threads that there are by then.
        if self._executor is None:
            self._executor = self._make()
        return self._executor

    def prepare(self, opening: Opening) -> None:
        """Have processes start and open the datastore, while the caller does something else."""
        executor = self._ready()
        if isinstance(executor, ProcessPoolExecutor):
            with starting_processes():
                for _ in range(self.size):
                    # Where it cannot be opened, the first shard's call says so.
                    executor.submit(make_ready, opening)

    def let_go(self) -> None:
        """Have idle processes end, while the caller does something else; ``close`` waits for that."""
        if isinstance(self._executor, ProcessPoolExecutor):
            self._going = threading.Thread(target=self._executor.shutdown, name="letting workers go")
            self._going.start()

    def restart(self) -> None:
        """Make new workers where the old ones died."""
        if self._executor is not None:
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
                self._executor.submit(let_go).result()
        if isinstance(self._executor, ThreadPoolExecutor | ProcessPoolExecutor):
            self._executor.shutdown(wait=not kill, cancel_futures=True)
        elif self._executor is not None:
            # Dask's takes nothing else.
            self._executor.shutdown(wait=False)
        self._end()


@contextmanager
def workers(count: int = 1, dask: str | None = None, *, dask_s: float = _DASK_S) -> Iterator[Workers]:
    """Give workers for the block.

    Args:
        count: 1 works in a thread of this process; more are processes of this machine.
        dask: the address of a Dask scheduler, or "local" for ``count`` workers of a new one.
        dask_s: how long that scheduler may take to answer.

    Raises:
        InvalidInput: ``count`` is not from 1 to ``MOST_WORKERS``, Dask is not installed, or its scheduler cannot be
            reached.
    """
    if not 1 <= count <= MOST_WORKERS:
        raise InvalidInput(f"workers must be from 1 to {MOST_WORKERS:,}, got {count}")
    if dask is not None:
        made = _dask(count, dask, dask_s)
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
    ignore_interrupts()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # A worker whose driver was killed would wait for its next call for ever.
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_TURN_S)
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
            # Its scheduler serves HTTP all the same: on port 8787, to everybody, with a warning where that is taken.
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
            silence_logs=logging.CRITICAL,
        )
        client = Client(cluster)
    else:
        cluster = None
        try:
            client = Client(address, timeout=timeout_s)
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
                next_arguments = next(waiting, None)
                if next_arguments is None:
                    more = False
                else:
                    calls.add(hands.submit(function, *next_arguments))
            done, calls = wait(calls, return_when=FIRST_COMPLETED) if calls else (set(), calls)
            for call in done:
                yield call.result()
    finally:
        for call in calls:
            call.cancel()
