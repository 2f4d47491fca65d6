"""Reads the cold files that shards list; the files themselves and cells are not read."""

from __future__ import annotations

from typing import Final

from schemaless.base.parts import parts
from schemaless.errors import SchemalessError
from schemaless.monitoring.status.model import ColdView
from schemaless.store.cold.sql import count_files
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.topology.model import Cluster
from schemaless.wire.parallel import on_servers

_SHARDS_AT_ONCE: Final = 64


class ColdReader:
    """Counts the cold files of each cluster, with a statement for every 64 shards.

    Args:
        store: the datastore.
    """

    def __init__(self, store: Datastore) -> None:
        self._internals = internals_of(store)

    def __call__(self) -> tuple[ColdView, ...]:
        """Return the cold files of each cluster that answers; none at all if there is no cold store."""
        if self._internals.cold.store() is None:
            return ()
        clusters = self._internals.topology.clusters
        read = on_servers([(cluster.primary, cluster) for cluster in clusters], self._read, 1)
        return tuple(sorted((view for view in read if view is not None), key=lambda view: view.cluster))

    def _read(self, cluster: Cluster) -> ColdView | None:
        shards = self._internals.shards
        files, size, waiting = 0, 0, 0
        erasures = []
        try:
            for part in parts(self._internals.topology.shards_of(cluster.name), _SHARDS_AT_ONCE):
                for row in shards.rows(part[0], count_files(map(shards.database, part))):
                    files, size, waiting = files + int(row[0]), size + int(row[1]), waiting + int(row[2])
                    erasures += [] if row[3] is None else [int(row[3])]
        except SchemalessError:  # the state of its server is reported with the servers
            return None
        if not erasures:
            return ColdView(cluster.name, files, size)
        first = self._internals.erasures.ledger.entry(min(erasures))
        return ColdView(cluster.name, files, size, waiting, first.number, first.kind != "keys")
