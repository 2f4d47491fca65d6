"""Disk space that cells would take in another storage engine. Pure functions.

It is estimated by a trial on sampled cells (``planning/sampling/block_trial.py``), which needs no server with the
engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from schemaless.base.numbers import Interval
from schemaless.planning.capacity.measurement import CodecTrial, Measurement
from schemaless.planning.sampling.block_trial import MODEL_ERROR, widened
from schemaless.planning.sampling.sizing import PAGE_MODEL_ERROR
from schemaless.schema.engines import INNODB


@dataclass(frozen=True, slots=True)
class EngineEffect:
    """Effect of a storage engine on a column, from a trial on sampled cells.

    Attributes:
        column_name: Name of the column.
        engine: Name of the storage engine.
        codec: Name of the codec, or None for bodies as they are stored now.
        sampled: Number of cells tried.
        now_per_body: Bytes of disk per body byte now.
        per_body: Bytes of disk that the engine and the codec need per byte of the current bodies.
    """

    column_name: str
    engine: str
    codec: str | None
    sampled: int
    now_per_body: float
    per_body: Interval

    @property
    def share(self) -> Interval:
        """Disk space in the engine relative to the disk space now."""
        return self.per_body.times(1 / self.now_per_body)


@dataclass(frozen=True, slots=True)
class Engines:
    """The storage engines of the clusters, and trials of others.

    Attributes:
        of_cluster: Name of the storage engine by cluster; clusters that are not listed use InnoDB.
        effects: Effects of other engines by column and codec.
        files: Length of a cluster's files by engine, cluster and codec; codec None means bodies as they are stored now.
    """

    of_cluster: Mapping[str, str] = field(default_factory=dict)
    effects: Sequence[EngineEffect] = ()
    files: Mapping[tuple[str, str, str | None], Interval] = field(default_factory=dict)

    def converts(self, cluster: str, engine: str | None) -> bool:
        """Return True if a cluster's cells would have to be converted to an engine."""
        return engine is not None and self.of_cluster.get(cluster, INNODB.name) != engine

    def per_body(self, engine: str | None, codec: str | None, column: str) -> Interval | None:
        """Return an engine and codec's disk space per current body byte; None if too few cells were tried."""
        wanted = (engine, codec, column)
        return next(
            (each.per_body for each in self.effects if (each.engine, each.codec, each.column_name) == wanted), None
        )


NO_ENGINES: Final = Engines()


def engine_effects(
    engine: str,
    trials: Sequence[CodecTrial],
    disk_per_body: Mapping[str, Interval],
    measurement: Measurement,
    weights: Mapping[tuple[str, str], float],
) -> list[EngineEffect]:
    """Express the results of trials in a storage engine as bytes of disk per byte of the current bodies.

    Args:
        engine: Name of the storage engine.
        trials: Codec trials whose present and new sizes both refer to the engine.
        disk_per_body: Bytes of disk that the engine needs per byte of the current bodies, by column, with the sample's
            interval.
        measurement: The newest measurement.
        weights: Result of ``growth_weights``.
    """
    error = PAGE_MODEL_ERROR if engine == INNODB.name else MODEL_ERROR
    found = []
    for column in sorted({trial.column_name for trial in trials if trial.carried} & disk_per_body.keys()):
        groups = [group for group in measurement.groups if group.column_name == column]
        now = sum(group.body_bytes.mid * weights.get((group.cluster, column), 0.0) for group in groups)
        if not now:
            continue
        now /= sum(group.body_bytes.mid for group in groups)
        per_body = widened(disk_per_body[column], error)
        tried = [trial for trial in trials if trial.column_name == column]
        found.append(EngineEffect(column, engine, None, tried[0].sampled, now, per_body))
        found += [
            EngineEffect(column, engine, trial.codec, trial.sampled, now, per_body * trial.migrated_pages_share)
            for trial in tried
            if trial.migrated_pages_share is not None
        ]
    return found
