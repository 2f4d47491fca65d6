"""Passwords: held so that nothing shows them, from where they are read to the driver that sends them."""

from __future__ import annotations

import hashlib
import hmac
import multiprocessing
import os
from contextlib import suppress
from types import TracebackType
from typing import Any, Final

from schemaless.errors import InvalidInput

PASSWORD_VARIABLE: Final = "SCHEMALESS_PASSWORD"  # noqa: S105 - a name
_NONCE_BYTES: Final = 16
_MARK_BYTES: Final = 32
_CLEARED: Final = frozenset({"schemaless", "sqlalchemy", "pymysql", "MySQLdb"})


class Secret:
    """A text that only ``reveal`` gives: not its repr, not a format, not a pickle, not the locals of a frame.

    Pickled it is sealed with the key that a process shares with those that it starts (``multiprocessing``'s). Another
    process cannot open it: there, a password is ``SCHEMALESS_PASSWORD``'s.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str | None) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text; keep it in no variable.

        Raises:
            InvalidInput: it was pickled by a process that did not start this one.
        """
        if self._text is None:
            raise InvalidInput(
                f"the password does not travel to processes elsewhere; set {PASSWORD_VARIABLE} where this one runs"
            )
        return self._text

    def __repr__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        if self._text is None or other._text is None:
            return self._text is other._text
        return hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (None if self._text is None else _sealed(self._text.encode()),)


def _sealed(text: bytes) -> bytes:
    nonce = os.urandom(_NONCE_BYTES)
    hidden = _mask(text, nonce)
    return nonce + _mark(nonce + hidden) + hidden


def _opened(sealed: bytes | None) -> Secret:
    if sealed is None:
        return Secret(None)
    nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
    mark, hidden = rest[:_MARK_BYTES], rest[_MARK_BYTES:]
    if not hmac.compare_digest(mark, _mark(nonce + hidden)):
        return Secret(os.environ.get(PASSWORD_VARIABLE))
    return Secret(_mask(hidden, nonce).decode())


def _key() -> bytes:
    return bytes(multiprocessing.current_process().authkey)


def _mask(text: bytes, nonce: bytes) -> bytes:
    stream = hashlib.shake_256(_key() + nonce).digest(len(text))
    return bytes(one ^ other for one, other in zip(text, stream, strict=True))


def _mark(sealed: bytes) -> bytes:
    return hmac.digest(_key(), sealed, "sha256")


def clear_locals(error: BaseException) -> None:
    """Empty the frames of this package and of drivers that an error has left, and those of the errors behind it.

    A driver has the password in its variables while it logs in, and a traceback keeps them.
    """
    chain: list[BaseException] = [error]
    for one in chain:
        trace: TracebackType | None = one.__traceback__
        while trace is not None:
            if str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] in _CLEARED:
                with suppress(RuntimeError):  # it is still running: its caller clears it, or it has nothing to hide
                    trace.tb_frame.clear()
            trace = trace.tb_next
        chain += [cause for cause in (one.__cause__, one.__context__) if cause is not None and cause not in chain]
