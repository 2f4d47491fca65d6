"""The exporter: reads its collectors beside each other, and answers Prometheus with what they read last.

A scrape waits for no server of the datastore. To add a collector, write a module with a ``Collector`` and name that in
``COLLECTORS``; docs/metrics.md lists its metrics, and a test holds the two together.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector as RegistryCollector

from schemaless.datastore import Datastore
from schemaless.errors import InvalidInput, SchemalessError
from schemaless.metrics.capacity import CAPACITY
from schemaless.metrics.feed import FEED
from schemaless.metrics.followers import FOLLOWERS
from schemaless.metrics.indexes import INDEXES
from schemaless.metrics.jobs import JOBS
from schemaless.metrics.metric import PREFIX, Collector, Metric, Sample
from schemaless.metrics.servers import SERVERS

log = logging.getLogger("schemaless")

COLLECTORS: Final = (JOBS, SERVERS, FEED, FOLLOWERS, INDEXES, CAPACITY)

SHARDS: Final = Metric("shards", "The number of shards of the datastore.")
READ: Final = Metric("collector_up", "1 where the collector's last reading succeeded.", ("collector",))
SECONDS: Final = Metric("collector_seconds", "Seconds that the collector's last reading took.", ("collector",))
OWN: Final = (SHARDS, READ, SECONDS)
_STOP_WAIT_S: Final = 5.0


class Exporter(RegistryCollector):
    """Answers scrapes while its ``with`` block lasts."""

    def __init__(self, store: Datastore, collectors: Sequence[Collector] = COLLECTORS) -> None:
        self._store = store
        self._collectors = collectors
        # Replaced as a whole by one thread each, read by scrapes: no lock.
        self._samples: dict[str, tuple[Sample, ...]] = {}
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._keep_reading, args=(collector,), name=f"metrics {collector.name}", daemon=True
            )
            for collector in collectors
        ]
        self.registry = CollectorRegistry(auto_describe=False)

    def __enter__(self) -> Self:
        self.registry.register(self)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(_STOP_WAIT_S)

    @contextmanager
    def serve(self, host: str, port: int) -> Iterator[int]:
        """Answer on an address for the length of a ``with`` block, and give the port; 0 takes a free one.

        Raises:
            InvalidInput: the address cannot be listened on.
        """
        try:
            server, thread = start_http_server(port, host, self.registry)
        except OSError as problem:
            raise InvalidInput(f"cannot listen on {host}:{port}: {problem.strerror}") from None
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join(_STOP_WAIT_S)

    def collect(self) -> Iterable[Family]:
        """Return what was read last, for the registry."""
        own = (SHARDS.at(self._store.shard_count),)
        families: dict[Metric, Family] = {}
        for sample in (*own, *(sample for samples in list(self._samples.values()) for sample in samples)):
            metric = sample.metric
            if metric not in families:
                family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                families[metric] = family(PREFIX + metric.name, metric.text, labels=("datastore", *metric.labels))
            families[metric].add_metric((self._store.name, *sample.labels), sample.value)  # type: ignore[attr-defined]
        return families.values()

    def read(self, collector: Collector) -> Iterator[None]:
        """Read a collector again with each step."""
        reading = collector.reading(self._store)
        failed = False
        while True:
            began_s = time.monotonic()
            samples: tuple[Sample, ...] = ()
            # Whatever ends it, nothing old is told any longer.
            try:
                samples = tuple(reading())
                failed = False
            except SchemalessError as problem:
                if not failed:  # once: a server that is down for a night fills no log
                    log.warning("metrics of %s: %s", collector.name, problem)
                failed = True
            except BaseException:
                self._samples[collector.name] = (READ.at(0, collector.name),)
                raise
            seconds = time.monotonic() - began_s
            told = (READ.at(not failed, collector.name), SECONDS.at(seconds, collector.name))
            self._samples[collector.name] = (*told, *samples)
            yield

    def _keep_reading(self, collector: Collector) -> None:
        for _ in self.read(collector):
            if self._stopped.wait(collector.every_s):
                return
