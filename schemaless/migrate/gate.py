"""Waits for one process that changes bodies on its own, by the same thresholds as a job."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from schemaless.errors import SchemalessError
from schemaless.jobs.names import runner_name
from schemaless.jobs.throttle import ClusterWatch, Thresholds
from schemaless.store.datastore import Datastore

_LOOK_EVERY_S: Final = 0.5


class Gate:
    """Lets a statement through when the servers of its shard allow it. A context manager.

    Args:
        store: the datastore.
        thresholds: when to wait; None lets everything through.
        on_wait: called with the cluster and the reason when a wait begins, or its reason changes.
    """

    def __init__(
        self, store: Datastore, thresholds: Thresholds | None, on_wait: Callable[[str, str], None] = lambda *why: None
    ) -> None:
        self._store = store
        self._thresholds = thresholds
        self._on_wait = on_wait
        self._watches: dict[str, ClusterWatch] = {}
        self._looked_s: dict[str, float] = {}
        self._writer = runner_name()[:255]
        self._paid_until_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for watch in self._watches.values():
            # What ended the block is what the caller has to hear.
            with suppress(SchemalessError):
                watch.close()

    def wait(self, shard: int, body_bytes: int) -> None:
        """Return when that many bytes of a shard may be replaced; raises what ``ClusterWatch.look`` raises."""
        if self._thresholds is None:
            return
        self._look(shard, self._thresholds)
        if self._thresholds.max_mb_per_s is not None:
            now_s = time.monotonic()
            begins_s = max(now_s, self._paid_until_s)
            self._paid_until_s = begins_s + body_bytes / (self._thresholds.max_mb_per_s * 1e6)
            time.sleep(begins_s - now_s)

    def _look(self, shard: int, thresholds: Thresholds) -> None:
        cluster = self._store.topology.cluster_of(shard)
        watch = self._watches.get(cluster.name)
        if watch is None:
            watch = self._watches[cluster.name] = ClusterWatch(self._store.shards, cluster, thresholds, self._writer)
        if time.monotonic() - self._looked_s.get(cluster.name, float("-inf")) < _LOOK_EVERY_S:
            return
        told = None
        while (reason := watch.look().reason) is not None:
            if reason != told:
                self._on_wait(cluster.name, reason)
                told = reason
            time.sleep(_LOOK_EVERY_S)
        self._looked_s[cluster.name] = time.monotonic()
