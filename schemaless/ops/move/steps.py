"""The steps of moving one shard: copy, cut over and verify, or abort.

A runner decides by the tables on the two servers, not by the catalog, which may itself have failed over:

    source has    target has    then
    cell          incoming      copy; abort: drop incoming
    moved         incoming      finish the cutover; abort: drop incoming, rename back
    moved         cell          moved, whatever the catalog says; never aborted
    cell          cell          result of a failover: refuse, and ask the operator

The commit point is the RENAME of the incoming table to ``cell`` on the target. It follows the RENAME on the source, so
a shard can never be written to in two places; clients find the target only through the catalog, which is updated after
both.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from functools import partial
from typing import Final

from schemaless.base.logger import log
from schemaless.errors import MoveRefused, ServerTimeout, ShardIdentityMismatch
from schemaless.ops.jobs.runner import ShardRun
from schemaless.ops.jobs.throttle import discount_read
from schemaless.ops.move import sql
from schemaless.ops.move.checks import obstacle
from schemaless.ops.move.compare import verify_shard
from schemaless.ops.move.copy_rate import CopyRate, TargetServers
from schemaless.ops.move.copying import Copier, carry_over, copy_erasures
from schemaless.ops.move.fence import Fence, Side, index_tables, new_token
from schemaless.ops.move.index_tables import IndexMover
from schemaless.ops.move.record import MoveRecord, Records
from schemaless.ops.move.spec import BEFORE_COMMIT, TABLES, MoveSpec, Phase
from schemaless.ops.move.sql import CellRow
from schemaless.schema.creation import create_incoming
from schemaless.schema.databases import check_identity, next_id
from schemaless.schema.engines import StorageEngine, engine_named
from schemaless.schema.sql import select_identity
from schemaless.store.datastore import Datastore
from schemaless.store.feed.reader import Changes, RowPage
from schemaless.store.internals import Internals, internals_of
from schemaless.topology.model import Cluster
from schemaless.topology.sql import moving
from schemaless.wire.connection import Connection
from schemaless.wire.sql.parts import Value

ID_GAP: Final = 1 << 20
"""Gap between the source's next id and the target's first new one, so that no id is ever assigned twice."""

_MAX_TAIL_S: Final = 0.05
"""Maximum predicted time for copying the tail, in seconds; a shard with a longer tail is not cut over yet."""

_MAX_TAIL_IDS: Final = 50_000
"""Maximum number of ids above the settled one to compare during the cutover."""

_FIRST_BUDGET_S: Final = 0.15
BACKOFF: Final = 10
"""Pause before the next attempt to cut over, as a multiple of the last attempt's duration."""

_MAX_LAG_S: Final = 1.0
"""Maximum lag of the target's replicas when clients begin to read from them, in seconds."""

_FINGERPRINT_DIGITS: Final = 32

_LONG_WAIT_S: Final = 1.0
"""Longest wait, in seconds, after which new cells are copied in one go; after a longer wait, copy in regular steps."""


def work(store: Datastore, run: ShardRun) -> None:
    """Move one shard as far as possible; runs in a worker."""
    _ShardMove(store, run).run()


