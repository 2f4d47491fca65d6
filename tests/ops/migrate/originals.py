"""Cells of many kinds, and a minimal migration, for the tests of archives."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from schemaless import Datastore, NewStoredCell
from schemaless.codec.recode import recode
from schemaless.codec.registry import DEFAULT, Codec
from schemaless.errors import SchemalessError
from schemaless.ops.jobs.throttle import Thresholds
from schemaless.ops.migrate.archive import ArchiveWriter, archived, digest_of
from schemaless.ops.migrate.restore import RestoreOutcome, RestoreSpec, count
from schemaless.ops.migrate.restore import run as run_restore
from schemaless.ops.migrate.sql import update_bodies
from schemaless.store.internals import internals_of
from tests.skips import shared

NO_THRESHOLDS = Thresholds(None, None, None, None, None, None)

TEXTS = [
    *(json.dumps({"n": n, "text": "a longer text " * (n % 7)}, indent=n % 3).encode() for n in range(90)),
    b'{"n": 123456789012345678901234567890, "t": "%b"}' % (b"text " * 40),
    b'{"s": "\\ud800", "t": "%b"}' % (b"text " * 40),
    b'{"a": 1, "a": 2, "t": "%b"}' % (b"text " * 40),
    b" [1.0, 1e2, -0.0, NaN] ",
]


def public_texts() -> list[bytes]:
    """Return every text of the suite, valid and invalid, and every fifth line of the corpora."""
    suite = shared("conformance", "JSONTestSuite")
    texts = [path.read_bytes() for path in sorted(suite.glob("test_*/*.json"))]
    assert len(texts) > 330
    for path in sorted(shared("data").glob("*.ndjson.gz")):
        texts += gzip.decompress(path.read_bytes()).splitlines()[::5]
    return texts


def load(store: Datastore, new_row: Any, texts: Iterable[bytes] = TEXTS) -> list[NewStoredCell]:
    """Store legacy texts, each in a new row."""
    cells = [NewStoredCell(new_row(), "AB"[number % 2], number, text) for number, text in enumerate(texts)]
    store.put_stored_cells(cells, trusted=True)
    return cells


def everything(store: Datastore) -> dict[tuple[int, int], tuple[Any, ...]]:
    """Return key, body and created_at of every cell by shard and added_id."""
    return {
        (shard, cell.added_id): (cell.key, cell.body, cell.created_at)
        for shard in range(store.shard_count)
        for cell in store.scan_shard(shard)
    }


def migrate(
    store: Datastore, folder: Path, codec: Codec = DEFAULT, *, job_id: int = 1, epoch: int = 1, update: bool = True
) -> int:
    """Archive and replace every body that is not in ``codec``; return the number of cells."""
    done = 0
    for shard in range(store.shard_count):
        changes = []
        for cell in store.scan_shard(shard):
            try:
                recoded = recode(cell.body, codec)
            except SchemalessError:
                continue
            if not recoded.unchanged:
                changes.append((cell, recoded.body))
        if not changes:
            continue
        with ArchiveWriter.create(
            folder, datastore=store.name, shard=shard, shard_count=store.shard_count, job_id=job_id, epoch=epoch
        ) as writer:
            for start in range(0, len(changes), 10):
                writer.append([archived(cell, body) for cell, body in changes[start : start + 10]])
        if update:
            sql = update_bodies(
                internals_of(store).shards.database(shard),
                ((cell.added_id, digest_of(cell.body), body) for cell, body in changes),
            )
            internals_of(store).shards.execute(shard, sql)
        done += len(changes)
    return done


def restore(
    store: Datastore,
    folders: Iterable[Path],
    shards: Iterable[int] | None = None,
    *,
    execute: bool = True,
    job: int | None = None,
    full_row_images: bool = False,
    thresholds: Thresholds = NO_THRESHOLDS,
    **how: Any,
) -> RestoreOutcome:
    """Restore originals, or count them; ``how`` is passed on."""
    chosen = None if shards is None else tuple(shards)
    spec = RestoreSpec(tuple(map(str, folders)), chosen, job, full_row_images, thresholds=thresholds)
    return run_restore(store, spec, **how) if execute else count(store, spec, **how)
