"""check: faults of every kind are found and reported with their cells."""

from __future__ import annotations

import shutil
import zlib
from itertools import islice

import pytest

from schemaless import NewStoredCell
from schemaless.base.events import Advanced, only, together
from schemaless.codec.registry import codec_named, codec_names
from schemaless.ops.migrate.verify import Fault, check
from schemaless.store.cold.targets import MARKER
from schemaless.store.internals import internals_of
from tests.cold import ColdFolder

pytestmark = pytest.mark.mysql

ORIGINAL = {"fare": 10, "text": "x" * 200}


def sealed(format_byte: int, payload: bytes) -> bytes:
    """Return a body with a valid checksum."""
    head = bytes((0xC1, format_byte)) + payload
    return head + zlib.crc32(head).to_bytes(4, "big")


def faults_after(store, shards, row, body: bytes) -> list[str]:
    """Store a cell, replace its body by SQL, and return the kinds of faults found."""
    store.put_cell(row, "BASE", 1, ORIGINAL)
    shard = store.shard_of(row)
    database = internals_of(store).shards.database(shard).encode()
    shards.execute(shard, b"UPDATE `%b`.cell SET body=x'%b'" % (database, body.hex().encode()))
    found = []
    report = check(store, listener=only(Fault, found.append))

    assert report.cells == 1
    assert report.faults.total() == len(found)
    assert all(fault.key == (row, "BASE", 1) and fault.shard == shard and fault.added_id == 1 for fault in found)
    return [fault.kind for fault in found]


@pytest.mark.guarantee("corruption-detected")
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "UnreadableLegacy"),
        (b"{", "UnreadableLegacy"),
        (b"\xc1", "TruncatedBody"),
        (b"\xc1\x11\x00\x00\x00\x00\x00", "ChecksumMismatch"),
        (sealed(0xEE, b"x"), "UnknownFormat"),
        (sealed(0x10, b"\xc4\x01a"), "MalformedPayload"),
        (sealed(0x10, b"\x01\x01"), "TrailingBytes"),
        (sealed(0x10, b"\x82\xa1a\x01\xa1a\x02"), "NotCanonical"),
        (sealed(0x11, zlib.compress(b"\xda" + b"\xff\xff" + b"a" * 65535) + b"x"), "TrailingBytes"),
    ],
)
def test_check_finds_every_kind_of_rot(fresh_store, row, body, kind, by_hand):
    """The kind of the fault is the exception that a reader would get."""
    assert faults_after(fresh_store, by_hand(fresh_store), row, body) == [kind]


def test_check_of_every_codec_is_clean(fresh_store, new_row):
    """Bodies written by this store are canonical in every codec, short or long."""
    for name in codec_names():
        for body in (ORIGINAL, [1], {"n": 2**70}, "x" * 5000):
            fresh_store.put_cell(new_row(), "BASE", 1, body, codec=name)
    fresh_store.put_stored_cells([NewStoredCell(new_row(), "TEXT", 1, b' {"a" : 1e999, "a": 2}\n')])
    report = check(fresh_store)

    assert report.faults == {}
    assert report.cells == 4 * len(codec_names()) + 1
    assert set(report.by_codec) >= {codec_named(name).name for name in codec_names()}


def test_check_finds_a_row_in_the_wrong_shard(fresh_store, row, by_hand):
    """A cell in the wrong shard is reported."""
    fresh_store.put_cell(row, "BASE", 1, ORIGINAL)
    home = fresh_store.shard_of(row)
    other = next(
        shard
        for shard in internals_of(fresh_store).topology.shards_of(
            internals_of(fresh_store).topology.cluster_of(home).name
        )
        if shard != home
    )
    columns = "row_key, column_name, ref_key, body"
    copy = f"INSERT INTO `{{}}`.cell ({columns}) SELECT {columns} FROM `{{}}`.cell"
    by_hand(fresh_store).execute(
        other,
        copy.format(
            internals_of(fresh_store).shards.database(other), internals_of(fresh_store).shards.database(home)
        ).encode(),
    )
    found = []
    report = check(fresh_store, listener=only(Fault, found.append))

    assert [(fault.kind, fault.shard) for fault in found] == [("Misplaced", other)]
    assert f"belongs to shard {home}" in found[0].message
    assert report.cells == 2


def test_check_finds_keys_that_no_cell_may_have(fresh_store, row, by_hand):
    """Rows written by another program."""
    shard = fresh_store.shard_of(row)
    database = internals_of(fresh_store).shards.database(shard).encode()
    by_hand(fresh_store).execute(
        shard,
        b"INSERT INTO `%b`.cell (row_key, column_name, ref_key, body) "
        b"VALUES (x'%b', 'a b', 1, '1'), (x'%b', 'a', -1, '1')" % (database, row.hex.encode(), row.hex.encode()),
    )
    found = []
    check(fresh_store, listener=only(Fault, found.append))

    assert [fault.kind for fault in found] == ["InvalidCell", "InvalidCell"]


