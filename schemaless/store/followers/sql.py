"""Statements about followers: their rows in each shard, and their settings and workers in the catalog.

Every change of a row by its owner requires the owner's epoch; zero affected rows means that the lease was lost. Times
are those of the server's clock, UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from schemaless.wire.sql.parts import (
    NOW,
    Term,
    Value,
    assigned,
    blob_hex,
    by_id,
    cell_table,
    delete,
    id_range,
    insert,
    later,
    leased,
    matching,
    numbers,
    table,
    text,
    update,
    upsert,
)

MOST_LEASE_S: Final = 1_000
"""Longest lease of a worker, in seconds; one that ends much later has expired (see ``leased``)."""

UNTRIED: Final[Mapping[str, Term]] = {"state": "running", "attempts": 0, "retry_at": None, "message": None}
"""State of a follower before the first attempt at its next cell."""


class ParkedRow(NamedTuple):
    """A cell that a follower skips because its handler failed."""

    added_id: int
    row_key: bytes
    column_name: str
    ref_key: int
    attempts: int
    error: str


# In the catalog


def insert_setting(catalog: str, name: str, wanted: str, spec: str) -> bytes:
    """Insert a follower, unless there is one of that name."""
    return insert(table(catalog, b"follower_setting"), "name, wanted, spec", [(name, wanted, spec)], ignore=True)


def select_settings(catalog: str) -> bytes:
    """Select name, desired state and spec of every follower."""
    return b"SELECT name, wanted, spec FROM %b ORDER BY name" % table(catalog, b"follower_setting")


def update_setting(catalog: str, name: str, wanted: str, spec: str) -> bytes:
    """Change the desired state and the spec of a follower."""
    return update(table(catalog, b"follower_setting"), {"wanted": wanted, "spec": spec}, name=name)


def delete_setting(catalog: str, name: str) -> bytes:
    """Delete a follower's setting."""
    return delete(table(catalog, b"follower_setting"), name=name)


def renew_worker(catalog: str, worker: str, followers: str, figures: str, lease_s: float) -> bytes:
    """Renew a worker's membership lease."""
    values: dict[str, Term] = {"followers": followers, "lease_until": later(lease_s), "figures": figures}
    return upsert(table(catalog, b"follower_worker"), {"worker": worker}, values)


def select_workers(catalog: str) -> bytes:
    """Select worker, followers, remaining seconds of the lease, and published status of live workers."""
    return (
        b"SELECT worker, followers, TIMESTAMPDIFF(MICROSECOND, %b, lease_until)/1e6, figures FROM %b "
        b"WHERE %b ORDER BY worker" % (NOW, table(catalog, b"follower_worker"), leased(b"lease_until", MOST_LEASE_S))
    )


def delete_worker(catalog: str, worker: str) -> bytes:
    """Delete a dead worker."""
    return delete(table(catalog, b"follower_worker"), worker=worker)


def delete_dead_workers(catalog: str, for_s: float) -> bytes:
    """Delete workers whose lease expired ``for_s`` seconds ago or earlier."""
    return b"DELETE FROM %b WHERE lease_until<%b" % (table(catalog, b"follower_worker"), later(-for_s))


# In a shard


def insert_follower(database: str, name: str, location: int) -> bytes:
    """Insert a follower's row, unless it exists.

    Its first epoch is the number of microseconds since the beginning of 2000, which is above every epoch of a deleted
    row of that name. Cells that were erased before the insertion do not concern it.
    """
    erased = b"(SELECT COALESCE(MAX(e.event_id),0) FROM %b AS e)" % table(database, b"erased_cell")
    row = (name, location, b"TIMESTAMPDIFF(MICROSECOND, '2000-01-01', %b)" % NOW, erased)
    return insert(table(database, b"follower"), "name, location, epoch, erased_event", [row], ignore=True)


