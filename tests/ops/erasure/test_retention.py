"""Retention runs: what expires is erased, what is kept or held stays, whatever interrupts them."""

from __future__ import annotations

import json
import os
import random
import signal
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import schemaless
from schemaless import CellErased, Datastore, InvalidInput, NewCell, RowHeld
from schemaless.cell import TOMBSTONE_BYTES, Erased
from schemaless.cli.main import run as command
from schemaless.ops.erasure import job
from schemaless.ops.erasure.expired import Rule, server_time
from schemaless.ops.erasure.job import RETAIN, ErasureSpec, Outcome, outcome_of
from schemaless.ops.erasure.job import begin_retention as begin
from schemaless.ops.erasure.ledger_file import ledger_lines
from schemaless.ops.erasure.plan import Plan, plan_expired
from schemaless.ops.erasure.replay import undone
from schemaless.ops.erasure.verify import verify
from schemaless.ops.jobs.job_store import JobStore
from schemaless.store.erasures.ledger import target
from schemaless.store.erasures.retention import Policy
from schemaless.store.indexes.registry import Registry
from schemaless.store.internals import internals_of
from tests.processes import Runner

COLUMNS = ("BASE", "LOG", "STATUS")
Key = tuple[uuid.UUID, str, int]


def run(store: Datastore, number: int) -> Outcome:
    """Execute a retention run."""
    return outcome_of(store, job.run(store, ErasureSpec(number)))


def plan(store: Datastore) -> Plan:
    """Count what the policies let expire now."""
    now = server_time(store)
    return plan_expired(store, [Rule.of(policy, now) for policy in internals_of(store).policies.all()])


def fill(store: Datastore, seed: int, rows: int = 25) -> dict[Key, tuple[datetime, Any]]:
    """Put cells of the last 100 days, up to six versions each; return time and document by key."""
    draw = random.Random(seed)
    now = datetime.now(UTC)
    cells: dict[Key, tuple[datetime, Any]] = {}
    for number in range(rows):
        row = uuid.uuid5(uuid.NAMESPACE_OID, f"{seed}/{number}")
        for column in COLUMNS:
            ages = sorted((draw.uniform(0, 100) for _ in range(draw.randrange(7))), reverse=True)
            for version, age in enumerate(ages):
                # Half a day from any whole number of days, however long the test takes.
                at = now - timedelta(int(age), hours=12)
                document = {"number": number, "padding": "x" * draw.choice([1, 300, 9_000])}
                cells[row, column, version * 2] = at, document
    keys = list(cells)
    draw.shuffle(keys)
    store.put_cells([NewCell(*key, cells[key][1], created_at=cells[key][0]) for key in keys])
    return cells


def expected(cells: dict[Key, tuple[datetime, Any]], policies: list[Policy], held: set[uuid.UUID]) -> set[Key]:
    """Return the keys of the cells that expire."""
    now = datetime.now(UTC)
    found = set()
    for policy in policies:
        for (row, column, ref_key), (at, _) in cells.items():
            if column != policy.column_name or row in held:
                continue
            newer = sum(key[:2] == (row, column) and key[2] > ref_key for key in cells)
            old = policy.keep_days is None or at < now - timedelta(policy.keep_days)
            superseded = policy.keep_versions is None or newer >= policy.keep_versions
            if old and superseded:
                found.add((row, column, ref_key))
    return found


def stored(store: Datastore) -> dict[Key, tuple[int, datetime, Any]]:
    """Return every cell with its added_id, time and document or erasure, in the order of the feed."""
    return {
        (cell.row_key, cell.column_name, cell.ref_key): (cell.added_id, cell.created_at, cell.body)
        for shard in range(store.shard_count)
        for cell in store.iter_shard(shard)
    }


