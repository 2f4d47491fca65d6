"""One shard on its way to another cluster, in the hands of one runner: copied, cut over, compared; or aborted.

What a runner does first follows from what the two servers have, and not from what the catalog says, which may have
failed over itself:

    source has    target has    then
    cell          incoming      it is being copied; abort: drop incoming
    moved         incoming      finish the cut; abort: drop incoming, rename back
    moved         cell          it is moved, whatever the catalog says; never aborted
    cell          cell          somebody's failover; nothing is done, and said so

The target's RENAME of ``cell`` is the commit point. It comes behind the source's, so no cell is ever written in two
places; and clients find the target by the catalog alone, which is changed behind both.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Sequence
from typing import Final

from schemaless.cells.dictionary_replicas import copy_dictionaries
from schemaless.datastore import Datastore
from schemaless.errors import MoveRefused, ServerTimeout, ShardIdentityMismatch
from schemaless.feed.reader import Changes
from schemaless.internals import internals_of
from schemaless.jobs.runner import ShardRun
from schemaless.jobs.server_load import note_read
from schemaless.move import sql
from schemaless.move.accounts import check_accounts
from schemaless.move.copy_rate import Pace, TargetServers
from schemaless.move.copying import Copier, carry_over
from schemaless.move.fence import Fence, Side, index_tables, new_token
from schemaless.move.index_tables import MovedIndexes
from schemaless.move.record import MoveRecord, Records
from schemaless.move.refusals import refusal_of
from schemaless.move.spec import BEFORE_COMMIT, TABLES, MoveSpec, Phase
from schemaless.move.sql import CellRow
from schemaless.move.verify import verify_shard
from schemaless.schema.creation import create_incoming
from schemaless.schema.databases import Identity, check_identity, next_id
from schemaless.schema.sql import select_identity
from schemaless.topology.model import Cluster
from schemaless.topology.sql import moving
from schemaless.wire.connection import Connection

_log = logging.getLogger("schemaless")

ROOM: Final = 1 << 20
"""Ids on the target begin so far above those of the source, so that none that was ever given is given again."""

_REST_S: Final = 0.05
"""A shard is cut over when what is left to copy is predicted to take no longer."""

_MOST_TAIL_IDS: Final = 50_000
"""So many ids above what is settled are compared while everybody waits, at most."""

_FIRST_BUDGET_S: Final = 0.15
_HOLD_OFF: Final = 10
"""Between two tries nobody is held off for so many times as long as a try took."""

_LAG_S: Final = 1.0
"""The target's replicas may lag by so much when clients begin to read them."""

_TOLD_APART_BY: Final = 32
"""Servers are told apart by so many digits."""

_WAITED_S: Final = 1.0
"""After a longer wait what came meanwhile is copied in the steps of a job, and not at once."""


def work(store: Datastore, run: ShardRun, hold_off: float = _HOLD_OFF) -> None:
    """Do a job's work on one shard; runs in a worker."""
    _ShardMove(store, run, hold_off).go_on()


