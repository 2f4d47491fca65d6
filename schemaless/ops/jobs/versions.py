"""Versions of the packages that produce stored bytes, and of the servers, recorded with each job."""

from __future__ import annotations

import importlib.metadata
import platform
import zlib
from functools import cache
from typing import Any

from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of


def versions(store: Datastore) -> dict[str, Any]:
    """Return the versions of the packages that produce stored bytes, and of the servers."""
    internals = internals_of(store)
    found: dict[str, Any] = {"python": platform.python_version(), "zlib": zlib.ZLIB_RUNTIME_VERSION, **_installed()}
    found["servers"] = {
        cluster.name: internals.shards.pool_for(cluster.primary).run(lambda connection: connection.version)
        for cluster in internals.topology.clusters
    }
    return found


@cache
def _installed() -> dict[str, str | None]:
    versions: dict[str, str | None] = {}
    for name in (
        *("schemaless-store", "PyMySQL", "msgpack", "zstandard", "ormsgpack", "msgspec", "orjson"),
        "schemaless-packed",
    ):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions
