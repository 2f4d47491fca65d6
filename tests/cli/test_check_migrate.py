"""``schemaless check`` and ``migrate run``: exit statuses and output; nothing changes without --execute."""

from __future__ import annotations

import pytest

from schemaless.codec.envelope import describe_body
from schemaless.ops.jobs import driver
from schemaless.ops.jobs.job_store import JobStore
from schemaless.store.internals import internals_of
from schemaless.wire.errors import ReadOnly
from tests.cli.conftest import LEGACY_CELLS

pytestmark = pytest.mark.mysql


@pytest.fixture
def damage(fresh_store, by_hand):
    """Overwrite the body of a cell."""

    def overwrite(key, body: bytes) -> int:
        shard = fresh_store.shard_of(key[0])
        by_hand(fresh_store).execute(
            shard,
            b"UPDATE `%b`.cell SET body = x'%b' WHERE row_key = x'%b'"
            % (internals_of(fresh_store).shards.database(shard).encode(), body.hex().encode(), key[0].hex.encode()),
        )
        return shard

    return overwrite


def everything(store) -> dict:
    return {
        (shard, cell.added_id): (cell.key, cell.body, cell.created_at)
        for shard in range(store.shard_count)
        for cell in store.scan_shard(shard)
    }


def test_check_of_a_sound_datastore_is_clean(invoke, fresh_url, legacy):
    """One line on standard output, exit 0; --json has the counts."""
    plain = invoke("check", url=fresh_url)
    data = invoke("check", "--json", "--shards", "0-3", url=fresh_url)

    assert (plain.code, plain.err) == (0, "")
    assert plain.out.startswith(f"clean: {LEGACY_CELLS} cells in 4 shards, ")
    assert plain.out.count("\n") == 1
    assert data.code == 0
    assert list(data.json) == ["shards", "cells", "body_bytes", "by_codec", "tables", "faults"]
    assert (data.json["shards"], data.json["cells"], data.json["faults"]) == (4, LEGACY_CELLS, [])
    assert data.json["by_codec"] == {"legacy": LEGACY_CELLS}


def test_check_is_exit_1_with_one_line_for_each_bad_cell(invoke, fresh_url, legacy, damage):
    """Each line names shard and cell; with --json each fault is an object."""
    shards = [damage(legacy[3], b"{"), damage(legacy[4], b"\xc1\x11broken")]
    plain = invoke("check", url=fresh_url)
    data = invoke("check", "--json", url=fresh_url)

    *faults, verdict = plain.out.splitlines()
    assert plain.code == data.code == 1
    assert len(faults) == 2
    for shard, (row, column, ref_key), kind in zip(
        shards, legacy[3:5], ["UnreadableLegacy", "ChecksumMismatch"], strict=True
    ):
        assert any(line.startswith(f"{kind}: shard {shard}, cell ({row}, {column}, {ref_key}): ") for line in faults)
    assert verdict.startswith(f"2 faults: {LEGACY_CELLS} cells in 4 shards")
    assert {(fault["kind"], fault["shard"], fault["row_key"], fault["ref_key"]) for fault in data.json["faults"]} == {
        ("UnreadableLegacy", shards[0], str(legacy[3][0]), 3),
        ("ChecksumMismatch", shards[1], str(legacy[4][0]), 4),
    }
    assert all(fault["added_id"] and fault["message"] for fault in data.json["faults"])


def test_check_reports_a_missing_shard_and_checks_the_others(invoke, fresh_url, fresh_store, legacy, by_hand):
    """A dropped database is a fault and does not end the command."""
    gone = internals_of(fresh_store).shards.database(2)
    by_hand(fresh_store).execute(2, f"DROP DATABASE `{gone}`".encode())
    result = invoke("check", url=fresh_url)
    left = sum(fresh_store.shard_of(row) != 2 for row, _, _ in legacy)

    fault, verdict = result.out.splitlines()
    assert (result.code, result.err) == (1, "")
    assert fault.startswith("ShardIdentityMismatch: shard 2: ")
    assert f"no database '{gone}'" in fault
    assert verdict.startswith(f"1 fault: {left} cells in 4 shards")


def test_plan_and_run_without_execute_change_nothing(invoke, migrate_url, fresh_store, legacy):
    """Plan estimates the savings; run without --execute shows what it would re-encode and how to do it."""
    before = everything(fresh_store)
    plan = invoke("migrate", "plan", url=migrate_url)
    run = invoke("migrate", "run", url=migrate_url)
    data = invoke("migrate", "plan", "--json", url=migrate_url)

    assert everything(fresh_store) == before
    assert plan.code == run.code == data.code == 0
    assert "to msgpack+zlib" in plan.out
    assert "would re-encode bodies in any codec except msgpack+zlib to msgpack+zlib: 4 shards" in run.out
    assert plan.err == ""
    assert run.err.startswith("nothing was changed; ")
    assert data.json["total"]["cells"] == {
        "low": LEGACY_CELLS,
        "mid": LEGACY_CELLS,
        "high": LEGACY_CELLS,
        "exact": True,
    }