def select_followers(rows: Iterable[tuple[str, int, str]], *, events: bool = True) -> bytes:
    """Select the state of followers given as ``(database, shard, name)``; those without a row are absent.

    Args:
        rows: the followers.
        events: whether to read the logs of erased cells; if not, 0 takes the place of their last events.

    Returns:
        A statement whose rows are shard, name, location, worker, epoch, state, attempts, seconds until the next
        attempt, message, when the location was last moved, the shard's highest added_id, the last event of its log of
        erased cells, the last one that the follower has handled, and the numbers of parked cells, of parked cells to
        try again, and of those whose replay has begun but not ended.
    """
    parts = []
    counts = b"COUNT(*) AS parked, COUNT(IF(replay>0,1,NULL)) AS replays, COUNT(IF(replay>1,1,NULL)) AS begun"
    for database, shard, name in rows:
        # Each table is named once, because opening tables is most of the cost if there are thousands of shards.
        parts.append(
            b"SELECT %d, f.name, location, worker, epoch, state, attempts, "
            b"TIMESTAMPDIFF(MICROSECOND, %b, retry_at)/1e6, message, CONCAT(moved_at,'+00:00'), "
            b"(SELECT MAX(added_id) FROM %b), %b, erased_event, parked, replays, begun "
            b"FROM %b AS f JOIN (SELECT %b FROM %b WHERE name=%b) AS p WHERE f.name=%b"
            % (
                shard,
                NOW,
                cell_table(database),
                b"(SELECT MAX(event_id) FROM %b)" % table(database, b"erased_cell") if events else b"0",
                table(database, b"follower"),
                counts,
                table(database, b"parked"),
                text(name),
                text(name),
            )
        )
    return b" UNION ALL ".join(parts)


def select_every_location(database: str, ahead_s: float) -> bytes:
    """Select all follower rows, in the same snapshot as the highest added_id.

    Args:
        database: the shard's database.
        ahead_s: maximum difference between the servers' clocks, in seconds.

    Returns:
        A statement whose rows are name, location, the shard's highest added_id, and whether the epoch is higher than
        any that could have been assigned by now.
    """
    return (
        b"SELECT name, location, (SELECT MAX(added_id) FROM %b), epoch>TIMESTAMPDIFF(MICROSECOND, '2000-01-01', %b) "
        b"FROM %b ORDER BY name" % (cell_table(database), later(ahead_s), table(database, b"follower"))
    )


def select_tops(shards: Iterable[tuple[str, int]]) -> bytes:
    """Select shard and highest added_id of shards given as ``(database, shard)``."""
    return b" UNION ALL ".join(
        b"SELECT %d, MAX(added_id) FROM %b" % (shard, cell_table(database)) for database, shard in shards
    )


def claim(database: str, name: str, worker: str, seen_epoch: int) -> bytes:
    """Claim a follower's row, if its epoch is unchanged."""
    return _update(database, name, seen_epoch, {"worker": worker, "epoch": b"epoch+1"})


def release(database: str, name: str, epoch: int) -> bytes:
    """Release a follower's row."""
    return _update(database, name, epoch, {"worker": None})


def quarantine(database: str, name: str, epoch: int, message: str, pause_s: float) -> bytes:
    """Quarantine a follower's row whose owner is dead, and defer its next attempt; one that has stopped stays stopped.

    The message of a stopped row says why it stopped, and is kept.
    """
    changes: dict[str, Term] = {
        "message": b"IF(state='stopped', message, %b)" % text(message),
        "state": b"IF(state='stopped', state, 'quarantined')",
        "retry_at": later(pause_s),
        "worker": None,
        "epoch": b"epoch+1",
    }
    return _update(database, name, epoch, changes)


def end_quarantine(database: str, name: str, epoch: int) -> bytes:
    """Release a follower's row to the workers for healthy shards."""
    changes: dict[str, Term] = {
        "state": b"IF(state='quarantined', 'running', state)",
        "retry_at": None,
        "message": b"IF(state='stopped', message, NULL)",
        "worker": None,
    }
    return _update(database, name, epoch, changes)


def move(rows: Sequence[tuple[str, str, int, int]]) -> bytes:
    """Move locations, given as ``(database, name, epoch, location)``: all of them or none.

    Returns:
        A statement that affects all of the rows, or none if one of the epochs has changed.
    """
    tables, changes, tests = [], [], []
    for number, (database, name, epoch, location) in enumerate(rows):
        tables.append(b"%b AS f%d" % (table(database, b"follower"), number))
        changes.append(
            b"f%d.location=%d, f%d.moved_at=%b, f%d.attempts=0, f%d.retry_at=NULL, f%d.message=NULL"
            % (number, location, number, NOW, number, number, number)
        )
        tests.append(b"f%d.name=%b AND f%d.epoch=%d" % (number, text(name), number, epoch))
    return b"UPDATE %b SET %b WHERE %b" % (b" JOIN ".join(tables), b", ".join(changes), b" AND ".join(tests))


