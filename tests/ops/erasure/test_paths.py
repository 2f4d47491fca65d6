"""A marker in documents that were stored in every way: after an erasure nothing that can be read has it.

Each path has a control: the marker is found there before the step that removes it.
"""

from __future__ import annotations

import json
import uuid
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import zstandard
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

import schemaless
from schemaless.codec.dictionaries import Dictionary
from schemaless.errors import InvalidInput
from schemaless.ops.admin.grants import grants
from schemaless.ops.admin.ndjson import dump_lines, iter_dump
from schemaless.ops.erasure import copies
from schemaless.ops.erasure.archives import erase_from_archives
from schemaless.ops.erasure.copies import copy_tables
from schemaless.ops.erasure.job import ERASE, ErasureSpec
from schemaless.ops.erasure.job import run as run_erasure
from schemaless.ops.erasure.ledger_file import ledger_lines, load_ledger, read_ledger
from schemaless.ops.erasure.plan import plan_targets
from schemaless.ops.erasure.receipt import receipt, signed
from schemaless.ops.erasure.replay import replay, undone
from schemaless.ops.erasure.verify import verify
from schemaless.ops.jobs.throttle import Thresholds
from schemaless.ops.migrate import reencode, restore
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.archive_files import archive_files, read_archive
from schemaless.ops.migrate.restore import RestoreSpec
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.move import run as moves
from schemaless.ops.move import steps
from schemaless.ops.move.compare import compare
from schemaless.ops.move.copying import Copier
from schemaless.ops.move.fence import Side
from schemaless.ops.move.spec import MoveSpec
from schemaless.store.erasures import sql as erasures_sql
from schemaless.store.erasures.ledger import target
from schemaless.store.internals import internals_of
from tests.movers import query

MARKER = "sesame-7f3a-anna@example.org"
REASON = "gdpr-art-17"


@pytest.fixture
def url(accounts: Any, fresh_url: str) -> str:
    """The new datastore as root, which has access on every server."""
    return str(accounts.root(fresh_url))


@pytest.fixture
def root(url: str) -> Any:
    with schemaless.connect(url) as opened:
        yield opened


def document(number: int) -> dict[str, Any]:
    return {"who": MARKER, "n": number, "legs": [f"{MARKER} {number}" for _ in range(9)]}


def found_by_reading(store: schemaless.Datastore) -> int:
    """Count the cells whose dump has the marker."""
    shards = range(store.shard_count)
    return sum(MARKER.encode() in line for _, line in dump_lines(store, iter_dump(store, shards, None), stored=False))


def erase(store: schemaless.Datastore, rows: list[uuid.UUID]) -> int:
    number = internals_of(store).erasures.ledger.intend(REASON, [target(row) for row in rows])
    run_erasure(store, ErasureSpec(number))
    return number


def found_in_archive(folder: Path) -> int:
    return sum(MARKER.encode() in cell.body for file in archive_files(folder) for cell in read_archive(file))


def test_a_cell_written_in_any_way_becomes_a_tombstone(root, new_row):
    """put, batch, append, legacy, every codec, load of a dump: the dump has the marker, and then it has not."""
    rows = [new_row() for _ in range(10)]
    root.put_cell(rows[0], "BASE", 1, document(0))
    root.put_cells([schemaless.NewCell(rows[1], "BASE", number, document(number)) for number in (1, 2)])
    root.append_cell(rows[2], "BASE", document(2))
    legacy = schemaless.NewStoredCell(rows[3], "BASE", 1, json.dumps(document(3)).encode())
    root.put_stored_cells([legacy])
    for row, codec in zip(
        rows[4:9], ("json+none", "msgpack+zlib", "msgpack+zstd", "packed+zstd", "packed+none"), strict=True
    ):
        root.put_cell(row, "BASE", 1, document(4), codec=codec)
    root.put_cell(rows[9], "BASE", 1, {"kept": True})
    planned = plan_targets(root, [target(row) for row in rows[:9]]).total()
    assert (planned.cells, found_by_reading(root)) == (10, 10)
    number = erase(root, rows[:9])

    assert found_by_reading(root) == 0
    assert root.get_cell(rows[9], "BASE", 1).body == {"kept": True}
    found = verify(root, number)
    assert (found.cells, dict(found.faults), found.status.state) == (10, {}, "verified")