@pytest.mark.guarantee("retention-exact")
@pytest.mark.myrocks
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
def test_a_run_erases_what_a_model_lets_expire_and_nothing_else(
    fresh_store: Datastore, erase_store: Datastore, seed: int
) -> None:
    """Random cells, policies and holds: planned and erased as in the model; keys, ids, times and all others stay."""
    draw = random.Random(seed)
    cells = fill(fresh_store, seed)
    before = stored(fresh_store)
    internals = internals_of(erase_store)
    policies = [
        Policy(column, *draw.choice([(draw.randrange(1, 90), None), (None, draw.randrange(1, 4)), (30, 2)]))
        for column in draw.sample(COLUMNS, 2)
    ]
    for policy in policies:
        internals.policies.set(policy)
    held = set(draw.sample(sorted({key[0] for key in cells}, key=str), 5))
    internals.holds.hold(held, "legal", "case-1")
    wanted = expected(cells, policies, held)
    planned = plan(erase_store)
    number = begin(erase_store)
    assert number is not None
    outcome = run(erase_store, number)

    after = stored(fresh_store)
    erased = {key for key, (_, _, body) in after.items() if isinstance(body, Erased)}
    assert erased == wanted
    assert {after[key][2].erasure for key in erased} <= {number}
    assert list(after) == list(before)
    assert {key: value[:2] for key, value in after.items()} == {key: value[:2] for key, value in before.items()}
    assert {key: after[key] for key in after.keys() - erased} == {key: before[key] for key in after.keys() - erased}
    assert {policy.column_name: planned.total(policy.column_name).cells for policy in policies} == {
        policy.column_name: sum(key[1] == policy.column_name for key in wanted) for policy in policies
    }
    assert sum(planned.held.values()) == outcome.held == len(expected(cells, policies, set())) - len(wanted)
    assert outcome.cells == len(wanted)
    assert outcome.bytes_before == sum(planned.total(policy.column_name).body_bytes for policy in policies)
    assert outcome.bytes_after == TOMBSTONE_BYTES * len(wanted)
    assert plan(erase_store).held == planned.held
    assert plan(erase_store).total().cells == 0


@pytest.mark.guarantee("retention-ledger")
def test_a_run_is_one_entry_of_the_ledger(fresh_store: Datastore, erase_store: Datastore) -> None:
    """Its scope is the rules with their moment, it holds no keys, and a second run is another entry."""
    fill(fresh_store, 7)
    internals_of(erase_store).policies.set(Policy("LOG", 10, 1))
    first = begin(erase_store)
    assert begin(erase_store) == first
    assert first is not None
    done = run(erase_store, first)
    ledger = internals_of(erase_store).erasures.ledger
    entry = ledger.entry(first)
    assert (entry.kind, entry.reason, entry.cells) == ("range", "retention", done.cells)
    (rule,) = entry.scope["rules"]
    assert (rule["column"], rule["versions"]) == ("LOG", 1)
    assert timedelta(10) < datetime.now(UTC) - datetime.fromisoformat(rule["before"]) < timedelta(11)
    assert list(ledger.targets(first)) == []
    assert entry.executed_at is not None
    second = begin(erase_store)
    assert second is not None
    assert second > first
    assert run(erase_store, second).cells == 0


def test_without_policies_nothing_is_begun(erase_store: Datastore) -> None:
    """No entry in the ledger either."""
    assert begin(erase_store) is None
    assert plan(erase_store) == Plan([], {})
    assert internals_of(erase_store).erasures.ledger.entries() == []


@pytest.mark.guarantee("retention-expired-key")
def test_an_expired_key_cannot_be_written_again(fresh_store: Datastore, erase_store: Datastore) -> None:
    """Written once holds for ever: the same document and another one are refused; the next version is not."""
    row, old = uuid.uuid4(), datetime.now(UTC) - timedelta(40)
    fresh_store.put_cells([NewCell(row, "LOG", 1, {"n": 1}, created_at=old)])
    internals_of(erase_store).policies.set(Policy("LOG", 30))
    number = begin(erase_store)
    assert number is not None
    run(erase_store, number)
    assert fresh_store.get_cell_latest(row, "LOG") is None
    for document in ({"n": 1}, {"n": 2}):
        with pytest.raises(CellErased) as raised:
            fresh_store.put_cell(row, "LOG", 1, document)
        assert raised.value.erasure == number
    assert fresh_store.put_cell(row, "LOG", 2, {"n": 2}).created


