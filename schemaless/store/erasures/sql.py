"""SQL statements of erasures: the ledger, retention policies and legal holds in the catalog, erased cells in shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from schemaless.wire.sql.parts import (
    CELL,
    IS_DELTA,
    LIVE,
    NOW,
    Term,
    blob,
    blob_hex,
    by_id,
    by_key,
    insert,
    matching,
    moment,
    numbers,
    quoted_table,
    table,
    text,
    update,
    upsert,
)

STEPS: Final = ("intended_at", "executed_at", "acknowledged_at", "verified_at")
"""Columns of an erasure with the times of its steps, also attributes of ``Erasure``."""

ANY_COLUMN: Final = ""
ANY_VERSION: Final = -1

_SIZES: Final = b"added_id, row_key, column_name, ref_key, LENGTH(body)"


# In a shard


def lock_log(database: str) -> bytes:
    """Lock the log of erased cells until the transaction ends; selects no row if the lock row does not exist yet.

    The row: 0, and 1 if ``record_deltas`` was executed, else 0.
    """
    return b"SELECT event_id, body_bytes FROM %b WHERE event_id=0 FOR UPDATE" % _log(database)


def insert_lock_row(database: str) -> bytes:
    """Insert the row that ``lock_log`` locks, unless it exists."""
    return insert(_log(database), "event_id, added_id, erasure, body_bytes", [(0, 0, 0, 0)], ignore=True)


def record_deltas(database: str) -> bytes:
    """Record in the lock row that the shard may have deltas from now on."""
    return update(_log(database), {"body_bytes": 1}, event_id=0)


def select_log_end(database: str) -> bytes:
    """Select the last event of the log of erased cells, and whether the shard has ever listed a cold file.

    The server comes first: after a promotion, events may be missing.
    """
    return (
        b"SELECT @@server_id, event_id, added_id, erasure, EXISTS(SELECT 1 FROM %b) FROM %b "
        b"ORDER BY event_id DESC LIMIT 1" % (table(database, b"cold_file"), _log(database))
    )


def select_sizes_by_id(database: str, ids: Iterable[int]) -> bytes:
    """Select the added_id, key and body size of the cells with these added_ids that have not been erased."""
    wanted = by_id(database), numbers(ids), LIVE
    return b"SELECT %b FROM %b WHERE added_id IN (%b) AND %b ORDER BY added_id" % (_SIZES, *wanted)


def select_sizes_by_key(
    database: str,
    targets: Iterable[tuple[bytes, str, int]],
    limit: int,
    before: datetime | None = None,
    cleared: Mapping[tuple[bytes, str], int] | None = None,
) -> bytes:
    """Select the added_id, key and body size of the next cells of some targets that have not been erased.

    Args:
        database: the shard's database.
        targets: row_key, column or ``ANY_COLUMN``, version or ``ANY_VERSION`` of each.
        limit: maximum number of cells.
        before: select only cells that were created before this time.
        cleared: ref_keys by row_key and column_name; skip these and lower ones.
    """
    wanted = b" OR ".join(b"(%b)" % _of_target(*target) for target in targets)
    condition = LIVE if before is None else LIVE + b" AND created_at<" + moment(before)
    if cleared:
        condition += b" AND NOT (%b)" % _versions((pair, -1, top) for pair, top in cleared.items())
    where = by_key(database), wanted, condition
    order = b"ORDER BY row_key, column_name, ref_key LIMIT %d" % limit
    return b"SELECT %b FROM %b WHERE (%b) AND %b %b" % (_SIZES, *where, order)


def count_target(database: str, row_key: bytes, column_name: str, ref_key: int) -> bytes:
    """Select the number of live cells of a target, their size, the number of erased ones, and the columns' names."""
    return (
        b"SELECT COALESCE(SUM(%b),0), COALESCE(SUM(IF(%b,LENGTH(body),0)),0), COALESCE(SUM(NOT(%b)),0), "
        b"GROUP_CONCAT(DISTINCT column_name ORDER BY column_name) FROM %b WHERE %b"
        % (LIVE, LIVE, LIVE, by_key(database), _of_target(row_key, column_name, ref_key))
    )


