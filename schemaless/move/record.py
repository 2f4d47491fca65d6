"""What the catalog notes of each shard that is moved. The servers know better where the two contradict each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from schemaless.datastore import Datastore
from schemaless.errors import LeaseLost
from schemaless.internals import internals_of
from schemaless.jobs.runner import ShardRun
from schemaless.move import sql
from schemaless.move.spec import BEFORE_COMMIT, Phase
from schemaless.topology.catalog import write_place
from schemaless.topology.model import Topology
from schemaless.wire.connection import Connection
from schemaless.wire.sql.parts import Value


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """A shard's move, as it is noted.

    Attributes:
        source: the cluster that the shard was on.
        target: the one that it goes to.
        phase: how far it is.
        token: what its tables are called by; None before anybody has begun.
        settled_id: all cells up to here are on the target.
        verified_id: all up to here were compared afterwards.
        fence_id: the highest added_id of what was left behind; None before that.
        fence_rows: how many cells that has; None before they were compared.
        target_server: digits that tell the two servers from others that they were copied from and to; None before.
        pause_s: how long readers and writers were held off by the last cut, in seconds.
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
        """The two servers that cells were copied from and to, in this order; nothing before that."""
        return (self.target_server or "").split()


class Records:
    """The moves of a datastore."""

    def __init__(self, store: Datastore) -> None:
        self._internals = internals_of(store)
        shards = self._internals.shards
        # Of its own, which is open beforehand; it waits for no longer than this program does.
        self._flipping = shards.new_pool(self._internals.catalog.node, replace(shards.pools.options, pool_size=1))
        self._name = store.name

    def all(self, job_id: int | None = None, shard: int | None = None) -> list[MoveRecord]:
        """Return moves, those of older jobs first: all, of one job, of one shard."""
        rows = self._internals.catalog.run(
            lambda connection: connection.rows(sql.select_moves(self._name, job_id, shard))
        )
        return [_record(row) for row in rows]

    def begin(self, job_id: int, shard: int, source: str, target: str, phase: Phase = "preparing") -> MoveRecord:
        """Note a shard's move where that was not done, and return it as it is."""
        statement = sql.insert_move(self._name, job_id, shard, source, target, phase)
        self._internals.catalog.run(lambda connection: connection.execute(statement), writes=True)
        return self.all(job_id, shard)[0]

    def note(self, run: ShardRun, changes: Mapping[str, Value], *, token: str | None, phases: Sequence[Phase]) -> None:
        """Change what is noted of a shard that this runner has.

        Raises:
            LeaseLost: it is another runner's by now, or in another phase.
        """
        statement = self._guarded(run, changes, token, phases)
        if not self._internals.catalog.run(lambda connection: connection.execute(statement).affected, writes=True):
            raise self._lost(run)

    def flip(self, run: ShardRun, before: Topology, target: str, token: str, changes: Mapping[str, Value]) -> None:
        """Have the catalog name the target for a shard.

        Raises:
            LeaseLost: the shard is another runner's by now.
            TopologyError: servers of the two clusters changed meanwhile.
            OutcomeUnknown: the reply was lost; doing it again settles it.
        """
        statement = self._guarded(run, {"phase": "moved", **changes}, token, (*BEFORE_COMMIT, "moved"))

        def with_it(connection: Connection) -> None:
            if not connection.execute(statement).affected:
                raise self._lost(run)
            connection.execute(sql.add_cluster_to_jobs(self._name, target))

        try:
            write_place(self._flipping, before, run.state.shard, target, with_it)
        finally:
            self._flipping.close()

    def ready_to_flip(self) -> None:
        """Open the connection that ``flip`` needs, while nobody waits for it."""
        self._flipping.run(lambda connection: connection.version)

    def note_outcome(self, job_id: int, shard: int, before: Sequence[Phase], changes: Mapping[str, Value]) -> bool:
        """Change what is noted of a shard that nobody works on; False where it is in another phase."""
        statement = sql.note_outcome(self._name, job_id, shard, before, changes)
        return bool(self._internals.catalog.run(lambda connection: connection.execute(statement).affected, writes=True))

    def _guarded(
        self, run: ShardRun, changes: Mapping[str, Value], token: str | None, phases: Sequence[Phase]
    ) -> bytes:
        state = run.state
        return sql.update_move(
            self._name,
            run.job.job_id,
            state.shard,
            changes,
            runner=state.runner or "",
            epoch=state.epoch,
            token=token,
            phases=phases,
        )

    @staticmethod
    def _lost(run: ShardRun) -> LeaseLost:
        return LeaseLost(
            f"the move of shard {run.state.shard} by job {run.job.job_id} was taken over by another runner, or "
            "aborted; this one changed nothing more"
        )


def _record(row: tuple[object, ...]) -> MoveRecord:
    job_id, shard, source, target, phase, token, settled, verified, fence_id, fence_rows, server, pause_s = row
    return MoveRecord(
        int(cast("int", job_id)),
        int(cast("int", shard)),
        str(source),
        str(target),
        cast("Phase", str(phase)),
        None if token is None else str(token),
        int(cast("int", settled)),
        int(cast("int", verified)),
        None if fence_id is None else int(cast("int", fence_id)),
        None if fence_rows is None else int(cast("int", fence_rows)),
        None if server is None else str(server),
        None if pause_s is None else float(cast("float", pause_s)),
    )