def test_dictionary_that_holds_a_value_is_reported(root, row, admin_url):
    """It was searched before the document was gone, and is a fault until it is removed."""
    samples = [json.dumps({"who": MARKER, "n": number}).encode() for number in range(300)]
    trained = zstandard.train_dictionary(512, samples, dict_id=40_000)
    assert MARKER.encode() in trained.as_bytes()
    kept = internals_of(root).dictionary_replicas.keep(Dictionary(trained.as_bytes()), {})
    root.put_cell(row, "BASE", 1, document(1))
    number = erase(root, [row])

    assert internals_of(root).erasures.ledger.entry(number).notes == {"dictionaries": [kept.id]}
    found = verify(root, number)
    assert dict(found.faults) == {f"dictionary {kept.id} contains values of an erased document": 1}
    assert found.status.entry.verified_at is None


@pytest.mark.guarantee("erasure-lasting")
def test_originals_in_archives_are_erased_and_never_restored(root, new_row, tmp_path):
    """The control: before, verification finds the original. A restore reports the cell as erased."""
    rows = [new_row() for _ in range(4)]
    for row in rows:
        root.put_stored_cells([schemaless.NewStoredCell(row, "BASE", 1, json.dumps(document(1)).encode())])
    migrate.run(root, MigrateSpec(archive=str(tmp_path)))
    number = erase(root, rows[:3])
    assert found_in_archive(tmp_path) == 4
    faults = verify(root, number).faults
    assert sum(faults.values()) == 3
    assert all(what.startswith("originals in ") and "'erase archive'" in what for what in faults)

    assert sum(file.originals for file in erase_from_archives(root, [tmp_path], execute=True)) == 3
    assert found_in_archive(tmp_path) == 1
    assert erase_from_archives(root, [tmp_path], execute=False) == []
    assert verify(root, number).status.state == "verified"
    outcome = restore.run(root, RestoreSpec((str(tmp_path),)))
    assert (outcome.total.restored, outcome.total.left, outcome.missing) == (1, {}, [])
    assert found_by_reading(root) == 1


@pytest.mark.guarantee("erasure-lasting")
def test_a_migration_never_brings_a_document_back(root, new_row, monkeypatch):
    """A cell is erased between the read and the UPDATE that would replace its body."""
    rows = [new_row() for _ in range(6)]
    for row in rows:
        root.put_stored_cells([schemaless.NewStoredCell(row, "BASE", 1, json.dumps(document(1)).encode())])
    convert = reencode.convert

    def erase_and_convert(body: bytes, *arguments: Any, **named: Any) -> Any:
        for each in rows[:3]:
            root.erase(each, reason=REASON)
        return convert(body, *arguments, **named)

    monkeypatch.setattr(reencode, "convert", erase_and_convert)
    outcome = migrate.run(root, MigrateSpec())

    assert outcome.failures == []
    assert found_by_reading(root) == 3
    assert all(root.get_row(row) == {} for row in rows[:3])


@pytest.mark.guarantee("erasure-lasting")
def test_tables_that_a_move_leaves_behind_are_erased(root, new_row, movers_of):
    """The moved shard, and its old table; the control is a cell that was not erased."""
    rows = list(islice((row for row in iter(new_row, None) if root.shard_of(row) == 1), 6))
    for row in rows:
        root.put_cell(row, "BASE", 1, document(1), codec="json+none")
    first = erase(root, rows[:1])
    to = movers_of(root)
    moves.run(root, MoveSpec(to, accounts=False), [1])
    number = erase(root, rows[:4])
    internals = internals_of(root)
    tables = copy_tables(internals, 1)
    statement = (
        f"SELECT SUM(INSTR(body,'{MARKER}')>0) FROM `{internals.shards.database(1)}`.`{tables[0].name}`".encode()
    )

    assert internals.shards.pool_for(tables[0].node).run(lambda connection: connection.rows(statement)) == ((2,),)
    assert found_by_reading(root) == 2
    assert verify(root, number).status.state == "verified"
    assert [event.erasure for event in root.get_erased_for_shard(1)] == [first, number, number, number]
    (left,) = moves.left_behind(root, [1])
    compared = compare(root, left)
    assert compared.same
    moves.drop(root, left)


def test_an_erasure_continues_if_a_mover_renames_a_table_of_copies(root, row, monkeypatch):
    """The tables are listed again; verification does the same."""
    root.put_cell(row, "BASE", 1, document(1))
    gone = ["cell_incoming_0123456789abcdef"]
    side_of = copies.side_of

    def listed(connection: Any, database: str) -> Side:
        side = side_of(connection, database)
        return replace(side, incoming={"cell": [gone.pop()]}) if gone else side

    monkeypatch.setattr(copies, "side_of", listed)
    number = erase(root, [row])
    assert (gone, found_by_reading(root)) == ([], 0)
    gone.append("cell_incoming_0123456789abcdef")
    assert verify(root, number).clean
    assert gone == []