def test_run_with_execute_reports_and_finds_nothing_the_second_time(
    invoke, fresh_url, migrate_url, fresh_store, legacy
):
    """The totals match the bytes in the tables, by shard and column; a second run has nothing to do."""
    before = everything(fresh_store)
    done = invoke("migrate", "run", "--execute", "--json", url=migrate_url)
    after = everything(fresh_store)
    again = invoke("migrate", "run", "--execute", url=migrate_url)
    plan = invoke("migrate", "plan", url=migrate_url)
    checked = invoke("check", "--json", url=fresh_url)

    total = done.json["total"]
    assert (done.code, done.json["to"], done.json["failures"]) == (0, "msgpack+zlib", [])
    assert total["cells"] == LEGACY_CELLS
    assert total["bytes_before"] == sum(len(body) for _, body, _ in before.values())
    assert total["bytes_after"] == sum(len(body) for _, body, _ in after.values())
    assert total["kept_as_text"] == {"duplicate keys": 1}
    assert total["left"] == {}
    assert sum(tally["cells"] for tally in done.json["tallies"]) == LEGACY_CELLS
    assert {(tally["shard"], tally["column_name"]) for tally in done.json["tallies"]} == {
        (fresh_store.shard_of(row), column) for row, column, _ in legacy
    }
    assert {key: (value[0], value[2]) for key, value in before.items()} == {
        key: (value[0], value[2]) for key, value in after.items()
    }
    assert (again.code, again.out) == (0, "nothing to do: every body is in msgpack+zlib\n")
    assert "nothing to do: no body is left to re-encode\n" in plan.out
    assert checked.json["by_codec"] == {"msgpack+zlib": LEGACY_CELLS - 1, "json+zlib": 1}


def test_run_waits_for_a_catalog_that_cannot_take_its_prediction(invoke, migrate_url, legacy, monkeypatch):
    """A run that ended there would leave a job without it: only a new job gets a prediction."""
    monkeypatch.setattr(driver, "POLL_S", 0.01)
    original = JobStore.record_on_cluster
    refused = []

    def record(job_store, job_id, cluster, measures):
        if not refused:
            refused.append(cluster)
            raise ReadOnly("the server is read-only", node="db-1", code=1290)
        original(job_store, job_id, cluster, measures)

    monkeypatch.setattr(JobStore, "record_on_cluster", record)
    ran = invoke("migrate", "run", "--execute", url=migrate_url)
    report = invoke("migrate", "report", "--json", url=migrate_url).json

    assert (ran.code, len(refused)) == (0, 1)
    assert "cells re-encoded" in {each["what"] for each in report["predictions"]}


def test_run_some_shards_to_another_codec(invoke, migrate_url, fresh_store, legacy):
    """Only the given shards are re-encoded to the given codec."""
    result = invoke("migrate", "run", "--execute", "--shards", "1,3", "--to", "msgpack+zstd", url=migrate_url)

    codecs: dict[int, set] = {}
    for (shard, _), (_, body, _) in everything(fresh_store).items():
        codecs.setdefault(shard, set()).add(describe_body(body).name)
    assert result.code == 0
    assert codecs[0] == codecs[2] == {"legacy"}
    assert codecs[1] | codecs[3] <= {"msgpack+zstd", "json+zstd"}
    assert "by shard and column" in result.out
    assert "reclaimed" in result.out
    # A busy server may make a job wait for a second, which is said then.
    assert result.err.startswith("job 1: begun\n")
    assert "Traceback" not in result.err


def test_run_that_leaves_something_is_exit_1_and_names_it(invoke, migrate_url, fresh_store, legacy, damage):
    """An unreadable body is unchanged, and the others are re-encoded."""
    shard = damage(legacy[5], b"{broken")
    row, column, ref_key = legacy[5]
    plan = invoke("migrate", "plan", url=migrate_url)
    done = invoke("migrate", "run", "--execute", url=migrate_url)
    data = invoke("migrate", "run", "--execute", "--json", url=migrate_url)

    assert plan.code == 0
    assert done.code == data.code == 1
    assert f"re-encoded {LEGACY_CELLS - 1} cells" in done.out
    assert "1 left as they are: UnreadableLegacy" in done.out
    assert f"shard {shard}, cell ({row}, {column}, {ref_key}): " in done.err
    [failure] = data.json["failures"]
    assert failure["key"] == {"row_key": str(row), "column_name": column, "ref_key": ref_key}
    assert (failure["shard"], failure["reason"]) == (shard, "UnreadableLegacy")
    assert data.json["total"]["cells"] == 0
    assert data.json["total"]["left"] == {"UnreadableLegacy": 1}


@pytest.mark.parametrize("name", ["pickle", "msgpack+brotli", "MSGPACK+ZLIB"])
@pytest.mark.parametrize("verb", [("plan",), ("run", "--execute")])
def test_to_a_codec_that_does_not_exist_is_exit_2(invoke, datastore_url, verb, name):
    """The error lists the known codecs."""
    result = invoke("migrate", *verb, "--to", name, url=datastore_url)

    assert (result.code, result.out) == (2, "")
    assert "'msgpack+zlib'" in result.err
