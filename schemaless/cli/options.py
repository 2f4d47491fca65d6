"""Options that several commands share, and what their values mean."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click

from schemaless.cell import row_key_for
from schemaless.cli.quantities import share_of
from schemaless.codec.registry import DEFAULT, Codec, codec_named, codec_names
from schemaless.errors import InvalidInput
from schemaless.store.choice import LEAST_GAIN, MOST_CPU
from schemaless.store.datastore import Datastore, connect

url_option = click.option(
    "--url",
    envvar="SCHEMALESS_URL",
    required=True,
    show_envvar=True,
    metavar="URL",
    help="The datastore, such as mysql://app@db-1:3306/mezzanine.",
)

shards_option = click.option(
    "--shards",
    "shards_text",
    metavar="LIST",
    help="Only these shards, such as 0-3,8.  [default: all]",
)


def open_store(url: str) -> Datastore:
    """Connect to the datastore that ``--url`` names."""
    return connect(url)


def codec_option(
    flag: str, *, legacy: bool, help_text: str, default: str | None = DEFAULT.name
) -> Callable[[Any], Any]:
    """Return an option that takes a codec's name."""
    names = [name for name in codec_names() if legacy or name != "legacy"]
    return click.option(
        flag, "codec", type=click.Choice(names), default=default, show_default=default is not None, help=help_text
    )


codec_details = (
    click.option("--level", type=int, metavar="N", help="The compressor's level.  [default: its own]"),
    click.option(
        "--dictionary",
        "dictionary_id",
        type=int,
        metavar="N",
        help="Compress by zstd with this dictionary; 'schemaless codec train' makes one.",
    ),
)
"""Options beside that of ``codec_option``."""


def choice_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options by which ``store.choice`` decides which codec is worth it."""
    for option in (
        click.option(
            "--least-gain",
            type=share_of,
            metavar="SHARE",
            default=f"{LEAST_GAIN:.0%}",
            show_default=True,
            help="What a rewrite has to save of the pages to be advised.",
        ),
        click.option(
            "--cpu",
            "most_cpu",
            type=click.FloatRange(min=0, min_open=True),
            default=MOST_CPU,
            show_default=True,
            metavar="FACTOR",
            help="How many times the time of the default codec encoding and decoding may take.",
        ),
    ):
        command = option(command)
    return command


def what_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say what to re-encode."""
    for option in reversed(
        (
            codec_option(
                "--to", legacy=True, help_text="What to re-encode to; legacy is bare JSON text: the way back."
            ),
            *codec_details,
            click.option(
                "--from",
                "sources",
                type=click.Choice(codec_names()),
                multiple=True,
                help="Only bodies in this codec, as stored; may be repeated.  [default: all that are not in --to]",
            ),
            click.option(
                "--column", "columns", multiple=True, metavar="NAME", help="Only this column; may be repeated."
            ),
            shards_option,
        )
    ):
        command = option(command)
    return command


def codec_of(name: str) -> Codec:
    """Return the codec that a codec option names."""
    return codec_named(name)


def shards_of(text: str | None, shard_count: int) -> list[int]:
    """Return the shard numbers of a list such as ``0-3,8``; all of them for None.

    Raises:
        InvalidInput: it is no such list, or names a shard that is not there.
    """
    if text is None:
        return list(range(shard_count))
    chosen: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InvalidInput(f"--shards takes numbers and ranges such as 0-3,8, got {text!r}")
        numbers = range(int(first), int(last if dash else first) + 1)
        if not numbers or numbers[-1] >= shard_count:
            raise InvalidInput(f"--shards {text!r}: {part.strip()!r} is not in 0 to {shard_count - 1}")
        chosen.update(numbers)
    return sorted(chosen)


def id_total(store: Datastore, shards: list[int]) -> int:
    """Return how many added_ids shards span: what progress over their cells is measured in."""
    return sum(store.id_span(shard) for shard in shards)


def row_key_of(text: str) -> uuid.UUID:
    """Return the row_key that a person typed: a UUID, or ``uuid5:NAME``.

    Raises:
        InvalidInput: it is neither.
    """
    if text.startswith("uuid5:"):
        return _hashed(text.removeprefix("uuid5:"))
    try:
        return uuid.UUID(text)
    except ValueError:
        raise InvalidInput(f"a row_key is a UUID, or uuid5:NAME to hash a name; got {text!r}") from None


def field_at(document: Any, path: str) -> Any:
    """Return the value at a path: ``a.b.0``, or a JSON pointer ``/a/b/0`` where names hold dots.

    Raises:
        InvalidInput: the document has nothing there.
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
            has = f"its fields are {_names(value)}" if isinstance(value, dict) else f"it is a {type(value).__name__}"
            raise InvalidInput(f"no field {step!r} in {here}; {has}")
    return value


def row_key_in(document: Any, expression: str, line: bytes) -> uuid.UUID:
    """Return a document's row_key by a ``--row-key`` expression.

    ``PATH`` is a UUID's text there, ``uuid5:PATH`` hashes the string or number there, ``@line`` hashes the line itself.

    Raises:
        InvalidInput: the document has no such value.
    """
    if expression == "@line":
        return row_key_for(line.decode("utf-8"))
    if expression.startswith("uuid5:"):
        value = field_at(document, expression.removeprefix("uuid5:"))
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise InvalidInput(f"--row-key {expression}: expected a string or an integer to hash, got {_short(value)}")
        return _hashed(str(value))
    value = field_at(document, expression)
    try:
        return uuid.UUID(value)
    except (ValueError, AttributeError, TypeError):
        raise InvalidInput(
            f"--row-key {expression}: expected a UUID, got {_short(value)}; "
            f"use uuid5:{expression} to hash it, if it is a name"
        ) from None


def ref_key_in(document: Any, expression: str, number: int) -> int:
    """Return a document's ref_key by a ``--ref-key`` expression: ``PATH``, ``=N``, or ``@line`` for its number.

    Raises:
        InvalidInput: the document has no integer there.
    """
    if expression == "@line":
        return number
    if expression.startswith("="):
        if not expression[1:].isdecimal():
            raise InvalidInput(f"--ref-key {expression}: expected a number behind the =")
        return int(expression[1:])
    value = field_at(document, expression)
    if type(value) is not int:
        raise InvalidInput(f"--ref-key {expression}: expected an integer, got {_short(value)}")
    return value


def created_at_in(document: Any, path: str) -> datetime:
    """Return a document's ``created_at`` by a ``--created-at`` path.

    Text there is an ISO 8601 time, in UTC where it names no offset; a number is seconds since 1970.

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
    hint = "; milliseconds have to be divided by 1,000" if isinstance(value, int | float) and value > 1e11 else ""
    raise InvalidInput(
        f"--created-at {path}: expected a time such as 2016-03-01T12:30:00Z, or seconds since 1970, got "
        f"{_short(value)}{hint}"
    )


def check_ref_key_expression(expression: str) -> None:
    """Raise InvalidInput for a ``--ref-key`` that no document could fulfil."""
    if expression.startswith("="):
        ref_key_in(None, expression, 1)


def _hashed(name: str) -> uuid.UUID:
    try:
        return row_key_for(name)
    except UnicodeEncodeError:
        raise InvalidInput(f"a name to hash has to be text that UTF-8 can hold, got {name!r}") from None


def _names(fields: dict[str, Any]) -> str:
    names = [repr(name) for name in list(fields)[:8]]
    return ", ".join(names) + (", ..." if len(fields) > len(names) else "") or "none"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 60 else text[:57] + "..."
