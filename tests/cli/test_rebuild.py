"""``schemaless rebuild``: a plan without --execute, else the space given back."""

from __future__ import annotations

import signal

import pytest

import schemaless
from schemaless import NewStoredCell
from schemaless.ops.jobs.job_store import JobStore
from schemaless.store.internals import internals_of

pytestmark = pytest.mark.mysql


@pytest.fixture
def cells(fresh_store, new_row):
    """A datastore of 200 cells."""
    fresh_store.put_stored_cells([NewStoredCell(new_row(), "BASE", 1, b'"%b"' % (b"x" * 3_000)) for _ in range(200)])


def made(store) -> list[str]:
    """Return the creation time of each shard's table."""
    sql = "SELECT CONCAT(CREATE_TIME,'') FROM information_schema.TABLES WHERE TABLE_NAME='cell' AND TABLE_SCHEMA='{}'"
    return [
        internals_of(store).shards.rows(shard, sql.format(internals_of(store).shards.database(shard)).encode())[0][0]
        for shard in range(4)
    ]


def test_rebuild_without_execute_says_what_it_would_give_and_changes_nothing(invoke, move_url, fresh_store, cells):
    """The text has a table by shard and the total; the JSON has intervals."""
    before = made(fresh_store)
    plan = invoke("rebuild", url=move_url)
    data = invoke("rebuild", "--json", "--shards", "1,3", url=move_url).json

    assert made(fresh_store) == before
    assert (plan.code, plan.err) == (0, "nothing was changed; add --execute to do it\n")
    assert plan.out.startswith("4 shards: ")
    assert [shard["shard"] for shard in data["shards"]] == [1, 3]
    assert data["total"]["rebuilt_bytes"] == sum(shard["rebuilt_bytes"]["mid"] for shard in data["shards"])
    assert all(shard["cells"]["exact"] and shard["file_bytes_measured"] for shard in data["shards"])


@pytest.mark.long
def test_rebuild_execute_reports_predicted_against_actual(invoke, move_url, cells):
    """Only the given shards are rebuilt; the result is a table, or JSON."""
    plain = invoke("rebuild", "--execute", "--shards", "0", url=move_url)
    data = invoke("rebuild", "--execute", "--json", "--shards", "1-2", url=move_url)

    assert plain.code == data.code == 0
    assert plain.out.startswith("1 of 1 shard rebuilt: ")
    assert "off by +0.0%" in plain.out
    assert plain.err.startswith("job 1: begun\n")
    assert [(shard["shard"], shard["state"], shard["off"]) for shard in data.json["shards"]] == [
        (1, "done", 0.0),
        (2, "done", 0.0),
    ]


def test_rebuild_that_leaves_a_shard_alone_is_exit_1(invoke, move_url, cells, by_hand, fresh_store):
    """The reason is on standard error."""
    pool = by_hand(fresh_store).pool_for(internals_of(fresh_store).topology.cluster_of(0).primary)
    with pool.connection() as reader:
        reader.unfinished = True
        reader.execute(b"START TRANSACTION")
        reader.rows(b"SELECT COUNT(*) FROM `%b`.cell" % internals_of(fresh_store).shards.database(0).encode())
        result = invoke("rebuild", "--execute", "--shards", "0", "--lock-wait", "1", "--attempts", "1", url=move_url)

    assert result.code == 1
    assert "0 of 1 shard rebuilt" in result.out
    assert "shard 0: no attempt succeeded (attempts: 1)" in result.err


def test_rebuild_without_the_role_is_refused(invoke, fresh_url, cells):
    """An account that may only read and write cells is refused."""
    result = invoke("rebuild", "--execute", url=fresh_url)

    assert result.code == 1
    assert "command denied" in result.err


@pytest.mark.long
def test_rebuild_stopped_between_shards_is_exit_3_and_goes_on(
    invoke, start, eventually, move_url, cells, by_hand, fresh_store
):
    """After Ctrl-C the same command continues the job without repeating completed rebuilds."""
    arguments = ("rebuild", "--execute", "--shards", "0-1", "--lock-wait", "1", "--json")
    pool = by_hand(fresh_store).pool_for(internals_of(fresh_store).topology.cluster_of(1).primary)
    with schemaless.connect(move_url) as store, pool.connection() as reader:
        job_store = JobStore(store)
        reader.unfinished = True
        # Without a snapshot, for which the first shard would have to wait too on MySQL.
        reader.execute(b"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        reader.execute(b"START TRANSACTION")
        reader.rows(b"SELECT COUNT(*) FROM `%b`.cell" % internals_of(fresh_store).shards.database(1).encode())
        process = start(*arguments, url=move_url)
        eventually(
            lambda: job_store.jobs() and [state.counters.get("attempts") for state in job_store.shards(1)] == [1, 1],
            "the first shard is rebuilt, the second one is waited for",
        )
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        middle = made(fresh_store)
        states = [state.state for state in job_store.shards(1)]
    again = invoke(*arguments, url=move_url)
    after = made(fresh_store)

    assert process.returncode == 3, err
    assert states == ["done", "waiting"]
    assert again.code == 0
    assert again.err.startswith("job 1: continued; it was begun")
    assert [shard["state"] for shard in again.json["shards"]] == ["done", "done"]
    assert again.json["shards"][0]["attempts"] == 1
    assert after[0] == middle[0]
    assert after[1] != middle[1]
