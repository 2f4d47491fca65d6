"""The two doors of an open datastore: what applications call, and what this package's own internals may touch."""

from __future__ import annotations

import pytest

from schemaless.internals import Internals, internals_of

pytestmark = pytest.mark.mysql

CALLS = {
    "append_cell",
    "close",
    "codec_for",
    "column_names",
    "decode",
    "end_of_shard",
    "get_cell",
    "get_cell_latest",
    "get_cells_for_shard",
    "get_cells_latest",
    "get_row",
    "get_stored_cells_for_shard",
    "get_stored_versions",
    "get_versions",
    "index",
    "iter_shard",
    "name",
    "put_cell",
    "put_cells",
    "put_stored_cells",
    "scan_shard",
    "shard_count",
    "shard_of",
}
"""What completion on an open datastore shows."""


def test_completion_shows_what_applications_call(store):
    """Nothing of its inside is among it: neither a method, nor what an instance holds."""
    shown = {name for name in dir(store) if not name.startswith("_")}

    assert shown == CALLS


def test_tools_are_one_and_the_same(store):
    """Whoever asks gets the internals that the datastore's own calls use."""
    internals = internals_of(store)

    assert isinstance(internals, Internals)
    assert internals_of(store) is internals
    assert internals.topology is internals.shards.topology
    assert (internals.topology.name, internals.topology.shard_count) == (store.name, store.shard_count)
