"""Copies of dictionaries on every cluster, so that losing the catalog loses no body."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import schemaless
from schemaless import Datastore, DictionaryDamaged, DictionaryInUse, InvalidInput, UnknownDictionary
from schemaless.codec.dictionaries import FIRST_ID
from schemaless.ops.admin.dictionary_removal import remove
from schemaless.ops.admin.upgrades import upgrade_schema
from schemaless.store.cells.column_codecs import settings
from schemaless.store.cells.dictionary_replicas import (
    DictionaryReplica,
)
from schemaless.store.internals import internals_of
from schemaless.topology.shards import Shards
from tests.dictionaries import COLUMN, cells, kept, set_to, training

Sql = Callable[[DictionaryReplica, str], None]


@pytest.fixture
def admin(admin_url: str) -> Iterator[Datastore]:
    with schemaless.connect(admin_url) as opened:
        yield opened


@pytest.fixture
def by_root(admin: Datastore, by_hand: Callable[[Datastore], Shards]) -> Sql:
    """Run SQL as root on a table of dictionaries."""

    def run(replica: DictionaryReplica, sql: str) -> None:
        text = sql.format(table=f"`{replica.database}`.dictionary").encode()
        by_hand(admin).pool_for(replica.pool.node).run(lambda connection: connection.execute(text))

    return run


def on_each(store: Datastore) -> list[object]:
    """Return the only dictionary of a datastore, from the catalog and from each cluster."""
    dictionary_replicas = internals_of(store).dictionary_replicas
    found = [replica.rows() for replica in (dictionary_replicas.catalog, *dictionary_replicas.copies)]
    return [None if not rows else next(iter(rows.values())).dictionary for rows in found]


@pytest.mark.guarantee("dictionary-loss")
def test_a_catalog_that_loses_its_dictionaries_loses_no_body(
    fresh_url: str, admin: Datastore, by_root: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    """Deleted, altered, or lost with its table: readers use a cluster's copy, and an upgrade restores the original."""
    dictionary = kept(admin)
    set_to(admin, dictionary.id)
    made = cells(12)
    catalog, *copies = internals_of(admin).dictionary_replicas.catalog, *internals_of(admin).dictionary_replicas.copies
    with schemaless.connect(fresh_url) as store:
        store.put_cells(made)
    for damage in (
        "DELETE FROM {table}",
        "UPDATE {table} SET content=REPLACE(content, 'currency', 'currenzy')",
        "RENAME TABLE {table} TO {table}_away",
    ):
        by_root(catalog, damage)
        by_root(copies[0], "UPDATE {table} SET digest=REVERSE(digest)")
        with schemaless.connect(fresh_url) as store:
            for cell in made:
                assert store.get_cell(cell.row_key, COLUMN, 1).body == cell.body  # type: ignore[union-attr]
        assert "using the copy of dictionary" in caplog.text
        caplog.clear()
        if "RENAME" in damage:
            by_root(catalog, "RENAME TABLE {table}_away TO {table}")
        assert list(internals_of(admin).dictionary_replicas.differences()) != []
        assert upgrade_schema(internals_of(admin).url).failed == {}
        assert on_each(admin) == [dictionary] * 3
        assert list(internals_of(admin).dictionary_replicas.differences()) == []
    assert kept(admin, 900).id == dictionary.id + 1


def test_a_catalog_that_lost_the_last_number_does_not_reuse_it(admin: Datastore, by_root: Sql) -> None:
    """New ids are above the highest on any cluster, and an import does not get an id that is taken on a cluster."""
    first = kept(admin)
    dictionary_replicas = internals_of(admin).dictionary_replicas
    by_root(dictionary_replicas.catalog, "TRUNCATE {table}")
    by_root(dictionary_replicas.copies[0], "DELETE FROM {table}")
    by_root(dictionary_replicas.copies[1], "UPDATE {table} SET content=NULL, removed_at=UTC_TIMESTAMP()")
    assert kept(admin, 900).id == FIRST_ID + 1, "the number of a removed one is taken, too"
    by_root(
        dictionary_replicas.copies[1], f"UPDATE {{table}} SET dictionary_id=40000 WHERE dictionary_id={first.id + 1}"
    )
    by_root(dictionary_replicas.catalog, "DELETE FROM {table}")
    assert kept(admin, 900).id == 40_001
    other = training(1800).dictionary
    assert dictionary_replicas.bring(other.renumbered(40_001), {}).id == 40_002


