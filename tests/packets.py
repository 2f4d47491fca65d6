"""Datastores whose servers take short statements only."""

from __future__ import annotations

from dataclasses import replace

from schemaless.store.datastore import Datastore
from schemaless.store.opening import opening_of


def small_packets(store: Datastore, most_bytes: int) -> Datastore:
    """Return the datastore, opened once more as if its servers' ``max_allowed_packet`` were this."""
    opening = opening_of(store)
    return replace(opening, options=replace(opening.options, max_packet_bytes=most_bytes)).open()
