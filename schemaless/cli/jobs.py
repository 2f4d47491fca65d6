"""What commands about jobs share: options, progress, and how a status looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from functools import wraps
from types import TracebackType
from typing import Any, Final, Self

import click
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from schemaless.cli.output import bytes_text, err, note, out, print_json, print_table
from schemaless.errors import SchemalessError
from schemaless.jobs.job import Job, ShardState
from schemaless.jobs.ledger import Ledger
from schemaless.jobs.status import Eta, JobStatus, status_of
from schemaless.jobs.throttle import Thresholds

_LOOK_S: Final = 1.0
_LINE_S: Final = 5.0
_MOST_LINE_S: Final = 300.0
"""Of a job that has run for hours: its log is read by people."""
_SHARDS_SHOWN: Final = 16


def job_option(help_text: str) -> Callable[[Any], Any]:
    """Return the option that names a job."""
    return click.option("--job", "job_id", type=int, metavar="N", help=help_text)


def workers_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say who does the work."""
    for option in reversed(
        (
            click.option("--workers", type=int, default=1, show_default=True, help="Processes on this machine."),
            click.option(
                "--dask",
                metavar="ADDRESS",
                help="Work on the Dask cluster of this scheduler; 'local' starts one with --workers workers.",
            ),
        )
    ):
        command = option(command)
    return command


