"""The exporter: reads each collector in a background thread, and answers scrapes with the latest readings.

A scrape never waits for a server of the datastore. To add a collector, write a module with a ``Collector`` and add it
to ``COLLECTORS``; ``make reference`` adds its metrics to the documentation.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Self

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector as RegistryCollector

from schemaless.errors import InvalidInput, SchemalessError
from schemaless.monitoring.metrics.capacity import CAPACITY
from schemaless.monitoring.metrics.exports import EXPORTS
from schemaless.monitoring.metrics.feed import FEED
from schemaless.monitoring.metrics.followers import FOLLOWERS
from schemaless.monitoring.metrics.indexes import INDEXES
from schemaless.monitoring.metrics.jobs import JOBS
from schemaless.monitoring.metrics.metric import PREFIX, Collector, Metric, Sample
from schemaless.monitoring.metrics.servers import SERVERS
from schemaless.store.datastore import Datastore

log: Final = logging.getLogger("schemaless")

COLLECTORS: Final = (JOBS, SERVERS, FEED, FOLLOWERS, INDEXES, EXPORTS, CAPACITY)

SHARDS: Final = Metric("shards", "Number of shards of the datastore.")
READ: Final = Metric("collector_up", "1 if the collector's last reading succeeded, else 0.", ("collector",))
SECONDS: Final = Metric("collector_seconds", "Duration of the collector's last reading, in seconds.", ("collector",))
OWN: Final = (SHARDS, READ, SECONDS)
_STOP_WAIT_S: Final = 5.0


class Exporter(RegistryCollector):
    """Reads the collectors, and answers scrapes, inside its ``with`` block."""

    def __init__(self, store: Datastore, collectors: Sequence[Collector] = COLLECTORS) -> None:
        self._store = store
        # Needs no lock: only a collector's own thread replaces its value, as a whole.
        self._samples: dict[str, tuple[Sample, ...]] = {}
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._keep_reading, args=(collector,), name=f"metrics {collector.name}", daemon=True
            )
            for collector in collectors
        ]
        self.registry: CollectorRegistry = CollectorRegistry(auto_describe=False)

    def __enter__(self) -> Self:
        self.registry.register(self)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(_STOP_WAIT_S)

    @contextmanager
    def serve(self, host: str, port: int) -> Iterator[int]:
        """Serve scrapes on an address for the duration of a ``with`` block, and yield the port; 0 picks a free one.

        Raises:
            InvalidInput: the exporter cannot listen on the address.
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
        """Return the latest samples, for the registry."""
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
        """Generator that reads a collector at each step."""
        reading = collector.reading(self._store)
        failed = False
        while True:
            began_s = time.monotonic()
            samples: tuple[Sample, ...] = ()
            # A failed reading also discards the previous samples, so that stale values are never exported.
            try:
                samples = tuple(reading())
                failed = False
            except SchemalessError as problem:
                if not failed:  # log once: a server may be down all night
                    log.warning("metrics of %s: %s", collector.name, problem)
                failed = True
            except Exception:
                # A collector with a bug must not end its thread: it may only be one answer that it cannot read.
                if not failed:
                    log.exception("metrics of %s", collector.name)
                failed = True
            seconds = time.monotonic() - began_s
            own = (READ.at(not failed, collector.name), SECONDS.at(seconds, collector.name))
            self._samples[collector.name] = (*own, *samples)
            yield

    def _keep_reading(self, collector: Collector) -> None:
        for _ in self.read(collector):
            if self._stopped.wait(collector.every_s):
                return