def note_attempt(
    database: str, name: str, epoch: int, location: int, attempts: int, retry_s: float | None, message: str | None
) -> bytes:
    """Record a location, and the attempts at the cell after it."""
    retry_at = None if retry_s is None else later(retry_s)
    tried: dict[str, Term] = {"attempts": attempts, "retry_at": retry_at, "message": message}
    return _update(database, name, epoch, {"location": location, "moved_at": NOW, **tried})


def stop(database: str, name: str, epoch: int, location: int, message: str) -> bytes:
    """Stop a follower before its next cell, until an operator resumes it."""
    changes: dict[str, Term] = {"location": location, "moved_at": NOW, "state": "stopped", "message": message}
    return _update(database, name, epoch, changes)


def restart(database: str, name: str, killer: str) -> bytes:
    """Resume a stopped follower, and reset the attempts at its next cell.

    If the message begins with ``killer``, the cell killed its workers, and the follower continues in quarantine.
    """
    state = b"IF(LEFT(COALESCE(message, ''), %d)=%b, 'quarantined', 'running')" % (len(killer), text(killer))
    return update(table(database, b"follower"), {**UNTRIED, "state": state}, name=name)


def reset(database: str, name: str, location: int) -> bytes:
    """Set a follower's location, and revoke its owner's lease."""
    lost: dict[str, Term] = {"location": location, "worker": None, "epoch": b"epoch+1", "moved_at": NOW}
    return update(table(database, b"follower"), {**lost, **UNTRIED}, name=name)


def ask_to_replay(database: str, name: str, ids: Iterable[int]) -> bytes:
    """Request a replay of parked cells with these added_ids."""
    return update(table(database, b"parked"), {"replay": 1}, name=name) + b" AND added_id IN (%b)" % numbers(ids)


def delete_follower(database: str, name: str) -> bytes:
    """Delete a follower's row."""
    return delete(table(database, b"follower"), name=name)


def select_age(database: str, after: int) -> bytes:
    """Select the age of the first cell after a location, in seconds."""
    first = (NOW, by_id(database), id_range(after, None))
    return b"SELECT TIMESTAMPDIFF(MICROSECOND, created_at, %b)/1e6 FROM %b WHERE %b ORDER BY added_id LIMIT 1" % first


# Erased cells


def select_last_event(database: str) -> bytes:
    """Select the last event of a shard's log of erased cells; NULL if nothing was ever erased."""
    return b"SELECT MAX(event_id) FROM %b" % table(database, b"erased_cell")


def select_events(database: str, after: int, limit: int) -> bytes:
    """Select the next events of a shard's log of erased cells, with the keys of the cells.

    Returns:
        A statement whose rows are event_id, erasure, added_id, row_key, column_name, ref_key, entry_shards and
        erased_at.
    """
    return (
        b"SELECT e.event_id, e.erasure, e.added_id, c.row_key, c.column_name, c.ref_key, e.entry_shards, "
        b"CONCAT(e.erased_at,'+00:00') FROM %b AS e STRAIGHT_JOIN %b AS c ON c.added_id=e.added_id "
        b"WHERE e.event_id>%d AND e.event_id>0 ORDER BY e.event_id LIMIT %d"
        % (table(database, b"erased_cell"), cell_table(database), after, limit)
    )


def acknowledge(database: str, name: str, event_id: int, epoch: int | None) -> bytes:
    """Record that a follower has handled all events up to ``event_id``, if its row has ``epoch`` (any if None)."""
    changes: dict[str, Term] = {"erased_event": b"GREATEST(erased_event,%d)" % event_id}
    return update(table(database, b"follower"), changes, name=name, epoch=epoch)


def select_acknowledged(database: str) -> bytes:
    """Select the name of each follower of a shard and the last event that it has handled."""
    return b"SELECT name, erased_event FROM %b ORDER BY name" % table(database, b"follower")


