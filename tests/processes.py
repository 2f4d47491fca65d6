"""The fork server of the processes that tests kill: it has imported what they run, so that they start at once."""

from __future__ import annotations

import multiprocessing
from typing import Final

PROCESSES: Final = multiprocessing.get_context("forkserver")
"""The context of these processes. A program has one fork server, so one list of what it imports."""


def preload(*modules: str) -> None:
    """Add modules to those that the server imports; without effect once it has started."""
    PROCESSES.set_forkserver_preload(
        [
            "tests.ops.erasure.matrix",
            "tests.ops.export.killed",
            "tests.ops.migrate.kills",
            "tests.store.followers.child",
            "tests.store.indexes.child",
            "pyarrow.compute",
            *modules,
        ]
    )


preload()
