"""Libraries that a contender needs, and what to say where one is missing."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any


class Missing(Exception):
    """A contender's library cannot be imported; never leaves the room.

    Attributes:
        package: what is to be installed.
        reason: what Python said.
    """

    def __init__(self, package: str, reason: str) -> None:
        super().__init__(f"{package}: {reason}")
        self.package = package
        self.reason = reason


def needed(module: str, package: str) -> Any:
    """Import a module.

    Args:
        package: what is installed to get it.

    Raises:
        Missing: it cannot be imported.
    """
    try:
        return import_module(module)
    except ImportError as problem:
        raise Missing(package, str(problem)) from problem


def version_of(package: str) -> str | None:
    """Return a package's version, or None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