@pytest.mark.guarantee("dictionary-loss")
def test_nothing_is_written_with_a_dictionary_that_a_cluster_lacks(
    admin: Datastore, by_root: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Setting a column first copies the dictionary, and fails if it cannot be read back; a migration is refused."""
    dictionary = kept(admin)
    dictionary_replicas = internals_of(admin).dictionary_replicas
    by_root(dictionary_replicas.copies[1], "DELETE FROM {table}")
    with pytest.raises(InvalidInput, match=r"no intact copy on cluster-2 .*schema upgrade"):
        internals_of(admin).dictionaries.for_new_bodies(dictionary.id)
    set_to(admin, dictionary.id)
    assert on_each(admin) == [dictionary] * 3
    set_to(admin, None)
    by_root(dictionary_replicas.copies[1], "DELETE FROM {table}")
    with monkeypatch.context() as patched:
        patched.setattr(DictionaryReplica, "write", lambda *_: None)
        with pytest.raises(DictionaryDamaged, match="differs from the one written"):
            set_to(admin, dictionary.id)
    assert [each.dictionary_id for each in settings(dictionary_replicas.catalog.pool, admin.name)] == [None]
    other = training(900).dictionary.renumbered(dictionary.id)
    dictionary_replicas.copies[1].write(other, "{}")
    with pytest.raises(DictionaryDamaged, match="cluster-2 has another dictionary with the id"):
        set_to(admin, dictionary.id)
    assert dictionary_replicas.copies[1].rows()[dictionary.id].dictionary == other, "cells may need it"


def test_copy_to_a_cluster_and_check_name_what_differs(admin: Datastore, fresh_store: Datastore, by_root: Sql) -> None:
    """The copy before a move completes a cluster and returns the number written; ``app`` can see every difference."""
    dictionaries = [kept(admin), kept(admin, 900)]
    dictionary_replicas = internals_of(admin).dictionary_replicas
    cluster = dictionary_replicas.copies[1]
    assert dictionary_replicas.copy_all(cluster) == 0
    by_root(cluster, "DROP TABLE {table}")
    assert dictionary_replicas.copy_all(DictionaryReplica(cluster.pool, admin.name, "cluster-3")) == 2
    assert [row.dictionary for row in cluster.rows().values()] == dictionaries
    by_root(cluster, f"DELETE FROM {{table}} WHERE dictionary_id={dictionaries[0].id}")
    by_root(cluster, "UPDATE {table} SET content=REPLACE(content, 'currency', 'currenzy')")
    by_root(cluster, "INSERT INTO {table} SET dictionary_id=50000, digest=REPEAT('x', 32), size_bytes=1, source='{{}}'")
    found = list(internals_of(fresh_store).dictionary_replicas.differences())
    assert len(found) == 3
    for number, words in ((32768, "no copy on cluster-2"), (32769, "damaged on cluster-2"), (50000, "not in the cat")):
        assert any(f"dictionary {number}" in each and words in each and "schema upgrade" in each for each in found)


def test_removal_covers_the_copies_and_waits_for_moves(admin: Datastore, by_root: Sql) -> None:
    """A removed dictionary is deleted from every cluster; tables set aside by a move prevent removal."""
    dictionary = kept(admin)
    dictionary_replicas = internals_of(admin).dictionary_replicas
    shard = internals_of(admin).topology.shards_of("cluster-2")[0]
    moved = f"`{internals_of(admin).shards.database(shard)}`.cell_moved_7"
    by_root(dictionary_replicas.copies[1], f"CREATE TABLE {moved} (one INT)")
    with pytest.raises(DictionaryInUse, match="cell_moved_7 on "):
        remove(admin, dictionary.id, grace_s=0)
    by_root(dictionary_replicas.copies[1], f"DROP TABLE {moved}")
    columns = "kind='move', state='running', spec='{{}}', versions='', created_by=''"
    by_root(dictionary_replicas.catalog, f"INSERT INTO `{admin.name}`.job SET {columns}")
    with pytest.raises(DictionaryInUse, match="move job 1 "):
        remove(admin, dictionary.id, grace_s=0)
    by_root(dictionary_replicas.catalog, f"DELETE FROM `{admin.name}`.job")
    remove(admin, dictionary.id, grace_s=0)
    assert remove(admin, dictionary.id, grace_s=0).removed
    assert on_each(admin) == [None] * 3
    with pytest.raises(UnknownDictionary, match="was removed on"):
        internals_of(admin).dictionaries.get(dictionary.id)
    by_root(
        dictionary_replicas.copies[0], f"UPDATE {{table}} SET removed_at=NULL, content=x'{dictionary.content.hex()}'"
    )
    assert ["cluster-1 still has it" in each for each in dictionary_replicas.differences()] == [True]
    upgrade_schema(internals_of(admin).url)
    assert on_each(admin) == [None] * 3