def select_any_of_target(database: str, row_key: bytes, column_name: str, ref_key: int) -> bytes:
    """Select a row if a target has a cell, erased or not."""
    return b"SELECT 1 FROM %b WHERE %b LIMIT 1" % (by_key(database), _of_target(row_key, column_name, ref_key))


def _of_target(row_key: bytes, column_name: str, ref_key: int) -> bytes:
    return matching(
        row_key=blob_hex(row_key),
        column_name=None if column_name == ANY_COLUMN else column_name,
        ref_key=None if ref_key == ANY_VERSION else ref_key,
    )


def count_versions(database: str, tops: Mapping[tuple[bytes, str], int]) -> bytes:
    """Select row_key, column_name and the number of versions up to a ref_key, erased ones included, without bodies."""
    where = by_key(database), _versions((pair, -1, top) for pair, top in tops.items())
    return b"SELECT row_key, column_name, COUNT(*) FROM %b WHERE %b GROUP BY row_key, column_name" % where


def count_live_versions(database: str, ranges: Mapping[tuple[bytes, str], tuple[int, int]]) -> bytes:
    """Select row_key, column_name, and the number of versions in a range (above, up to), and of those not erased."""
    where = by_key(database), _versions((pair, *ends) for pair, ends in ranges.items())
    return b"SELECT row_key, column_name, COUNT(*), SUM(%b) FROM %b WHERE %b GROUP BY row_key, column_name" % (
        LIVE,
        *where,
    )


def _versions(ranges: Iterable[tuple[tuple[bytes, str], int, int]]) -> bytes:
    return b" OR ".join(
        b"(row_key=%b AND column_name=%b AND ref_key>%d AND ref_key<=%d)"
        % (blob_hex(row_key), text(column), above, top)
        for (row_key, column), above, top in ranges
    )


def select_dependents(
    database: str,
    name: str,
    ranges: Mapping[tuple[bytes, str], tuple[int, int]],
    bases: Iterable[int],
    ids: Iterable[int],
) -> bytes:
    """Select the cells, other than some, that may be deltas against one of them.

    Args:
        database: the shard's database.
        name: table of the cells, as in ``replace_bodies``.
        ranges: a lower bound and the highest ref_key of those cells by row_key and column_name; only versions between
            them, which may include the latter, are selected.
        bases: the ref_keys of those cells.
        ids: their added_ids.
    """
    return b"SELECT %b FROM %b WHERE (%b) AND %b AND SUBSTRING(body,3,8) IN (%b)%b" % (
        CELL,
        by_key(database, name),
        _versions((pair, *ends) for pair, ends in ranges.items()),
        IS_DELTA,
        b",".join(blob_hex(base.to_bytes(8, "big")) for base in sorted(set(bases))),
        b" AND added_id NOT IN (%b)" % numbers(ids),
    )


def select_keys_by_id(database: str, name: str, ids: Iterable[int]) -> bytes:
    """Select added_id, row_key, column_name and ref_key of cells of a table."""
    return b"SELECT added_id, row_key, column_name, ref_key FROM %b WHERE added_id IN (%b)" % (
        quoted_table(database, name),
        numbers(ids),
    )


def replace_body(database: str, name: str, added_id: int, body: bytes) -> bytes:
    """Replace the body of a cell that is a delta."""
    return b"UPDATE %b SET body=%b WHERE added_id=%d AND %b" % (
        quoted_table(database, name),
        blob(body),
        added_id,
        IS_DELTA,
    )


def replace_bodies(database: str, name: str, ids: Iterable[int], tombstone: bytes) -> bytes:
    """Replace the bodies of cells with a tombstone, unless they have already been erased.

    Args:
        database: the shard's database.
        name: table of the cells, such as one that a move has left behind or is filling.
        ids: added_ids of the cells.
        tombstone: the new body.
    """
    where = quoted_table(database, name), blob_hex(tombstone), numbers(ids), LIVE
    return b"UPDATE %b SET body=%b WHERE added_id IN (%b) AND %b" % where


