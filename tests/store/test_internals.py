"""The public calls of an open datastore, and its internals."""

from __future__ import annotations

import pytest

from schemaless.store.internals import Internals, internals_of

pytestmark = pytest.mark.mysql

CALLS = {
    "append_cell",
    "arrow",
    "close",
    "codec_for",
    "column",
    "column_names",
    "count",
    "create_index",
    "decode",
    "drop_index",
    "end_of_shard",
    "erase",
    "erase_many",
    "get_cell",
    "get_cell_latest",
    "get_cells_for_shard",
    "get_cells_latest",
    "get_erased_for_shard",
    "get_row",
    "get_rows",
    "get_stored_cells_for_shard",
    "get_stored_versions",
    "get_versions",
    "index",
    "indexes",
    "iter_cells",
    "iter_shard",
    "name",
    "ping",
    "put_cell",
    "put_cells",
    "put_row",
    "put_stored_cells",
    "scan_shard",
    "shard_count",
    "shard_of",
}
"""Public names of a Datastore, as shown by completion."""


def test_completion_shows_what_applications_call(store):
    """No internal method or attribute is among them."""
    shown = {name for name in dir(store) if not name.startswith("_")}

    assert shown == CALLS


def test_internals_are_created_once(store):
    """internals_of returns the internals that the datastore's own calls use."""
    internals = internals_of(store)

    assert isinstance(internals, Internals)
    assert internals_of(store) is internals
    assert internals.topology is internals.shards.topology
    assert (internals.topology.name, internals.topology.shard_count) == (store.name, store.shard_count)
