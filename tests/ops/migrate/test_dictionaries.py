"""Jobs on cells compressed with dictionaries: migrations both ways, checks, archives, dump and load."""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import schemaless
from schemaless import Datastore, DictionaryInUse, InvalidInput, UnknownDictionary
from schemaless.base.keys import row_key_bytes
from schemaless.codec.dictionaries import Dictionary
from schemaless.codec.envelope import describe_body, dictionary_of
from schemaless.codec.registry import codec_named
from schemaless.ops.admin import ndjson as loading
from schemaless.ops.admin.dictionary_removal import remove
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.plan import plan_migration
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.migrate.verify import VerifyOptions, check, verify
from schemaless.planning.capacity.measure import measure
from schemaless.store.cells.dictionaries import parse_dictionary_line
from schemaless.store.internals import internals_of
from tests.dictionaries import COLUMN, cells, everywhere, kept, set_to, training
from tests.ops.migrate.originals import restore

COUNT = 60


@pytest.fixture
def admin(admin_url: str) -> Iterator[Datastore]:
    with schemaless.connect(admin_url) as opened:
        yield opened


@pytest.fixture
def documents(fresh_store: Datastore) -> dict[uuid.UUID, object]:
    """Documents, half of them as legacy text, and one that is kept as text."""
    made = cells(COUNT)
    fresh_store.put_cells(made[: COUNT // 2])
    fresh_store.put_stored_cells(
        schemaless.NewStoredCell(cell.row_key, COLUMN, 1, json.dumps(cell.body).encode()) for cell in made[COUNT // 2 :]
    )
    return {uuid.UUID(bytes=row_key_bytes(cell.row_key)): cell.body for cell in made}


def read(store: Datastore) -> dict[uuid.UUID, object]:
    return {cell.row_key: cell.body for shard in range(store.shard_count) for cell in store.iter_shard(shard)}


def bodies(store: Datastore) -> dict[uuid.UUID, bytes]:
    return {cell.row_key: cell.body for shard in range(store.shard_count) for cell in store.scan_shard(shard)}


def named(store: Datastore) -> set[int | None]:
    return {dictionary_of(body) for body in bodies(store).values()}


@pytest.mark.long
def test_migration_tells_dictionaries_apart(
    migrate_store: Datastore, admin: Datastore, documents: dict[uuid.UUID, object]
) -> None:
    """Migrations to one dictionary, another, and none: each run re-encodes everything, a second run nothing."""
    first, second = kept(admin), kept(admin, 900)
    for number, spec in (
        (first.id, MigrateSpec("msgpack+zstd", dictionary=first.id)),
        (second.id, MigrateSpec("msgpack+zstd", ("msgpack+zstd",), level=9, dictionary=second.id)),
        (None, MigrateSpec("msgpack+zstd")),
        (second.id, MigrateSpec("json+zstd", dictionary=second.id)),
    ):
        promised = plan_migration(migrate_store, spec).total
        report = migrate.run(migrate_store, spec)
        assert report.codec == spec.target
        assert (report.total().cells, report.total().left) == (COUNT, {})
        assert report.total().bytes_after == promised.bytes_after.mid
        assert named(migrate_store) == {number}
        assert migrate.run(migrate_store, spec).total().cells == 0
        assert plan_migration(migrate_store, dataclasses.replace(spec, sources=())).total.cells.mid == 0
        assert read(migrate_store) == documents
        assert check(migrate_store).faults == {}
        assert verify(migrate_store, options=VerifyOptions(spec)).faults == {}
    found = verify(migrate_store, options=VerifyOptions(MigrateSpec("json+zstd", dictionary=first.id))).faults
    assert found == {"NotReencoded": COUNT}


def test_migration_with_a_dictionary_that_cannot_be_had_changes_nothing(
    migrate_store: Datastore, admin: Datastore, documents: dict[uuid.UUID, object]
) -> None:
    """An unknown or retired dictionary, or one for another codec, is refused before a job is created."""
    before = bodies(migrate_store)
    with pytest.raises(UnknownDictionary, match="40000"):
        migrate.run(migrate_store, MigrateSpec("msgpack+zstd", dictionary=40_000))
    with pytest.raises(InvalidInput, match="does not take a dictionary"):
        MigrateSpec("msgpack+zlib", dictionary=40_000)
    dictionary = kept(admin)
    remove(admin, dictionary.id)
    with pytest.raises(InvalidInput, match="retired"):
        migrate.run(migrate_store, MigrateSpec("msgpack+zstd", dictionary=dictionary.id))
    assert bodies(migrate_store) == before
    set_to(admin, dictionary.id)
    set_to(admin, None)
    job, _ = migrate.MIGRATE.begin_or_join(migrate_store, MigrateSpec("msgpack+zstd", dictionary=dictionary.id))
    with pytest.raises(DictionaryInUse, match=f"job {job.job_id}"):
        remove(admin, dictionary.id, grace_s=0)


def test_cells_without_their_dictionary_are_faults_and_are_left(
    migrate_store: Datastore, migrate_url: str, admin: Datastore, documents: dict[uuid.UUID, object]
) -> None:
    """check, verify and migrate report each cell and change no body; importing the dictionary repairs all of them."""
    dictionary = kept(admin)
    migrate.run(migrate_store, MigrateSpec("msgpack+zstd", dictionary=dictionary.id))
    before = bodies(migrate_store)
    everywhere(admin, "DELETE FROM {table}")
    with schemaless.connect(migrate_url) as store:
        assert check(store).faults == {"UnknownDictionary": COUNT}
        assert verify(store, options=VerifyOptions(MigrateSpec())).faults["UnknownDictionary"] == COUNT
        report = migrate.run(store, MigrateSpec("msgpack+zlib"))
        assert report.total().left == {"UnknownDictionary": COUNT}
        assert bodies(store) == before
        with pytest.raises(UnknownDictionary) as raised:
            list(loading.dump_lines(store, loading.iter_dump(store, range(4), None), stored=True))
        assert raised.value.key is not None
        internals_of(admin).dictionary_replicas.bring(dictionary, {})
        assert check(store).faults == {}
        assert migrate.run(store, MigrateSpec("msgpack+zlib")).total().cells == COUNT
        assert read(store) == documents


def test_measurement_reads_cells_that_need_a_dictionary(
    migrate_store: Datastore, admin: Datastore, documents: dict[uuid.UUID, object]
) -> None:
    """None of the cells counts as damaged, and they are measured by their JSON text."""
    plain = sum(len(json.dumps(each, separators=(",", ":"))) for each in documents.values())
    migrate.run(migrate_store, MigrateSpec("msgpack+zstd", dictionary=kept(admin).id))
    found = measure(admin, seed=1)
    assert not any("damaged" in note or "do not decode" in note for note in found.notes)
    (column,) = {group.column_name for group in found.groups}
    assert column == COLUMN
    assert sum(group.json_bytes.mid for group in found.groups) == pytest.approx(plain, rel=0.2)


def test_archive_has_the_dictionaries_of_its_originals(
    migrate_store: Datastore,
    migrate_url: str,
    admin: Datastore,
    documents: dict[uuid.UUID, object],
    tmp_path: Path,
) -> None:
    """After the dictionary was removed, restore refuses its cells until it is imported from the archive."""
    dictionary = kept(admin)
    migrate.run(migrate_store, MigrateSpec("msgpack+zstd", dictionary=dictionary.id))
    before = bodies(migrate_store)
    migrate.run(migrate_store, MigrateSpec("msgpack+zlib", archive=str(tmp_path)))
    (file,) = tmp_path.rglob("dictionary-*.ndjson")
    assert verify(migrate_store).faults == {}
    remove(admin, dictionary.id, grace_s=0)
    assert remove(admin, dictionary.id, grace_s=0).removed
    with schemaless.connect(migrate_url) as store:
        refused = restore(store, [tmp_path])
        assert refused.total.left == {"UnknownDictionary": COUNT}
        assert read(store) == documents
        internals_of(admin).dictionary_replicas.bring(*parse_dictionary_line(json.loads(file.read_bytes())))
        assert restore(store, [tmp_path]).total.restored == COUNT
        assert bodies(store) == before
        assert read(store) == documents


@pytest.mark.guarantee("dictionary-loss")
@pytest.mark.parametrize("taken", [False, True])
def test_stored_dump_carries_dictionaries_and_loads_under_another_number(
    fresh_store: Datastore,
    migrate_store: Datastore,
    admin: Datastore,
    documents: dict[uuid.UUID, object],
    accounts,  # type: ignore[no-untyped-def]
    new_name: str,
    taken: bool,
) -> None:
    """The bytes are the same if the dictionary's id is free, else only the id changes; loading twice is harmless."""
    dictionary = kept(admin)
    migrate.run(migrate_store, MigrateSpec("msgpack+zstd", dictionary=dictionary.id))
    lines = b"".join(
        line for _, line in loading.dump_lines(fresh_store, loading.iter_dump(fresh_store, range(4), None), stored=True)
    ).splitlines(keepends=True)
    assert sum(line.startswith(b'{"dictionary"') for line in lines) == 1
    url = accounts.url("admin", accounts.create(new_name, 4))
    with schemaless.connect(url) as copy:
        other = kept(copy, 900) if taken else None
        for turn in range(2):
            here = loading.DumpDictionaries(
                internals_of(copy).dictionaries, internals_of(copy).dictionary_replicas.bring
            )
            reader = loading.dump_reader(None, dictionaries=here)
            report = loading.load(copy, lines, reader, source="dump")
            assert (report.created, report.there) == ((COUNT, 0) if turn == 0 else (0, COUNT))
        assert read(copy) == documents
        assert check(copy).faults == {}
        assert named(copy) == {dictionary.id + 1 if taken else dictionary.id}
        assert len([*internals_of(copy).dictionary_replicas.catalog.rows().values()]) == (1 if other is None else 2)
        if not taken:
            assert bodies(copy) == bodies(fresh_store)
        # Documents need no dictionary; they are encoded with the codec of the column.
        text = [line for _, line in loading.dump_lines(copy, loading.iter_dump(copy, range(4), None), stored=False)]
        assert not any(b"dictionary" in line for line in text)


def test_dump_whose_dictionary_is_altered_or_missing_is_refused(
    fresh_store: Datastore, migrate_store: Datastore, admin: Datastore, documents: dict[uuid.UUID, object]
) -> None:
    """The error describes the faulty line, and nothing is written."""
    dictionary = kept(admin)
    migrate.run(migrate_store, MigrateSpec("msgpack+zstd", dictionary=dictionary.id))
    cell = next(iter(fresh_store.scan_shard(0)))
    line = loading.dump_line(cell, stored=True, dictionaries=internals_of(fresh_store).dictionaries)
    none = loading.DumpDictionaries(Nothing(), lambda dictionary, source: dictionary)
    with pytest.raises(UnknownDictionary):
        loading.dump_reader(None, dictionaries=none)(line, 1)
    with pytest.raises(UnknownDictionary):
        loading.dump_reader(codec_named("json+zlib"))(line, 1)
    other = training(900).dictionary.renumbered(dictionary.id)
    with pytest.raises(schemaless.DictionaryDamaged):
        loading.dump_reader(None, dictionaries=loading.DumpDictionaries(other, lambda made, source: made))(line, 1)
    again = loading.dump_reader(
        codec_named("json+zlib"), dictionaries=loading.DumpDictionaries(dictionary, lambda made, source: made)
    )
    converted = again(line, 1)
    assert converted is not None
    assert describe_body(converted.body).name == "json+zlib"


class Nothing:
    """A datastore without dictionaries."""

    def get(self, dictionary_id: int) -> Dictionary:
        """Return no dictionary."""
        raise UnknownDictionary(str(dictionary_id))
