"""Packed bodies in migrations both ways, plans, checks, dumps and restores."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import schemaless
from schemaless import Datastore, NewStoredCell
from schemaless.codec.envelope import describe_body, dictionary_of, encode_body
from schemaless.codec.registry import PACKED, codec_named
from schemaless.codec.training import train
from schemaless.ops.admin import ndjson as loading
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.plan import plan_migration
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.migrate.verify import VerifyOptions, check, verify
from schemaless.store.internals import internals_of
from tests.ops.migrate.originals import restore

COUNT = 40
KEPT = {
    "NUL in a string": b'{"s": "\\u0000", "t": "%s"}' % (b"t" * 99),
    "lone surrogate": b'{"s": "\\ud83d", "t": "%s"}' % (b"t" * 99),
    "duplicate keys": b'{"s": 1, "s": 2, "t": "%s"}' % (b"t" * 99),
    "packed is not shorter": b'{"s": 1}',
}


@pytest.fixture
def admin(admin_url: str) -> Iterator[Datastore]:
    with schemaless.connect(admin_url) as opened:
        yield opened


def trip(number: int) -> dict[str, Any]:
    """Return a trip with its points."""
    points = [
        {
            "at": f"2013-01-31T08:{number % 60:02}:{at:02}Z",
            "on": [-73.98 + at / 1000, 40.75 + number / 1000],
            "speed": at / 2,
        }
        for at in range(20)
    ]
    return {"trip": number, "status": "completed", "points": points, "big": 2**70 + number}


@pytest.fixture
def before(fresh_store: Datastore) -> dict[uuid.UUID, bytes]:
    """Trips as JSON text, MessagePack and packed bodies, and a body for each reason to keep JSON text."""
    texts = [json.dumps(trip(number)).encode() for number in range(COUNT)]
    texts[:9] = [encode_body(trip(number), codec_named("json+zlib")) for number in range(9)]
    texts[9:12] = [encode_body(trip(number), codec_named("packed+zlib")) for number in range(9, 12)]
    fresh_store.put_stored_cells(
        NewStoredCell(uuid.uuid5(uuid.NAMESPACE_OID, str(number)), "LOG", 1, text)
        for number, text in enumerate([*texts, *KEPT.values()])
    )
    return bodies(fresh_store)


def bodies(store: Datastore) -> dict[uuid.UUID, bytes]:
    return {cell.row_key: cell.body for shard in range(store.shard_count) for cell in store.scan_shard(shard)}


def read(store: Datastore) -> dict[uuid.UUID, object]:
    return {cell.row_key: cell.body for shard in range(store.shard_count) for cell in store.iter_shard(shard)}


@pytest.mark.parametrize("name", ["packed+zstd", "packed+zlib", "packed+none"])
@pytest.mark.long
def test_migration_to_packed_and_back_gives_the_first_bytes(
    fresh_store: Datastore, migrate_store: Datastore, before: dict[uuid.UUID, bytes], tmp_path: Path, name: str
) -> None:
    """From text to packed, to MessagePack, to packed: as planned, verified at each step, restored byte for byte."""
    documents = read(fresh_store)
    promised = plan_migration(migrate_store, MigrateSpec(name)).total
    report = migrate.run(migrate_store, MigrateSpec(name, archive=str(tmp_path / "first")))
    total = report.total()

    assert total.left == {}
    assert dict(total.kept_as_text) == dict.fromkeys(KEPT, 1)
    assert (total.cells, total.bytes_after) == (promised.cells.mid, promised.bytes_after.mid)
    assert {describe_body(body).name.partition("+")[0] for body in bodies(fresh_store).values()} == {"packed", "json"}
    assert migrate.run(migrate_store, MigrateSpec(name)).total().cells == 0
    assert plan_migration(migrate_store, MigrateSpec(name)).total.cells.mid == 0
    assert read(fresh_store) == documents
    assert check(migrate_store).faults == {}
    assert verify(migrate_store, options=VerifyOptions(MigrateSpec(name))).faults == {}
    migrate.run(migrate_store, MigrateSpec("msgpack+zlib", archive=str(tmp_path / "second")))
    assert read(fresh_store) == documents
    assert check(migrate_store).faults == {}
    for folder in ("second", "first"):
        assert restore(migrate_store, [tmp_path / folder]).total.left == {}
    assert bodies(fresh_store) == before


def test_dump_and_load_carry_packed_bodies_with_their_dictionary(
    fresh_store: Datastore,
    migrate_store: Datastore,
    admin: Datastore,
    before: dict[uuid.UUID, bytes],
    accounts,  # type: ignore[no-untyped-def]
    new_name: str,
) -> None:
    """A dictionary is trained on packed payloads, and a dump of stored bodies is loaded byte for byte."""
    cells = ((uuid.uuid5(uuid.NAMESPACE_OID, str(n)).bytes, encode_body(trip(n))) for n in range(200))
    trained = train(cells, codec_named("packed+zstd"), sizes=(2_048,))
    assert trained.codec.serializer == PACKED
    dictionary = internals_of(admin).dictionary_replicas.keep(trained.dictionary, {"column": "LOG"})
    report = migrate.run(migrate_store, MigrateSpec("packed+zstd", dictionary=dictionary.id))
    assert report.codec == f"packed+zstd with dictionary {dictionary.id}"
    assert {dictionary_of(body) for body in bodies(fresh_store).values()} == {dictionary.id, None}
    lines = b"".join(
        line for _, line in loading.dump_lines(fresh_store, loading.iter_dump(fresh_store, range(4), None), stored=True)
    ).splitlines(keepends=True)
    with schemaless.connect(accounts.url("admin", accounts.create(new_name, 4))) as copy:
        here = loading.DumpDictionaries(internals_of(copy).dictionaries, internals_of(copy).dictionary_replicas.bring)
        loaded = loading.load(copy, lines, loading.dump_reader(None, dictionaries=here), source="dump")

        assert loaded.created == COUNT + len(KEPT)
        assert bodies(copy) == bodies(fresh_store)
        assert read(copy) == read(fresh_store)
        assert check(copy).faults == {}