class _Limit(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A number, or "off"."""

    name = "number"

    def __init__(self, number: type[int | float]) -> None:
        self._number = number

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value is None or value == "off":
            return "off"
        try:
            return self._number(value)
        except ValueError:
            self.fail(f"expected a number or 'off', got {value!r}", param, ctx)


def throttle_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say when to wait; they come as ``thresholds``."""
    usual = Thresholds()

    @wraps(command)
    def with_thresholds(
        *arguments: Any,
        max_lag: Any,
        max_threads_running: Any,
        max_history_length: Any,
        max_mb_per_s: Any,
        flag_file: str | None,
        yield_above: Any,
        **options: Any,
    ) -> Any:
        lag_s, threads, history, mb_per_s, calls_per_s = (
            None if each == "off" else each
            for each in (max_lag, max_threads_running, max_history_length, max_mb_per_s, yield_above)
        )
        thresholds = Thresholds(lag_s, threads, history, mb_per_s, flag_file, calls_per_s)
        return command(*arguments, thresholds=thresholds, **options)

    def limit(flag: str, number: type[int | float], default: float | None, help_text: str) -> Any:
        return click.option(
            flag,
            type=_Limit(number),
            default="off" if default is None else default,
            show_default=True,
            metavar="N|off",
            help=help_text,
        )

    for option in reversed(
        (
            limit("--max-lag", float, usual.max_lag_s, "Wait while a replica lags by more seconds."),
            limit("--max-threads-running", int, usual.max_threads_running, "Wait while a primary executes more."),
            limit("--max-history-length", int, usual.max_history_length, "Wait while a primary has more to purge."),
            limit("--max-mb-per-s", float, usual.max_mb_per_s, "Old bodies, in MB a second, for the whole job."),
            limit(
                "--yield-above",
                float,
                usual.yield_above_per_s,
                "Take small steps, with pauses, where applications make more calls a second.",
            ),
            click.option("--flag-file", metavar="FILE", help="Wait while this file is there; an absolute path."),
        )
    ):
        with_thresholds = option(with_thresholds)
    return with_thresholds


class JobProgress:
    """Shows how far a job is, on standard error: a picture where that is a terminal, else a line now and then."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._job_id = 0
        self._live: Live | None = None
        self._looked_s = 0.0
        self._began_s = self._line_s = time.monotonic()
        self._waiting: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            if error is None:
                with suppress(SchemalessError):  # the last picture stays
                    self._live.update(_picture(status_of(self._ledger, self._job_id)))
            self._live.stop()

    def begin(self, job: Job, new: bool) -> None:
        """Say which job it is."""
        self._job_id = job.job_id
        note(f"job {job.job_id}: {'begun' if new else f'going on with it, begun {job.created_at:%Y-%m-%d %H:%M} UTC'}")
        if not new:
            # Whatever thresholds this run was given: all runs of a job have the same.
            waits_by = thresholds_text(job.spec["thresholds"])
            note(f"job {job.job_id} waits by: {waits_by}; 'schemaless migrate throttle' changes that")
        if job.state == "paused":
            note(f"job {job.job_id} is paused ({job.message}); 'schemaless migrate resume' lets it go on")
        console = err(wrap=True)
        if console.is_terminal:
            self._live = Live(console=console, auto_refresh=False, transient=False)
            self._live.start()

    def turn(self) -> None:
        """Look again, if it is time."""
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        status = status_of(self._ledger, self._job_id)
        if self._live is not None:
            self._live.update(_picture(status), refresh=True)
            return
        # Not at each change of a reason: it has the lag in it.
        waiting = {cluster for cluster, _ in status.waits}
        every_s = min(_MOST_LINE_S, max(_LINE_S, (now_s - self._began_s) / 20))
        if waiting != self._waiting or now_s - self._line_s >= every_s:
            if self._waiting and not waiting:
                note(f"job {self._job_id}: goes on")
            self._waiting = waiting
            self._line_s = now_s
            note(f"job {self._job_id}: {_line(status)}")


def _line(status: JobStatus) -> str:
    parts = [f"{status.fraction:.1%} of {bytes_text(status.bytes_total)}"]
    parts.append(f"{status.done} of {len(status.shards)} shards through")
    if status.job.kind == "migrate":
        parts.append(f"{sum(state.cells for state in status.shards):,} cells re-encoded")
    if status.mb_per_s is not None:
        parts.append(f"{status.mb_per_s:.1f} MB/s by {status.runners} runners")
    if status.eta is not None:
        parts.append(f"{_eta(status.eta)} left")
    parts += [f"waits on {cluster}: {reason}" for cluster, reason in status.waits]
    return ", ".join(parts)


def _picture(status: JobStatus) -> Group:
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        Text(f"job {status.job.job_id}"),
        ProgressBar(total=1.0, completed=status.fraction, width=40),
        Text(f"{status.fraction:.1%} of {bytes_text(status.bytes_total)}"),
    )
    facts = [f"{status.done} of {len(status.shards)} shards through"]
    if status.job.kind == "migrate":
        facts.append(f"{sum(state.cells for state in status.shards):,} cells re-encoded")
    if status.mb_per_s is not None:
        facts.append(f"{status.mb_per_s:.1f} MB/s by {status.runners} runners")
    if status.eta is not None:
        facts.append(f"{_eta(status.eta)} left")
    waits = [Text(f"waits on {cluster}: {reason}", style="yellow") for cluster, reason in status.waits]
    return Group(bar, Text(", ".join(facts)), *waits)


def _eta(eta: Eta) -> str:
    if eta.high_s < 2:
        return "seconds"
    return f"{duration(eta.mid_s)} ({duration(eta.low_s)} to {duration(eta.high_s)})"


def duration(seconds: float) -> str:
    """Return a duration for people, two units at most."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"


def show_status(status: JobStatus, events: list[tuple[datetime, str, str]], each_shard: bool, as_json: bool) -> None:
    """Print a status."""
    if as_json:
        print_json(_status_json(status, events))
        return
    job = status.job
    message = "" if job.message is None else f" ({job.message})"
    out().print(f"job {job.job_id}, {job.kind}: [bold]{job.state}[/]{message}", markup=True)
    out().print(f"begun {job.created_at:%Y-%m-%d %H:%M} UTC by {job.created_by}: {_asked(job)}")
    if job.unfinished:
        out().print(f"waits by: {thresholds_text(job.spec['thresholds'])}", markup=False)
    out().print(_line(status))
    if job.unfinished and not status.runners:
        out().print(f"nobody works on it now: '{go_on_command(job)}' does")
    for cluster in status.clusters:
        waited = ", ".join(f"{duration(seconds)} for {kind}" for kind, seconds in sorted(cluster.waits.items()))
        if waited:
            out().print(f"{cluster.cluster} has waited {waited}")
    failed = [state for state in status.shards if state.message is not None and state.state == "waiting"]
    for state in failed[:_SHARDS_SHOWN]:
        note(f"shard {state.shard}: {state.message}")
    if each_shard or len(status.shards) <= _SHARDS_SHOWN:
        print_table(
            None,
            ["shard", "state", "pass", "through", "cells", "before", "after", "left", "runner"],
            [_shard_row(state) for state in status.shards],
            text_columns=2,
        )
    elif not as_json:
        note(f"{len(status.shards):,} shards: --shards shows each")


def thresholds_text(thresholds: Mapping[str, Any]) -> str:
    """Return thresholds in a line."""
    return ", ".join(f"{name} {'off' if value is None else value}" for name, value in thresholds.items())


def go_on_command(job: Job) -> str:
    """Return the command that works on a job."""
    return f"schemaless {'migrate run' if job.kind == 'migrate' else job.kind} --execute --job {job.job_id}"


def _asked(job: Job) -> str:
    spec = {
        name: value for name, value in job.spec.items() if value not in (None, [], {}, False) and name != "thresholds"
    }
    return ", ".join(f"{name} {', '.join(value) if isinstance(value, list) else value}" for name, value in spec.items())


def _shard_row(state: ShardState) -> list[str]:
    return [
        str(state.shard),
        "running" if state.held else state.state,
        str(state.pass_number),
        f"{state.fraction:.0%}",
        f"{state.cells:,}",
        bytes_text(state.bytes_before),
        bytes_text(state.bytes_after),
        f"{state.left_cells:,}",
        (state.runner or "") if state.held else "",
    ]


def _status_json(status: JobStatus, events: list[tuple[datetime, str, str]]) -> dict[str, Any]:
    return {
        "job": asdict(status.job),
        "fraction": status.fraction,
        "bytes_total": status.bytes_total,
        "bytes_through": status.bytes_through,
        "runners": status.runners,
        "mb_per_s": status.mb_per_s,
        "eta": None if status.eta is None else asdict(status.eta),
        "waits": [{"cluster": cluster, "reason": reason} for cluster, reason in status.waits],
        "clusters": [asdict(cluster) for cluster in status.clusters],
        "shards": [{**asdict(state), "held": state.held, "fraction": state.fraction} for state in status.shards],
        "events": [{"at": at, "who": name, "what": what} for at, name, what in events],
    }
