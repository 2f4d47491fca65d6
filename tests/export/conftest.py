"""Fixtures for tests of exports: exporters as workers that run turn by turn, and what the files have."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from schemaless import Datastore
from schemaless.export.admin import prepare
from schemaless.export.exporter import Exporter, Pace
from schemaless.export.manifest import Definition
from schemaless.export.target import open_target
from schemaless.followers.worker import Worker
from schemaless.internals import internals_of
from tests.followers.conftest import put
from tests.followers.workers import CALM, turn

__all__ = ["put"]

ONCE = Pace(once=True)


@pytest.fixture
def export(follow_store: Datastore, tmp_path: Path) -> Callable[..., Worker]:
    """Prepares an export to ``tmp_path / "lake"`` and runs a worker for it, a number of turns."""

    def run(
        name: str = "w1",
        *,
        columns: tuple[str, ...] | None = None,
        fields: tuple[str, ...] = (),
        latest: bool = False,
        pace: Pace = ONCE,
        uri: str | None = None,
        times: int = 4,
    ) -> Worker:
        uri = uri or str(tmp_path / "lake")
        wanted = Definition("parquet", follow_store.name, follow_store.shard_count, columns, fields, latest)
        definition = prepare(follow_store, uri, wanted)
        internals = internals_of(follow_store)
        worker = Worker(
            internals.follower_access,
            [Exporter(internals, open_target(uri), definition, pace)],
            name,
            timing=CALM,
            stop=threading.Event(),
        )
        with worker.membership:
            turn(worker, times=times)
            worker.release_all()
        return worker

    return run


def rows_of(folder: Path, what: str = "*") -> list[dict[str, Any]]:
    """Return the rows that DuckDB reads from the files of a folder."""
    query = f"SELECT {what} FROM read_parquet('{folder}/*/*.parquet', union_by_name=true)"
    return duckdb.sql(query).to_arrow_table().to_pylist()
