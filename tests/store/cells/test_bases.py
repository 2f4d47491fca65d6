"""Versions that are stored as deltas: every read returns them as if they were whole."""

from __future__ import annotations

import pytest

from schemaless import (
    BaseDiffers,
    BaseMissing,
    CellConflict,
    ColdBodyMissing,
    CorruptBody,
    NewStoredCell,
    UnknownFormat,
)
from schemaless.base.events import only
from schemaless.codec.deltas import encode_delta
from schemaless.codec.engine import ENGINE
from schemaless.codec.envelope import decode_body, describe_body, encode_body, enveloped, is_delta, tombstone
from schemaless.codec.references import reference_body
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.migrate.verify import Fault, check
from schemaless.store.cells.bases import with_bases
from schemaless.store.cells.paging import PageSize, Scan
from schemaless.store.internals import internals_of
from schemaless.wire.connection import Connection

pytestmark = [pytest.mark.mysql]

COUNT = 75


def document(ref_key):
    return {"legs": [{"from": f"A{number}", "to": f"B{number}"} for number in range(40)], "n": ref_key}


def delta(ref_key, base=None, new=None):
    """Return the delta of a version against the next one."""
    dumps, base = ENGINE.msgpack.dumps, ref_key + 1 if base is None else base
    return encode_delta(ENGINE.msgpack, dumps(document(ref_key)), base, dumps(document(base) if new is None else new))


class Versions:
    """The versions of one row and column, of which every 35th is whole; changed by root."""

    def __init__(self, store, shards, row):
        self.store, self.shards, self.row, self.shard = store, shards, row, store.shard_of(row)
        for ref_key in range(1, COUNT + 1):
            store.put_cell(row, "BASE", ref_key, document(ref_key))
        for ref_key in range(1, COUNT):
            if ref_key % 35:
                self.write(ref_key, delta(ref_key))

    def write(self, ref_key, body):
        arguments = self.shards.database(self.shard).encode(), body.hex().encode(), self.row.hex.encode(), ref_key
        sql = b"UPDATE %b.cell SET body=x'%b' WHERE row_key=x'%b' AND column_name='BASE' AND ref_key=%d" % arguments
        self.shards.execute(self.shard, sql)

    def documents(self, cells):
        return [(cell.ref_key, cell.body) for cell in cells if cell.row_key == self.row]


@pytest.fixture
def store(fresh_store):
    """A datastore of its own, whose feed only the account ``tail`` can read past ids that puts used up."""
    return fresh_store


@pytest.fixture
def versions(store, by_hand, row):
    return Versions(store, by_hand(store), row)


@pytest.fixture
def queries(monkeypatch):
    """The queries that are sent, with what each is followed by: an action, given by its number."""
    sent, actions, rows = [], {}, Connection.rows

    def recorded(connection, sql, check=None):
        found = rows(connection, sql, check)
        sent.append(bytes(sql))
        actions.pop(len(sent), lambda: None)()
        return found

    monkeypatch.setattr(Connection, "rows", recorded)
    return sent, actions


@pytest.mark.twice
def test_every_call_returns_the_documents_of_deltas(versions, store, tail_store):
    """By key, descending and ascending, from the feed and from a scan; in Arrow batches, and as equal puts."""
    expected = [(ref_key, document(ref_key)) for ref_key in range(1, COUNT + 1)]
    row, shard = versions.row, versions.shard

    assert [(n, store.get_cell(row, "BASE", n).body) for n in range(1, COUNT + 1)] == expected
    assert versions.documents(store.get_versions(row, "BASE")) == expected[::-1]
    assert versions.documents(store.get_versions(row, "BASE", descending=False)) == expected
    assert versions.documents(store.get_versions(row, "BASE", after=3, before=9, descending=False)) == expected[3:8]
    assert versions.documents(tail_store.iter_shard(shard)) == expected
    assert versions.documents(cell.decode() for cell in store.scan_shard(shard)) == expected
    page = tail_store.get_cells_for_shard(shard, store.get_cell(row, "BASE", 1).added_id - 1)
    assert versions.documents(page.cells) == expected
    assert not store.put_cell(row, "BASE", 5, document(5)).created
    assert not store.put_stored_cells([NewStoredCell(row, "BASE", 6, encode_body(document(6)))])[0].created
    with pytest.raises(CellConflict):
        store.put_cell(row, "BASE", 5, document(6))


