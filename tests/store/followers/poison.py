"""Triggers whose function kills its worker, raises or hangs for some cells, and logs every call to a file.

A cell's body names its kind. The file is opened for appending by every process, so the order of its lines is the order
of the calls. Once a second file exists, every cell is good.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import schemaless

LOG: Final = "SCHEMALESS_TEST_CALLS"
"""Environment variable with the path of the log; the path plus ``.fixed`` is the second file."""

GOOD: Final = "good"
EXITS: Final = "exits"
RAISES: Final = "raises"
HANGS: Final = "hangs"

TARGET: Final = "tests.store.followers.poison:exits"
CHAOS: Final = "tests.store.followers.poison:chaos"


class Called(NamedTuple):
    """A call, as it was logged before anything else happened in it."""

    kind: str
    shard: int
    added_id: int


def calls(path: Path) -> list[Called]:
    """Return the calls so far, in their order."""
    lines = (line.split() for line in path.read_text().splitlines())
    return [Called(kind, int(shard), int(added_id)) for kind, shard, added_id in lines]


def fix(path: Path) -> None:
    """Make every cell a good one from now on."""
    path.with_suffix(".fixed").touch()


def first_calls(called: Iterable[Called]) -> list[Called]:
    """Return the first call of each cell, in their order."""
    return list(dict.fromkeys(called))


def _call(cell: schemaless.Cell, call: schemaless.Call) -> None:
    path = Path(os.environ[LOG])
    kind = cell.body["kind"]
    with path.open("a") as log:
        log.write(f"{kind} {call.shard} {cell.added_id}\n")
    if "work_s" in cell.body:
        time.sleep(cell.body["work_s"])
    if kind == GOOD or path.with_suffix(".fixed").exists():
        return
    if kind == EXITS:
        os._exit(9)
    if kind == HANGS:
        time.sleep(3_600)
    raise ValueError(kind)


exits = schemaless.trigger(column="BASE", name="exits", start="beginning", attempts=1)(_call)
chaos = schemaless.trigger(column="BASE", name="chaos", start="beginning", attempts=2, timeout_s=1.0)(_call)