def delete_parked_cells(database: str, ids: Iterable[int]) -> bytes:
    """Delete what followers have stored about erased cells that they parked."""
    return b"DELETE FROM %b WHERE added_id IN (%b)" % (table(database, b"parked"), numbers(ids))


def blank_messages(database: str, ids: Sequence[int], kept_prefix: str) -> bytes:
    """Remove the error messages of followers whose location is before one of these cells: they may be about it.

    A message that begins with ``kept_prefix`` contains no text from a document, and is kept.
    """
    concerned = b"message IS NOT NULL AND location<%d AND LEFT(message,%d)<>%b"
    concerned %= max(ids), len(kept_prefix), text(kept_prefix)
    return b"UPDATE %b SET message='removed by an erasure' WHERE %b" % (table(database, b"follower"), concerned)


def insert_events(database: str, rows: Iterable[tuple[int, int, int, int, str | None]]) -> bytes:
    """Insert events: ``(event_id, added_id, erasure, body_bytes, entry_shards)``."""
    return insert(_log(database), "event_id, added_id, erasure, body_bytes, entry_shards", rows)


def select_executed(database: str, erasure: int) -> bytes:
    """Select the number of cells of an erasure, the total size of their bodies, and its last event."""
    sums = b"COUNT(*), COALESCE(SUM(body_bytes),0), COALESCE(MAX(event_id),0)"
    return b"SELECT %b FROM %b WHERE erasure=%d" % (sums, _log(database), erasure)


def select_erased_ids(database: str, erasure: int, after: int, limit: int) -> bytes:
    """Select event_id and added_id of the next cells of an erasure, in the order of events."""
    condition = b"erasure=%d AND event_id>%d ORDER BY event_id LIMIT %d" % (erasure, after, limit)
    return b"SELECT event_id, added_id FROM %b WHERE %b" % (_log(database), condition)


def _log(database: str) -> bytes:
    return table(database, b"erased_cell")


# The ledger


def select_by_token(catalog: str, token: bytes) -> bytes:
    """Select the number of the erasure with a token."""
    return b"SELECT erasure_id FROM %b WHERE token=%b" % (table(catalog, b"erasure"), blob_hex(token))


def insert_erasure(
    catalog: str,
    kind: str,
    scope: str,
    reason: str,
    requested_by: str,
    token: bytes,
    number: int | None = None,
    intended_at: datetime | None = None,
    executed_at: datetime | None = None,
) -> bytes:
    """Insert an erasure: with the next number and the present time, or with those of another catalog."""
    names = "kind, scope, reason, requested_by, token, erasure_id, intended_at, executed_at"
    times = moment(intended_at), moment(executed_at)
    row: list[Term] = [kind, scope, reason, requested_by, blob_hex(token), number or b"DEFAULT", *times]
    return insert(table(catalog, b"erasure"), names, [row])


def insert_keys(catalog: str, erasure: int, keys: Iterable[tuple[int, bytes, str, int]]) -> bytes:
    """Insert keys of an erasure, each ``(shard, row_key, column_name, ref_key)``; existing ones are kept."""
    rows = [(erasure, shard, blob_hex(row_key), column, ref) for shard, row_key, column, ref in keys]
    return insert(table(catalog, b"erasure_key"), "erasure_id, shard, row_key, column_name, ref_key", rows, ignore=True)


def insert_erasure_shards(catalog: str, erasure: int, shards: Iterable[tuple[int, int, int, datetime | None]]) -> bytes:
    """Insert the shards of an erasure, each ``(shard, cells, body_bytes, executed_at)``; existing ones are kept."""
    rows = [(erasure, shard, cells, size, moment(executed_at)) for shard, cells, size, executed_at in shards]
    names = "erasure_id, shard, cells, body_bytes, executed_at"
    return insert(table(catalog, b"erasure_shard"), names, rows, ignore=True)


