"""Catalog records of moves. If a record contradicts the tables on the servers, the servers are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from schemaless.errors import LeaseLost
from schemaless.ops.jobs.runner import ShardRun
from schemaless.ops.move import sql
from schemaless.ops.move.spec import BEFORE_COMMIT, Phase
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.topology.catalog import write_shard_location
from schemaless.topology.model import Topology
from schemaless.wire.connection import Connection
from schemaless.wire.sql.parts import Value


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """Catalog record of one shard's move.

    Attributes:
        job_id: the move job.
        shard: number of the shard.
        source: the cluster that had the shard.
        target: the cluster that the shard moves to.
        phase: progress of the move.
        token: token in the names of its tables; None until a runner has started.
        settled_id: the target has all cells up to this id.
        verified_id: cells up to this id were verified after the move.
        fence_id: highest added_id of the leftovers; None before the flip.
        fence_rows: number of cells in the leftovers; None before verification.
        target_server: fingerprints of the two servers used by the copy, separated by a space; None before the copy.
        pause_s: duration of the cutover, during which reads and writes waited, in seconds.
    """

    job_id: int
    shard: int
    source: str
    target: str
    phase: Phase
    token: str | None
    settled_id: int
    verified_id: int
    fence_id: int | None
    fence_rows: int | None
    target_server: str | None
    pause_s: float | None

    @property
    def servers(self) -> list[str]:
        """Fingerprints of the copy's source and target servers; empty before the copy."""
        return (self.target_server or "").split()


class Records:
    """Reads and updates the move records of a datastore."""

    def __init__(self, store: Datastore) -> None:
        self._internals = internals_of(store)
        shards = self._internals.shards
        # The flip has its own connection, opened beforehand, with this program's timeouts.
        self._flipping = shards.pools.new_pool(self._internals.catalog.node, replace(shards.pools.options, pool_size=1))
        self._name = store.name

    def all(self, job_id: int | None = None, shard: int | None = None) -> list[MoveRecord]:
        """Return the records of all moves, of one job, or of one shard, sorted by job and shard."""
        rows = self._internals.catalog.rows(sql.select_moves(self._name, job_id, shard))
        return [MoveRecord(*row) for row in rows]

    def begin(self, job_id: int, shard: int, source: str, target: str) -> MoveRecord:
        """Insert the record of a shard's move unless it exists, and return the stored record."""
        self._internals.catalog.execute(sql.insert_move(self._name, job_id, shard, source, target))
        return self.all(job_id, shard)[0]

    def note(self, run: ShardRun, changes: Mapping[str, Value], phases: Sequence[Phase]) -> None:
        """Update the record of a shard that this runner holds.

        Args:
            run: the job's run on the shard.
            changes: new values by column.
            phases: the phases that the record may be in.

        Raises:
            LeaseLost: another runner has the shard, or the record has another phase.
        """
        statement = sql.update_move(self._name, run.state.lease(run.job.job_id), changes, phases)
        if not self._internals.catalog.execute(statement).affected:
            raise self._lost(run)

    def flip(self, run: ShardRun, before: Topology, target: str, changes: Mapping[str, Value]) -> None:
        """Assign the shard to the target in the catalog, and update its record in the same transaction.

        Raises:
            LeaseLost: another runner has the shard.
            TopologyError: the primary of one of the clusters has changed since ``before``.
            OutcomeUnknown: the reply was lost; repeating the call settles the outcome.
        """
        lease, phases = run.state.lease(run.job.job_id), (*BEFORE_COMMIT, "moved")
        statement = sql.update_move(self._name, lease, {"phase": "moved", **changes}, phases)

        def update_records(connection: Connection) -> None:
            if not connection.execute(statement).affected:
                raise self._lost(run)
            connection.execute(sql.add_cluster_to_jobs(self._name, target))

        try:
            write_shard_location(self._flipping, before, run.state.shard, target, update_records)
        finally:
            self._flipping.close()

    def ready_to_flip(self) -> None:
        """Open the connection for ``flip`` before the shard is locked."""
        self._flipping.run(lambda connection: connection.version)

    def note_outcome(self, job_id: int, shard: int, before: Sequence[Phase], changes: Mapping[str, Value]) -> bool:
        """Update a shard's record from outside a runner; return False if it is not in one of the phases ``before``."""
        statement = sql.note_outcome(self._name, job_id, shard, before, changes)
        return bool(self._internals.catalog.execute(statement).affected)

    @staticmethod
    def _lost(run: ShardRun) -> LeaseLost:
        return LeaseLost(
            f"the move of shard {run.state.shard} by job {run.job.job_id} was taken over by another runner or aborted; "
            "this runner has stopped without further changes"
        )
