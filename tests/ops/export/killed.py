"""Processes that export, one after the other, each of which is killed with SIGKILL at a named step.

The suite runs this with a few steps, ``benchmarks/export.py kills`` with all of them, writers, moves and failovers.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

import schemaless
from schemaless import Datastore
from schemaless.errors import SchemalessError
from schemaless.ops.export.admin import caught_up, file_names, prepare
from schemaless.ops.export.compact import compact_shard
from schemaless.ops.export.exporter import Exporter, Pace
from schemaless.ops.export.manifest import Definition, ShardWriter, cells_folder, present_files, read_definition
from schemaless.store.cold.targets import LocalTarget, sha256_of
from schemaless.store.followers.membership import Membership, Timing, remove_worker
from schemaless.store.followers.rows import FollowerRows
from schemaless.store.followers.worker import Worker
from schemaless.store.internals import internals_of
from tests.ops.export.crashes import RenamesBeforeSync, SteppedTarget, list_early
from tests.processes import PROCESSES

FILE_STEPS: Final = (
    *(
        f"{operation} {kind}"
        for kind in ("fence", "announcement", "cells", "entry", "latest")
        for operation in ("create", "half-write", "sync", "rename")
    ),
    "sync folder manifest",
    "sync folder cells",
    "sync folder latest",
    "sync merged folder",
    "exchange folder cells",
)
"""Steps of the writer, each of which ends a process before it is done."""

CATALOG_CALLS: Final[dict[str, tuple[type, str]]] = {
    "claim": (FollowerRows, "claim"),
    "checkpoint": (FollowerRows, "move"),
    "renewal": (Membership, "renew"),
}
STEPS: Final = (*FILE_STEPS, *(f"{when} {call}" for call in CATALOG_CALLS for when in ("before", "after")))

RENAMES: Final = "rename before sync"
LISTS: Final = "manifest before file"
CONTROLS: Final = (RENAMES, LISTS)
"""Faults that must be found."""

_PACE: Final = Pace(file_bytes=200_000, min_bytes=0, max_age_s=0)
_MERGED_BYTES: Final = 2_000_000
_TIMING: Final = Timing(lease_s=20.0, give_up_s=15.0, renew_s=0.3)
_PAUSE_S: Final = 0.02
_TURNS_PER_MERGE: Final = 5


@dataclass(frozen=True, slots=True)
class Death:
    """How a process ends.

    Attributes:
        step: one of ``STEPS``; empty for a process that is not to end.
        times: how often the process passes the step before it dies there.
        power: seed of a power failure that comes with it, or None.
        control: the fault that the process has; empty for none.
    """

    step: str
    times: int = 0
    power: int | None = None
    control: str = ""


def _export_and_die(url: str, root: Path, name: str, death: Death, line: Connection) -> None:
    """Export and merge files until the step is reached."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger("schemaless").setLevel(logging.ERROR)
    passed = itertools.count()
    kind = RenamesBeforeSync if death.control == RENAMES else SteppedTarget
    target = kind(root, lambda number: reached(target.step))

    def reached(step: str) -> None:
        if step == death.step and next(passed) == death.times:
            if death.power is not None and step in FILE_STEPS:
                target.lose_power(random.Random(death.power))
            os.kill(os.getpid(), signal.SIGKILL)

    if death.control == LISTS:
        ShardWriter.announce = list_early  # type: ignore[method-assign]
    for call, (owner, method) in CATALOG_CALLS.items():
        setattr(owner, method, _stepping(getattr(owner, method), call, reached))
    with schemaless.connect(url) as store:
        worker = _worker(store, target, name)
        line.send_bytes(b"ready")
        with worker.membership:
            for turn in itertools.count():
                worker.schedule.poll_now()
                worker.turn()
                if turn % _TURNS_PER_MERGE == 0:
                    compact_shard(target, turn // _TURNS_PER_MERGE % store.shard_count, _MERGED_BYTES)
                time.sleep(_PAUSE_S)


def _stepping(method: Callable[..., Any], call: str, reached: Callable[[str], None]) -> Callable[..., Any]:
    """Return a method that reports the steps before and after it."""

    def stepping(*arguments: Any) -> Any:
        reached(f"before {call}")
        result = method(*arguments)
        reached(f"after {call}")
        return result

    return stepping


def _worker(store: Datastore, target: LocalTarget, name: str) -> Worker:
    definition = read_definition(target)
    assert definition is not None
    internals = internals_of(store)
    exporter = Exporter(internals, target, definition, _PACE)
    return Worker(internals.follower_access, [exporter], name, timing=_TIMING, stop=threading.Event(), listen=False)


@dataclass
class Exporters:
    """An export whose processes are killed.

    Args:
        url: the datastore, as root.
        root: folder of the export.
        patience_s: timeout for reaching a step, and for the end of the export, in seconds.

    Attributes:
        killed: number of kills by step.
        without_power: number of kills that came with a power failure.
        late: steps that were not reached in time; these processes were killed all the same.
        faults: what was wrong, in the files or with a process.
    """

    url: str
    root: Path
    patience_s: float = 20.0
    killed: Counter[str] = field(default_factory=Counter)
    without_power: int = 0
    late: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    _started: int = 0

    def prepare(self) -> None:
        """Create the export."""
        with schemaless.connect(self.url) as store:
            prepare(store, str(self.root), Definition("parquet", store.name, store.shard_count, None, (), latest=True))

    def start(self, death: Death) -> BaseProcess:
        """Start a process and wait until it is connected."""
        self._started += 1
        ours, theirs = PROCESSES.Pipe()
        arguments = self.url, self.root, self._name, death, theirs
        process = PROCESSES.Process(target=_export_and_die, args=arguments, daemon=True)
        process.start()
        theirs.close()
        if not ours.poll(self.patience_s) or not _received(ours):
            self.faults.append(f"a process for {death.step} did not connect")
        return process

    def end(self, process: BaseProcess, death: Death) -> None:
        """Wait until a process has died at its step, and look at the files."""
        process.join(self.patience_s)
        if process.exitcode is None:
            self.late[death.step] += 1
            process.kill()
            process.join()
        elif process.exitcode == -signal.SIGKILL:
            self.killed[death.step] += 1
            self.without_power += death.power is not None and death.step in FILE_STEPS
        else:
            self.faults.append(f"a process for {death.step} ended with {process.exitcode}")
        with schemaless.connect(self.url) as store:
            access = internals_of(store).follower_access
            # As its supervisor would.
            remove_worker(access.catalog(), store.name, self._name)
            self.faults += self.seen(store.shard_count)

    def finish(self) -> tuple[int, int]:
        """Export the rest, and compare the files with the store; return the numbers of cells and of files."""
        with schemaless.connect(self.url) as store:
            target = LocalTarget(self.root)
            definition = read_definition(target)
            assert definition is not None
            worker = _worker(store, target, "the last")
            done, until_s = caught_up(store, definition), time.monotonic() + self.patience_s
            with worker.membership:
                while not done():
                    if time.monotonic() > until_s:
                        self.faults.append(f"the export was not complete after {self.patience_s:.0f} s")
                        break
                    worker.schedule.poll_now()
                    worker.turn()
                worker.release_all()
            self.faults += self.seen(store.shard_count)
            shards = range(store.shard_count)
            expected = {(shard, cell.added_id) for shard in shards for cell in store.scan_shard(shard)}
            files = sorted(self.root.glob("cells/*/*.parquet"))
            found = {each for path in files for each in _ids(path)}
            listed = {self.root / name for name in file_names(target, definition)}
        wrong = {
            "cells missing": expected - found,
            "cells that the store does not have": found - expected,
            "files that no manifest lists": {*files} - listed,
        }
        self.faults += [f"{len(what)} {name}" for name, what in wrong.items() if what]
        return len(expected), len(files)

    @property
    def _name(self) -> str:
        return f"exporter {self._started}"

    def seen(self, shard_count: int) -> list[str]:
        """Return what is wrong with the files that readers see now: by the manifest, and by the folder."""
        target = LocalTarget(self.root)
        try:
            listed = {
                f"{cells_folder(shard)}/{file.name}": file.sha256
                for shard in range(shard_count)
                for file in present_files(target, shard)
            }
            seen = Counter(each for path in self.root.glob("cells/*/*.parquet") for each in _ids(path))
        except (SchemalessError, OSError, ValueError) as error:
            return [f"a file cannot be read: {error}"]
        found = [f"{name} is not what the manifest says" for name in listed if sha256_of(target, name) != listed[name]]
        twice = sum(times > 1 for times in seen.values())
        return [*found, f"{twice} cells twice"] if twice else found


def _received(line: Connection) -> bool:
    """Return whether a process has sent something, and has not ended before."""
    try:
        return bool(line.recv_bytes())
    except EOFError:
        return False


def _ids(path: Path) -> list[tuple[int, int]]:
    table = pq.read_table(path, columns=["shard", "added_id"], partitioning=None)
    return list(zip(table["shard"].to_pylist(), table["added_id"].to_pylist(), strict=True))