def test_the_role_erase_needs_its_grants_where_a_move_has_taken_the_shard(
    root, erase_store, accounts, new_row, movers_of
):
    """The error names the command that prints them; then the account erases there."""
    row = next(row for row in iter(new_row, None) if root.shard_of(row) == 1)
    root.put_cell(row, "BASE", 1, document(1))
    moves.run(root, MoveSpec(movers_of(root), accounts=False), [1])
    with pytest.raises(
        schemaless.AccessDenied, match=r"command denied .*'schemaless grants --role erase' prints"
    ) as denied:
        erase_store.erase(row, reason=REASON)
    assert denied.value.shard == 1
    assert "--role follow" not in str(denied.value)

    internals = internals_of(root)
    internals.shards.router.again(internals.shards.routing)
    account = accounts.account("erase")
    mariadb = internals.catalog.run(lambda connection: connection.is_mariadb)
    for server in grants("erase", account, internals.topology, internals.catalog.node, mariadb=mariadb):
        query(server.node, *server.statements)
    assert erase_store.erase(row, reason=REASON).cells == 1


@pytest.fixture
def movers_of(accounts: Any) -> Any:
    """Returns the cluster that shard 1 is not on, and drops it there afterwards."""
    used: list[schemaless.Datastore] = []

    def other(store: schemaless.Datastore) -> str:
        used.append(store)
        topology = internals_of(store).topology
        return next(each.name for each in topology.clusters if each != topology.cluster_of(1))

    yield other
    for store in used:
        internals = internals_of(store)
        for cluster in internals.topology.clusters:
            if cluster != internals.topology.cluster_of(1):
                query(cluster.primary, f"DROP DATABASE IF EXISTS `{internals.shards.database(1)}`")


@pytest.mark.guarantee("erasure-backup")
def test_erasures_are_repeated_after_a_restore(root, new_row, by_hand, monkeypatch):
    """Shards and catalog are restored from before the erasure; a file has the ledger. Later cells stay.

    Loading the ledger is interrupted once: the entry's times come with it, or later cells would be erased as well.
    """

    class Killed(BaseException):
        pass

    def killed(*_: object) -> bytes:
        raise Killed

    subject, other = new_row(), new_row()
    for row in (subject, other):
        root.put_cell(row, "BASE", 1, document(1))
    internals, shard = internals_of(root), root.shard_of(subject)
    database = internals.shards.database(shard)
    body = next(root.get_stored_versions(subject, "BASE")).body
    number = erase(root, [subject])
    lines = list(ledger_lines(root))
    root.put_cell(subject, "BASE", 2, {"later": True})
    assert undone(root) == []
    # The restore: the document is back, and neither log nor ledger knows of the erasure.
    internals.shards.execute(
        shard,
        f"UPDATE `{database}`.cell SET body=x'{body.hex()}' WHERE ref_key=1 AND row_key=x'{subject.hex}'".encode(),
    )
    internals.shards.execute(shard, f"DELETE FROM `{database}`.erased_cell".encode())
    for table in ("erasure", "erasure_key", "erasure_shard"):
        internals.catalog.run(
            lambda connection, table=table: connection.execute(f"DELETE FROM `{root.name}`.{table}".encode())
        )
    assert found_by_reading(root) == 2

    with monkeypatch.context() as patch:
        patch.setattr(erasures_sql, "insert_erasure_shards", killed)
        with pytest.raises(Killed):
            load_ledger(root, lines)
    (expected,) = undone(root, read_ledger(root, lines))
    assert (expected.cells.total(), undone(root)) == (1, [])
    assert [entry.number for entry, _ in load_ledger(root, lines).erasures] == [number]
    assert load_ledger(root, lines).erasures == []
    (found,) = undone(root)
    assert found.cells == expected.cells
    replay(root, [found], Thresholds())
    assert found_by_reading(root) == 1
    assert root.get_cell_latest(subject, "BASE").body == {"later": True}
    assert (undone(root), verify(root, number).clean) == ([], True)


