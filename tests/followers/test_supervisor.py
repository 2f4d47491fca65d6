"""Worker processes: which ends are deaths, and which one says that nothing is left to do."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

import schemaless
from schemaless.errors import ServerUnavailable
from schemaless.followers.handler import Dealer
from schemaless.followers.rows import FollowerRows, Looked
from schemaless.followers.supervisor import Supervisor
from schemaless.triggers.supervision import caught_up, prepare

pytestmark = pytest.mark.mysql


@dataclass(frozen=True)
class Leaves:
    """Ends its process as if all were well, as a function may."""

    title: str = "trigger leaves"

    def dealers(self, store: schemaless.Datastore) -> Sequence[Dealer]:
        os._exit(0)

    def followers(self, store: schemaless.Datastore) -> Sequence[str]:
        return ["trigger:leaves"]


@dataclass(frozen=True)
class Removed:
    """Has nothing to do, since nobody has made it."""

    title: str = "trigger removed"

    def dealers(self, store: schemaless.Datastore) -> Sequence[Dealer]:
        return []

    def followers(self, store: schemaless.Datastore) -> Sequence[str]:
        return []


def test_a_worker_that_ends_with_status_0_is_dead(follow_store):
    """Only the worker's own status says that what it works for was removed."""
    leaving = Supervisor(follow_store, Leaves(), 1)
    leaving.run(lambda: leaving._healthy[0].again_s > 0)
    over = Supervisor(follow_store, Removed(), 1)
    over.run(lambda: over._made > 1)

    assert (leaving._removed, leaving._children) == (False, [])
    assert (over._removed, over._made) == (True, 1)


def test_a_shard_that_cannot_be_asked_has_not_caught_up(follow_store, monkeypatch):
    """What nobody knows of is waited for, whenever it was that its server failed."""

    @schemaless.trigger(column="BASE", start="end")
    def there(cell, call): ...

    prepare(follow_store, there)
    whole, away = FollowerRows.look, {2}

    def partly(self: FollowerRows, pairs: object) -> Looked:
        looked = whole(self, pairs)  # type: ignore[arg-type]
        gone = {shard: ServerUnavailable("gone", node="db-1") for shard in away}
        return Looked({pair: row for pair, row in looked.rows.items() if pair[1] not in gone}, gone)

    monkeypatch.setattr(FollowerRows, "look", partly)
    ended = caught_up(follow_store, there)
    before = ended()
    away.clear()
    known = ended()
    away.add(1)

    assert (before, known, ended()) == (False, True, False)
