"""Options that commands which run jobs share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Final

import click

from schemaless.base.interrupts import advising
from schemaless.cli.option import option
from schemaless.cli.options import as_spec, with_options
from schemaless.cli.quantities import CatalogId, FiniteRange, size_of
from schemaless.errors import InvalidInput
from schemaless.ops.jobs.job import Job, Kind, job_name, start_command
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.kind import JobKind, RunOptions, S
from schemaless.ops.jobs.throttle import MOST, MOST_BYTES, Thresholds
from schemaless.ops.jobs.workers import MOST_WORKERS
from schemaless.store.followers.supervisor import STOP_S
from schemaless.ui.terminal.job_progress import JobProgress


def job_option(help_text: str) -> Callable[[Any], Any]:
    """Return the option that names a job."""
    return option("--job N", help_text, name="job_id", type=CatalogId())


workers_option: Final = option(
    "--workers", "Number of worker processes on this machine.", type=click.IntRange(1, MOST_WORKERS), default=1
)

stop_option: Final = option(
    "--stop-timeout SECONDS",
    "When stopped, kill the calls that are still running after this time.",
    name="stop_s",
    type=FiniteRange(min=0, max=86_400),
    default=STOP_S,
)


workers_options: Final = with_options(
    workers_option,
    option("--dask ADDRESS", "Work on the Dask cluster of this scheduler; 'local' starts one with --workers workers."),
)
"""The options that choose the workers."""


class _Size(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A number of bytes, such as ``2GB``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        size = value if isinstance(value, int) else size_of(value)
        if not 1 <= size <= MOST_BYTES:
            self.fail(f"{value!r} is not between 1 byte and 1 EB", param, ctx)
        return int(size)


class _Limit(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A number in a range, or ``off``."""

    name = "number"

    def __init__(self, numbers: click.ParamType) -> None:  # type: ignore[type-arg, unused-ignore]
        self._numbers = numbers

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == "off" else self._numbers.convert(value, param, ctx)


_NUMBER: Final = _Limit(FiniteRange(0, MOST, min_open=True))
_WHOLE: Final = _Limit(click.IntRange(1, MOST))
MIN_FREE: Final = _Limit(_Size())
"""Parameter type of ``--min-free``: a number of bytes, or ``off``."""

_LIMITS: Final = (
    ("--max-lag", "max_lag_s", _NUMBER, "Wait while a replica lags by more than N seconds."),
    (
        "--max-threads-running",
        "max_threads_running",
        _WHOLE,
        "Wait while a primary runs more than N threads (Threads_running).",
    ),
    (
        "--max-history-length",
        "max_history_length",
        _WHOLE,
        "Wait while a primary's history list (undo to purge) is longer than N.",
    ),
    (
        "--min-free",
        "min_free_bytes",
        MIN_FREE,
        "Wait while the disk of a server here, the archive, or a folder for cold files has less free, such as 20GB.",
    ),
    ("--max-mb-per-s", "max_mb_per_s", _NUMBER, "Process at most N MB of old bodies a second, across the whole job."),
    (
        "--yield-above",
        "yield_above_per_s",
        _NUMBER,
        "Take small steps, with pauses, while applications make more than N calls a second to a server.",
    ),
)


def throttle_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the throttling options, passed as ``thresholds``."""

    def with_thresholds(*arguments: Any, changes: dict[str, Any], **options: Any) -> Any:
        return command(*arguments, thresholds=Thresholds(**changes), **options)

    return throttle_changes(wraps(command)(with_thresholds), usual=Thresholds())


def throttle_changes(command: Callable[..., Any], usual: Thresholds | None = None) -> Callable[..., Any]:
    """Add the throttling options, passed as ``changes``: a dict of the options given, with defaults from ``usual``."""

    @wraps(command)
    def with_changes(*arguments: Any, **options: Any) -> Any:
        given = {name: options.pop(name) for name in (*(name for _, name, _, _ in _LIMITS), "flag_file")}
        changes = {name: None if value == "off" else value for name, value in given.items() if value is not None}
        return command(*arguments, changes=changes, **options)

    options = [
        option(
            f"{flag} {'SIZE' if limit is MIN_FREE else 'N'}|off",
            help_text,
            name=name,
            type=limit,
            default=None if usual is None else _shown(getattr(usual, name), limit),
        )
        for flag, name, limit, help_text in _LIMITS
    ]
    options.append(option("--flag-file FILE", "Wait while this file exists; an absolute path, or off."))
    return with_options(*options)(with_changes)


def _shown(value: float | None, limit: _Limit) -> float | str:
    """Return a default as users write it."""
    if value is None:
        return "off"
    return f"{value / 1e9:g}GB" if limit is MIN_FREE else value


@dataclass(frozen=True, slots=True)
class JobRun:
    """How a command runs a job, by its options.

    Attributes:
        job_id: number of the job to continue; None to start or join one.
        workers: number of workers.
        dask: address of a Dask scheduler.
        thresholds: thresholds of a new job.
    """

    job_id: int | None = None
    workers: int = 1
    dask: str | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)

    def resumed(self, kind: JobKind[S], job_store: JobStore) -> tuple[Job, S, list[int]] | None:
        """Return the job to continue, with its own parameters and shards; None to start or join one."""
        return None if self.job_id is None else kind.resumed(job_store, self.job_id)

    @contextmanager
    def options(self, job_store: JobStore, job: Job | None = None) -> Iterator[RunOptions]:
        """Show the progress of a run, and yield its options."""
        with JobProgress(job_store) as shown, advising(lambda: _continued(shown.job_id)):
            yield {"job": job, "count": self.workers, "dask": self.dask, "listener": shown}


def _continued(job_id: int) -> str | None:
    return f"the same command continues job {job_id}" if job_id else None


def run_options(help_text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the options of a command that runs a job, passed as ``how``; ``help_text`` describes ``--job``."""
    return with_options(job_option(help_text), workers_options, throttle_options, as_spec(JobRun, name="how"))


def chosen_job(job_store: JobStore, job_id: int | None, kind: Kind = "migrate") -> Job:
    """Return the given job, else the default one of ``kind``; see ``JobStore.latest``.

    Raises:
        InvalidInput: there is no such job.
    """
    job = job_store.job(job_id) if job_id is not None else job_store.latest(kind)
    if job is None:
        raise InvalidInput(f"there is no {job_name(kind)} yet; '{start_command(kind)}' begins one")
    return job
