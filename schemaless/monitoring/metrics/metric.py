"""Types of metrics, samples and collectors, independent of Prometheus.

Labels name parts of a datastore, such as a cluster, server, shard, column or job. They never contain row keys,
documents, statements or messages, and the number of their values is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from schemaless.store.datastore import Datastore

PREFIX: Final = "schemaless_"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric.

    Attributes:
        name: its name, without ``PREFIX`` and a counter's ``_total``.
        text: help text, one sentence.
        labels: label names; ``datastore`` is added to every metric.
        kind: "counter" if the value never decreases for the same labels.
    """

    name: str
    text: str
    labels: tuple[str, ...] = ()
    kind: Literal["gauge", "counter"] = "gauge"

    @property
    def exported(self) -> str:
        """Full name, as used in queries."""
        return PREFIX + self.name + ("_total" if self.kind == "counter" else "")

    def at(self, value: float, *labels: object) -> Sample:
        """Return a sample; ``labels`` are the label values in order."""
        assert len(labels) == len(self.labels), self.name
        return Sample(self, tuple(map(str, labels)), float(value))


class Sample(NamedTuple):
    """The value of a metric for some labels."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


Read = Callable[[], Iterable[Sample]]
"""Reads all samples of a collector. After a ``SchemalessError``, there are no samples until the next reading."""


@dataclass(frozen=True, slots=True)
class Collector:
    """A source of samples.

    Attributes:
        name: its ``collector`` label in the metrics about readings.
        metrics: all metrics that it may return.
        every_s: pause between readings, in seconds.
        reading: creates a reader for a datastore; the reader may keep state between calls.
    """

    name: str
    metrics: tuple[Metric, ...]
    every_s: float
    reading: Callable[[Datastore], Read]
