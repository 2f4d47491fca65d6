"""Which revisions this version has, by the names of their files: what opening a datastore asks.

Alembic, which runs them, takes a fifth of a second to import, and whoever reads and writes cells needs none of it.
"""

from __future__ import annotations

import importlib.resources
from functools import cache
from importlib.resources.abc import Traversable
from typing import Final, Literal

Branch = Literal["catalog", "shard"]


def folders() -> list[Traversable]:
    """Return the folders of the revisions, that of each branch."""
    migrations = importlib.resources.files("schemaless.migrations")
    return [migrations / "catalog", migrations / "shard"]


@cache
def known_revisions(branch: Branch) -> frozenset[str]:
    """Return every revision of a branch that this version has."""
    names = (file.name for folder in folders() for file in folder.iterdir())
    return frozenset(name.removesuffix(".py") for name in names if name.startswith(f"{branch}_"))


@cache
def head(branch: Branch) -> str:
    """Return the newest revision of a branch: they are numbered."""
    return max(known_revisions(branch))


# stored; never renumber
FORMAT: Final = 1
"""This version writes this arrangement of tables and bytes. A library refuses a datastore with a higher number."""
