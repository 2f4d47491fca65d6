"""Later revisions than there are, for tests: what an upgrade from this version's tables would be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import BigInteger, Column, MetaData

from schemaless.schema import creation as making
from schemaless.schema import revisions, versions
from schemaless.schema.tables import shard_metadata

FIRST, LAST = "shard_later_1", "shard_later_2"


@contextmanager
def installed() -> Iterator[None]:
    """Make the later revisions, and the tables that they lead to, this version's for the block."""
    original = versions.folders
    later = MetaData()
    for table in shard_metadata.sorted_tables:
        table.to_metadata(later)
    later.tables["cell"].append_column(Column("later", BigInteger()))
    try:
        with pytest.MonkeyPatch.context() as patch:
            for module in (revisions, versions):
                patch.setattr(module, "folders", lambda: [*original(), Path(__file__).parent])
            patch.setitem(revisions.METADATA, "shard", later)
            _forget()
            yield
    finally:
        _forget()


def _forget() -> None:
    for cached in (versions.head, versions.known_revisions, revisions._chain, making._create_statements):
        cached.cache_clear()
