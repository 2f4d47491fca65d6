"""Statements with which operators change a trigger's locations and parked cells."""

from __future__ import annotations

from schemaless.followers.sql import UNTRIED
from schemaless.wire.sql.parts import NOW, Term, by_id, id_range, table, text, update


def restart(database: str, name: str, killer: str) -> bytes:
    """Resume a stopped follower with the first attempt at its cell.

    If the message begins with ``killer``, the cell killed its workers, and the follower continues in quarantine.
    """
    state = b"IF(LEFT(COALESCE(message, ''), %d)=%b, 'quarantined', 'running')" % (len(killer), text(killer))
    return update(table(database, b"follower"), {**UNTRIED, "state": state}, name=name)


def reset(database: str, name: str, location: int) -> bytes:
    """Set a follower's location, and revoke its owner's lease."""
    lost: dict[str, Term] = {"location": location, "worker": None, "epoch": b"epoch+1", "moved_at": NOW}
    return update(table(database, b"follower"), {**lost, **UNTRIED}, name=name)


def select_first_since(database: str, after: int, up_to: int, since: str) -> bytes:
    """Select the first cell in a range of added_ids that was stored at or after a time."""
    run = (by_id(database), id_range(after, up_to), text(since))
    return b"SELECT added_id FROM %b WHERE %b AND created_at>=%b ORDER BY added_id LIMIT 1" % run


def ask_to_replay(database: str, name: str, added_id: int | None) -> bytes:
    """Request a replay of one parked cell, or of all of a shard."""
    return update(table(database, b"parked"), {"replay": 1}, name=name, added_id=added_id)
