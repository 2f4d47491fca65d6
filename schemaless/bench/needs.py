"""Imports the libraries that contenders need, and reports missing ones."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any


class Missing(Exception):
    """Signals, within this package, that a contender's library cannot be imported.

    Attributes:
        package: the package to install.
        reason: message of the ImportError.
    """

    def __init__(self, package: str, reason: str) -> None:
        super().__init__(f"{package}: {reason}")
        self.package = package
        self.reason = reason


def needed(module: str, package: str) -> Any:
    """Import a module.

    Args:
        package: the package that provides the module.

    Raises:
        Missing: the module cannot be imported.
    """
    try:
        return import_module(module)
    except ImportError as problem:
        raise Missing(package, str(problem)) from problem


def version_of(package: str) -> str | None:
    """Return a package's version, or None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