class _ShardMove:
    def __init__(self, store: Datastore, run: ShardRun, hold_off: float) -> None:
        self._store = store
        self._run = run
        self._hold_off_times = hold_off
        self._internals = internals_of(store)
        self._shards = self._internals.shards
        self._shard = run.state.shard
        self._spec = MoveSpec.of(run.job)
        self._records = Records(store)
        self._token = new_token()
        self._phases: tuple[Phase, ...] = BEFORE_COMMIT
        self._servers = TargetServers(store, run, self._spec.target)
        self._pace = Pace(self._shard, self._spec.give_up_s)
        self._indexes = MovedIndexes(self._internals, run, self._servers.gate)
        self._carried: frozenset[str] = frozenset(TABLES)

    def go_on(self) -> None:
        """Bring it as far as it goes.

        Raises:
            MoveRefused: it cannot be moved as things are.
            SchemalessError: what a server met; the same again goes on.
        """
        self._shards.again(self._shards.routing)
        self._topology = self._shards.topology
        home = self._topology.cluster_of(self._shard).name
        record = self._records.begin(self._run.job.job_id, self._shard, home, self._spec.target)
        if record.phase in ("preparing", "copying"):
            # In the middle of a cut nobody has the shard: that ends first, whatever lags, and also in a paused job.
            self._run.gate()
        if record.phase in BEFORE_COMMIT and home == record.target != record.source:
            # The reply to the flip was lost; nothing else writes that.
            self._records.note(self._run, {"phase": "moved"}, token=None, phases=BEFORE_COMMIT)
            record = self._records.all(record.job_id, self._shard)[0]
        try:
            if record.phase in BEFORE_COMMIT:
                record = self._move(record)
            if record.phase in ("moved", "dropped"):
                # Those that were made meanwhile, too.
                self._copy_dictionaries()
                self._indexes.go_over_again(self._topology.cluster(record.target).primary)
            if record.phase == "moved":
                verify_shard(self._store, self._run, record, self._servers.rest_anyhow)
        finally:
            self._servers.close()
        self._run.finish()

    def _move(self, record: MoveRecord) -> MoveRecord:
        if record.source == record.target:
            self._note({"phase": "dropped"}, token=None)
            return self._read()
        source, target = self._topology.cluster_of(self._shard), self._topology.cluster(record.target)
        aborting = record.phase == "aborting"
        if source.name != record.source and not aborting:
            raise MoveRefused(
                f"shard {self._shard} is on {source.name} by now, and its move began on {record.source}; abort the move"
            )
        nodes = source.primary, target.primary
        with Fence(self._shards, self._shard, *nodes, needs_target=not aborting) as fence:
            self._fence = fence
            if record.phase == "preparing":
                self._prepare()
            # Behind the locks: whoever wakes up later finds his sessions ended, or is told here.
            self._phases = ("aborting",) if aborting else ("preparing", "copying", "cutting")
            self._note({"token": self._token, "phase": "aborting" if aborting else "copying"}, token=None)
            if not aborting:
                # Before the first cell that may name one.
                self._copy_dictionaries()
            there, here = fence.take_over(self._token)
            if not aborting:
                there, here = self._look_for_failovers(record, source, target, there, here)
            self._act(there, here, aborting, target)
        return self._read()

    def _look_for_failovers(
        self, record: MoveRecord, source: Cluster, target: Cluster, there: Side, here: Side
    ) -> tuple[Side, Side]:
        """Find from where on cells are to be compared: from the beginning where one of the servers is another by now.

        Where it is the source, what was copied is dropped: it may have cells that this server has lost, and other cells
        under the same ids.

        Returns:
            What there is now.
        """
        fence = self._fence
        servers = [
            _told_apart(cluster, connection) for cluster, connection in ((source, fence.source), (target, fence.target))
        ]
        self._settled = record.settled_id if record.servers == servers else 0
        self._replaced = record.servers != servers
        if record.servers[:1] != servers[:1] and there.has_cell and not here.has_cell:
            fence.drop_incoming(here)
        self._note({"target_server": " ".join(servers), "settled_id": self._settled})
        return fence.sides()

    def _act(self, source: Side, target: Side, aborting: bool, cluster: Cluster) -> None:
        fence = self._fence
        moved, incoming = bool(source.moved.get("cell")), bool(target.incoming.get("cell"))
        if fence.unreachable is not None:
            if moved or not source.has_cell:
                # Whether it has moved, the target alone knows.
                raise fence.unreachable
            what = "tables ..._incoming_... and ..._noted_... there"
            left = f"shard {self._shard}: {cluster.primary} cannot be reached; {fence.database} may have {what}"
            _log.warning("%s, drop them by hand if it comes back", left)
            self._run.job_store.note_event(self._run.job.job_id, left[:255])
        match source.has_cell, moved, target.has_cell:
            case True, False, False if aborting:
                fence.drop_incoming(target)
                self._note({"phase": "aborted"})
            case True, False, False:
                if not incoming:
                    self._settled = 0
                self._create()
                self._copy(cluster)
            case False, True, False if aborting or not incoming or not self._indexes_are_there(source, target):
                # First, so that nobody waits for the target.
                fence.rename_back(self._token)
                fence.drop_incoming(target)
                if aborting:
                    self._note({"phase": "aborted"})
                    return
                self._settled = 0
                self._create()
                self._copy(cluster)
            case False, True, False:
                self._note({"phase": "cutting"})
                self._create()
                if not self._finish_cut(time.monotonic()):
                    self._copy(cluster)
            case False, True, True:
                self._flip(time.monotonic())
            case _:
                raise MoveRefused(
                    f"shard {self._shard}: {fence.source.node} has {_named(source)}, and {fence.target.node} has "
                    f"{_named(target)}; no move leaves that behind. Did one of them fail over, or was one restored? "
                    "Nothing was changed. Find out which of them has the cells that matter, then rename cell on the "
                    f"other one, to cell_moved_{self._token} on the first or to cell_incoming_{self._token} on the "
                    "second, and run the same command again"
                )

    def _indexes_are_there(self, source: Side, target: Side) -> bool:
        """Whether all entries are on the target, as they were when the source was fenced; it may be another by now."""
        indexes = index_tables(source.moved)
        return not indexes or (not self._replaced and indexes == index_tables(target.incoming) and bool(target.notes))

    def _copy_dictionaries(self) -> None:
        dictionary_replicas = self._internals.dictionary_replicas
        copy_dictionaries(
            dictionary_replicas,
            next(replica for replica in dictionary_replicas.copies if replica.cluster == self._spec.target),
        )

    # Before the cut

    def _prepare(self) -> None:
        """Look whether it can be moved at all, under the locks.

        Raises:
            MoveRefused: it cannot.
        """
        fence = self._fence
        entries = self._internals.registry.read()
        refusal = refusal_of(*fence.sides(), fence.database, fence.source, fence.target, entries)
        if refusal is not None:
            raise MoveRefused(f"shard {self._shard}: {refusal}")
        _, there = fence.sides()
        if "shard_identity" in there.plain:
            rows = fence.target.rows(select_identity(fence.database))
            try:
                # Whoever made the tables may have died before they said whose they are.
                if rows or there.has_cell:
                    check_identity(rows, fence.database, fence.target.node, self._identity)
            except ShardIdentityMismatch as error:
                raise MoveRefused(f"shard {self._shard}: {error}") from error
        if self._spec.accounts:
            check_accounts(fence.source, fence.target, fence.database)

    @property
    def _identity(self) -> Identity:
        topology = self._topology
        return Identity(topology.name, self._shard, topology.shard_count, topology.placement)

    def _create(self) -> None:
        names = {table: moving.incoming(table, self._token) for table in sql.FENCED}
        create_incoming(self._fence.target, self._fence.database, names, self._identity)
        self._copier = Copier(self._fence.target, self._fence.database, names["cell"])

    def _copy(self, cluster: Cluster) -> None:
        """Copy what is there, then what comes meanwhile, until the rest is short; cut over then.

        Raises:
            MoveRefused: cells come faster than they are copied.
        """
        self._note({"settled_id": self._settled})
        changes = Changes(self._shards)
        give_up_s: float | None = None
        budget_s = min(_FIRST_BUDGET_S, self._spec.max_pause_s)
        self._run.state.top_id = self._top()
        while True:
            self._copy_settled(changes)
            if give_up_s is None:
                # As late as can be: what is written from here on is gone over again.
                self._carried = frozenset(TABLES) | self._indexes.copy(self._fence, self._token)
                self._copy_settled(changes)
            # Only now, so that a shard of a week's copying has as long as others for its cut.
            give_up_s = give_up_s or time.monotonic() + self._spec.give_up_s
            began_s = time.monotonic()
            self._servers.gate()
            if time.monotonic() - began_s > _WAITED_S:
                continue
            # Nothing waits from here to the cut: what is measured is what the cut finds.
            began_s = time.monotonic()
            rest = self._copier.copy_rest(self._fence.source, "cell", self._settled)
            self._save()
            short = self._copier.seconds_for(rest.body_bytes) <= _REST_S and rest.ids <= _MOST_TAIL_IDS
            if short and self._replicas_have_it(cluster):
                if self._cut(budget_s):
                    return
                budget_s = min(2 * budget_s, self._spec.max_pause_s)
            if time.monotonic() > give_up_s:
                raise MoveRefused(
                    f"shard {self._shard} could not be cut over within {self._spec.give_up_s:g} s: cells come faster "
                    "than they are copied, a transaction stays open, a backup holds the server, or the target's "
                    "replicas lag. It is where it was, and all of it is copied; run the same command again"
                )
            self._run.rest(time.monotonic() - began_s)

    def _copy_settled(self, changes: Changes) -> None:
        self._pace.begin()
        rows: Sequence[CellRow] = ()
        while True:
            self._servers.gate()
            began_s = time.monotonic()
            limit = self._pace.cells(rows, called=self._servers.called)
            page = changes.page(self._shard, self._settled, limit, None, "primary")
            rows = page.rows
            self._run.spend(sum(len(row[4]) for row in rows))
            self._copier.copy(rows, self._settled)
            # Its own reads and writes are not those of applications.
            for connection in (self._fence.source, self._fence.target, self._fence.target):
                note_read(connection)
            done = page.next_location == self._settled
            self._settled = page.next_location
            if self._run.due():
                self._save()
            if done:
                return
            self._servers.rest(time.monotonic() - began_s, self._pace.share)
            if self._pace.due(time.monotonic() - began_s):
                self._pace.look(self._settled, self._top(), self._copier.cells, rests=self._servers.called)
                if self._pace.told is not None:
                    told, self._pace.told = self._pace.told, None
                    _log.warning("%s", told)
                    self._run.job_store.note_event(self._run.job.job_id, told[:255])

    def _top(self) -> int:
        return int(self._fence.source.rows(moving.select_top(self._fence.database, "cell"))[0][0] or 0)

    def _save(self) -> None:
        self._note({"settled_id": self._settled})
        state = self._run.state
        state.checkpoint, state.top_id = self._settled, max(state.top_id, self._settled)
        state.cells += self._copier.cells - state.counters.get("noted_cells", 0)
        state.bytes_before += self._copier.body_bytes - state.counters.get("noted_bytes", 0)
        state.counters |= {"noted_cells": self._copier.cells, "noted_bytes": self._copier.body_bytes}
        self._run.checkpoint()

    def _replicas_have_it(self, cluster: Cluster) -> bool:
        """Whether the target's replicas were as good as up to date a moment ago: clients are about to read them."""
        return not cluster.replicas or all(lag_s is not None and lag_s < _LAG_S for lag_s in self._servers.lags)

    # The cut

    def _cut(self, budget_s: float) -> bool:
        """Cut over; return False where the shard was not to be had in time, and nothing has happened."""
        fence = self._fence
        why = ""
        try:
            fence.probe(self._token)
            if not fence.target_settles(self._token, self._spec.max_pause_s / 2):
                why = f"{fence.target.node} writes what was copied to its disk, and renames tables slowly meanwhile"
        except ServerTimeout as error:
            why = f"is a backup running? {error}"
        if why:
            _log.warning("shard %d is not cut over now; %s", self._shard, why)
            self._run.pause(self._hold_off_times * self._spec.max_pause_s)
            return False
        self._raise_counter("cell")
        self._note({"phase": "cutting"})
        self._check_place()
        self._records.ready_to_flip()
        began_s = time.monotonic()
        # Whatever is raised while it is locked ends the sessions, and the locks with them. A RENAME whose reply is an
        # error may have happened all the same: whoever goes on looks at the servers first.
        if fence.lock(budget_s):
            # The budget is for all of it: what was slow now is tried again later.
            until_s = began_s + self._spec.max_pause_s
            if self._copier.copy_rest(fence.source, "cell", self._settled, until_s=until_s).whole:
                carry_over(fence.source, fence.target, fence.database, self._token, fenced=False)
            if time.monotonic() < until_s and next_id(fence.source, fence.database, "cell") <= self._target_counter:
                fence.rename_source(self._token)
                fence.unlock()
                return self._finish_cut(began_s)
            fence.unlock()
        self._hold_off(began_s)
        return False

    def _hold_off(self, began_s: float) -> None:
        took_s = time.monotonic() - began_s
        self._note({"phase": "copying"})
        self._run.pause(self._hold_off_times * took_s)

    def _check_place(self) -> None:
        """Refuse where the catalog names other servers by now, or the shard has got a table that would stay behind.

        Raises:
            MoveRefused: so it is.
        """
        source, _ = self._fence.sides()
        if more := sorted(source.plain - self._carried):
            raise MoveRefused(
                f"shard {self._shard} has a new table {more[0]} since its move began; abort the move, or drop the "
                "table and run the same command again"
            )
        now = self._shards.again(self._shards.routing).topology
        names = {self._topology.cluster_of(self._shard).name, self._spec.target}
        before = {name: self._topology.cluster(name) for name in names}
        replaced = any(
            (now.cluster(name).primary, now.cluster(name).epoch) != (cluster.primary, cluster.epoch)
            for name, cluster in before.items()
        )
        if replaced or now.cluster_of(self._shard).name != self._topology.cluster_of(self._shard).name:
            raise MoveRefused(
                f"the servers of shard {self._shard} have changed since copying began; the shard is where it was. Run "
                "the same command again"
            )

    def _finish_cut(self, began_s: float) -> bool:
        """Copy what lacks of the table that was taken away, and have the target's take its place.

        What counts is what is read here, by another session than the one that held the lock.

        Returns:
            False where something holds the target, such as a backup: the shard is where it was, and is used again.
        """
        fence = self._fence
        left = moving.moved("cell", self._token)
        try:
            self._raise_counter(left)
            self._copier.copy_rest(fence.reader, left, self._settled)
            carry_over(fence.reader, fence.target, fence.database, self._token, fenced=True)
            fence.rename_target(self._token)
        except ServerTimeout as error:
            _, target = fence.sides()
            # A RENAME whose reply is an error may have happened all the same.
            if not target.has_cell:
                fence.rename_back(self._token)
                _log.warning("shard %d is not cut over now; is a backup running? %s", self._shard, error)
                fence.take_over(self._token)
                self._hold_off(began_s)
                return False
        self._flip(began_s)
        return True

    def _flip(self, began_s: float) -> None:
        fence = self._fence
        fence_id = int(
            fence.reader.rows(moving.select_top(fence.database, moving.moved("cell", self._token)))[0][0] or 0
        )
        changes = {"fence_id": fence_id, "settled_id": fence_id}
        self._records.flip(self._run, self._topology, self._spec.target, self._token, changes)
        pause_s = time.monotonic() - began_s
        self._note({"pause_s": pause_s}, phases=("moved",))
        self._run.state.counters["pause_s"] = round(pause_s, 4)
        self._shards.again(self._shards.routing)

    def _raise_counter(self, table: str) -> None:
        """Have the target give out ids far above those that the source gives out."""
        fence = self._fence
        wanted = next_id(fence.source, fence.database, table)
        incoming = moving.incoming("cell", self._token)
        self._target_counter = next_id(fence.target, fence.database, incoming)
        if self._target_counter < wanted + ROOM // 2:
            self._target_counter = wanted + ROOM
            fence.target.execute(sql.raise_counter(fence.database, incoming, self._target_counter))

    # Notes

    def _note(
        self,
        changes: dict[str, str | int | float | None],
        *,
        token: str | None = "",
        phases: tuple[Phase, ...] | None = None,
    ) -> None:
        token = self._token if token == "" else token
        self._records.note(self._run, changes, token=token, phases=phases or self._phases)

    def _read(self) -> MoveRecord:
        return self._records.all(self._run.job.job_id, self._shard)[0]


def _told_apart(cluster: Cluster, connection: Connection) -> str:
    """Return what tells a cluster's primary from another, and from itself after a failover."""
    server = connection.rows(sql.SELECT_SERVER)[0][0]
    return hashlib.sha256(f"{cluster.epoch} {server}".encode()).hexdigest()[:_TOLD_APART_BY]


def _named(side: Side) -> str:
    names = [*sorted(side.plain & {"cell"}), *side.moved.get("cell", ()), *side.incoming.get("cell", ())]
    return " and ".join(names) or "no table of cells"