def delete_parked_ids(database: str, name: str, epoch: int, ids: Iterable[int]) -> bytes:
    """Delete parked cells with these added_ids, if the follower's row still has the epoch."""
    own = b" AND EXISTS (SELECT * FROM %b WHERE %b)" % (table(database, b"follower"), matching(name=name, epoch=epoch))
    return delete(table(database, b"parked"), name=name) + b" AND added_id IN (%b)" % numbers(ids) + own


# Parked cells


def insert_parked(database: str, name: str, epoch: int, row: ParkedRow) -> bytes:
    """Park a cell if the follower's row still has the epoch; a cell that is already parked gets the new error."""
    return (
        b"INSERT INTO %b (name, added_id, row_key, column_name, ref_key, attempts, error) "
        b"SELECT name, %d, %b, %b, %d, %d, %b FROM %b WHERE name=%b AND epoch=%d "
        b"ON DUPLICATE KEY UPDATE attempts=VALUES(attempts), error=VALUES(error), replay=0"
        % (
            table(database, b"parked"),
            row.added_id,
            blob_hex(row.row_key),
            text(row.column_name),
            row.ref_key,
            row.attempts,
            text(row.error),
            table(database, b"follower"),
            text(name),
            epoch,
        )
    )


def select_parked(database: str, name: str, after: int, limit: int, *, added_id: int | None, tracebacks: bool) -> bytes:
    """Select parked cells in order, with the first line of each error, or with its traceback.

    Args:
        database: the shard's database.
        name: the follower.
        after: added_id of the cell before the first one.
        limit: maximum number of cells.
        added_id: added_id of the only cell; None for all.
        tracebacks: whether to select whole errors.
    """
    error = b"error" if tracebacks else b"SUBSTRING_INDEX(error,%b,1)" % text("\n")
    return (
        b"SELECT added_id, row_key, column_name, ref_key, attempts, %b, CONCAT(parked_at,'+00:00'), replay "
        b"FROM %b WHERE %b AND added_id>%d ORDER BY added_id LIMIT %d"
        % (error, table(database, b"parked"), matching(name=name, added_id=added_id), after, limit)
    )


def select_to_replay(database: str, name: str, limit: int) -> bytes:
    """Select added_id, attempts and replay of the first parked cells to try again, in order."""
    return b"SELECT added_id, attempts, replay FROM %b WHERE name=%b AND replay>0 ORDER BY added_id LIMIT %d" % (
        table(database, b"parked"),
        text(name),
        limit,
    )


def select_every_parked(database: str) -> bytes:
    """Select follower, added_id and key of all parked cells, and whether the cell exists."""
    return (
        b"SELECT p.name, p.added_id, p.row_key, p.column_name, p.ref_key, c.added_id IS NOT NULL FROM %b AS p "
        b"LEFT JOIN %b AS c ON c.added_id=p.added_id AND c.row_key=p.row_key AND c.column_name=p.column_name "
        b"AND c.ref_key=p.ref_key ORDER BY p.name, p.added_id" % (table(database, b"parked"), cell_table(database))
    )


def note_replay(database: str, name: str, epoch: int, added_id: int, changes: Mapping[str, Value]) -> bytes:
    """Record the progress of a replay, if the follower's row still has the epoch.

    ``replay`` is 0 if no replay is requested; otherwise 1 plus the number of times that it has begun.
    """
    return b"UPDATE %b AS p JOIN %b AS f ON f.name=p.name AND f.epoch=%d SET %b WHERE p.name=%b AND p.added_id=%d" % (
        table(database, b"parked"),
        table(database, b"follower"),
        epoch,
        assigned({f"p.{column}": value for column, value in changes.items()}),
        text(name),
        added_id,
    )


def delete_parked(database: str, name: str, ids: Iterable[int] | None = None, *, after: int = 0) -> bytes:
    """Delete parked cells of a shard: those with these added_ids, or all after a location."""
    statement = delete(table(database, b"parked"), name=name)
    return statement + (b" AND added_id>%d" % after if ids is None else b" AND added_id IN (%b)" % numbers(ids))


def _update(database: str, name: str, epoch: int, changes: Mapping[str, Term]) -> bytes:
    return update(table(database, b"follower"), changes, name=name, epoch=epoch)


SELECT_TABLE_CACHE: Final = (
    b"SELECT @@global.table_open_cache, @@global.table_open_cache_instances, @@global.table_definition_cache"
)
