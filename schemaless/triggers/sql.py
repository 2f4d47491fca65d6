"""Statements that change where a trigger is, for its operators."""

from __future__ import annotations

from schemaless.followers.sql import _ANEW
from schemaless.wire.sql.parts import NOW, Term, by_id, id_range, table, text, update


def restart(database: str, name: str, killer: str) -> bytes:
    """Let a stopped follower try its cell again, from the first attempt on.

    If the message begins with ``killer``, that cell killed its workers, and the follower goes on in quarantine.
    """
    state = b"IF(LEFT(COALESCE(message, ''), %d)=%b, 'quarantined', 'running')" % (len(killer), text(killer))
    return update(table(database, b"follower"), {**_ANEW, "state": state}, name=name)


def reset(database: str, name: str, location: int) -> bytes:
    """Have a follower begin again behind a location; whoever owns the row has lost it."""
    lost: dict[str, Term] = {"location": location, "worker": None, "epoch": b"epoch+1", "moved_at": NOW}
    return update(table(database, b"follower"), {**lost, **_ANEW}, name=name)


def select_first_since(database: str, after: int, up_to: int, since: str) -> bytes:
    """Select the first cell, of those in a run of added_ids, that was stored at a time or later."""
    run = (by_id(database), id_range(after, up_to), text(since))
    return b"SELECT added_id FROM %b WHERE %b AND created_at>=%b ORDER BY added_id LIMIT 1" % run


def ask_to_replay(database: str, name: str, added_id: int | None) -> bytes:
    """Ask for a parked cell to be tried again, or for all of a shard."""
    return update(table(database, b"parked"), {"replay": 1}, name=name, added_id=added_id)