def select_erasures(catalog: str, erasure: int | None = None) -> bytes:
    """Select all erasures, or one.

    Returns:
        A statement whose rows are erasure_id, kind, scope, reason, requested_by, intended_at, executed_at,
        acknowledged_at, verified_at and notes.
    """
    times = b", ".join(b"CONCAT(%b,'+00:00')" % step.encode() for step in STEPS)
    columns = b"erasure_id, kind, scope, reason, requested_by, %b, notes" % times
    chosen = matching(erasure_id=erasure)
    return b"SELECT %b FROM %b WHERE %b ORDER BY erasure_id" % (columns, table(catalog, b"erasure"), chosen)


def select_erasure_shards(catalog: str, erasure: int) -> bytes:
    """Select shard, cells, body_bytes, last_event and executed_at of the shards of an erasure."""
    return (
        b"SELECT shard, cells, body_bytes, last_event, CONCAT(executed_at,'+00:00') FROM %b WHERE erasure_id=%d "
        b"ORDER BY shard" % (table(catalog, b"erasure_shard"), erasure)
    )


def select_keys(
    catalog: str, erasure: int, shard: int | None, after: tuple[int, bytes, str, int] | None, limit: int
) -> bytes:
    """Select shard, row_key, column_name and ref_key of the next keys of an erasure, in order."""
    condition = matching(erasure_id=erasure, shard=shard)
    if after is not None:
        of_shard, row_key, column, ref = after
        place = (of_shard, blob_hex(row_key), text(column), ref)
        condition += b" AND (shard, row_key, column_name, ref_key)>(%d,%b,%b,%d)" % place
    return (
        b"SELECT shard, row_key, column_name, ref_key FROM %b WHERE %b "
        b"ORDER BY shard, row_key, column_name, ref_key LIMIT %d" % (table(catalog, b"erasure_key"), condition, limit)
    )


def upsert_shard(catalog: str, erasure: int, shard: int, cells: int, body_bytes: int, last_event: int) -> bytes:
    """Record an erasure's results in a shard; the time of the first execution is kept.

    Counts never become lower: a shard that was restored from a backup has lost its log of what was erased.
    """
    values: dict[str, Term] = {
        "cells": b"GREATEST(cells, %d)" % cells,
        "body_bytes": b"GREATEST(body_bytes, %d)" % body_bytes,
        "last_event": last_event,
        "executed_at": b"COALESCE(executed_at, %b)" % NOW,
    }
    return upsert(table(catalog, b"erasure_shard"), {"erasure_id": erasure, "shard": shard}, values)


def mark(catalog: str, erasure: int, what: str) -> bytes:
    """Record the time of a step, ``executed``, ``acknowledged`` or ``verified``, unless one is already recorded."""
    column = f"{what}_at"
    changes: dict[str, Term] = {column: b"COALESCE(%b, %b)" % (column.encode(), NOW)}
    return update(table(catalog, b"erasure"), changes, erasure_id=erasure)


def mark_executed(catalog: str, erasure: int) -> bytes:
    """Record that an erasure was executed, if all of its shards are done."""
    left = b"SELECT 1 FROM %b AS s WHERE s.erasure_id=%d AND s.executed_at IS NULL"
    left %= table(catalog, b"erasure_shard"), erasure
    return mark(catalog, erasure, "executed") + b" AND NOT EXISTS (%b)" % left


def lock_notes(catalog: str, erasure: int) -> bytes:
    """Select the notes of an erasure, and lock its row."""
    return b"SELECT notes FROM %b WHERE erasure_id=%d FOR UPDATE" % (table(catalog, b"erasure"), erasure)


def update_notes(catalog: str, erasure: int, notes: str) -> bytes:
    """Replace the notes of an erasure."""
    return update(table(catalog, b"erasure"), {"notes": notes}, erasure_id=erasure)


