"""Puts the originals of an archive back, byte for byte: the way back from a migration.

A cell gets its original where its stored body is the one that the migration put there, or is the same document in some
other codec. Anything else is left and named, and so are originals that a job has archived and that are not there. No
state is kept: what is done shows in the bytes, so a run that was killed is run again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from schemaless.codec.envelope import dictionary_of
from schemaless.errors import CorruptBody, DictionaryDamaged, InvalidInput, JobConflict, UnknownDictionary
from schemaless.jobs.job import Failure, ShardState
from schemaless.jobs.ledger import Ledger
from schemaless.jobs.throttle import Thresholds
from schemaless.migrate.archive import ArchivedCell
from schemaless.migrate.gate import Gate
from schemaless.migrate.originals import (
    Missing,
    Originals,
    StoredDigest,
    bodies_of,
    digest_of,
    in_chunks,
    missing_of,
    same_meaning,
    stored_digests,
)
from schemaless.migrate.spec import MigrateSpec
from schemaless.migrate.tally import ShardTally
from schemaless.mysql.binary_log import binary_log
from schemaless.mysql.connection import Connection
from schemaless.mysql.sql.bodies import replace_bodies
from schemaless.store.datastore import Datastore

_CHUNK_CELLS: Final = 200
_CHUNK_BYTES: Final = 1 << 20
_ROUNDS: Final = 10
_KEPT_FAILURES: Final = 1_000
_PACKET_MARGIN_BYTES: Final = 1024


@dataclass(slots=True)
class RestoreReport:
    """What a restore did, or would do.

    Attributes:
        archived: cells that the archive has, once for each job.
        restored: cells that got their original; without ``execute``, that would.
        bytes_before: what their bodies took.
        bytes_after: what they take now.
        already: cells whose body was the original.
        left: cells that were left as they are, by reason.
        failures: those, the first thousand of them.
        jobs: whose originals these are.
        torn: files whose last frame is not whole, with its bytes: a runner ended there, or a copy broke off.
        missing: originals that these jobs have archived, and that are not in the files.
        unknown_jobs: jobs of which the catalog does not know how many originals they have archived.
        interruptions: runners of these jobs that ended without a word: what each archived since its last checkpoint,
            a second or so, the job has not noted.
    """

    files: int = 0
    archive_bytes: int = 0
    shards: int = 0
    archived: int = 0
    restored: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    already: int = 0
    left: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    jobs: set[int] = field(default_factory=set)
    torn: dict[Path, int] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)
    unknown_jobs: set[int] = field(default_factory=set)
    interruptions: int = 0


class _Change(NamedTuple):
    cell: ArchivedCell
    stored: StoredDigest


def restore(
    store: Datastore,
    folders: Sequence[Path],
    shards: Collection[int] | None = None,
    *,
    job_id: int | None = None,
    execute: bool = True,
    thresholds: Thresholds | None = None,
    full_row_images: bool = False,
    on_total: Callable[[int], None] = lambda cells: None,
    on_cells: Callable[[int], None] = lambda more: None,
    on_wait: Callable[[str, str], None] = lambda cluster, reason: None,
) -> RestoreReport:
    """Put originals back.

    Where the archives of several jobs are given, the newest job is undone first, so that a cell ends with its oldest
    original.

    Args:
        store: the datastore.
        folders: the archives, or parts of them.
        shards: only these shards; all that there are files of unless given.
        job_id: only what this job replaced.
        execute: False changes nothing, and counts what would be done.
        thresholds: when to wait; never unless given.
        full_row_images: leave the binary log's row images as the server has them.
        on_total: called with how many archived cells there should be, where that is known, before the first is read.
        on_cells: called with how many archived cells it has come further.
        on_wait: called with a cluster and the reason, when a wait begins.

    Raises:
        InvalidInput: a folder is missing, there is nothing of these shards in them, or the job is no migration.
        CorruptArchive: a file is damaged. Of its shard nothing was changed; shards before it are done.
        JobConflict: a job is at work on one of the shards; it would replace again what is put back.
        ServerError: a server cannot be reached, or refuses; what was done is kept.
    """
    if job_id is not None:
        _check_kind(store, job_id)
    # Before the files are looked for: what is noted until now has to be in them.
    at_work = _through_of_unfinished(store)
    originals = Originals.of(store, folders, job_id=job_id, shards=shards)
    if not originals.files:
        raise InvalidInput(
            f"no originals of datastore {store.name!r}"
            + (f", job {job_id}," if job_id is not None else "")
            + (" of these shards" if shards is not None else "")
            + f" in {', '.join(map(str, folders))}; name the folder that --archive named"
            + "".join(f"; {path} ends before its header does" for path in sorted(originals.torn)[:1])
        )
    if execute:
        _refuse_beside_a_job(store, originals.shards())
    report = RestoreReport(files=len(originals.files), archive_bytes=originals.size_bytes)
    report.jobs = {file.job_id for file in originals.files}
    noted = _noted(store, report, shards, at_work)
    if not report.unknown_jobs:
        on_total(sum(state.cells for states in noted.values() for state in states))
    with Gate(store, thresholds if execute else None, on_wait) as gate:
        for shard in originals.shards():
            work = _Shard(store, shard, report, gate, execute, full_row_images)
            for chunk in in_chunks(originals.of_shard(shard), _CHUNK_CELLS, _CHUNK_BYTES):
                work.restore(chunk)
                report.archived += len(chunk)
                on_cells(len(chunk))
            report.shards += 1
    report.torn = originals.torn
    for job, states in noted.items():
        report.missing += missing_of(job, states, originals.records)
        report.interruptions += sum(ShardTally.of(state).interruptions for state in states)
    return report


def _check_kind(store: Datastore, job_id: int) -> None:
    """Refuse a job that is no migration. One that the catalog does not know may have an archive all the same."""
    for job in Ledger(store).jobs():
        if job.job_id == job_id:
            job.check_kind("migrate")


def _through_of_unfinished(store: Datastore) -> dict[int, set[int]]:
    """Return the migrations that are not finished, each with the shards that it is through with."""
    ledger = Ledger(store)
    return {
        job.job_id: {state.shard for state in ledger.shards(job.job_id, counters=False) if state.state != "waiting"}
        for job in ledger.jobs("migrate")
        if job.unfinished
    }


def _noted(
    store: Datastore, report: RestoreReport, shards: Collection[int] | None, at_work: Mapping[int, Collection[int]]
) -> dict[int, list[ShardState]]:
    """Return what jobs have noted about the shards that are asked for, but for those that they are not through with."""
    ledger = Ledger(store)
    kept = {job.job_id for job in ledger.jobs("migrate") if MigrateSpec.of(job).archive is not None}
    report.unknown_jobs = report.jobs - kept
    return {
        job_id: [
            state
            for state in ledger.shards(job_id)
            if (shards is None or state.shard in shards) and (job_id not in at_work or state.shard in at_work[job_id])
        ]
        for job_id in sorted(report.jobs & kept)
    }


def _refuse_beside_a_job(store: Datastore, shards: Sequence[int]) -> None:
    ledger = Ledger(store)
    wanted = set(shards)
    for job in ledger.jobs("migrate"):
        if not job.unfinished:
            continue
        for state in ledger.shards(job.job_id, counters=False):
            if state.shard in wanted and state.state == "waiting":
                raise JobConflict(
                    f"migrate job {job.job_id} is {job.state} and not through with shard {state.shard}: it would "
                    f"replace again what is put back; end it with 'schemaless migrate abort --job {job.job_id}' first",
                    job.job_id,
                )


class _Shard:
    """One shard's part of a restore."""

    def __init__(
        self, store: Datastore, shard: int, report: RestoreReport, gate: Gate, execute: bool, full_row_images: bool
    ) -> None:
        self._store = store
        self._shard = shard
        self._report = report
        self._gate = gate
        self._execute = execute
        self._full_row_images = full_row_images
        self._first: dict[int, int] = {}
        self._sent: set[int] = set()

    def restore(self, cells: list[ArchivedCell]) -> None:
        """Give cells their originals; those that changed meanwhile are looked at again."""
        pending = cells
        self._first, self._sent = {}, set()
        for _ in range(_ROUNDS):
            changes = []
            for change in self._classified(pending):
                if self._execute:
                    changes.append(change)
                else:
                    self._count(change.cell)
            for sql, part in self._statements(changes):
                self._gate.wait(self._shard, sum(len(change.cell.body) for change in part))
                self._send(sql)
                self._sent.update(change.cell.added_id for change in part)
            pending = [change.cell for change in changes if change.cell.added_id in self._sent]
            if not pending:
                return
        for cell in pending:
            self._leave(cell, "Contended", f"it changed under each of {_ROUNDS} attempts; run the restore again")

    def _send(self, sql: bytes) -> None:
        def operation(connection: Connection) -> None:
            # A query for each statement, on whichever connection it is: one that is new has no settings yet.
            binary_log(connection, full_images=self._full_row_images)
            connection.execute(sql)

        self._store.shards.run(self._shard, operation, writes=True)

    def _classified(self, cells: Sequence[ArchivedCell]) -> Iterator[_Change]:
        """Count the cells that have their original, or cannot have it; yield the others with what is stored."""
        found = stored_digests(self._store, self._shard, (cell.added_id for cell in cells))
        others: list[_Change] = []
        for cell in cells:
            stored = found.get(cell.added_id)
            if stored is None:
                self._leave(cell, "Erased", "it is not there any more")
                continue
            self._first.setdefault(cell.added_id, stored.body_bytes)
            if stored.key != cell.key:
                self._leave(cell, "OtherCell", f"added_id {cell.added_id} is cell {stored.key} in this datastore")
            elif stored.digest == digest_of(cell.body):
                if cell.added_id in self._sent:
                    self._count(cell)
                else:
                    self._report.already += 1
            elif (unreadable := self._lacks_dictionary(cell)) is not None:
                self._leave(cell, type(unreadable).__name__, unreadable.message)
            elif stored.digest == cell.new_digest:
                yield _Change(cell, stored)
            else:
                others.append(_Change(cell, stored))
        yield from self._same_documents(others)

    def _lacks_dictionary(self, cell: ArchivedCell) -> CorruptBody | None:
        """Return why an original could not be read, were it put back: its dictionary is not in the catalog any more."""
        try:
            number = dictionary_of(cell.body)
            if number is not None:
                self._store.dictionaries.get(number)
        except (UnknownDictionary, DictionaryDamaged) as error:
            return error
        except CorruptBody:
            pass  # it was no better before
        return None

    def _same_documents(self, others: Sequence[_Change]) -> Iterator[_Change]:
        """Yield those whose stored body means what the original does."""
        unread = {change.cell.added_id: change for change in others}
        stored = (change.stored for change in others)
        for added_id, body in bodies_of(self._store, self._shard, stored, _CHUNK_BYTES):
            change = unread.pop(added_id)
            if same_meaning(self._store, change.cell.body, body):
                yield _Change(change.cell, change.stored._replace(digest=digest_of(body), body_bytes=len(body)))
            else:
                self._leave(
                    change.cell,
                    "Changed",
                    "its stored body is neither the one that took the original's place nor the same document",
                )
        for change in unread.values():
            self._leave(change.cell, "Erased", "it is not there any more")

    def _statements(self, changes: Sequence[_Change]) -> Iterator[tuple[bytes, Sequence[_Change]]]:
        """Cut changes into UPDATE statements that the server's ``max_allowed_packet`` takes."""
        if not changes:
            return
        sql = replace_bodies(
            self._store.shards.database(self._shard),
            ((change.cell.added_id, change.stored.digest, change.cell.body) for change in changes),
        )
        packet = self._store.shards.run(self._shard, lambda connection: connection.max_allowed_packet)
        if len(sql) <= packet - _PACKET_MARGIN_BYTES:
            yield sql, changes
        elif len(changes) == 1:
            cell = changes[0].cell
            self._leave(
                cell,
                "BodyTooLarge",
                f"its original has {len(cell.body):,} bytes, and its UPDATE {len(sql):,}; raise the server's "
                "max_allowed_packet",
            )
        else:
            middle = len(changes) // 2
            yield from self._statements(changes[:middle])
            yield from self._statements(changes[middle:])

    def _count(self, cell: ArchivedCell) -> None:
        self._report.restored += 1
        self._report.bytes_before += self._first[cell.added_id]
        self._report.bytes_after += len(cell.body)

    def _leave(self, cell: ArchivedCell, reason: str, message: str) -> None:
        self._report.left[reason] += 1
        if len(self._report.failures) < _KEPT_FAILURES:
            self._report.failures.append(
                Failure(self._shard, cell.added_id, cell.row_key, cell.column_name, cell.ref_key, reason, message)
            )
