"""This version's schema revisions, found by the names of their files, for the check when a datastore is opened.

Alembic is not imported here: importing it takes 0.2 s, and it is only needed to run revisions.
"""

from __future__ import annotations

import importlib.resources
from dataclasses import dataclass
from functools import cache
from importlib.resources.abc import Traversable
from typing import Final, Literal

Branch = Literal["catalog", "shard"]


def folders() -> list[Traversable]:
    """Return the directories that hold the revisions of the two branches."""
    migrations = importlib.resources.files("schemaless.migrations")
    return [migrations / "catalog", migrations / "shard"]


@cache
def known_revisions(branch: Branch) -> frozenset[str]:
    """Return all revisions of a branch."""
    names = (file.name for folder in folders() for file in folder.iterdir())
    return frozenset(name.removesuffix(".py") for name in names if name.startswith(f"{branch}_"))


@cache
def head(branch: Branch) -> str:
    """Return the newest revision of a branch, the last by name: names end in a number of fixed width."""
    return max(known_revisions(branch))


# stored; never renumber
FORMAT: Final = 1
"""Format number of tables and stored bytes. A datastore with a higher number is refused."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a shard, as stored in its database."""

    datastore: str
    shard: int
    shard_count: int
    placement: str
    format: int = FORMAT

    def __str__(self) -> str:
        return f"shard {self.shard} of {self.shard_count} of {self.datastore!r}, placed by {self.placement}"