def insert_acknowledged(catalog: str, erasure: int, names: Iterable[str]) -> bytes:
    """Record that followers have handled all events of an erasure; the first time is kept."""
    rows = [(erasure, name) for name in names]
    return insert(table(catalog, b"erasure_follower"), "erasure_id, name", rows, ignore=True)


def select_acknowledged(catalog: str, erasure: int) -> bytes:
    """Select the name and acknowledged_at of each follower that has handled all events of an erasure."""
    which = table(catalog, b"erasure_follower"), erasure
    return b"SELECT name, CONCAT(acknowledged_at,'+00:00') FROM %b WHERE erasure_id=%d ORDER BY name" % which


# Copies of cells on other servers


def count_live(database: str, ids: Iterable[int], name: str = "cell") -> bytes:
    """Select how many of these cells are in a table of a shard without having been erased."""
    return b"SELECT COUNT(*) FROM %b WHERE added_id IN (%b) AND %b" % (quoted_table(database, name), numbers(ids), LIVE)


def count_parked(database: str, ids: Iterable[int]) -> bytes:
    """Select how many of these cells of a shard followers have parked."""
    return b"SELECT COUNT(*) FROM %b WHERE added_id IN (%b)" % (table(database, b"parked"), numbers(ids))


def select_rows_of(database: str, ids: Iterable[int]) -> bytes:
    """Select the row_keys of these cells of a shard."""
    return b"SELECT DISTINCT row_key FROM %b WHERE added_id IN (%b)" % (by_id(database), numbers(ids))


def count_older(database: str, row_key: bytes, column_name: str, ref_key: int, executed_at: datetime) -> bytes:
    """Select the number of cells of a target that were created before a time and have not been erased."""
    place = (by_key(database), _of_target(row_key, column_name, ref_key), LIVE, moment(executed_at))
    return b"SELECT COUNT(*) FROM %b WHERE %b AND %b AND created_at<%b" % place


# --- retention policies and legal holds -------------------------------------------------------------------------------

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
    chosen = b" AND ".join(conditions) or b"TRUE"
    return b"SELECT %b FROM %b WHERE %b ORDER BY hold_id" % (_HOLD, table(catalog, b"legal_hold"), chosen)


def insert_holds(
    catalog: str, rows: Iterable[tuple[bytes, str, str, str | None, datetime | None, datetime | None]]
) -> bytes:
    """Place legal holds: ``(row_key, held_by, reason, released_by, held_at, released_at)``; without a time, now."""
    names = "row_key, held_by, reason, released_by, held_at, released_at"
    terms = [(blob_hex(row_key), by, why, who, moment(at), moment(until)) for row_key, by, why, who, at, until in rows]
    return insert(table(catalog, b"legal_hold"), names, terms)


def release_holds(catalog: str, row_keys: Iterable[bytes], held_by: str, released_by: str) -> bytes:
    """Release the holds of one party."""
    release = update(table(catalog, b"legal_hold"), {"released_at": NOW, "released_by": released_by}, held_by=held_by)
    return release + b" AND released_at IS NULL AND " + _of_rows(row_keys)


def release_past_hold(catalog: str, number: int, released_at: datetime, released_by: str | None) -> bytes:
    """Release a hold that was released earlier, in another catalog."""
    changes: dict[str, Term] = {"released_at": moment(released_at), "released_by": released_by}
    return update(table(catalog, b"legal_hold"), changes, hold_id=number)


def select_pending_erasures(catalog: str, row_keys: Iterable[bytes]) -> bytes:
    """Select the row and number of each erasure of these rows that is recorded but not yet executed."""
    keys = b"%b JOIN %b USING (erasure_id)" % (table(catalog, b"erasure"), table(catalog, b"erasure_key"))
    return b"SELECT row_key, erasure_id FROM %b WHERE executed_at IS NULL AND %b LIMIT 1" % (keys, _of_rows(row_keys))


def _of_rows(row_keys: Iterable[bytes]) -> bytes:
    return b"row_key IN (%b)" % b",".join(map(blob_hex, row_keys))
