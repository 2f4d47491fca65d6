"""SQL statements about retention policies and legal holds in the catalog."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from schemaless.wire.sql.parts import NOW, Term, blob_hex, insert, moment, table, text, update, upsert

_HOLD: Final = b"hold_id, row_key, held_by, reason, CONCAT(held_at,'+00:00'), CONCAT(released_at,'+00:00'), released_by"


def select_policies(catalog: str) -> bytes:
    """Select column_name, keep_days, keep_versions, set_by and set_at of every policy, by column."""
    return (
        b"SELECT column_name, keep_days, keep_versions, set_by, CONCAT(set_at,'+00:00') FROM %b "
        b"WHERE keep_days IS NOT NULL OR keep_versions IS NOT NULL ORDER BY column_name"
        % table(catalog, b"retention_policy")
    )


def upsert_policy(
    catalog: str, column_name: str, keep_days: int | None, keep_versions: int | None, set_by: str
) -> bytes:
    """Set the policy of a column; without limits, the column has no policy."""
    return upsert(
        table(catalog, b"retention_policy"),
        {"column_name": column_name},
        {"keep_days": keep_days, "keep_versions": keep_versions, "set_by": set_by, "set_at": NOW},
    )


def select_holds(catalog: str, row_keys: Iterable[bytes] | None = None, *, released: bool = False) -> bytes:
    """Select the holds on some or all rows, oldest first; with ``released``, also those no longer in force."""
    conditions = [] if released else [b"released_at IS NULL"]
    if row_keys is not None:
        conditions.append(_of_rows(row_keys))
    return b"SELECT %b FROM %b WHERE %b ORDER BY hold_id" % (
        _HOLD,
        table(catalog, b"legal_hold"),
        b" AND ".join(conditions) or b"TRUE",
    )


def insert_holds(catalog: str, row_keys: Iterable[bytes], held_by: str, reason: str) -> bytes:
    """Place legal holds on rows."""
    rows = [(blob_hex(row_key), held_by, reason) for row_key in row_keys]
    return insert(table(catalog, b"legal_hold"), "row_key, held_by, reason", rows)


def insert_past_hold(
    catalog: str,
    row_key: bytes,
    held_by: str,
    reason: str,
    released_by: str | None,
    held_at: datetime,
    released_at: datetime | None,
) -> bytes:
    """Insert a hold that was placed earlier, with its original times."""
    row: list[Term] = [blob_hex(row_key), held_by, reason, released_by, moment(held_at)]
    row.append(None if released_at is None else moment(released_at))
    return insert(table(catalog, b"legal_hold"), "row_key, held_by, reason, released_by, held_at, released_at", [row])


def release_holds(catalog: str, row_keys: Iterable[bytes], held_by: str, released_by: str) -> bytes:
    """Release the holds of one party."""
    return b"UPDATE %b SET released_at=%b, released_by=%b WHERE released_at IS NULL AND held_by=%b AND %b" % (
        table(catalog, b"legal_hold"),
        NOW,
        text(released_by),
        text(held_by),
        _of_rows(row_keys),
    )


def release_past_hold(catalog: str, number: int, released_at: datetime, released_by: str | None) -> bytes:
    """Release a hold that was released earlier, in another catalog."""
    changes: dict[str, Term] = {"released_at": moment(released_at), "released_by": released_by}
    return update(table(catalog, b"legal_hold"), changes, hold_id=number)


def select_pending_erasures(catalog: str, row_keys: Iterable[bytes]) -> bytes:
    """Select the row and number of each erasure of these rows that is recorded but not yet executed."""
    return b"SELECT row_key, erasure_id FROM %b JOIN %b USING (erasure_id) WHERE executed_at IS NULL AND %b LIMIT 1" % (
        table(catalog, b"erasure"),
        table(catalog, b"erasure_key"),
        _of_rows(row_keys),
    )


def _of_rows(row_keys: Iterable[bytes]) -> bytes:
    return b"row_key IN (%b)" % b",".join(map(blob_hex, row_keys))
