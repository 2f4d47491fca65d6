"""The erasures of an open datastore: ledger, execution and log."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from schemaless.store.cells.reading import Reader
from schemaless.store.erasures.eraser import Seen, ShardEraser
from schemaless.store.erasures.ledger import Erasure, Ledger, Target
from schemaless.store.followers.erasures import ErasureLog
from schemaless.store.indexes.registry import Registry
from schemaless.topology.placement import shard_for
from schemaless.topology.shards import Shards
from schemaless.wire.pool import NodePool


class Erasures:
    """Erases cells, and keeps the ledger.

    Attributes:
        ledger: the erasures in the catalog.
        log: the shards' logs of erased cells.

    Args:
        shards: the datastore's shards.
        reader: decodes bodies for the indexes.
        registry: the catalog's list of indexes.
        catalog: returns the connections to the catalog's server.
    """

    def __init__(self, shards: Shards, reader: Reader, registry: Registry, catalog: Callable[[], NodePool]) -> None:
        self.ledger: Ledger = Ledger(catalog, shards.topology.name, shards.topology.shard_count)
        self.log: ErasureLog = ErasureLog(shards)
        self._shards = shards
        self._reader = reader
        self._registry = registry

    def eraser(self, shard: int, erasure: int, seen: Seen | None = None) -> ShardEraser:
        """Return an object that erases cells of a shard for an erasure.

        ``seen`` receives each cell before it is erased.
        """
        return ShardEraser(self._shards, self._reader, self._registry, shard, erasure, seen)

    def erase(self, targets: Iterable[Target], reason: str, requested_by: str | None = None) -> Erasure:
        """Record an erasure and execute it on the shards' primaries; see ``Datastore.erase``."""
        wanted = list(targets)
        scope = {"keys": len(wanted)}
        number = self.ledger.intend(reason, wanted, scope=scope, requested_by=requested_by)
        by_shard: dict[int, list[Target]] = {}
        for each in wanted:
            by_shard.setdefault(shard_for(each.row_key, self._shards.topology.shard_count), []).append(each)
        for shard, of_shard in sorted(by_shard.items()):
            eraser = self.eraser(shard, number)
            for _ in eraser.erase_targets(of_shard):
                pass
            self.ledger.record_shard(number, shard, *eraser.executed())
        return self.ledger.entry(number)