class _ShardMove:
    def __init__(self, store: Datastore, run: ShardRun) -> None:
        self._store = store
        self._run = run
        self._internals = internals_of(store)
        self._shards = self._internals.shards
        self._shard = run.state.shard
        self._spec = MoveSpec.of(run.job)
        self._records = Records(store)
        self._token = new_token()
        self._copied_before = run.state.cells, run.state.bytes_before
        self._phases: tuple[Phase, ...] = BEFORE_COMMIT
        self._replaced = False
        self._servers = TargetServers(store, run, self._spec.target)
        self._rate = CopyRate(self._shard, self._spec.give_up_s, self._warn)
        self._indexes = IndexMover(self._internals, run, self._servers.gate, self._engine)
        self._known_tables: frozenset[str] = frozenset(TABLES)

    def run(self) -> None:
        """Take the shard through its remaining steps.

        Raises:
            MoveRefused: it cannot be moved now.
            SchemalessError: a server failed; repeating the call continues the move.
        """
        self._shards.router.again(self._shards.routing)
        self._topology = self._shards.topology
        home = self._topology.cluster_of(self._shard).name
        record = self._records.begin(self._run.job.job_id, self._shard, home, self._spec.target)
        if record.phase in ("preparing", "copying"):
            # Later phases pass no gate: an unfinished cut leaves the shard without a server, so it is completed even if
            # replicas lag or the job is paused.
            self._run.gate()
        if record.phase in BEFORE_COMMIT and home == record.target != record.source:
            # The flip succeeded, but its reply was lost; nothing else assigns the shard to the target.
            self._records.note(self._run, {"phase": "moved"}, BEFORE_COMMIT)
            record = self._records.all(record.job_id, self._shard)[0]
        try:
            if record.phase in BEFORE_COMMIT:
                record = self._move(record)
            if record.phase in ("moved", "dropped"):
                # Copy dictionaries again: some may have been created during the move.
                _copy_dictionaries(self._internals, self._spec.target)
                self._indexes.rewind_followers(self._topology.cluster(record.target).primary)
            if record.phase == "moved":
                self._indexes.drop_left(self._topology.cluster(record.source).primary, record.token or "")
                verify_shard(self._store, self._run, record, self._servers.rest_ungated)
        finally:
            self._servers.close()
        self._run.finish()

    def _move(self, record: MoveRecord) -> MoveRecord:
        if record.source == record.target:
            self._note(phase="dropped")
            return self._read()
        self._source, self._target = self._topology.cluster_of(self._shard), self._topology.cluster(record.target)
        aborting = record.phase == "aborting"
        if self._source.name != record.source and not aborting:
            raise MoveRefused(
                f"shard {self._shard} is on {self._source.name} now, but its move began on {record.source}; abort the "
                "move"
            )
        nodes = self._source.primary, self._target.primary
        with Fence(self._shards, self._shard, *nodes, needs_target=not aborting) as fence:
            self._fence = fence
            if record.phase == "preparing":
                self._prepare()
            # Under the locks: a previous runner that resumes finds its sessions killed, or fails this update.
            self._phases = ("aborting",) if aborting else ("preparing", "copying", "cutting")
            self._note(token=self._token, phase="aborting" if aborting else "copying")
            if not aborting:
                # Copy dictionaries before the first cell that may need one.
                _copy_dictionaries(self._internals, self._spec.target)
            sides = fence.take_over(self._token)
            if not aborting:
                sides = self._detect_failovers(record, *sides)
            self._proceed(record, *sides)
        return self._read()

    def _detect_failovers(self, record: MoveRecord, at_source: Side, at_target: Side) -> tuple[Side, Side]:
        """Compare cells from the beginning if a server has been replaced since the last run.

        If the source was replaced, the copy is dropped: it may contain cells that the new server lacks, or has under
        other added_ids.

        Returns:
            The tables on the source and the target afterwards.
        """
        fence = self._fence
        servers = [_fingerprint(self._source, fence.source), _fingerprint(self._target, fence.target)]
        self._settled = record.settled_id if record.servers == servers else 0
        self._replaced = record.servers != servers
        if record.servers[:1] != servers[:1] and at_source.has_cell and not at_target.has_cell:
            fence.drop_incoming(at_target)
        self._note(target_server=" ".join(servers), settled_id=self._settled)
        return fence.sides()

    def _proceed(self, record: MoveRecord, source: Side, target: Side) -> None:
        """Take the steps that follow from the tables on the two servers."""
        fence = self._fence
        if fence.unreachable is not None:
            if source.moved.get("cell") or not source.has_cell:
                # Only the target knows whether the shard has moved.
                raise fence.unreachable
            self._warn(
                f"shard {self._shard}: {self._target.primary} cannot be reached; {fence.database} there may have "
                "tables ..._incoming_... and ..._noted_...; drop them by hand if the server comes back"
            )
        unfence, flip = partial(fence.rename_back, self._token), partial(self._flip, time.monotonic())
        drop, refuse = partial(self._drop_copy, target), partial(self._refuse, source, target)
        end = partial(self._note, phase="aborted")
        # By state: the steps that complete the move, and those that abort it.
        transitions: dict[_State, tuple[tuple[Callable[[], None], ...], tuple[Callable[[], None], ...]]] = {
            _State.UNCOPIED: ((drop, self._copy), (drop, end)),
            _State.COPYING: ((self._copy,), (drop, end)),
            _State.FENCED: ((self._resume_cut,), (unfence, drop, end)),
            # The source serves the shard again before anything is done on the target.
            _State.STRANDED: ((unfence, drop, self._copy), (unfence, drop, end)),
            _State.CUT_OVER: ((flip,), (flip,)),
            _State.CONTRADICTORY: ((refuse,), (refuse,)),
        }
        for step in transitions[_state_of(source, target, self._replaced)][record.phase == "aborting"]:
            step()

    def _refuse(self, source: Side, target: Side) -> None:
        raise MoveRefused(
            f"shard {self._shard}: {self._fence.source.node} has {_named(source)}, and {self._fence.target.node} has "
            f"{_named(target)}; a move never ends in that state. Did one of the servers fail over, or was it "
            "restored? Nothing was changed. Find out which server has the cells to keep, rename the "
            f"table cell on the other (to cell_moved_{self._token} on the source, to "
            f"cell_incoming_{self._token} on the target), and run the same command again"
        )

    def _drop_copy(self, target: Side) -> None:
        self._fence.drop_incoming(target)
        self._settled = 0

    def _resume_cut(self) -> None:
        self._note(phase="cutting")
        self._create()
        if not self._finish_cut(time.monotonic()):
            self._follow()

    def _copy(self) -> None:
        self._create()
        self._follow()

    # Before the cutover

    def _prepare(self) -> None:
        """Check under the locks whether the shard can be moved.

        Raises:
            MoveRefused: it cannot.
        """
        fence = self._fence
        refusal, grants = obstacle(self._internals, self._shard, self._spec, fence.source, fence.target)
        if refusal is not None:
            first = f"; run there first: {'; '.join(grants)}" if grants else ""
            raise MoveRefused(f"shard {self._shard}: {refusal}{first}")
        _, at_target = fence.sides()
        if "shard_identity" in at_target.plain:
            rows = fence.target.rows(select_identity(fence.database))
            try:
                # A runner may have died between creating the tables and inserting the identity.
                if rows or at_target.has_cell:
                    check_identity(rows, fence.database, fence.target.node, self._topology.identity(self._shard))
            except ShardIdentityMismatch as error:
                raise MoveRefused(f"shard {self._shard}: {error}") from error

    @property
    def _engine(self) -> StorageEngine:
        return engine_named(self._shards.topology.cluster(self._spec.target).engine)

    def _create(self) -> None:
        names = {table: moving.incoming(table, self._token) for table in sql.FENCED}
        identity = self._topology.identity(self._shard)
        create_incoming(self._fence.target, self._fence.database, names, identity, self._engine)
        self._copier = Copier(self._fence.target, self._fence.database, names["cell"])

    def _follow(self) -> None:
        """Copy all cells and follow new ones until the tail is short, then cut over.

        Raises:
            MoveRefused: the shard could not be cut over in time.
        """
        self._note(settled_id=self._settled)
        changes = Changes(self._shards)
        budget_s = min(_FIRST_BUDGET_S, self._spec.max_pause_s)
        self._run.state.top_id = self._top()
        self._copy_settled(changes)
        self._copy_erasures()
        # As late as possible, because followers repeat all index writes from here on.
        self._known_tables = frozenset(TABLES) | self._indexes.copy(self._fence, self._token)
        # The limit applies to the cutover only, however long the copy took.
        give_up_s = time.monotonic() + self._spec.give_up_s
        while True:
            self._copy_settled(changes)
            self._copy_erasures()
            began_s = time.monotonic()
            self._servers.gate()
            if time.monotonic() - began_s > _LONG_WAIT_S:
                continue
            # There is no wait between here and the cutover, so the cutover will find the tail that is measured here.
            began_s = time.monotonic()
            tail = self._copier.copy_tail(self._fence.source, "cell", self._settled)
            self._save()
            short = self._copier.seconds_for(tail.body_bytes) <= _MAX_TAIL_S and tail.ids <= _MAX_TAIL_IDS
            if short and _caught_up(self._target, self._servers.lags):
                if self._cut(budget_s):
                    return
                budget_s = min(2 * budget_s, self._spec.max_pause_s)
            if time.monotonic() > give_up_s:
                users = self._fence.users
                blocked = f" Its tables could not be locked; they were in use by {users}." if users else ""
                raise MoveRefused(
                    f"shard {self._shard} could not be cut over within {self._spec.give_up_s:g} s: cells are written "
                    "faster than they are copied, a transaction stays open, a backup blocks the server, or the "
                    f"target's replicas lag.{blocked} The shard is still on its source, and the copied cells are kept; "
                    "run the same command again"
                )
            self._run.rest(time.monotonic() - began_s)

    def _copy_settled(self, changes: Changes) -> None:
        self._rate.begin()
        pages = self._pages(changes)
        for page in self._run.paced(pages, gate=self._servers.gate, rest=self._rest, save=self._save):
            self._run.spend(sum(len(row[4]) for row in page.rows))
            self._copier.copy(page.rows, self._settled)
            # The job's own calls must not count as those of applications.
            for connection in (self._fence.source, self._fence.target, self._fence.target):
                discount_read(connection)
            self._settled = page.next_location

    def _pages(self, changes: Changes) -> Iterator[RowPage]:
        rows: Sequence[CellRow] = ()
        while True:
            before = self._settled
            limit = self._rate.step_cells(rows, busy=self._servers.busy)
            page = changes.page(self._shard, before, limit, None, "primary")
            rows = page.rows
            yield page
            if self._settled == before:
                return

    def _rest(self, worked_s: float) -> None:
        began_s = time.monotonic() - worked_s
        self._servers.rest(worked_s, self._rate.share)
        if self._rate.due(time.monotonic() - began_s):
            self._rate.adjust(self._settled, self._top(), self._copier.cells, pauses=self._servers.busy)

    def _copy_erasures(self, *, fenced: bool = False) -> None:
        copy_erasures(self._fence, self._token, self._internals.dictionaries, fenced=fenced)

    def _top(self) -> int:
        return int(self._fence.source.rows(moving.select_top(self._fence.database, "cell"))[0][0] or 0)

    def _save(self) -> None:
        self._note(settled_id=self._settled)
        state = self._run.state
        state.checkpoint, state.top_id = self._settled, max(state.top_id, self._settled)
        cells, body_bytes = self._copied_before
        state.cells, state.bytes_before = cells + self._copier.cells, body_bytes + self._copier.body_bytes
        self._run.checkpoint()

    # The cut

    def _cut(self, budget_s: float) -> bool:
        """Cut over; return False, with nothing changed, if that is not possible within the budget."""
        fence = self._fence
        obstacle = ""
        try:
            fence.probe(self._token)
            if not fence.target_renames_fast(self._token, self._spec.max_pause_s / 2):
                obstacle = f"{fence.target.node} renames tables slowly while it flushes the copied cells to its disk"
        except ServerTimeout as error:
            obstacle = f"is a backup running? {error}"
        if obstacle:
            log.warning("shard %d cannot be cut over yet; %s", self._shard, obstacle)
            self._run.pause(BACKOFF * self._spec.max_pause_s)
            return False
        self._raise_counter("cell")
        self._note(phase="cutting")
        self._check_unchanged()
        self._records.ready_to_flip()
        began_s = time.monotonic()
        # An exception under the lock closes the sessions, which releases the locks. A RENAME that reported an error may
        # still have happened, so the next runner reads the servers' tables first.
        if fence.lock(budget_s):
            # max_pause_s limits the whole pause; a cut that exceeds it is abandoned and tried again later.
            until_s = began_s + self._spec.max_pause_s
            if self._copier.copy_tail(fence.source, "cell", self._settled, until_s=until_s).complete:
                self._copy_erasures()
                carry_over(fence, self._token, fenced=False)
            if time.monotonic() < until_s and next_id(fence.source, fence.database, "cell") <= self._target_counter:
                fence.rename_source(self._token)
                fence.unlock()
                return self._finish_cut(began_s)
            fence.unlock()
        else:
            log.warning("shard %d cannot be cut over yet; it is in use by %s", self._shard, fence.users)
        self._back_off(began_s)
        return False

    def _back_off(self, began_s: float) -> None:
        took_s = time.monotonic() - began_s
        self._note(phase="copying")
        self._run.pause(BACKOFF * took_s)

    def _check_unchanged(self) -> None:
        """Check that the shard has no new tables, and that the catalog still names the same servers.

        Raises:
            MoveRefused: something has changed.
        """
        source, _ = self._fence.sides()
        if new_tables := sorted(source.plain - self._known_tables):
            raise MoveRefused(
                f"shard {self._shard} has a new table {new_tables[0]}, created after its move began; abort the move, "
                "or drop the table and run the same command again"
            )
        now = self._shards.router.again(self._shards.routing).topology
        replaced = any(
            (now.cluster(cluster.name).primary, now.cluster(cluster.name).epoch) != (cluster.primary, cluster.epoch)
            for cluster in (self._source, self._target)
        )
        if replaced or now.cluster_of(self._shard).name != self._source.name:
            raise MoveRefused(
                f"the servers of shard {self._shard} have changed since copying began; the shard is still on its "
                "source. Run the same command again"
            )

    def _finish_cut(self, began_s: float) -> bool:
        """Copy the tail again from the fenced table, and rename the target's tables.

        Correctness rests on this read after the RENAME, in a session other than the one that held the lock; the lock
        only shortens the pause.

        Returns:
            False if the target is blocked, for example by a backup; the source then serves the shard again.
        """
        fence = self._fence
        fenced = moving.moved("cell", self._token)
        try:
            self._raise_counter(fenced)
            self._copier.copy_tail(fence.reader, fenced, self._settled)
            self._copy_erasures(fenced=True)
            carry_over(fence, self._token, fenced=True)
            fence.rename_target(self._token)
        except ServerTimeout as error:
            _, target = fence.sides()
            # A RENAME that reported an error may still have happened.
            if not target.has_cell:
                fence.rename_back(self._token)
                log.warning("shard %d cannot be cut over yet; is a backup running? %s", self._shard, error)
                fence.take_over(self._token)
                self._back_off(began_s)
                return False
        self._flip(began_s)
        return True

    def _flip(self, began_s: float) -> None:
        fence = self._fence
        fence_id = int(
            fence.reader.rows(moving.select_top(fence.database, moving.moved("cell", self._token)))[0][0] or 0
        )
        changes = {"fence_id": fence_id, "settled_id": fence_id}
        self._records.flip(self._run, self._topology, self._spec.target, changes)
        self._records.note(self._run, {"pause_s": time.monotonic() - began_s}, ("moved",))
        self._shards.router.again(self._shards.routing)

    def _raise_counter(self, table: str) -> None:
        """Raise the target's next id far above the source's."""
        fence = self._fence
        wanted = next_id(fence.source, fence.database, table)
        incoming = moving.incoming("cell", self._token)
        self._target_counter = next_id(fence.target, fence.database, incoming)
        if self._target_counter < wanted + ID_GAP // 2:
            self._target_counter = wanted + ID_GAP
            fence.target.execute(sql.raise_counter(fence.database, incoming, self._target_counter))

    # Records

    def _warn(self, warning: str) -> None:
        log.warning("%s", warning)
        self._run.job_store.record_event(self._run.job.job_id, warning[:255])

    def _note(self, **changes: Value) -> None:
        self._records.note(self._run, changes, self._phases)

    def _read(self) -> MoveRecord:
        return self._records.all(self._run.job.job_id, self._shard)[0]