def test_only_what_is_missing_is_read(versions, store, queries):
    """Whole versions take no further statement, deltas one, or none after others; a page has most bases itself."""
    sent, _ = queries
    store.get_cell(versions.row, "BASE", COUNT)

    def count(call):
        before = len(sent)
        call()
        return len(sent) - before

    for whole in (COUNT, 70, 35):
        assert count(lambda: store.get_cell(versions.row, "BASE", whole)) == 1  # noqa: B023
    assert count(lambda: store.get_cell_latest(versions.row, "BASE")) == 1
    assert count(lambda: store.get_row(versions.row)) == 1
    for deltas, whole in ((3, 16), (1, 0)):
        assert count(lambda: store.get_cell(versions.row, "BASE", 33)) == 2
        assert [count(lambda: store.get_cell(versions.row, "BASE", 33)) for _ in range(deltas)] == [1] * deltas
        assert [count(lambda: store.get_cell(versions.row, "BASE", 70)) for _ in range(whole)] == [1] * whole
    assert count(lambda: store.get_cell(versions.row, "BASE", 17)) == 3, "its chain has 18 versions"
    assert count(lambda: store.get_cell(versions.row, "BASE", 16)) == 3
    assert count(lambda: list(store.get_versions(versions.row, "BASE", limit=8))) == 1
    assert count(lambda: list(store.get_versions(versions.row, "BASE", limit=COUNT))) == 4, "one for each page"
    assert count(lambda: list(store.get_versions(versions.row, "BASE", before=34, limit=8))) == 2
    versions.write(40, delta(40, 48))
    versions.write(48, delta(48, 70))
    assert count(lambda: store.get_cell(versions.row, "BASE", 40)) == 1


def test_a_base_that_is_erased_during_a_read_is_no_damage(versions, store, queries):
    """The delta was re-encoded before, in the same transaction, so it is read again."""
    sent, actions = queries

    def erase():
        versions.write(3, encode_body(document(3)))
        versions.write(4, tombstone(7))

    store.get_cell(versions.row, "BASE", COUNT)
    actions[len(sent) + 1] = erase
    assert store.get_cell(versions.row, "BASE", 3).body == document(3)
    assert actions == {}
    assert store.get_cell(versions.row, "BASE", 2).body == document(2)
    assert store.get_cell(versions.row, "BASE", 4) is None


def test_a_delta_that_is_erased_during_a_read_is_erased(versions, store, queries):
    """The second statement finds that neither the version nor its base is there any more."""
    sent, actions = queries

    def erase():
        for ref_key in (3, 4):
            versions.write(ref_key, tombstone(7))

    store.get_cell(versions.row, "BASE", COUNT)
    actions[len(sent) + 1] = erase
    assert store.get_cell(versions.row, "BASE", 3) is None


def test_erasures_one_after_the_other_during_a_read_are_no_damage(versions, store, queries):
    """The end of a long chain is erased between the statements that read it, and then the version's own base."""
    sent, actions = queries

    def erase(whole, erased):
        versions.write(whole, encode_body(document(whole)))
        versions.write(erased, tombstone(7))

    store.get_cell(versions.row, "BASE", COUNT)
    first = len(sent) + 1
    actions |= {first + 1: lambda: erase(69, 70), first + 3: lambda: erase(36, 37)}
    assert store.get_cell(versions.row, "BASE", 36).body == document(36)
    assert actions == {}


@pytest.mark.twice
def test_versions_that_lie_far_apart_are_read_at_once(store, by_hand, row):
    """None of 140 versions shares what it depends on with another one."""
    shards, shard, whole = by_hand(store), store.shard_of(row), encode_body(document(0))
    ref_keys = range(0, 34 * 140, 34)
    puts = store.put_stored_cells([NewStoredCell(row, "BASE", n, whole) for n in range(34 * 140)], trusted=True)
    database, key = shards.database(shard).encode(), row.hex.encode()
    for n in ref_keys:
        body = delta(n, n + 1, document(0)).hex().encode()
        shards.execute(
            shard, b"UPDATE %b.cell SET body=x'%b' WHERE row_key=x'%b' AND ref_key=%d" % (database, body, key, n)
        )
    ids = [put.added_id for put in puts if put.key.ref_key in ref_keys]
    read = internals_of(store).read_stored(shard, ids)
    assert {cell.ref_key: cell.decode().body for cell in read} == {n: document(n) for n in ref_keys}


@pytest.mark.guarantee("corruption-detected")
@pytest.mark.parametrize(
    ("body", "error", "problem"),
    [
        (tombstone(7), BaseMissing, "version 20 of the same row and column, which was erased"),
        (encode_body(document(20))[:-1] + b"?", BaseMissing, "which is damaged: CRC-32"),
        (encode_body(list(range(500))), BaseDiffers, "version 20, whose document was another one"),
    ],
    ids=["erased", "damaged", "other"],
)
def test_a_base_that_is_lost_is_named_with_the_cell(versions, store, body, error, problem):
    """What depends on it is never returned as data; everything else is."""
    versions.write(20, body)
    for ref_key in (1, 19):
        with pytest.raises(error, match=problem) as caught:
            store.get_cell(versions.row, "BASE", ref_key)
        assert caught.value.key == (versions.row, "BASE", ref_key)
    assert store.get_cell(versions.row, "BASE", 21).body == document(21)
    found = {}
    for cell in store.scan_shard(versions.shard):
        if cell.row_key == versions.row:
            try:
                found[cell.ref_key] = cell.decode().body == document(cell.ref_key)
            except CorruptBody:
                found[cell.ref_key] = False
    assert [ref_key for ref_key, same in found.items() if not same] == list(range(1, 21))


