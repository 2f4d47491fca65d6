"""Options that several commands share, and the parsing of their values."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields
from datetime import datetime
from functools import wraps
from typing import Any, Final

import click

from schemaless.base.keys import check_created_at
from schemaless.cli.option import option
from schemaless.cli.quantities import CatalogId, FiniteRange, share_of
from schemaless.codec.registry import DEFAULT, codec_names
from schemaless.errors import InvalidInput
from schemaless.monitoring.status.model import DEFAULT_OPTIONS, MonitorOptions
from schemaless.ops.admin.fields import hashed
from schemaless.planning.sampling.recommendation import LEAST_GAIN, MOST_CPU
from schemaless.schema.engines import ENGINES, INNODB
from schemaless.store.followers.status import ShardStatus, WorkerStatus
from schemaless.ui.terminal.output import error, facts, note

engine_option: Final = option(
    "--engine",
    "The storage engine of the cells; rocksdb is MyRocks, on MariaDB only.",
    type=click.Choice(list(ENGINES)),
    default=INNODB.name,
)


def with_options(*options: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds options to a command, in the given order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for each in reversed(options):
            command = each(command)
        return command

    return decorate


def as_spec(
    spec: type[Any], *, name: str = "spec", **renamed: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that passes the options which are fields of a dataclass to the command as one argument.

    Args:
        spec: the dataclass; fields without an option keep their defaults.
        name: name of the argument.
        renamed: fields by the option's name, where they differ.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_spec(*arguments: Any, **options: Any) -> Any:
            values = {renamed.get(option, option): value for option, value in options.items()}
            chosen = {field.name: values.pop(field.name) for field in fields(spec) if field.name in values}
            return command(*arguments, **{name: spec(**chosen)}, **values)

        return with_spec

    return decorate


def note_dry() -> None:
    """Say that nothing was changed, since --execute was not given."""
    note("nothing was changed; add --execute to do it")


def execute_option(
    help_text: str = "Make the change. Without this option, the command only says what it would do.",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option ``--execute`` of a command, which says at its end that nothing was changed if not given."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def noting(*arguments: Any, execute: bool, **options: Any) -> Any:
            outcome = command(*arguments, execute=execute, **options)
            if not execute:
                note_dry()
            return outcome

        return option("--execute", help_text, is_flag=True)(noting)

    return decorate


def note_gave_up(gave_up: Mapping[int, str], what: str = "erased cells") -> None:
    """Print the shards that a run with ``--once`` could not finish, and what it did not handle there."""
    for shard, reason in gave_up.items():
        error(f"shard {shard}: {what} are not handled, and the next run tries again: {reason}")


def note_waits(workers: Iterable[WorkerStatus]) -> None:
    """Print the shards in which workers of a follower wait, and why."""
    for worker in workers:
        for _, shard, reason in worker.reported.get("waits", []):
            note(f"worker {worker.worker} waits in shard {shard}: {reason}")


def shard_json(status: ShardStatus, *names: str) -> dict[str, Any]:
    """Return the status of a follower in a shard for ``--json``, with further attributes."""
    row = {} if status.row is None else asdict(status.row)
    return {**row, **facts(status, "shard", *names, "ids_behind", "behind_s", "fault")}


def note_estimated_sizes() -> None:
    """Say that the sizes of files are estimates."""
    note(
        "file sizes are from InnoDB's statistics, which are a few MB too low; exact sizes require the PROCESS privilege"
    )


def codec_option(
    flag: str, *, legacy: bool, help_text: str, default: str | None = DEFAULT.name
) -> Callable[[Any], Any]:
    """Return an option that takes a codec's name."""
    names = [name for name in codec_names() if legacy or name != "legacy"]
    help_text = f"{help_text} CODEC is one of {', '.join(names)}."
    return option(f"{flag} CODEC", help_text, name="codec", type=click.Choice(names), default=default)


codec_details: Final = (
    option("--level N", "The compressor's level.  [default: its own]", type=int),
    option(
        "--dictionary N",
        "Compress with zstd and this dictionary; 'schemaless codec train' creates dictionaries.",
        name="dictionary_id",
        type=CatalogId(),
    ),
)
"""Options for the compression level and dictionary, for commands with ``codec_option``."""


choice_options: Final = with_options(
    option(
        "--cpu FACTOR",
        "Maximum time for encoding and decoding, as a multiple of the default codec's.",
        name="most_cpu",
        type=FiniteRange(min=0, min_open=True),
        default=MOST_CPU,
    ),
    option(
        "--least-gain SHARE",
        "Minimum share of pages that a rewrite must save to be recommended.",
        type=share_of,
        default=f"{LEAST_GAIN:.0%}",
    ),
)
"""The options that set the limits within which ``planning.sampling.recommendation`` recommends a codec."""


cold_price_option = option(
    "--cold-price-per-gb PRICE",
    "Price of a GB in the cold store for a month, in the currency of --price-per-tb.",
    type=FiniteRange(min=0),
)
"""The price of a cold store."""


allow_nan_option = option("--allow-nan", "Accept NaN, Infinity and -Infinity, which are not JSON.", is_flag=True)


def row_key_of(text: str) -> uuid.UUID:
    """Parse a row_key given on the command line: a UUID, or ``uuid5:NAME``.

    Raises:
        InvalidInput: it is neither.
    """
    if text.startswith("uuid5:"):
        return hashed(text.removeprefix("uuid5:"))
    try:
        return uuid.UUID(text)
    except ValueError:
        raise InvalidInput(f"a row_key is a UUID, or uuid5:NAME to hash a name; got {text!r}") from None


def monitor_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of commands that monitor servers, passed as ``options``."""

    @wraps(command)
    def with_monitor(*arguments: Any, no_probe: bool, older_than_min: float, backup_account: str, **others: Any) -> Any:
        options = MonitorOptions(not no_probe, 60 * older_than_min, backup_account)
        return command(*arguments, options=options, **others)

    return with_options(
        option("--no-probe", "Do not write heartbeats on the primaries.", is_flag=True),
        option(
            "--transactions-older-than MINUTES",
            "Report transactions that have been open for longer on a primary.",
            name="older_than_min",
            type=FiniteRange(min=0, min_open=True),
            default=10.0,
        ),
        option(
            "--backup-account NAME",
            "The account of backups, whose transactions are notices, not faults.",
            default=DEFAULT_OPTIONS.backup_account,
        ),
    )(with_monitor)


def time_of(option: str, text: str) -> datetime:
    """Parse the time given for an option, with its time zone.

    Raises:
        InvalidInput: it is not such a time.
    """
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{option} takes a time such as 2026-03-01T12:00+00:00, got {text!r}") from None
    if at.tzinfo is None:
        raise InvalidInput(f"{option} needs a time zone, such as +00:00; got {text!r}")
    checked = check_created_at(at, option)
    assert checked is not None
    return checked
