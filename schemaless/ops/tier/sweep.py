"""Jobs that remove cold files to which no cell refers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from schemaless.errors import InvalidInput
from schemaless.ops.erasure.expired import server_time
from schemaless.ops.jobs.kind import JobKind, JobSpec
from schemaless.ops.jobs.runner import ShardRun
from schemaless.ops.tier.cooling import check_possible, cold_store
from schemaless.store.cold.files import ShardFiles
from schemaless.store.cold.objects import delete_object, reconcile
from schemaless.store.cold.settings import MOST_DAYS
from schemaless.store.cold.targets import open_target
from schemaless.store.datastore import Datastore
from schemaless.store.followers.sql import select_last_event
from schemaless.store.internals import Internals, internals_of

_BLOCK_ROWS: Final = 20_000
_WRITING_DAYS: Final = 1
"""How long a file may be listed as being written, in days."""


@dataclass(frozen=True, slots=True)
class SweepSpec(JobSpec):
    """Parameters of a sweep.

    Attributes:
        keep_days: how long files are kept for restored backups after the last reference to them is gone, in days.
    """

    keep_days: int = 0

    def __post_init__(self) -> None:
        if type(self.keep_days) is not int or not 0 <= self.keep_days <= MOST_DAYS:
            raise InvalidInput(f"keep_days must be an integer from 0 to {MOST_DAYS:,}, got {self.keep_days!r}")


def work(store: Datastore, run: ShardRun) -> None:
    """Condemn the files of one shard that no cell refers to, and delete those whose time has passed.

    Only one job that writes references or deletes files can run on the shard, but a writer that has stalled and lost
    its lease may write references to a live file after they were counted. To a condemned one it cannot, so they are
    counted again, and a file that has some is live again.
    """
    internals, shard, state = internals_of(store), run.state.shard, run.state
    check_possible(internals, [shard])
    cold = cold_store(internals)
    target, files = open_target(cold.uri), ShardFiles(internals.shards, shard)
    now, keep = server_time(store), timedelta(days=SweepSpec.of(run.job).keep_days)
    for name in ("condemned", "deleted", "deleted_bytes"):
        state.counters.setdefault(name, 0)
    last = internals.shards.rows(shard, select_last_event(internals.shards.database(shard)))[0][0]
    state.counters["deleted"] += reconcile(target, files, shard, cold.incarnation, int(last or 0), run.gate)
    references, before = _references(run, internals, files), files.all("writing", "live")
    for file in before:
        # An erasure that is rewriting the file lists its next generation as being written.
        if file.state == "writing" and now - file.changed_at < timedelta(days=_WRITING_DAYS):
            continue
        run.gate()
        if (file.state == "writing" or not references[file.file_id]) and files.condemn(file, file.state):
            state.counters["condemned"] += 1
    if any(file.state == "live" and not references[file.file_id] for file in before):
        references = _references(run, internals, files)
    referred = {file.file_id: file for file in files.all("condemned") if references[file.file_id] and file.sha256}
    for file in files.all("live"):
        referred.pop(file.file_id, None)
    for file in referred.values():
        files.revive(file)
    for file in files.all("condemned"):
        run.gate()
        own = file.incarnation == cold.incarnation
        if own and (not file.sha256 or now - file.changed_at >= keep):
            delete_object(target, files, file)
            state.counters["deleted"] += 1
            state.counters["deleted_bytes"] += file.file_bytes
    run.finish()


def _references(run: ShardRun, internals: Internals, files: ShardFiles) -> Counter[int]:
    """Return the number of cells that refer to each file."""
    references: Counter[int] = Counter()
    for after, up_to, _ in internals.id_blocks(run.state.shard, _BLOCK_ROWS):
        run.gate()
        references.update(files.references(after, up_to))
    return references


SWEEP: Final = JobKind(
    "sweep",
    SweepSpec,
    lambda store, shards: dict.fromkeys(shards, 1),
    work,
    lambda store, spec, shards: check_possible(internals_of(store), shards),
)
