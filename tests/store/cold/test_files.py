"""The cold store and its policies in the catalog, and the states that a shard's files go through."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

import schemaless
from schemaless import ColdStoreUnavailable, Datastore, InvalidCell, InvalidInput, JobConflict
from schemaless.store.cold.files import ShardFiles
from schemaless.store.cold.settings import TierPolicy
from schemaless.store.internals import internals_of

INCARNATION = "0123456789abcdef" * 2
WRITTEN = {"cells": 3, "text_bytes": 30, "file_bytes": 20, "sha256": "ab" * 32, "first_id": 2, "last_id": 8}


@pytest.fixture
def admin(admin_url: str) -> Iterator[Datastore]:
    with schemaless.connect(admin_url) as opened:
        yield opened


@pytest.fixture
def files(migrate_store: Datastore) -> ShardFiles:
    return ShardFiles(internals_of(migrate_store).shards, 1)


def test_the_cold_store_keeps_its_incarnation(admin, tmp_path):
    """The URI and the time may change; the names of files do not. A place that must have files must be marked."""
    settings, places = internals_of(admin).cold, [str(tmp_path / "one"), str(tmp_path / "other")]
    assert settings.store() is None
    settings.set_store(places[0], 30)
    first = settings.store()
    with pytest.raises(ColdStoreUnavailable, match="put an empty object of that name beside") as caught:
        settings.set_store(places[1], 0, marked=True)
    assert settings.store() == first
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "schemaless-cold-store").touch()
    assert "does not have schemaless-cold-store," in str(caught.value)
    settings.set_store(places[1], 0, marked=True)
    settings.set_store(places[1], 0)
    settings.set_store(places[1], 1, marked=True)
    second = settings.store()
    assert first is not None
    assert second is not None
    assert (first.uri, first.keep_days) == (places[0], 30)
    assert (second.uri, second.keep_days, second.incarnation) == (places[1], 1, first.incarnation)
    with pytest.raises(InvalidInput):
        settings.set_store("", 0)
    with pytest.raises(InvalidInput):
        settings.set_store(places[0], -1)
    assert settings.store() == second


def test_policies_are_set_and_removed(admin):
    """A column has one policy at most."""
    settings = internals_of(admin).cold
    for column, days in (("LOG", 180), ("BASE", 1), ("LOG", 90)):
        settings.set(TierPolicy(column, days))
    assert [(each.column_name, str(each)) for each in settings.policies()] == [
        ("BASE", "cold after 1 day"),
        ("LOG", "cold after 90 days"),
    ]
    settings.remove("BASE")
    assert [each.column_name for each in settings.policies()] == ["LOG"]
    with pytest.raises(InvalidInput):
        TierPolicy("LOG", -1)
    with pytest.raises(InvalidCell):
        settings.remove("NO SUCH COLUMN")


def test_a_condemned_file_does_not_return(files):
    """Whatever a stalled writer or rewriter does next, only its own conditional steps succeed."""
    file = files.list_new(INCARNATION, 1, 10)
    other = files.list_new(INCARNATION, 1, 10)
    assert file.file_id != other.file_id
    assert files.condemn(other, "writing")
    assert not files.publish(other, WRITTEN)
    assert files.publish(file, WRITTEN)
    assert files.publish(file, WRITTEN)  # repeated after a lost reply
    assert not files.condemn(file, "writing")
    again = files.list_new(INCARNATION, 1, 10, file_id=file.file_id, generation=1)
    with pytest.raises(JobConflict):
        files.list_new(INCARNATION, 1, 10, file_id=file.file_id, generation=1)
    assert files.publish(again, WRITTEN, replaces=file)
    late = files.list_new(INCARNATION, 1, 10, file_id=file.file_id, generation=2)
    assert not files.publish(late, WRITTEN, replaces=file)
    assert not files.deleted(again)
    found = replace(again, generation=5, token="cd" * 8)
    assert not files.adopt(found, file, 9)
    assert files.adopt(found, again, 9)
    assert not files.adopt(replace(found, generation=6, token="ef" * 8), again, 9)
    # A backup was made while the next generation was being written.
    written = files.list_new(INCARNATION, 1, 10, file_id=file.file_id, generation=7)
    assert files.adopt(replace(written, **WRITTEN), found, 9)
    assert files.deleted(other)
    assert not files.condemn(other, "live", "writing")
    states = {(each.file_id, each.generation): each.state for each in files.all()}
    assert states == {
        (file.file_id, 0): "condemned",
        (file.file_id, 1): "deleted",
        (file.file_id, 2): "condemned",
        (file.file_id, 5): "deleted",
        (file.file_id, 7): "live",
        (other.file_id, 0): "deleted",
    }
    (live,) = files.all("live")
    assert {name: getattr(live, name) for name in WRITTEN} == WRITTEN
    assert len({each.name for each in files.all()}) == 6