def test_a_replay_erases_in_all_shards_though_an_interrupted_one_left_a_job_for_some(root, new_row):
    """The job is finished, and another one does the rest."""
    first = new_row()
    rows = [first, next(row for row in iter(new_row, None) if root.shard_of(row) != root.shard_of(first))]
    for row in rows:
        root.put_cell(row, "BASE", 1, document(1))
    bodies = {row: next(root.get_stored_versions(row, "BASE")).body for row in rows}
    number = erase(root, rows)
    internals = internals_of(root)
    for row, body in bodies.items():
        shard = root.shard_of(row)
        statement = (
            f"UPDATE `{internals.shards.database(shard)}`.cell SET body=x'{body.hex()}' WHERE row_key=x'{row.hex}'"
        )
        internals.shards.execute(shard, statement.encode())
    ERASE.begin_or_join(root, ErasureSpec(number, replay=True), [root.shard_of(first)])
    (found,) = undone(root)
    assert (found_by_reading(root), found.shards) == (2, sorted(map(root.shard_of, rows)))

    replay(root, [found], Thresholds())

    assert (found_by_reading(root), undone(root)) == (0, [])


def test_a_ledger_of_other_erasures_under_the_same_numbers_is_refused(root, row, by_hand):
    """The restored catalog has gone on counting. Holds of such a file are in force; of a damaged one, nothing is."""
    number = erase(root, [row])
    fields = next(entry for entry in map(json.loads, ledger_lines(root)) if entry.get("erasure") == number)
    hold = {"row_key": str(row), "held_by": "court", "reason": "case-1", "held_at": "2026-01-02T03:04:05.678901"}
    lines = [json.dumps({**fields, "intended_at": "2020-01-01T00:00:00"}).encode(), json.dumps({"hold": hold}).encode()]
    with pytest.raises(InvalidInput, match=f"different erasures under the numbers {number},"):
        load_ledger(root, lines)
    with pytest.raises(InvalidInput, match="line 2 was not written by"):
        load_ledger(root, [lines[1].replace(b"case-1", b"case-2").replace(b"court", b"other"), b"{}"])

    holds = internals_of(root).erasures.ledger.holds
    assert {each.held_by for each in holds.all() if each.row_key == row} == {"court"}


def signature_holds(sealed: dict[str, Any], public_key: str) -> bool:
    """Check a receipt as docs/erasure.md says: Ed25519 over the JSON with sorted keys and without spaces."""
    unsigned = {name: value for name, value in sealed.items() if name != "signature"}
    text = json.dumps(unsigned, sort_keys=True, separators=(",", ":")).encode()
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key)).verify(
            bytes.fromhex(sealed["signature"]["signature"]), text
        )
    except InvalidSignature:
        return False
    return True


def test_a_receipt_says_what_remains_and_is_signed(root, row, tmp_path):
    """No document is in it; a change breaks the signature."""
    root.put_cell(row, "BASE", 1, document(1))
    number = erase(root, [row])
    issued = receipt(root, number)
    assert (issued["gone"]["cells"], issued["state"]) == (1, "acknowledged")
    assert any("binary log" in each["until"] for each in issued["remains"])
    assert {"where": "backups", "what": "documents as of the backup", "until": "their owner deletes them"} in issued[
        "remains"
    ]
    assert MARKER not in json.dumps(issued)
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "key.pem").write_bytes(pem)
    sealed = signed(issued, tmp_path / "key.pem")
    public = key.public_key().public_bytes_raw().hex()

    assert signature_holds(json.loads(json.dumps(sealed)), public)
    assert not signature_holds({**sealed, "requested_by": "another"}, public)
    with pytest.raises(schemaless.InvalidInput, match="private key"):
        signed(issued, tmp_path)


@pytest.mark.guarantee("erasure-lasting")
@pytest.mark.parametrize("control", [False, True], ids=["moved", "control"])
def test_a_cell_that_is_erased_after_a_mover_has_copied_it(root, new_row, movers_of, monkeypatch, control):
    """The mover erases its copy before the cut. Control: if it did not, the moved shard would have the document."""
    rows = list(islice((row for row in iter(new_row, None) if root.shard_of(row) == 1), 4))
    for row in rows:
        root.put_cell(row, "BASE", 1, document(1))
    copy_tail, erased = Copier.copy_tail, list[int]()

    def erase_then_copy(*arguments: Any, **named: Any) -> Any:
        if not erased:
            erased.append(root.erase(rows[0], reason=REASON).number)
        return copy_tail(*arguments, **named)

    monkeypatch.setattr(Copier, "copy_tail", erase_then_copy)
    if control:
        monkeypatch.setattr(steps, "copy_erasures", lambda *_, **__: None)
    spec = MoveSpec(movers_of(root), accounts=False)
    with pytest.raises(schemaless.MoveRefused, match="different document") if control else nullcontext():
        moves.run(root, spec, [1])

    assert found_by_reading(root) == (4 if control else 3)
    if not control:
        assert verify(root, erased[0]).clean
        for left in moves.left_behind(root, [1]):
            moves.drop(root, left)