@pytest.mark.guarantee("retention-ledger")
def test_a_cancelled_run_is_not_continued(fresh_store: Datastore, erase_store: Datastore) -> None:
    """The next run is a new entry with its own moment, and erases what the cancelled one left."""
    fill(fresh_store, 9)
    internals_of(erase_store).policies.set(Policy("LOG", 10))
    first = begin(erase_store)
    assert first is not None
    begun, new = RETAIN.begin_or_join(erase_store, RETAIN.spec(first))
    assert new
    JobStore(erase_store).change_state(begun.job_id, ("running",), "cancelled", "no")
    second = begin(erase_store)
    assert second is not None
    assert second != first
    assert run(erase_store, second).cells == plan_cells(fresh_store, second) > 0
    assert internals_of(erase_store).erasures.ledger.entry(first).executed_at is None
    assert outcome_of(erase_store, JobStore(erase_store).job(begun.job_id)).cells == 0


def plan_cells(store: Datastore, number: int) -> int:
    return sum(isinstance(body, Erased) and body.erasure == number for _, _, body in stored(store).values())


@pytest.mark.guarantee("retention-holds")
def test_a_held_row_is_not_erased_until_it_is_released(
    fresh_store: Datastore, erase_store: Datastore, new_row: Callable[[], uuid.UUID]
) -> None:
    """An erasure of a held row is refused whole, with the holder's name, and nothing is in the ledger."""
    held, other = new_row(), new_row()
    for row in (held, other):
        fresh_store.put_cell(row, "BASE", 1, {"row": str(row)})
    holds, ledger = internals_of(erase_store).holds, internals_of(erase_store).erasures.ledger
    holds.hold([held], "legal", "case-4711")
    with pytest.raises(RowHeld, match=f"row {held} has been held by legal"):
        erase_store.erase(held, reason="gdpr-art-17")
    with pytest.raises(RowHeld):
        ledger.intend("gdpr-art-17", [target(other), target(held)])
    assert ledger.entries() == []
    assert fresh_store.get_cell(held, "BASE", 1) is not None
    assert erase_store.erase(other, reason="gdpr-art-17").cells == 1
    assert holds.release([held], "legal") == 1
    assert erase_store.erase(held, reason="gdpr-art-17").cells == 1


