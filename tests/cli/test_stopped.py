"""Commands stopped by Ctrl-C or SIGTERM exit with status 3, and the same command continues to the same result.

``tests/ops/jobs/test_killed.py`` has kill -9.
"""

from __future__ import annotations

import json
import signal
from contextlib import closing

import pymysql
import pytest

from schemaless import NewStoredCell
from schemaless.base.keys import row_key_for
from schemaless.codec.envelope import encode_body, is_enveloped
from schemaless.codec.recode import recode
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.migrate.verify import check
from schemaless.store.internals import internals_of
from tests.faults.kinds import ONE_KIND

pytestmark = [pytest.mark.mysql]

SIGNALS = [signal.SIGINT, signal.SIGTERM]
LINES = [json.dumps({"id": f"n{number}", "text": "some text " * 10}).encode() + b"\n" for number in range(1_500)]


def expect_stopped(process, within_s: float = 60) -> None:
    """The process exits with status 3 and prints how to continue."""
    out, err = process.communicate(timeout=within_s)
    assert (process.returncode, out) == (3, b""), err
    assert err.decode().splitlines()[-1] == (
        "schemaless: stopped; completed writes are kept, and the same command can be run again"
    )


def everything(store) -> dict:
    return {
        (shard, cell.added_id): (cell.key, cell.body, cell.created_at)
        for shard in range(store.shard_count)
        for cell in store.scan_shard(shard)
    }


@pytest.mark.long
@pytest.mark.parametrize("how", SIGNALS)
def test_stopped_load_continues(start, eventually, fresh_store, fresh_url, how):
    """Loaded cells stay; the same load again stores every cell once and wastes no added_id."""
    arguments = ("load", "-", "--column", "A", "--row-key", "uuid5:id", "--json")
    process = start(*arguments, url=fresh_url)
    # The rest of the input never comes, so the process is waiting for it when the signal arrives.
    process.stdin.write(b"".join(LINES[:1_200]))
    process.stdin.flush()
    eventually(lambda: len(everything(fresh_store)) >= 500, "a batch of cells")
    process.send_signal(how)
    expect_stopped(process)
    partly = len(everything(fresh_store))

    again = start(*arguments, url=fresh_url)
    out, err = again.communicate(b"".join(LINES), timeout=120)
    cells = everything(fresh_store)

    assert 500 <= partly < 1_500
    assert again.returncode == 0, err
    assert json.loads(out)["created"] == 1_500 - partly
    assert json.loads(out)["there_already"] == partly
    assert {key: body for key, body, _ in cells.values()} == {
        (row_key_for(json.loads(line)["id"]), "A", 1): encode_body(json.loads(line)) for line in LINES
    }
    for shard in range(fresh_store.shard_count):
        ids = [added_id for number, added_id in cells if number == shard]
        assert ids == list(range(1, len(ids) + 1))
    assert check(fresh_store).faults == {}


@pytest.mark.parametrize("how", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_a_stopped_migration_continues(start, eventually, fresh_store, migrate_store, migrate_url, new_row, how):
    """Some bodies are re-encoded; the same run does the rest, counts all of them and keeps added_ids."""
    fresh_store.put_stored_cells(
        [NewStoredCell(new_row(), "A", 1, line.rstrip()) for line in LINES[:600]],
    )
    before = everything(fresh_store)
    arguments = ("migrate", "run", "--execute", "--json")
    database = internals_of(fresh_store).shards.database(2)
    socket = internals_of(fresh_store).topology.cluster_of(2).primary.socket
    # The run waits for a locked row in its second shard, the first one of the other cluster.
    holder = pymysql.connect(unix_socket=socket, user="root", autocommit=False, ssl_disabled=True)
    try:
        with holder.cursor() as cursor:
            cursor.execute(f"SELECT added_id FROM `{database}`.cell WHERE added_id = 1 FOR UPDATE")
        process = start(*arguments, url=migrate_url)
        eventually(lambda: not list(fresh_store.scan_shard(0, legacy_only=True)), "the first shard is done")
        process.send_signal(how)
        # It has learned of the signal before it could do the rest.
        job_store = JobStore(migrate_store)
        eventually(
            lambda: process.poll() is not None or any(state.stop for state in job_store.shards(1)), "it is to stop"
        )
    finally:
        # The process waits for the current statement.
        holder.close()
    expect_stopped(process)
    middle = everything(fresh_store)

    again = start(*arguments, url=migrate_url)
    out, err = again.communicate(timeout=120)
    after = everything(fresh_store)

    done = {place for place, (_, body, _) in middle.items() if is_enveloped(body)}
    assert 0 in {shard for shard, _ in done}
    assert middle.keys() - done
    assert again.returncode == 0, err
    assert json.loads(out)["total"]["cells"] == 600
    assert after == {place: (key, recode(body).body, time) for place, (key, body, time) in before.items()}
    assert check(fresh_store).faults == {}


@pytest.mark.long
@ONE_KIND
def test_second_interrupt_ends_a_run_that_waits_for_a_server(
    start, eventually, fresh_store, migrate_store, migrate_url, new_row
):
    """The first signal waits for the current statement, which may block; the second one does not."""
    fresh_store.put_stored_cells([NewStoredCell(new_row(), "A", 1, line.rstrip()) for line in LINES[:50]])
    socket = internals_of(fresh_store).topology.cluster_of(0).primary.socket
    with closing(pymysql.connect(unix_socket=socket, user="root", autocommit=False, ssl_disabled=True)) as holder:
        holder.cursor().execute(f"SELECT body FROM `{internals_of(fresh_store).shards.database(0)}`.cell FOR UPDATE")
        process = start("migrate", "run", "--execute", "--shards", "0", url=migrate_url)
        job_store = JobStore(migrate_store)
        eventually(
            lambda: (job := job_store.latest("migrate")) and job_store.shards(job.job_id)[0].held, "it is at work"
        )
        process.send_signal(signal.SIGINT)
        eventually(lambda: job_store.shards(1)[0].stop, "it is asked to stop")
        process.send_signal(signal.SIGINT)
        expect_stopped(process, within_s=40)
