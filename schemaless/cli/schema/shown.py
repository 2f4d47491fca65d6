"""Compact lists of database names, shared by the ``schema`` commands."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

_MAX_MESSAGES: Final = 20

_MAX_NAMES: Final = 3


def names_by_message(messages: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each message once with the names it applies to; after 20 messages, yield the number of others."""
    by_message: dict[str, list[str]] = {}
    for name, message in messages.items():
        by_message.setdefault(message, []).append(name)
    for message, names in itertools.islice(by_message.items(), _MAX_MESSAGES):
        yield message, some_names(names)
    if len(by_message) > _MAX_MESSAGES:
        yield "with other reasons; --json lists all", f"{len(by_message) - _MAX_MESSAGES:,} more"


def some_names(names: list[str]) -> str:
    """Return the first three names and the number of others."""
    shown = ", ".join(names[:_MAX_NAMES])
    return shown if len(names) <= _MAX_NAMES else f"{shown} and {len(names) - _MAX_NAMES:,} more"
