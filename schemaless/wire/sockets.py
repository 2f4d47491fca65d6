"""Sockets without Python finalizers, and their buffered reader."""

from __future__ import annotations

import io
import socket
import ssl
from typing import Any

# Buffered socket reader without Python finalizers; it is closed by ``_force_close``, or collected with its socket.
_Raw: Any = type("_Raw", (socket.SocketIO,), {"__del__": int})
_Reader: Any = type("_Reader", (io.BufferedReader,), {"__del__": int})
_BUFFER_BYTES = 1 << 16


def _makefile(wire: Any, mode: str) -> Any:
    """Replacement for ``socket.makefile("rb")``."""
    raw = _Raw(wire, mode[0])
    wire._io_refs += 1  # noqa: SLF001 - as socket.makefile does
    return _Reader(raw, _BUFFER_BYTES)


class Wire(socket.socket):
    """Socket that is closed when it is garbage-collected, without a warning and without running Python code."""

    __del__: Any = vars(socket.SocketType)["close"]
    makefile = _makefile  # type: ignore[assignment]


class TLSWire(ssl.SSLSocket):
    """TLS socket with the same reader."""

    makefile = _makefile  # type: ignore[assignment]
