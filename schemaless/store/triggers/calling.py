"""Calls of a trigger's function: a failing cell is retried and then parked, or its shard stops."""

from __future__ import annotations

import os
import random
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from schemaless.base.interrupts import is_interrupt
from schemaless.base.logger import log
from schemaless.cell import ErasedCell, StoredCell
from schemaless.errors import CorruptBody, ParkCell, RetryLater, ServerError
from schemaless.store.datastore import Datastore
from schemaless.store.followers.erasures import ErasureEvent
from schemaless.store.followers.handler import Handler, HandlerContext
from schemaless.store.followers.leases import Lease
from schemaless.store.followers.sql import ParkedRow
from schemaless.store.followers.states import DIED
from schemaless.store.internals import internals_of
from schemaless.store.triggers.declaration import Call, Trigger, follower_name

_FIRST_BACKOFF_S: Final = 0.1
_MAX_BACKOFF_S: Final = 30.0
"""Maximum backoff between attempts, in seconds; the backoff doubles with each attempt."""

_JITTER: Final = 0.2
_MAX_ERROR: Final = 8_000
"""Maximum length of a stored error with its traceback, in characters."""

_REPLAYS: Final = 3
"""Maximum number of workers that may die in one requested replay of a cell."""


@dataclass(frozen=True, slots=True)
class _Failed:
    """A failed call.

    Attributes:
        error: the stored error; its first line is the summary.
        park: whether to park the cell at once.
        wait_s: time to wait without counting the attempt, in seconds; None if it counts.
    """

    error: str
    park: bool = False
    wait_s: float | None = None


