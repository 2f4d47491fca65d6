"""Commands stopped by Ctrl-C or SIGTERM exit with status 3, and the same command continues to the same result.

``tests/ops/jobs/test_killed.py`` has kill -9.
"""

from __future__ import annotations

import json
import re
import signal
from contextlib import closing

import pymysql
import pytest

import schemaless
from schemaless import NewStoredCell, ServerUnavailable
from schemaless.base.keys import row_key_for
from schemaless.codec.envelope import encode_body, is_enveloped
from schemaless.codec.recode import recode
from schemaless.ops.jobs.driver import Driver
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.migrate.verify import check
from schemaless.store.cells.writing import Cells
from schemaless.store.erasures.eraser import ShardEraser
from schemaless.store.erasures.ledger import Ledger, completed_by
from schemaless.store.internals import internals_of
from tests.faults.kinds import ONE_KIND

pytestmark = [pytest.mark.mysql]

SIGNALS = [signal.SIGINT, signal.SIGTERM]
LINES = [json.dumps({"id": f"n{number}", "text": "some text " * 10}).encode() + b"\n" for number in range(1_500)]


def expect_stopped(process, how: str = "the same command continues job 1", within_s: float = 60) -> None:
    """The process exits with status 3 and prints how to continue."""
    out, err = process.communicate(timeout=within_s)
    assert (process.returncode, out) == (3, b""), err
    assert err.decode().splitlines()[-1] == f"schemaless: stopped; completed writes are kept, and {how}"


def everything(store) -> dict:
    return {
        (shard, cell.added_id): (cell.key, cell.body, cell.created_at)
        for shard in range(store.shard_count)
        for cell in store.scan_shard(shard)
    }


def stopped(*arguments: object, **options: object) -> None:
    raise KeyboardInterrupt


def test_a_stopped_erasure_says_how_to_continue_it(invoke, fresh_store, erase_url, new_row, monkeypatch):
    """The same command would record another one; the API notes the same on the exception."""
    row, other = new_row(), new_row()
    fresh_store.put_cell(row, "A", 1, "erase me")
    fresh_store.put_cell(other, "A", 1, "and me")
    arguments = ("erase", "run", row, "--reason", "x", "--execute")
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "intend", stopped)
        early = invoke(*arguments, url=erase_url)
    with monkeypatch.context() as patched:
        patched.setattr(Driver, "run", stopped)
        late = invoke(*arguments, url=erase_url)
    with monkeypatch.context() as patched, schemaless.connect(erase_url) as store:
        patched.setattr(ShardEraser, "erase_targets", stopped)
        with pytest.raises(KeyboardInterrupt) as interrupt:
            store.erase(other, reason="x")

    assert [(each.code, each.out) for each in (early, late)] == [(3, ""), (3, "")]
    assert early.err.endswith(", and 'schemaless erase status' shows whether the erasure is in the ledger\n")
    assert late.err.endswith(f"schemaless: stopped; completed writes are kept, and {completed_by(1)}\n")
    assert interrupt.value.__notes__ == [completed_by(2)]
    for command in re.findall(r"'schemaless (.*?)'", f"{completed_by(1)} {completed_by(2)}"):
        assert invoke(*command.split(), url=erase_url).code == 0
    assert fresh_store.get_cell(row, "A", 1) is fresh_store.get_cell(other, "A", 1) is None


@pytest.mark.parametrize("quiet", [False, True], ids=["", "-q"])
def test_a_failed_erasure_says_once_how_to_continue_it(invoke, fresh_store, erase_url, new_row, monkeypatch, quiet):
    """The same command would record another one."""
    row = new_row()
    fresh_store.put_cell(row, "A", 1, "erase me")

    def fail(*arguments: object, **options: object) -> None:
        raise ServerUnavailable("gone", node="db-1")

    monkeypatch.setattr(Driver, "run", fail)
    failed = invoke("erase", "run", row, "--reason", "x", "--execute", *(["-q"] if quiet else []), url=erase_url)

    assert (failed.code, failed.err.count(completed_by(1))) == (1, 1)


@pytest.mark.parametrize(
    "arguments",
    [("migrate", "run"), ("rebuild",), ("retention", "run"), ("tier", "run"), ("tier", "recall"), ("tier", "sweep")],
    ids=" ".join,
)
def test_a_stopped_job_is_named(invoke, accounts, fresh_url, fresh_store, new_row, monkeypatch, tmp_path, arguments):
    """With the command that continues it."""
    url = accounts.root(fresh_url)
    fresh_store.put_cell(new_row(), "A", 1, "a document")
    assert invoke("retention", "set", "A", "--days", "1", url=url).code == 0
    if arguments[0] == "tier":
        assert invoke("tier", "store", tmp_path / "cold", url=url).code == 0
        assert invoke("tier", "set", "A", "--after", "0d", url=url).code == 0
    with monkeypatch.context() as patched:
        patched.setattr(Driver, "run", stopped)
        results = [invoke(*arguments, "--execute", url=url) for _ in range(2)]

    for result in results:
        assert result.code == 3
        assert result.err.splitlines()[-1] == (
            "schemaless: stopped; completed writes are kept, and the same command continues job 1"
        )


def test_a_stopped_append_is_not_to_be_repeated_blindly(invoke, fresh_url, monkeypatch):
    """It may have written its version; the same command would write another one."""
    monkeypatch.setattr(Cells, "append_on_shard", stopped)
    result = invoke("cell", "append", "uuid5:x", "A", "{}", url=fresh_url)

    assert result.err.endswith("kept, and 'schemaless cell get uuid5:x A' shows whether this version was written\n")


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
    expect_stopped(process, "the same command can be run again")
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