@pytest.mark.guarantee("corruption-detected")
@pytest.mark.parametrize(("head", "problem"), [(0x14, "compressor 4 is unknown"), (0xF2, "serializer 15 is unknown")])
def test_a_body_in_the_format_of_a_later_version_is_refused(versions, store, tail_store, migrate_store, head, problem):
    """By every call, also as what others depend on; and it stays. So versions that know no deltas refuse those."""
    row, later = versions.row, enveloped(head, delta(35)[2:-4])
    versions.write(35, later)
    for call in (
        lambda: store.get_cell(row, "BASE", 35),
        lambda: list(store.get_versions(row, "BASE", before=36, descending=True)),
        lambda: store.put_cell(row, "BASE", 35, document(35)),
    ):
        with pytest.raises(UnknownFormat, match=problem) as caught:
            call()
        assert caught.value.key == (row, "BASE", 35)
    for call in (
        lambda: store.get_cell(row, "BASE", 34),
        lambda: list(tail_store.iter_shard(versions.shard)),
        lambda: [cell.decode() for cell in store.scan_shard(versions.shard)],
    ):
        with pytest.raises(BaseMissing, match=f"version 35 .* is damaged: .*{problem}"):
            call()
    faults = {"UnknownFormat": 1, "BaseMissing": 34}
    assert check(store, [versions.shard]).faults == faults
    assert migrate.run(migrate_store, MigrateSpec("packed+zstd")).total().left == faults
    assert {cell.ref_key: cell.body for cell in store.scan_shard(versions.shard)}[35] == later


@pytest.mark.guarantee("corruption-detected")
@pytest.mark.parametrize(("other", "kind"), [(None, "BaseMissing"), ("reversed", "BaseDiffers")])
def test_check_finds_what_depends_on_a_base_changed_by_hand(versions, store, other, kind):
    """It was removed, or has another document of the same length: each version that depends on it is named."""
    if other is None:
        arguments = versions.shards.database(versions.shard).encode(), versions.row.hex.encode()
        delete = b"DELETE FROM %b.cell WHERE row_key=x'%b' AND column_name='BASE' AND ref_key=20" % arguments
        versions.shards.execute(versions.shard, delete)
    else:
        versions.write(20, encode_body({"legs": document(20)["legs"][::-1], "n": 20}))
    found = []
    check(store, [versions.shard], listener=only(Fault, found.append))
    assert sorted((fault.key, fault.kind) for fault in found) == [
        ((versions.row, "BASE", ref_key), kind) for ref_key in range(1, 20)
    ]
    assert all("version 20" in fault.message for fault in found)


def test_stored_cells_show_the_bytes_in_the_table(versions, store):
    """A tool that looks at bytes sees how a version is stored."""
    cells = [cell for cell in store.scan_shard(versions.shard) if cell.row_key == versions.row]
    assert {describe_body(cell.body).name for cell in cells} == {"msgpack+delta", "msgpack+zlib"}
    assert [cell.ref_key for cell in cells if not is_delta(cell.body)] == [35, 70, COUNT]


def test_pages_of_deltas_are_bounded_by_their_documents(store, tail_store, by_hand, row):
    """Short bodies of long documents: a page has as many as have 16 MiB together, and the next one goes on."""
    shards, shard = by_hand(store), store.shard_of(row)
    long = "x" * 700_000
    first = store.put_cell(row, "LONG", 1, {"n": 1, "x": long}).added_id
    for ref_key in range(2, 62):
        last = store.put_cell(row, "LONG", ref_key, {"n": ref_key, "x": long}).added_id
    dumps = ENGINE.msgpack.dumps
    for ref_key in range(1, 61):
        body = encode_delta(
            ENGINE.msgpack, dumps({"n": ref_key, "x": long}), ref_key + 1, dumps({"n": ref_key + 1, "x": long})
        )
        arguments = shards.database(shard).encode(), body.hex().encode(), row.hex.encode(), ref_key
        shards.execute(shard, b"UPDATE %b.cell SET body=x'%b' WHERE row_key=x'%b' AND ref_key=%d" % arguments)

    run = lambda operation: internals_of(store).shards.run(shard, operation)  # noqa: E731
    rows, more = Scan(run, shards.database(shard), PageSize(1_000)).page(first - 1, last)
    assert (len(rows), more) == (23, True)
    assert [cell.body["n"] for cell in tail_store.iter_shard(shard, first - 1) if cell.row_key == row] == list(
        range(1, 62)
    )


def test_a_row_that_is_gone_when_it_is_read_again_keeps_its_body():
    """A replica may have had it, but not the primary. A delta can still be decoded, and a reference says its file."""
    bodies = {1: delta(1), 2: reference_body(7, 0, 0, b"{}"), 3: reference_body(7, 0, 1, b"{}")}
    rows = [(n, b"row", "BASE", n, body, None) for n, body in bodies.items()]
    known = {((b"row", "BASE"), 2): encode_body(document(2))}
    delta_alone = with_bases(None, "unused", rows[:1], known=known)
    assert decode_body(delta_alone.updated([])[0][4]) == document(1)
    again = with_bases(None, "unused", rows[1:]).updated(with_bases(None, "unused", rows[1:2]))
    assert [row[3] for row in again] == [2, 3]
    with pytest.raises(ColdBodyMissing, match="cold file 7"):
        decode_body(again[1][4])
