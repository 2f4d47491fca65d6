"""Metrics, samples of them, and what collects these. Values only: nothing here knows Prometheus or a server.

Labels name parts of a datastore: a cluster, a server, a shard, a column, a job. None is a row key, a document, a
statement or a message, and none has values without bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from schemaless.datastore import Datastore

PREFIX: Final = "schemaless_"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric.

    Attributes:
        name: without ``PREFIX``; a counter's without ``_total``.
        text: one sentence for people.
        labels: names of its labels; ``datastore`` comes by itself.
        kind: "counter" for what only grows while its labels stay.
    """

    name: str
    text: str
    labels: tuple[str, ...] = ()
    kind: Literal["gauge", "counter"] = "gauge"

    @property
    def exported(self) -> str:
        """The name that queries use."""
        return PREFIX + self.name + ("_total" if self.kind == "counter" else "")

    def at(self, value: float, *labels: object) -> Sample:
        """Return a sample, with the values of its labels in their order."""
        assert len(labels) == len(self.labels), self.name
        return Sample(self, tuple(map(str, labels)), float(value))


class Sample(NamedTuple):
    """The value of a metric for some labels."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


Read = Callable[[], Iterable[Sample]]
"""This asks for all samples of a collector.

An error of this package that it raises leaves them out until it works again.
"""


@dataclass(frozen=True, slots=True)
class Collector:
    """Where samples come from.

    Attributes:
        name: the label under which its own success is told.
        metrics: all that it may give.
        every_s: how long to rest between two readings.
        reading: makes what reads, for one datastore; it may keep what it has seen from one reading to the next.
    """

    name: str
    metrics: tuple[Metric, ...]
    every_s: float
    reading: Callable[[Datastore], Read]
