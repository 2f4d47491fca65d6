"""Receipts of erasures: what was removed, what remains, where, until when, and who has to remove it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from schemaless.errors import ColdStoreUnavailable, InvalidInput, ServerError
from schemaless.ops.erasure.cold_files import ColdEraser
from schemaless.ops.erasure.exports import erased_exports
from schemaless.ops.erasure.places import places
from schemaless.ops.erasure.sql import SHOW_LOG_EXPIRY
from schemaless.ops.erasure.status import record_acknowledgements
from schemaless.store.datastore import Datastore
from schemaless.store.erasures.sql import STEPS
from schemaless.store.internals import Internals, internals_of
from schemaless.wire.node import Node

_UNTIL_UNKNOWN: Final = "until an operator purges them"
_PAGES: Final = "earlier pages: in undo and redo logs until they are reused, in free space of tables until a rebuild"
_REPLACED: Final = "their owner replaces them"


def receipt(store: Datastore, number: int) -> dict[str, Any]:
    """Return the receipt of an erasure as JSON values; it contains keys but no documents.

    Raises:
        InvalidInput: there is no such erasure.
        ServerError: a primary cannot be reached.
    """
    internals = internals_of(store)
    found = record_acknowledgements(store, number)
    entry = found.entry
    where = places(store, [shard.shard for shard in entry.shards])
    targets = [str(target) for target in internals.erasures.ledger.targets(number)]
    exports = erased_exports(store, entry, found.waiting)
    nodes = [node for name in where.clusters for node in internals.topology.cluster(name).nodes]
    replicas, dictionaries = (entry.notes.get(name, ()) for name in ("replicas_behind", "dictionaries"))
    cold = [ColdEraser(internals, shard.shard) for shard in entry.shards]
    cold_files = [(file.name, each.is_own(file)) for each in cold for file in each.deleted(number)]
    unapplied = "documents, unless it has applied the erasure since", f"'erase verify {number}' finds none there"
    times: dict[str, datetime | None] = {step: getattr(entry, step) for step in STEPS}
    remains = [
        *((str(node), _PAGES, _logs_until(internals, node, entry.executed_at)) for node in nodes),
        *((table, "documents as of a backup", "it is dropped") for table in where.strays),
        *((f"replica {replica}", *unapplied) for replica in replicas),
        ("backups", "documents as of the backup", "their owner deletes them"),
        *((name, "has not acknowledged", "it does") for name in found.waiting),
        *(
            (f"cold files of shard {each}", "documents", f"'erase run --erasure {number}' rewrites them")
            for each in found.cold
        ),
        *((where, "unknown documents", f"'erase run --erasure {number}' rewrites them") for where in _unlisted(cold)),
        *(
            (f"cold file {name}", "documents", "the datastore that this one was restored from erases them")
            for name, is_own in cold_files
            if not is_own
        ),
        *(
            (f"old versions of cold file {name}", "documents", "the bucket's rule deletes them, if it has versions")
            for name, is_own in cold_files
            if is_own
        ),
        *((f"copies of {each.uri}", "documents as they were when copied", _REPLACED) for each in exports),
        *(
            (f"export {each.name} in {each.uri}", f"unknown: {each.problem}", "it is read")
            for each in exports
            if each.problem
        ),
        *(
            (f"archive {folder}", "originals, unless erased there", "'erase archive' erases them")
            for folder in where.archives
        ),
        *((f"dictionary {each}", "parts of documents", "it is removed") for each in dictionaries),
        *(
            (f"former primary {each}", "documents as they were when it was lost", "it is wiped")
            for each in where.lost_primaries
        ),
    ]
    return {
        "datastore": store.name,
        "erasure": number,
        "state": found.state,
        "reason": entry.reason,
        "requested_by": entry.requested_by,
        **{name: at and at.isoformat() for name, at in times.items()},
        "issued_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "remains": [{"where": where, "what": what, "until": until} for where, what, until in remains],
        "scope": {"kind": entry.kind, **entry.scope, **({"targets": targets} if targets else {})},
        "gone": {
            "cells": entry.cells,
            "body_bytes": entry.body_bytes,
            "shards": [shard.shard for shard in entry.shards],
            "acknowledged_by": {name: at.isoformat() for name, at in found.acknowledged.items()},
        },
        "cold_files": [name for name, is_own in cold_files if is_own],
        "exports": [asdict(export) for export in exports],
        "keys": "row_key, column_name, ref_key, added_id and created_at are kept, so that nothing is written twice",
    }


def _unlisted(shards: Iterable[ColdEraser]) -> Iterator[str]:
    """Yield what the cold store has and no shard lists."""
    for cold in shards:
        try:
            yield from (f"cold file {name}, which its shard does not list" for name in cold.unlisted())
        except (ColdStoreUnavailable, InvalidInput) as error:
            yield f"cold files that no shard lists: {error}"
            return


def _logs_until(internals: Internals, node: Node, executed_at: datetime | None) -> str:
    """Return how long a server keeps the binary logs from before an erasure."""
    try:
        rows = internals.shards.pool_for(node).rows(SHOW_LOG_EXPIRY)
    except ServerError as error:
        return f"binary logs {_UNTIL_UNKNOWN} ({error})"
    settings = {str(name).lower(): str(value) for name, value in rows}
    if settings.get("log_bin", "OFF").upper() in ("OFF", "0"):
        return "no binary log"
    seconds = float(settings.get("binlog_expire_logs_seconds", 0) or 0)
    seconds = seconds or 86_400 * float(settings.get("expire_logs_days", 0) or 0)
    if not seconds or executed_at is None:
        return f"binary logs {_UNTIL_UNKNOWN}"
    return f"binary logs until {executed_at + timedelta(seconds=seconds):%Y-%m-%d %H:%M} UTC"


def signed(issued: Mapping[str, Any], key_file: Path) -> dict[str, Any]:
    """Return a receipt with an Ed25519 signature over its canonical JSON.

    Args:
        issued: the receipt.
        key_file: an unencrypted private key in PEM format, as written by ``openssl genpkey -algorithm ed25519``.

    Raises:
        InvalidInput: the file is not such a key.
    """
    try:
        key = load_pem_private_key(key_file.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidInput(f"cannot read the private key {key_file}: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidInput(f"{key_file} is not an Ed25519 key; 'openssl genpkey -algorithm ed25519' creates one")
    canonical = json.dumps(issued, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
    signature = {
        "algorithm": "Ed25519",
        "public_key": key.public_key().public_bytes_raw().hex(),
        "signature": key.sign(canonical).hex(),
    }
    return {**issued, "signature": signature}
