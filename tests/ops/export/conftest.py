"""Fixtures for tests of exports: exporters as workers that run turn by turn, and what the files have."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemaless import Datastore
from schemaless.ops.export.admin import prepare
from schemaless.ops.export.exporter import Exporter, Pace
from schemaless.ops.export.manifest import Definition
from schemaless.store.cold.targets import open_target
from schemaless.store.followers.worker import Worker
from schemaless.store.internals import internals_of
from tests.store.followers.conftest import put
from tests.store.followers.workers import CALM, turn

__all__ = ["put"]

ONCE = Pace(once=True)


@pytest.fixture
def worker_of(follow_store: Datastore, tmp_path: Path) -> Callable[..., Worker]:
    """Prepares an export to ``tmp_path / "lake"`` and returns a worker for it."""

    def make(
        pace: Pace = ONCE,
        name: str = "w1",
        *,
        columns: tuple[str, ...] | None = None,
        fields: tuple[str, ...] = (),
        latest: bool = False,
        uri: str | None = None,
    ) -> Worker:
        uri = uri or str(tmp_path / "lake")
        wanted = Definition("parquet", follow_store.name, follow_store.shard_count, columns, fields, latest)
        definition = prepare(follow_store, uri, wanted)
        internals = internals_of(follow_store)
        return Worker(
            internals.follower_access,
            [Exporter(internals, open_target(uri), definition, pace)],
            name,
            timing=CALM,
            stop=threading.Event(),
        )

    return make


@pytest.fixture
def export(worker_of: Callable[..., Worker]) -> Callable[..., Worker]:
    """Prepares an export, as ``worker_of`` does, and runs a worker for it, a number of turns."""

    def run(name: str = "w1", *, pace: Pace = ONCE, times: int = 4, **definition: Any) -> Worker:
        worker = worker_of(pace, name, **definition)
        with worker.membership:
            turn(worker, times=times)
            worker.release_all()
        return worker

    return run


def rows_of(folder: Path, what: str = "*") -> list[dict[str, Any]]:
    """Return the rows that DuckDB reads from the files of a folder."""
    import duckdb  # here, since each process that runs tests collects all of them

    query = f"SELECT {what} FROM read_parquet('{folder}/*/*.parquet', union_by_name=true)"
    return duckdb.sql(query).to_arrow_table().to_pylist()
