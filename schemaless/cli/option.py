"""Declares an option of a command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def option(
    usage: str, help_text: str, *, name: str | None = None, **settings: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add an option to a command.

    Args:
        usage: its flags, and its value as the help shows it, such as ``--seed N``, ``-e --statement SQL`` or
            ``--once/--follow``.
        help_text: its description.
        name: the parameter of the function, by default derived from the flag.
        settings: further parameters of ``click.option``, such as ``type`` and ``default``.
    """
    words = usage.split()
    flags = [word for word in words if word.startswith("-")]
    metavar = None if len(flags) == len(words) else words[-1]
    return click.option(*flags, *([] if name is None else [name]), metavar=metavar, help=help_text, **settings)
