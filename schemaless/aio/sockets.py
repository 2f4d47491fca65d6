"""Sockets that suspend the calling greenlet where a blocking socket would block the thread.

An idle socket stays registered with the event loop, because registering it takes longer than receiving a reply.
Timeouts use one timer per socket, which is rescheduled only when it fires.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import socket
import ssl
import time
from typing import Any, Final

from schemaless.aio.bridge import Waiter, wait, waiter
from schemaless.wire.sockets import TLSWire, Wire

_BLOCKED: Final = (BlockingIOError, ssl.SSLWantReadError)
_MAX_UNREAD: Final = 1
"""Number of consecutive events for data that no one reads, after which a socket is removed from the event loop."""
_BACKLOG_POLL_S: Final = 0.01


class _Suspending:
    """Mixin for a socket class: non-blocking, with the timeouts of a blocking socket."""

    _timeout_s: float | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    """The loop that the socket is registered with for reading."""
    _waiter: Waiter | None = None
    _target: Any = None
    _unread = 0
    _has_sent = False
    """True from when a statement is sent until its reply is awaited."""
    _timer: asyncio.TimerHandle | None = None
    _deadline_s = 0.0

    # Overridden methods of socket.socket

    def settimeout(self, value: float | None) -> None:
        self._timeout_s = value
        super().settimeout(0)  # type: ignore[misc]

    def gettimeout(self) -> float | None:
        return self._timeout_s

    def recv_into(self, buffer: Any, *limits: int) -> int:
        while True:
            if self._has_sent:
                # The reply is not there yet. If it were, a task that makes one call after the other would never let
                # another one run.
                self._has_sent = False
            else:
                try:
                    return super().recv_into(buffer, *limits)  # type: ignore[misc,no-any-return]
                except _BLOCKED:
                    pass
                except ssl.SSLWantWriteError:
                    self._wait_writable()
                    continue
            received = self._receive(buffer)
            if received is not None:
                return received

    def sendall(self, data: Any, flags: int = 0) -> None:
        self._has_sent = True
        rest = memoryview(data).cast("B")
        while True:
            try:
                sent = self.send(rest, flags)  # type: ignore[attr-defined]
            except ssl.SSLWantReadError:
                self._receive(None)
            except (BlockingIOError, ssl.SSLWantWriteError):
                self._wait_writable()
            else:
                if sent == len(rest):
                    return
                rest = rest[sent:]

    def connect(self, address: Any) -> None:
        deadline_s = time.monotonic() + (math.inf if self._timeout_s is None else self._timeout_s)
        while (code := self.connect_ex(address)) == errno.EAGAIN:  # type: ignore[attr-defined]
            # The backlog of a local socket is full, which the loop cannot watch.
            if time.monotonic() >= deadline_s:
                raise TimeoutError("timed out")
            wait(asyncio.sleep(_BACKLOG_POLL_S))
        if code == errno.EINPROGRESS:
            self._wait_writable()
            code = self.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # type: ignore[attr-defined]
        if code:
            raise OSError(code, os.strerror(code))

    def do_handshake(self, block: bool = False) -> None:
        try:
            while True:
                try:
                    super().do_handshake(block)  # type: ignore[misc]
                except ssl.SSLWantReadError:
                    self._receive(None)
                except ssl.SSLWantWriteError:
                    self._wait_writable()
                else:
                    return
        except BaseException:
            # The driver does not have the socket yet, and the ssl module closes it only after an error of its own.
            self.close()  # type: ignore[attr-defined]
            raise

    def detach(self) -> int:
        self._leave_loop()
        return super().detach()  # type: ignore[misc,no-any-return]

    def _real_close(self, *arguments: Any) -> None:
        self._leave_loop()
        super()._real_close(*arguments)  # type: ignore[misc]

    # Waiting

    def _receive(self, buffer: Any) -> int | None:
        """Wait for data and receive it into ``buffer``; return None if there is no buffer or the caller must retry."""
        waiting = waiter()
        if self._loop is None:
            loop = waiting.bridge.loop
            assert loop is not None
            loop.add_reader(self.fileno(), self._on_readable)  # type: ignore[attr-defined]
            self._loop = loop
        self._unread = 0
        self._target = buffer
        return self._wait(waiting, self._loop)  # type: ignore[no-any-return]

    def _wait_writable(self) -> None:
        waiting, number = waiter(), self.fileno()  # type: ignore[attr-defined]
        loop = waiting.bridge.loop
        assert loop is not None
        loop.add_writer(number, self._on_writable)
        try:
            self._wait(waiting, loop)
        finally:
            if self.fileno() == number:  # type: ignore[attr-defined]
                loop.remove_writer(number)

    def _wait(self, waiting: Waiter, loop: asyncio.AbstractEventLoop) -> Any:
        self._waiter = waiting
        if self._timeout_s is not None:
            self._deadline_s = loop.time() + self._timeout_s
            timer = self._timer
            if timer is None or timer.when() > self._deadline_s:
                if timer is not None:
                    timer.cancel()
                self._timer = loop.call_at(self._deadline_s, self._on_timer, loop)
        try:
            return waiting.wait()
        finally:
            self._waiter = self._target = None

    def _on_readable(self) -> None:
        waiting, target = self._waiter, self._target
        if waiting is None or not waiting.is_waiting:
            if self._unread >= _MAX_UNREAD:
                # The server closed an idle connection, or its reply is read later.
                self._stop_reading()
            self._unread += 1
            return
        received: int | Exception | None = None
        if target is not None:
            # Received here, so that the loop has no reason to report the socket again.
            try:
                received = super().recv_into(target)  # type: ignore[misc]
            except _BLOCKED:
                return
            except ssl.SSLWantWriteError:
                pass
            except Exception as error:  # noqa: BLE001 - raised in the greenlet that waits
                received = error
        self._resume(received)

    def _on_writable(self) -> None:
        self._resume(None)

    def _on_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._waiter is None:
            return
        if loop.time() < self._deadline_s:
            self._timer = loop.call_at(self._deadline_s, self._on_timer, loop)
        else:
            self._resume(TimeoutError("timed out"))

    def _resume(self, outcome: int | Exception | None) -> None:
        waiting, self._waiter = self._waiter, None
        if waiting is not None:
            waiting.resume(outcome)

    def _stop_reading(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self.fileno())  # type: ignore[attr-defined]

    def _leave_loop(self) -> None:
        self._stop_reading()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class AsyncWire(_Suspending, Wire):
    """Unencrypted socket."""


class AsyncTLSWire(_Suspending, TLSWire):  # type: ignore[misc]
    """TLS socket."""
