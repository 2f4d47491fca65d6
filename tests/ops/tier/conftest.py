"""A datastore whose cold files are in a folder."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import schemaless
from schemaless import Datastore
from schemaless.ops.tier.cooling import TierSpec
from schemaless.store.cold.settings import TierPolicy
from schemaless.store.internals import internals_of

DOCUMENTS: list[Any] = [
    *({"n": number, "text": "some words, again and again " * 8} for number in range(40)),
    {"nested": {"list": [1, 2.5, None, True, "\u00e9\U0001f600"]}},
    {},
    [],
    "text",
    0,
    -1.5e300,
    2**63,
    None,
]


@pytest.fixture
def cold_folder(tmp_path: Path, admin_url: str) -> Path:
    """The folder of the cold store; columns BASE and LOG become cold at once."""
    folder = tmp_path / "cold"
    with schemaless.connect(admin_url) as admin:
        settings = internals_of(admin).cold
        settings.set_store(str(folder), 30)
        for name in ("BASE", "LOG"):
            settings.set(TierPolicy(name, 0))
    return folder


@pytest.fixture
def cells(fresh_store: Datastore, new_row: Callable[[], Any]) -> dict[schemaless.CellKey, Any]:
    """Cells of two columns and a third one, with versions, and their documents."""
    found = {}
    for number, document in enumerate(DOCUMENTS):
        row = new_row()
        for column, ref_key in (("BASE", 1), ("BASE", 2), ("LOG", number + 1), ("HOT", 1)):
            put = fresh_store.put_cell(row, column, ref_key, {"v": ref_key, "d": document})
            found[put.key] = {"v": ref_key, "d": document}
    return found


@pytest.fixture
def spec(migrate_store: Datastore, cold_folder: Path) -> TierSpec:
    """Everything that was written so far, in files of a few kilobytes."""
    later = datetime.now(UTC) + timedelta(minutes=5)
    return TierSpec(("BASE 0", "LOG 0"), later.isoformat(), file_text_bytes=4_000)
