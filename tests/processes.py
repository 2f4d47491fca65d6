"""Processes that tests kill: their fork server, which has imported what they run, and runners of jobs and commands."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final
from unittest import mock

import schemaless
from schemaless.cli.main import run
from schemaless.ops.erasure.job import ERASE, RETAIN
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.migrate.rebuild import REBUILD
from schemaless.ops.migrate.restore import RESTORE
from schemaless.ops.migrate.run import MIGRATE
from schemaless.ops.move.run import MOVE
from schemaless.ops.tier.cooling import TIER
from schemaless.ops.tier.recall import RECALL
from schemaless.ops.tier.sweep import SWEEP
from schemaless.wire.connection import Connection

PROCESSES: Final = multiprocessing.get_context("forkserver")
"""The context of these processes. A program has one fork server, so one list of what it imports."""

KINDS: Final = {kind.name: kind for kind in (MIGRATE, RESTORE, REBUILD, MOVE, ERASE, RETAIN, TIER, RECALL, SWEEP)}
"""Kinds of jobs by name."""


class Killed(BaseException):
    """Stands for the death of a process: the exception closes everything that it holds open."""


PATIENCE_S: Final = 120.0

_CHANGES: Final = (
    *(b"UPDATE", b"INSERT", b"DELETE", b"COMMIT", b"START", b"SELECT event_id"),
    *(b"CREATE", b"RENAME", b"DROP", b"ALTER", b"LOCK TABLES", b"UNLOCK TABLES"),
)
"""Prefixes of the statements before which a process may die."""


def preload(*modules: str) -> None:
    """Add modules to those that the server imports; without effect once it has started."""
    PROCESSES.set_forkserver_preload(
        [
            *("tests.ops.erasure.matrix", "tests.ops.export.killed"),
            *("tests.store.followers.child", "tests.store.indexes.child", "pyarrow.compute"),
            "schemaless.cli.load",
            *modules,
        ]
    )


preload()


@contextmanager
def dying(
    fatal: int | None, die: Callable[[], None], note: Callable[[], None], *, unlocked: bool = False
) -> Iterator[None]:
    """Call ``die`` before a step that changes something, counted from 0, and ``note`` for each that is made.

    A step is a statement, or the sync of a file or folder. With ``unlocked``, it is the first one from there on before
    which this process holds no lock: a transaction, or a sync, while no thread is in a transaction.
    """
    steps = count()
    dies = iter((True,))
    transactions: set[Connection] = set()
    ask, fsync = Connection.ask, os.fsync

    def step(free: bool) -> None:
        number = next(steps)
        due = number == fatal
        if unlocked and fatal is not None:
            due = number >= fatal and free and not transactions
        if due and next(dies, False):
            die()
        note()

    def hooked(connection: Connection, sql: bytes, **how: Any) -> object:
        if sql.startswith(_CHANGES):
            step(sql.startswith(b"START"))
        if sql.startswith(b"START"):
            transactions.add(connection)
        try:
            return ask(connection, sql, **how)
        finally:
            if sql.startswith((b"COMMIT", b"ROLLBACK")):
                transactions.discard(connection)

    def synced(file: Any) -> None:
        step(True)
        fsync(file)

    with mock.patch.object(Connection, "ask", hooked), mock.patch.object(os, "fsync", synced):
        yield


def renews_lease() -> bool:
    """Return whether this thread renews the lease of a runner in this process, and does not do its work."""
    return threading.current_thread().name.startswith("job ")


def run_job(url: str, job_id: int) -> None:
    """Continue a job in this process."""
    with schemaless.connect(url, read_timeout_s=60) as store:
        job = JobStore(store).job(job_id)
        kind = KINDS[job.kind]
        kind.run(store, kind.spec.of(job), job=job)


def run_command(url: str, *words: object) -> None:
    """Run a command in this process, and exit with its status."""
    os.environ["SCHEMALESS_URL"] = url
    sys.exit(run([str(word) for word in words]))


def _work_and_die(work: Callable[[], object], fatal: int | None, victim: int, stalls: bool, sent: Any) -> None:
    def note() -> None:
        sent.value += 1

    def die() -> None:
        if stalls:
            # A process that is sent SIGSTOP runs on for a while, and may take a lock; a thread stops at once.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        else:
            os.kill(victim or os.getpid(), signal.SIGKILL)

    with dying(fatal, die, note, unlocked=stalls):
        work()


class Runner:
    """A process that does some work.

    Args:
        work: a module-level function, or a partial one.
        fatal: number of the statement before which the process kills its victim, or None.
        victim: process id of the victim; 0 for the process itself.
        stalls: stop it at the next such statement before which it holds no lock, and do not kill it.
    """

    def __init__(
        self, work: Callable[[], object], fatal: int | None = None, victim: int = 0, *, stalls: bool = False
    ) -> None:
        # Without a lock, which a thread of a process that is stopped may hold.
        self._sent = PROCESSES.Value("i", 0, lock=False)
        arguments = work, fatal, victim, stalls, self._sent
        self._process = PROCESSES.Process(target=_work_and_die, args=arguments, daemon=True)
        self._process.start()

    @property
    def sent(self) -> int:
        """Number of statements that were sent so far."""
        return int(self._sent.value)

    @property
    def running(self) -> bool:
        """Whether the process is still running."""
        return self._process.is_alive()

    @property
    def killed(self) -> bool:
        """Whether the process has died before its statement."""
        return self._process.exitcode == -signal.SIGKILL

    @property
    def stalled(self) -> bool:
        """Whether the process has been stopped, and may go on."""
        try:
            state = Path(f"/proc/{self._process.pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False
        return state.rpartition(")")[2].split()[0] == "T"

    def resume(self) -> None:
        """Let a stalled process go on."""
        os.kill(self._process.pid or 0, signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.join()

    def join(self, *statuses: int) -> int:
        """Wait for the end of the process, killed or with one of these statuses; return how many statements it sent."""
        self._process.join(PATIENCE_S)
        assert self._process.exitcode in (0, -signal.SIGKILL, *statuses), self._process.exitcode
        return self.sent


def complete(store: schemaless.Datastore, url: str, *job_ids: int) -> None:
    """Complete jobs whose runners died, as successors do once the leases have expired."""
    job_store = JobStore(store)
    for job_id in job_ids:
        job_store.leases.release_dead(job_id, "")
    runners = [Runner(partial(run_job, url, job_id)) for job_id in job_ids if job_store.job(job_id).unfinished]
    for runner in runners:
        runner.join()
    assert not [job_id for job_id in job_ids if job_store.job(job_id).unfinished]
