"""Worker processes: which exits are deaths, and which one says that the follower was removed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest

import schemaless
from schemaless.errors import ServerUnavailable
from schemaless.store.followers.black_box import BlackBox
from schemaless.store.followers.rows import FollowerRows, Looked
from schemaless.store.followers.supervisor import OpenWork, Supervisor
from schemaless.store.internals import internals_of
from schemaless.store.opening import Opening, opening_of
from schemaless.store.triggers.supervision import caught_up, prepare

pytestmark = pytest.mark.mysql


@dataclass(frozen=True)
class Leaves:
    """Exits its process with status 0, as a function may."""

    title: str = "trigger leaves"

    @contextmanager
    def open(self) -> Iterator[OpenWork]:
        os._exit(0)
        yield


@dataclass(frozen=True)
class Removed:
    """A worker whose follower does not exist."""

    opening: Opening
    title: str = "trigger removed"

    @contextmanager
    def open(self) -> Iterator[OpenWork]:
        with self.opening.open() as store:
            yield OpenWork(internals_of(store).follower_access, [])


def test_a_worker_that_ends_with_status_0_is_dead(follow_store):
    """Only the worker's own exit status says that its followers were removed."""
    access = internals_of(follow_store).follower_access
    leaving = Supervisor(access, Leaves(), lambda: ["trigger:leaves"], 1)
    leaving.run(lambda: leaving._healthy[0].again_s > 0)
    over = Supervisor(access, Removed(replace(opening_of(follow_store), topology=None)), list, 1)
    over.run(lambda: over._made > 1)

    assert (leaving._removed, leaving._occupied) == (False, [])
    assert (over._removed, over._made) == (True, 1)


@dataclass(frozen=True)
class Full:
    """A worker whose server has no free connection."""

    title: str = "trigger full"

    @contextmanager
    def open(self) -> Iterator[OpenWork]:
        raise ServerUnavailable("Too many connections", node="db-1", code=1040)
        yield


def test_a_worker_that_cannot_connect_says_so_in_one_line(follow_store, capfd):
    """A server that refuses connections for a while is no fault of the program's, so no traceback is printed."""
    full = Supervisor(internals_of(follow_store).follower_access, Full(), lambda: ["trigger:full"], 1)
    full.run(lambda: full._healthy[0].again_s > 0)
    said = capfd.readouterr().err

    assert "a worker of trigger full cannot open the datastore: db-1: Too many connections" in said
    assert "Traceback" not in said


class NoSharedMemory:
    """A context in a container whose /dev/shm is read-only."""

    def RawArray(self, kind: type, size: int) -> None:  # noqa: N802 - the name in multiprocessing
        raise OSError(errno.EROFS, "Read-only file system", "/dev/shm/pym-1-random")


def test_workers_that_cannot_be_started_are_an_error_with_a_remedy():
    """It names what they need instead of a temporary file."""
    with pytest.raises(OSError, match=r"in /dev/shm.*starting worker processes"):
        BlackBox(NoSharedMemory())


def test_an_unreachable_shard_has_not_caught_up(follow_store, monkeypatch):
    """It is waited for, whether its server failed first or later."""

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
