"""Expressions that find keys and times in documents, such as ``trip.uuid``, ``uuid5:tail`` or ``@line``."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from typing import Any

from schemaless.base.keys import row_key_for
from schemaless.errors import InvalidInput


def field_at(document: Any, path: str) -> Any:
    """Return the value at a path: ``a.b.0``, or the JSON pointer ``/a/b/0`` for names with dots.

    Raises:
        InvalidInput: the document has no value there.
    """
    pointer = path.startswith("/")
    steps = [step.replace("~1", "/").replace("~0", "~") for step in path[1:].split("/")] if pointer else path.split(".")
    value = document
    for position, step in enumerate(steps):
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            here = ("/" if pointer else ".").join(steps[:position]) or "the document"
            has = (
                f"; its fields are {_names(value)}" if isinstance(value, dict) else f", of type {type(value).__name__}"
            )
            raise InvalidInput(f"no field {step!r} in {here}{has}")
    return value


def row_key_in(document: Any, expression: str, line: bytes) -> uuid.UUID:
    """Evaluate a ``--row-key`` expression for a document.

    ``PATH`` finds a UUID as text, ``uuid5:PATH`` hashes a string or number, and ``@line`` hashes the line itself.

    Raises:
        InvalidInput: the document has no such value.
    """
    if expression == "@line":
        return row_key_for(line.decode("utf-8"))
    if expression.startswith("uuid5:"):
        value = field_at(document, expression.removeprefix("uuid5:"))
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise InvalidInput(f"--row-key {expression}: expected a string or an integer to hash, got {_short(value)}")
        return hashed(str(value))
    value = field_at(document, expression)
    try:
        return uuid.UUID(value)
    except (ValueError, AttributeError, TypeError):
        raise InvalidInput(
            f"--row-key {expression}: expected a UUID, got {_short(value)}; "
            f"if it is a name, use uuid5:{expression} to hash it"
        ) from None


def ref_key_in(document: Any, expression: str, number: int) -> int:
    """Evaluate a ``--ref-key`` expression for a document: ``PATH``, ``=N``, or ``@line`` for the line's number.

    Raises:
        InvalidInput: the document has no integer there.
    """
    if expression == "@line":
        return number
    if expression.startswith("="):
        if not expression[1:].isdecimal():
            raise InvalidInput(f"--ref-key {expression}: expected a whole number after the =")
        return int(expression[1:])
    value = field_at(document, expression)
    if type(value) is not int:
        raise InvalidInput(f"--ref-key {expression}: expected an integer, got {_short(value)}")
    return value


def created_at_in(document: Any, path: str) -> datetime:
    """Return a document's ``created_at`` at a ``--created-at`` path.

    Text must be an ISO 8601 time, which is taken as UTC if it has no offset; a number is in seconds since 1970.

    Raises:
        InvalidInput: the document has no such value there.
    """
    value = field_at(document, path)
    try:
        if isinstance(value, str):
            at = datetime.fromisoformat(value.strip())
            return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        pass
    hint = "; divide milliseconds by 1,000" if isinstance(value, int | float) and value > 1e11 else ""
    raise InvalidInput(
        f"--created-at {path}: expected a time such as 2016-03-01T12:30:00Z, or seconds since 1970, got "
        f"{_short(value)}{hint}"
    )


def check_ref_key_expression(expression: str) -> None:
    """Raise InvalidInput for a ``--ref-key`` expression that is invalid whatever the document is."""
    if expression.startswith("="):
        ref_key_in(None, expression, 1)


def hashed(name: str) -> uuid.UUID:
    """Hash a name to a row_key; raise InvalidInput if UTF-8 cannot encode it."""
    try:
        return row_key_for(name)
    except UnicodeEncodeError:
        raise InvalidInput(f"a name to hash must be text that UTF-8 can encode, got {name!r}") from None


def _names(fields: dict[str, Any]) -> str:
    names = [repr(name) for name in list(fields)[:8]]
    return ", ".join(names) + (", ..." if len(fields) > len(names) else "") or "none"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 60 else text[:57] + "..."