@pytest.mark.guarantee("retention-holds")
def test_a_hold_set_during_a_run_counts_from_the_next_transaction_on(
    fresh_store: Datastore, erase_store: Datastore, new_row: Callable[[], uuid.UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hold is set while the first of three cells, found by one query, is erased."""
    rows = list(islice((row for row in iter(new_row, None) if fresh_store.shard_of(row) == 1), 3))
    for row in rows:
        fresh_store.put_cells([NewCell(row, "LOG", 1, {"n": 1}, created_at=datetime.now(UTC) - timedelta(100))])
    internals = internals_of(erase_store)
    internals.policies.set(Policy("LOG", 10))
    read = Registry.read

    def hold(registry: Registry) -> Any:
        internals.holds.hold(rows[2:], "legal", "case-1")
        return read(registry)

    monkeypatch.setattr(Registry, "read", hold)
    monkeypatch.setattr(job, "cells_at_once", lambda run: 1)
    number = begin(erase_store)
    assert number is not None
    done = run(erase_store, number)
    assert (done.cells, done.held) == (2, 1)
    assert [fresh_store.get_cell(row, "LOG", 1) is None for row in rows] == [True, True, False]


@pytest.mark.guarantee("retention-holds")
def test_a_row_whose_erasure_is_recorded_cannot_be_held(
    erase_store: Datastore, new_row: Callable[[], uuid.UUID]
) -> None:
    """It may be half erased already; the error names the erasure. Once executed, the row can be held."""
    row = new_row()
    ledger, holds = internals_of(erase_store).erasures.ledger, internals_of(erase_store).holds
    number = ledger.intend("gdpr-art-17", [target(row)])
    with pytest.raises(InvalidInput, match=f"erasure {number} is in the ledger"):
        holds.hold([new_row(), row], "legal", "case-1")
    assert holds.all() == []
    erase_store.erase(row, reason="gdpr-art-17")
    ledger.record_shard(number, erase_store.shard_of(row), 0, 0, 0)
    holds.hold([row], "legal", "case-1")
    assert len(holds.all()) == 1


def test_applications_cannot_set_policies_or_holds(fresh_store: Datastore) -> None:
    """The role app reads them."""
    internals = internals_of(fresh_store)
    assert internals.policies.all() == internals.holds.all() == []
    with pytest.raises(schemaless.AccessDenied):
        internals.policies.set(Policy("LOG", 1))
    with pytest.raises(schemaless.AccessDenied):
        internals.holds.hold([uuid.uuid4()], "me", "mine")


def erase_a_shard_and_die(url: str) -> None:
    """Kill this process when a retention run has erased the cells of its first shard and waits for replicas."""

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with schemaless.connect(url) as store, mock.patch.object(job, "wait_for_replicas", die):
        number = begin(store)
        assert number is not None
        run(store, number)


@pytest.mark.guarantee("retention-ledger")
def test_a_run_that_was_killed_is_continued(fresh_store: Datastore, erase_store: Datastore, erase_url: str) -> None:
    """Kill -9 between shards: the same entry of the ledger is completed, and counts what both runs erased."""
    cells = fill(fresh_store, 11, rows=40)
    policy = Policy("LOG", 20)
    internals_of(erase_store).policies.set(policy)
    runner = Runner(partial(erase_a_shard_and_die, erase_url))
    runner.join()
    assert runner.killed
    partly = erased_keys(fresh_store)
    (entry,) = internals_of(erase_store).erasures.ledger.entries()
    number = begin(erase_store)
    assert number == entry.number
    outcome = run(erase_store, number)

    wanted = expected(cells, [policy], set())
    assert 0 < len(partly) < len(wanted)
    assert erased_keys(fresh_store) == wanted
    assert outcome.cells == internals_of(erase_store).erasures.ledger.entry(number).cells == len(wanted)
    assert outcome.state == "done"


@pytest.mark.guarantee("erasure-backup")
@pytest.mark.myrocks
def test_runs_are_repeated_after_a_restore(
    fresh_store: Datastore, erase_store: Datastore, erase_url: str, accounts: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """What a run had erased is erased again, and nothing else, whatever policies, holds and versions there are now."""
    cells = fill(fresh_store, 13)
    internals = internals_of(erase_store)
    policies = [Policy("LOG", 30), Policy("BASE", None, 2)]
    for policy in policies:
        internals.policies.set(policy)
    expiring = sorted({key[:2] for key in expected(cells, policies, set()) if key[1] == "BASE"}, key=str)
    shard = erase_store.shard_of(expiring[0][0])
    released, held, held_later = [row for row, _ in expiring if erase_store.shard_of(row) == shard][:3]
    internals.holds.hold([released, held], "legal", "case-1")
    with schemaless.connect(accounts.root(erase_url)) as root:
        bodies = bodies_of(root)
        number = begin(erase_store)
        assert number is not None
        run(erase_store, number)
        after = stored(fresh_store)
        internals.holds.release([released], "legal")
        internals.holds.hold([held_later], "court", "case-2")
        assert undone(erase_store) == []
        (tmp_path / "ledger").write_bytes(b"\n".join(ledger_lines(erase_store)))
        restore(root, bodies)
    newer = {fresh_store.append_cell(row, column, "new").key for row, column in expiring for _ in range(2)}
    monkeypatch.setenv("SCHEMALESS_URL", erase_url)

    assert command(["erase", "replay", "--from", str(tmp_path / "ledger"), "--execute"]) == 0
    again = stored(fresh_store)
    erased = {key for key, (_, _, body) in after.items() if isinstance(body, Erased)}
    assert any(key[0] == held_later for key in erased)
    for key, (_, _, body) in after.items():
        assert again[key][2] == (cells[key][1] if key[0] == held_later else body), key
    assert again.keys() - after.keys() == set(map(tuple, newer))
    assert [hold.row_key for hold in internals.holds.all()] == [held, held_later]
    (kept,) = undone(erase_store)
    assert (kept.cells.total(), kept.gone) == (0, 0)
    assert {hold.row_key: cells for hold, cells in kept.held.items()} == {
        held_later: sum(key[0] == held_later for key in erased)
    }
    assert internals.erasures.ledger.entry(number).cells == len(erased) > len(erased_keys(fresh_store))


def test_holds_released_since_the_backup_are_released_again(
    fresh_store: Datastore,
    erase_store: Datastore,
    erase_url: str,
    accounts: Any,
    tmp_path: Path,
    monkeypatch: Any,
    capsys: Any,
) -> None:
    """The dry run shows what the file brings. Without its releases, held cells stay and are named until released."""
    cells = fill(fresh_store, 17)
    internals = internals_of(erase_store)
    policy = Policy("LOG", 30)
    internals.policies.set(policy)
    wanted = expected(cells, [policy], set())
    row = min(key[0] for key in wanted)
    of_row = sum(key[0] == row for key in wanted)
    monkeypatch.setenv("SCHEMALESS_URL", erase_url)
    ledger, without = tmp_path / "ledger", tmp_path / "without"
    with schemaless.connect(accounts.root(erase_url)) as root:
        bodies = bodies_of(root)
        internals.holds.hold([row], "legal", "case-1")
        (backup,) = internals.holds.all()
        internals.holds.release([row], "legal")
        number = begin(erase_store)
        assert number is not None
        run(erase_store, number)
        lines = list(ledger_lines(erase_store))
        ledger.write_bytes(b"\n".join(lines))
        without.write_bytes(b"\n".join(line for line in lines if b'"hold"' not in line))
        restore(root, bodies)
        internals.holds.restore([backup])

        def replayed(file: Path, *options: str) -> Any:
            capsys.readouterr()
            assert command(["erase", "replay", "--from", str(file), "--json", *options]) == 0
            return json.loads(capsys.readouterr().out)

        shown = replayed(ledger)
        assert (shown["added"], len(shown["holds"]), shown["executed"]) == (1, 1, False)
        assert [(each["cells_back"], each["held"]) for each in shown["undone"]] == [(len(wanted), [])]
        assert (internals.erasures.ledger.entries(), erased_keys(fresh_store)) == ([], set())

        (found,) = replayed(without, "--execute")["undone"]
        assert (found["cells_back"], found["not_erased_again"]) == (len(wanted) - of_row, 0)
        assert [(each["row_key"], each["held_by"], each["cells"]) for each in found["held"]] == [
            (str(row), "legal", of_row)
        ]
        assert internals.erasures.ledger.entry(number).cells == len(wanted)
        verified = verify(erase_store, number)
        assert verified.clean
        assert (
            f"row {row} is held by legal, so cells that a restore brought back stay: {of_row}" in verified.outstanding
        )
        assert command(["erase", "replay"]) == 0
        assert f" of row {row} came back and will stay: held by legal since" in capsys.readouterr().out

        (found,) = replayed(ledger, "--execute")["undone"]
        assert (found["cells_back"], found["held"]) == (of_row, [])
        assert internals.holds.all() == []
        assert erased_keys(fresh_store) == wanted
        assert (undone(erase_store), internals.erasures.ledger.entry(number).cells) == ([], len(wanted))


def test_versions_that_a_restore_makes_the_last_ones_are_kept_and_reported(
    fresh_store: Datastore,
    erase_store: Datastore,
    erase_url: str,
    accounts: Any,
    new_row: Callable[[], uuid.UUID],
    monkeypatch: Any,
    capsys: Any,
) -> None:
    """The restore lost the newer version: the cell stays, and the count of the ledger, too. Verification agrees."""
    first = new_row()
    second = next(row for row in iter(new_row, None) if fresh_store.shard_of(row) != fresh_store.shard_of(first))
    for row in (first, second):
        fresh_store.put_cells([NewCell(row, "BASE", version, {"version": version}) for version in (1, 2)])
    internals = internals_of(erase_store)
    internals.policies.set(Policy("BASE", None, 1))
    monkeypatch.setenv("SCHEMALESS_URL", erase_url)
    with schemaless.connect(accounts.root(erase_url)) as root:
        bodies = bodies_of(root)
        number = begin(erase_store)
        assert number is not None
        run(erase_store, number)
        shards = internals_of(root).shards
        for shard, added_id, body in bodies:
            database = shards.database(shard)
            shards.execute(shard, f"UPDATE `{database}`.cell SET body=x'{body}' WHERE added_id={added_id}".encode())
            shards.execute(shard, f"DELETE FROM `{database}`.erased_cell".encode())
        shard = root.shard_of(first)
        shards.execute(
            shard, f"DELETE FROM `{shards.database(shard)}`.cell WHERE ref_key=2 AND row_key=x'{first.hex}'".encode()
        )
    found = verify(erase_store, number)
    assert dict(found.faults) == {f"cells of shard {fresh_store.shard_of(second)} older than the erasure": 1}

    assert command(["erase", "replay", "--execute"]) == 0
    said = capsys.readouterr().out
    assert f"retention run {number}: 1 cell came back, erased again" in said
    assert (
        f"retention run {number}: 1 cell that it had erased will not be erased again: the restore lost it, or" in said
    )
    with schemaless.connect(accounts.root(erase_url)) as root:  # which may look into the gap that the restore has left
        assert erased_keys(root) == {(second, "BASE", 1)}
    assert (undone(erase_store), internals.erasures.ledger.entry(number).cells) == ([], 2)
    assert verify(erase_store, number).clean


Bodies = list[tuple[int, int, str]]


def bodies_of(root: Datastore) -> Bodies:
    """Return shard, added_id and body, in hexadecimal, of all cells."""
    shards = internals_of(root).shards
    return [
        (shard, int(added_id), str(body))
        for shard in range(root.shard_count)
        for added_id, body in shards.rows(
            shard, f"SELECT added_id, HEX(body) FROM `{shards.database(shard)}`.cell".encode()
        )
    ]


def restore(root: Datastore, bodies: Bodies) -> None:
    """Put the tables of shards and catalog back to before the first erasure, policy and hold."""
    internals = internals_of(root)
    shards = internals.shards
    for shard, added_id, body in bodies:
        database = shards.database(shard)
        shards.execute(shard, f"UPDATE `{database}`.cell SET body=x'{body}' WHERE added_id={added_id}".encode())
    for shard in range(root.shard_count):
        shards.execute(shard, f"DELETE FROM `{shards.database(shard)}`.erased_cell".encode())
    for table in ("erasure", "erasure_shard", "legal_hold", "retention_policy"):
        statement = f"DELETE FROM `{root.name}`.{table}".encode()
        internals.catalog.run(lambda connection, statement=statement: connection.execute(statement))


def erased_keys(store: Datastore) -> set[Key]:
    return {key for key, (_, _, body) in stored(store).items() if isinstance(body, Erased)}
