"""How databases and their revisions are named in few lines."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

_MOST_MESSAGES: Final = 20

_MOST_NAMES: Final = 3


def names_by_message(messages: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each message once, with the names that it is about; after some, how many more there are."""
    by_message: dict[str, list[str]] = {}
    for name, message in messages.items():
        by_message.setdefault(message, []).append(name)
    for message, names in itertools.islice(by_message.items(), _MOST_MESSAGES):
        yield message, some_names(names)
    if len(by_message) > _MOST_MESSAGES:
        yield "with other reasons; --json has all", f"{len(by_message) - _MOST_MESSAGES:,} more"


def some_names(names: list[str]) -> str:
    """Return the first names, and how many more there are."""
    shown = ", ".join(names[:_MOST_NAMES])
    return shown if len(names) <= _MOST_NAMES else f"{shown} and {len(names) - _MOST_NAMES:,} more"
