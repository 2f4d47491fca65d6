"""Progress of a job on standard error."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Self

from rich.live import Live

from schemaless.base.events import Event
from schemaless.base.numbers import bytes_text, counted
from schemaless.errors import SchemalessError
from schemaless.ops.jobs.job import Job, RunProgress, RunStarted
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.status import Eta, JobStatus, status_of
from schemaless.ui.terminal.output import err, note, speed_text
from schemaless.ui.terminal.progress import ProgressLine, amount_text, duration

_LINE_S: Final = 5.0
_MOST_LINE_S: Final = 300.0
"""Longest interval between progress lines, in seconds; reached once a run has lasted 100 minutes."""
_DONE_TO_CELLS: Final = {"migrate": "re-encoded", "move": "copied", "restore": "put back", "retain": "erased"}


class JobProgress:
    """Shows job progress on standard error: a live display on a terminal, else occasional lines.

    Attributes:
        job_id: number of the job; 0 until its run has started.
    """

    def __init__(self, job_store: JobStore, look_s: float = 1.0) -> None:
        """Show progress from a job store, polled at most once every ``look_s`` seconds."""
        self._look_s = look_s
        self._job_store = job_store
        self.job_id: int = 0
        self._live: Live | None = None
        self._looked_s = 0.0
        self._began_s = self._line_s = time.monotonic()
        self._waiting: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._live is not None:
            if error is None:
                with suppress(SchemalessError):  # keep the last display
                    self._live.update(picture(status_of(self._job_store, self.job_id)))
            self._live.stop()

    def __call__(self, event: Event) -> None:
        """Handle an event of a run: show its job at the start, and poll as it progresses."""
        match event:
            case RunStarted(job, new):
                self._begin(job, new)
            case RunProgress():
                self._look()

    def _begin(self, job: Job, new: bool) -> None:
        self.job_id = job.job_id
        note(f"job {job.job_id}: {'begun' if new else f'continued; it was begun {job.created_at:%Y-%m-%d %H:%M} UTC'}")
        if not new:
            # All runs of a job share its thresholds, whatever options this run was given.
            thresholds = thresholds_text(job.thresholds.asdict())
            note(f"thresholds of job {job.job_id}: {thresholds}; 'schemaless job set {job.job_id}' changes them")
        if job.state == "paused":
            note(f"job {job.job_id} is paused ({job.message}); 'schemaless job resume {job.job_id}' lets it continue")
        console = err(wrap=True)
        if console.is_terminal:
            self._live = Live(console=console, auto_refresh=False, transient=False)
            self._live.start()

    def _look(self) -> None:
        now_s = time.monotonic()
        if now_s - self._looked_s < self._look_s:
            return
        self._looked_s = now_s
        status = status_of(self._job_store, self.job_id)
        if self._live is not None:
            self._live.update(picture(status), refresh=True)
            return
        # Not at each change of the reason, since its text contains the lag.
        waiting = {cluster for cluster, _ in status.waits}
        every_s = min(_MOST_LINE_S, max(_LINE_S, (now_s - self._began_s) / 20))
        if waiting != self._waiting or now_s - self._line_s >= every_s:
            if self._waiting and not waiting:
                note(f"job {self.job_id}: continues")
            self._waiting = waiting
            self._line_s = now_s
            note(f"job {self.job_id}: {progress_text(status)}")


def progress_text(status: JobStatus) -> str:
    """Format the progress of a job as one line."""
    parts = [f"{status.fraction:.1%} of {bytes_text(status.bytes_total)}"]
    parts.append(f"{status.done} of {counted(len(status.shards), 'shard')} through")
    if status.job.kind in _DONE_TO_CELLS:
        cells = sum(state.cells for state in status.shards)
        parts.append(f"{counted(cells, 'cell')} {_DONE_TO_CELLS[status.job.kind]}")
    if status.mb_per_s is not None:
        parts.append(f"{speed_text(status.mb_per_s)} by {counted(status.runners, 'runner')}")
    if status.eta is not None:
        parts.append(f"{_eta(status.eta)} left")
    parts += [f"waits on {cluster}: {reason}" for cluster, reason in status.waits]
    return ", ".join(parts)


def picture(status: JobStatus) -> ProgressLine:
    """Return the live progress line. A reason for waiting comes before the rate, which a narrow terminal may omit."""
    facts = [f"{status.fraction:.1%} of {bytes_text(status.bytes_total)}"]
    for cluster, reason in status.waits[:1]:
        more = f" and {len(status.waits) - 1} more" if len(status.waits) > 1 else ""
        facts[0] += f", waits on {cluster}{more}: {reason}"
    if status.mb_per_s is not None:
        facts.append(speed_text(status.mb_per_s))
    if status.eta is not None:
        facts.append(f"{_eta(status.eta)} left")
    if status.job.kind in _DONE_TO_CELLS:
        facts.append(amount_text(sum(state.cells for state in status.shards), None, "cells"))
    facts.append(f"{status.done} of {counted(len(status.shards), 'shard')}")
    if status.runners:
        facts.append(counted(status.runners, "runner"))
    style = "yellow" if status.waits else ""
    return ProgressLine(f"job {status.job.job_id}", status.fraction, facts, style=style)


def _eta(eta: Eta) -> str:
    if eta.high_s < 2:
        return "seconds"
    return f"{duration(eta.mid_s)} ({duration(eta.low_s)} to {duration(eta.high_s)})"


def thresholds_text(thresholds: Mapping[str, Any]) -> str:
    """Format thresholds as one line."""
    return ", ".join(f"{name} {'off' if value is None else value}" for name, value in thresholds.items())
