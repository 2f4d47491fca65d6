"""End of each shard's change feed. A consumer's lag is that end minus the consumer's location."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from schemaless.errors import ServerTimeout, ServerUnavailable
from schemaless.monitoring.metrics.metric import Collector, Metric, Read, Sample
from schemaless.store.cells.sql import select_id_span
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of

_EVERY_S: Final = 30.0

END: Final = Metric(
    "feed_end_location",
    "Highest added_id of the shard, at which its change feed ends; never decreases.",
    ("cluster", "shard"),
)


def _reading(store: Datastore) -> Read:
    shards = internals_of(store).shards

    def read() -> Iterator[Sample]:
        for cluster in shards.topology.clusters:
            for shard in shards.topology.shards_of(cluster.name):
                try:
                    _, top = shards.rows(shard, select_id_span(shards.database(shard)))[0]
                except (ServerUnavailable, ServerTimeout):
                    break  # server_up reports it; continue with the other clusters
                yield END.at(top or 0, cluster.name, shard)

    return read


FEED: Final = Collector("feed", (END,), _EVERY_S, _reading)