class Calls(Handler):
    """Handles cells by calling a trigger's function.

    A worker that dies during a call of the function cannot report that. In a shard whose owner died, and for as long as
    a shard is quarantined, each attempt is therefore recorded before the call and each location after it, so that a
    cell that kills every worker is parked after ``attempts`` deaths.

    Args:
        trigger: the trigger.
        store: the datastore, for the function.
    """

    def __init__(self, trigger: Trigger, store: Datastore) -> None:
        self._trigger = trigger
        self._store = store
        self._pid = os.getpid()
        self.name = follower_name(trigger.name)
        self.column = trigger.column
        self.timeout_s = trigger.timeout_s

    def handle(self, context: HandlerContext, lease: Lease, cells: Sequence[StoredCell]) -> bool:
        """Call the function for each cell; return True if all have been handled or parked."""
        for cell in cells:
            context.check_active(lease)
            if not self._handle_cell(context, lease, cell):
                return False
        return True

    def handle_erased(self, context: HandlerContext, lease: Lease, events: Sequence[ErasureEvent]) -> bool:
        """Call the trigger's ``on_erase`` for each erased cell of its column; return True if all calls succeeded."""
        if self._trigger.on_erase is None:
            return True
        for erased in (event.erased for event in events):
            if self.column not in (None, erased.key.column_name):
                continue
            context.check_active(lease)
            try:
                self._run(context, lease, self._trigger.erased, erased, erased, lease.erasure_wait.failures + 1)
            except BaseException as error:
                if _is_ctrl_c(error):
                    raise
                lease.retry_erasures(f"on_erase failed for cell {erased.key}: {_said(error)}")
                return False
        return True

    def replay(self, context: HandlerContext, lease: Lease) -> None:
        """Call the function for the parked cells whose replay was requested."""
        to_replay = context.rows.parked.to_replay(lease.pair)
        for added_id, attempts, begun in to_replay:
            context.check_active(lease)
            cell = next(iter(internals_of(self._store).read_stored(lease.pair[1], [added_id])), None)
            if cell is not None and cell.erased:
                context.rows.parked.delete_replayed(lease.pair, lease.row.epoch, added_id)
                continue
            failed = _Failed("the cell no longer exists")
            if begun >= _REPLAYS:
                failed = _Failed(DIED)
            elif cell is not None:
                # Counted before the call, so that a cell that kills its workers does not do so forever.
                context.rows.parked.begin_replay(lease.pair, lease.row.epoch, added_id, begun + 1)
                outcome = self._call(context, lease, cell, attempts + 1)
                if outcome is None:
                    context.rows.parked.delete_replayed(lease.pair, lease.row.epoch, added_id)
                    continue
                failed = outcome
            context.rows.parked.end_replay(lease.pair, lease.row.epoch, added_id, attempts + 1, failed.error)
        lease.replay(len(to_replay))

    def _handle_cell(self, context: HandlerContext, lease: Lease, cell: StoredCell) -> bool:
        """Handle one cell; return True if the next one may be handled."""
        if cell.erased:
            context.advance(lease, cell.added_id)
            return True
        if lease.careful:
            if lease.row.attempts >= self._trigger.attempts:
                return self._park(context, lease, cell, lease.row.attempts, lease.death or DIED)
            # If the write fails, the function is not called.
            context.note_attempt(lease, lease.row.attempts + 1, None, DIED)
        attempt = lease.row.attempts if lease.careful else lease.row.attempts + 1
        failed = self._call(context, lease, cell, attempt)
        if failed is None:
            was_careful = lease.careful > 0
            lease.survive()
            context.advance(lease, cell.added_id, at_once=was_careful)
            return True
        if failed.wait_s is not None:
            # The attempt does not count.
            self._wait(context, lease, attempt - 1, failed.wait_s, failed.error)
            return False
        if failed.park or attempt >= self._trigger.attempts:
            return self._park(context, lease, cell, attempt, failed.error)
        wait_s = min(_MAX_BACKOFF_S, _FIRST_BACKOFF_S * 2 ** min(attempt - 1, 20))
        wait_s *= random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 - jitter
        self._wait(context, lease, attempt, wait_s, failed.error)
        return False

    def _call(self, context: HandlerContext, lease: Lease, cell: StoredCell, attempt: int) -> _Failed | None:
        try:
            document = cell.decode()
        except CorruptBody as error:
            return _Failed(_said(error), park=True)
        try:
            self._run(context, lease, self._trigger, cell, document, attempt)
        except ParkCell as reason:
            return _Failed(_said(reason), park=True)
        except RetryLater as later:
            return _Failed(_said(later), wait_s=later.seconds)
        except ServerError as error:
            if error.retryable:
                # An unavailable server must not cause cells to be parked.
                return _Failed(_said(error), wait_s=lease.count_failure())
            return _Failed(_traced(error))
        except BaseException as error:
            if _is_ctrl_c(error):
                raise
            return _Failed(_traced(error))
        return None

    def _run(
        self,
        context: HandlerContext,
        lease: Lease,
        function: Callable[[Any, Call], object],
        cell: StoredCell | ErasedCell,
        given: Any,
        attempt: int,
    ) -> None:
        """Call a function of the user for a cell; a child that the function has forked ends here."""
        error: BaseException | None = None
        try:
            with context.calling(lease, cell):
                function(given, Call(self._store, lease.pair[1], attempt))
        except BaseException as raised:
            error = raised
            raise
        finally:
            if os.getpid() != self._pid:
                _end_child(error)

    def _wait(self, context: HandlerContext, lease: Lease, attempts: int, seconds: float, error: str) -> None:
        context.note_attempt(lease, attempts, seconds, error)
        lease.defer(seconds, _first_line(error))

    def _park(self, context: HandlerContext, lease: Lease, cell: StoredCell, attempts: int, error: str) -> bool:
        if lease.row.parked >= self._trigger.parked_limit:
            context.stop(lease, error)
            log.warning(
                "%s: shard %d has stopped before cell %s: %d cells are parked, and this one failed: %s",
                self._trigger.name,
                lease.pair[1],
                cell.key,
                lease.row.parked,
                _first_line(error),
            )
            return False
        row = ParkedRow(cell.added_id, cell.row_key.bytes, cell.column_name, cell.ref_key, attempts, error)
        context.park(lease, row)
        log.warning(
            "%s: cell %s of shard %d is parked: %s", self._trigger.name, cell.key, lease.pair[1], _first_line(error)
        )
        return True


def _is_ctrl_c(error: BaseException) -> bool:
    """Return whether an exception is Ctrl-C; worker processes ignore it, so there the function itself raised it."""
    return is_interrupt(error) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def _end_child(error: BaseException | None) -> NoReturn:
    """End a process that a function forked: it must not become a second worker, nor release the leases of the first."""
    code = error.code if isinstance(error, SystemExit) else error
    if isinstance(code, BaseException):
        traceback.print_exception(code)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code & 0xFF if isinstance(code, int) else int(code is not None))


def _said(error: BaseException) -> str:
    try:
        return _kept(f"{type(error).__name__}: {error}")
    except Exception:  # noqa: BLE001 - of the user's class
        return type(error).__name__


def _traced(error: BaseException) -> str:
    trace = "".join(traceback.format_exception(error))
    return _kept(f"{_said(error)}\n\n{trace}")


def _kept(text: str) -> str:
    """Return a text in the form that the table can store."""
    return text[:_MAX_ERROR].encode(errors="backslashreplace").decode()


def _first_line(error: str) -> str:
    return error.partition("\n")[0]
