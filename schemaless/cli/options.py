"""Options that several commands share, and what their values mean."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Any

import click

from schemaless.admin.fields import hashed
from schemaless.cli.quantities import share_of
from schemaless.codec.registry import DEFAULT, Codec, codec_named, codec_names
from schemaless.errors import InvalidInput
from schemaless.store.datastore import Datastore
from schemaless.store.opening import connect
from schemaless.survey.choice import LEAST_GAIN, MOST_CPU

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


def shards_text(shards: Iterable[int]) -> str:
    """Return the list that ``shards_of`` takes, of numbers in their order."""
    parts: list[list[int]] = []
    for shard in shards:
        if parts and parts[-1][-1] == shard - 1:
            parts[-1][1:] = [shard]
        else:
            parts.append([shard])
    return ",".join("-".join(map(str, part)) for part in parts)


def row_key_of(text: str) -> uuid.UUID:
    """Return the row_key that a person typed: a UUID, or ``uuid5:NAME``.

    Raises:
        InvalidInput: it is neither.
    """
    if text.startswith("uuid5:"):
        return hashed(text.removeprefix("uuid5:"))
    try:
        return uuid.UUID(text)
    except ValueError:
        raise InvalidInput(f"a row_key is a UUID, or uuid5:NAME to hash a name; got {text!r}") from None