def _fingerprint(cluster: Cluster, connection: Connection) -> str:
    """Return a fingerprint of a cluster's primary, which changes with every failover."""
    server = connection.rows(sql.SELECT_SERVER)[0][0]
    return hashlib.sha256(f"{cluster.epoch} {server}".encode()).hexdigest()[:_FINGERPRINT_DIGITS]


def _copy_dictionaries(internals: Internals, cluster: str) -> None:
    replicas = internals.dictionary_replicas
    replicas.copy_all(next(replica for replica in replicas.copies if replica.cluster == cluster))


class _State(Enum):
    """Where a move is, by the tables on its two servers."""

    UNCOPIED = auto()
    """The source serves the shard; the target has no copy."""
    COPYING = auto()
    """The source serves the shard; the target has a copy, which may be incomplete."""
    FENCED = auto()
    """No server serves the shard; the target's copy can be completed from the fenced tables."""
    STRANDED = auto()
    """No server serves the shard, and the target has no copy that can be completed."""
    CUT_OVER = auto()
    """The target has the shard."""
    CONTRADICTORY = auto()
    """A state that no move leaves behind."""


def _state_of(source: Side, target: Side, replaced: bool) -> _State:
    """Return the state of a move; after a failover, ``replaced``, copies of index tables do not count."""
    match source.has_cell, bool(source.moved.get("cell")), target.has_cell:
        case True, False, False:
            return _State.COPYING if target.incoming.get("cell") else _State.UNCOPIED
        case False, True, False:
            indexes = index_tables(source.moved)
            copied = not replaced and indexes == index_tables(target.incoming) and bool(target.saved_locations)
            return _State.FENCED if target.incoming.get("cell") and (copied or not indexes) else _State.STRANDED
        case False, True, True:
            return _State.CUT_OVER
    return _State.CONTRADICTORY


def _caught_up(cluster: Cluster, lags: Sequence[float | None]) -> bool:
    """Return whether the replicas, which clients will soon read from, were nearly up to date at the last check."""
    return not cluster.replicas or all(lag_s is not None and lag_s < _MAX_LAG_S for lag_s in lags)


def _named(side: Side) -> str:
    return " and ".join([*sorted(side.plain & {"cell"}), *side.copies]) or "no cell table"
