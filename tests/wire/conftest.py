"""Connection pool of a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.urls import parse_url


@pytest.fixture
def pool(server_urls: list[str]) -> Iterator[NodePool]:
    """Pool of the first server."""
    parsed = parse_url(server_urls[0])
    pool = NodePool(parsed.node, parsed.credentials, PoolOptions())
    yield pool
    pool.close()
