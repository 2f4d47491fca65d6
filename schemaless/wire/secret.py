"""Passwords, kept out of reprs, pickles and tracebacks on their way to the driver."""

from __future__ import annotations

import hashlib
import hmac
import multiprocessing
import os
from base64 import urlsafe_b64encode
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from schemaless.errors import InvalidInput

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

PASSWORD_VARIABLE: Final = "SCHEMALESS_PASSWORD"  # noqa: S105 - a name
_UNKNOWN: Final = object()
"""Text of a secret that was pickled by an unrelated process."""

_CLEARED: Final = frozenset({"schemaless", "sqlalchemy", "pymysql"})


class Secret:
    """A string that only ``reveal`` returns; its repr, format and pickle do not contain it.

    A pickle is encrypted with ``multiprocessing``'s authentication key, which a process shares with the processes it
    starts. Other processes cannot open it; they take the password from ``SCHEMALESS_PASSWORD`` instead.
    """

    __slots__ = ("_text",)

    def __init__(self, text: object) -> None:
        if text is not _UNKNOWN and not isinstance(text, str):
            raise InvalidInput(f"a URL must be a str, such as 'mysql://user@host:3306/name', got {type(text).__name__}")
        self._text: str | None = text if isinstance(text, str) else None

    def reveal(self) -> str:
        """Return the string; do not store it in a variable, which a traceback would show.

        Raises:
            InvalidInput: it was pickled by an unrelated process, and ``SCHEMALESS_PASSWORD`` is not set.
        """
        if self._text is None:
            raise InvalidInput(
                f"the password is not passed to unrelated processes; set {PASSWORD_VARIABLE} in the "
                f"environment of this one"
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
        return _opened, (None if self._text is None else _cipher().encrypt(self._text.encode()),)


def _opened(sealed: bytes | None) -> Secret:
    if sealed is None:
        return Secret(_UNKNOWN)
    from cryptography.fernet import InvalidToken  # slow, and rarely needed

    try:
        return Secret(_cipher().decrypt(sealed).decode())
    except InvalidToken:
        return Secret(os.environ.get(PASSWORD_VARIABLE, _UNKNOWN))


def _cipher() -> Fernet:
    from cryptography.fernet import Fernet

    key = hashlib.sha256(multiprocessing.current_process().authkey).digest()
    return Fernet(urlsafe_b64encode(key))


def clear_locals(error: BaseException) -> None:
    """Clear the local variables of this package and of drivers in the tracebacks of an error and its causes.

    During login, drivers hold the password in local variables, which a traceback would keep.
    """
    chain: list[BaseException] = [error]
    for one in chain:
        trace: TracebackType | None = one.__traceback__
        while trace is not None:
            if str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] in _CLEARED:
                with suppress(RuntimeError):  # the frame is still running; its caller clears it, or it holds no secret
                    trace.tb_frame.clear()
            trace = trace.tb_next
        chain += [cause for cause in (one.__cause__, one.__context__) if cause is not None and cause not in chain]