def test_check_reports_an_exchanged_shard_and_continues(fresh_store, new_row, by_hand):
    """The shard is checked even if this process has verified it before, and the other shards are checked, too."""
    rows = [new_row() for _ in range(20)]
    for row in rows:
        fresh_store.put_cell(row, "BASE", 1, ORIGINAL)
    database = internals_of(fresh_store).shards.database(2)
    by_hand(fresh_store).execute(2, f"UPDATE `{database}`.shard_identity SET shard_count = 5".encode())
    found = []
    report = check(fresh_store, listener=only(Fault, found.append))

    assert [(fault.kind, fault.shard, fault.key) for fault in found] == [("ShardIdentityMismatch", 2, None)]
    assert report.cells == sum(fresh_store.shard_of(row) != 2 for row in rows)


def test_check_some_shards_only(fresh_store, new_row):
    """--shards."""
    rows = [new_row() for _ in range(20)]
    for row in rows:
        fresh_store.put_cell(row, "BASE", 1, ORIGINAL)

    assert check(fresh_store, [1, 3]).cells == sum(fresh_store.shard_of(row) in (1, 3) for row in rows)


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.long), "between two pages"])
def test_check_names_a_shard_whose_database_is_dropped_under_it_and_goes_on(fresh_store, new_row, by_hand, when):
    """A dropped shard database is one fault, and all other shards are checked."""
    rows = list(islice((row for row in iter(new_row, None) if fresh_store.shard_of(row) == 1), 4))
    fresh_store.put_stored_cells([NewStoredCell(row, "BIG", 1, b'"%b"' % (b"x" * 6_000_000)) for row in rows])
    others = [row for row in (new_row() for _ in range(20)) if fresh_store.shard_of(row) != 1]
    for row in others:
        fresh_store.put_cell(row, "BASE", 1, ORIGINAL)
    check(fresh_store)
    looked_at: list[Advanced] = []

    def drop(more: Advanced) -> None:
        looked_at.append(more)
        if when != "before" and len(looked_at) == sum(fresh_store.shard_of(row) == 0 for row in others) + 1:
            by_hand(fresh_store).execute(1, f"DROP DATABASE `{internals_of(fresh_store).shards.database(1)}`".encode())

    if when == "before":
        by_hand(fresh_store).execute(1, f"DROP DATABASE `{internals_of(fresh_store).shards.database(1)}`".encode())
    found = []
    report = check(fresh_store, listener=together(only(Fault, found.append), only(Advanced, drop)))

    assert [(fault.shard, fault.key) for fault in found] == [(1, None)]
    assert found[0].kind == ("ShardIdentityMismatch" if when == "before" else "DatabaseMissing")
    assert internals_of(fresh_store).shards.database(1) in found[0].message
    assert report.shards == 4
    assert len(others) <= report.cells < len(others) + len(rows)


def test_check_looks_at_references_without_their_files(fresh_store, new_row, by_hand, tmp_path):
    """A reference is to a file that the shard lists, for this cell; the files are read with ``cold`` only."""
    rows = [new_row() for _ in range(20)]
    for row in rows:
        fresh_store.put_cell(row, "BASE", 1, ORIGINAL)
    folder = ColdFolder(fresh_store, by_hand(fresh_store), tmp_path / "cold")
    folder.freeze([(row, "BASE", 1) for row in rows[:10]])
    (tmp_path / "cold").rename(tmp_path / "away")
    (tmp_path / "cold").mkdir()
    shutil.copy(tmp_path / "away" / MARKER, tmp_path / "cold")
    report = check(fresh_store)

    assert (report.faults, report.by_codec["cold"], report.cells) == ({}, 10, 20)
    assert check(fresh_store, cold=True).faults == {"ColdBodyMissing": 10}
    shutil.rmtree(tmp_path / "cold")
    (tmp_path / "away").rename(tmp_path / "cold")
    assert check(fresh_store, cold=True).faults == {}
    shard = fresh_store.shard_of(rows[0])
    database = internals_of(fresh_store).shards.database(shard).encode()
    by_hand(fresh_store).execute(shard, b"UPDATE `%b`.cold_file SET state='condemned'" % database)
    found = []
    check(fresh_store, listener=only(Fault, found.append))
    assert {fault.kind for fault in found} == {"ReferenceWrong"}
    there = {row for row in rows[:10] if fresh_store.shard_of(row) == shard}
    assert {fault.key.row_key for fault in found} == there
