"""``schemaless trigger`` as people run it, and the example."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import schemaless
from schemaless.cli import trigger as cli_trigger
from schemaless.errors import InvalidInput
from schemaless.store.opening import opening_of
from schemaless.store.triggers.admin import Triggers
from tests.cli.conftest import Result, invoke  # noqa: F401 - the fixture

pytestmark = [pytest.mark.mysql]

ROOT = Path(__file__).parents[3]
MODULE = """
import os, pathlib, time, schemaless

@schemaless.trigger(column="BASE", start="beginning", attempts=1, parked_limit=1)
def keep(cell, call):
    if cell.body.get("bad"):
        raise ValueError("no such fare")
    if cell.body.get("long"):
        pathlib.Path(os.environ["KEPT"] + ".called").touch()
        time.sleep(600)
    with open(os.environ["KEPT"], "a") as file:
        file.write(f"{cell.row_key}\\n")
"""


@pytest.fixture
def start(follow_url: str, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts ``trigger run`` in a folder that has the module."""
    (tmp_path / "kept").touch()
    (tmp_path / "of_trips.py").write_text(MODULE)
    started = []

    def begin(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "schemaless.cli.entry", "trigger", "run", "of_trips:keep", *arguments],
            cwd=tmp_path,
            env={
                **os.environ,
                "SCHEMALESS_URL": follow_url,
                "KEPT": str(tmp_path / "kept"),
                "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def of_shard(store: schemaless.Datastore, new_row: Callable[[], object], shard: int) -> object:
    return next(row for row in iter(new_row, None) if store.shard_of(row) == shard)  # type: ignore[arg-type]


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(pid) for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]


@pytest.mark.parametrize("options", [(), ("--allow-nan",)])
def test_the_workers_may_write_nan_if_the_command_says_so(options, monkeypatch, tmp_path, invoke, follow_url):  # noqa: F811
    """A function may have to copy documents that are not JSON, such as migrated text."""
    opened: list[bool] = []

    def supervisor(store: schemaless.Datastore, *arguments: object) -> None:
        opened.append(opening_of(store).allow_nan)
        raise InvalidInput("seen")

    (tmp_path / "of_nan.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(cli_trigger, "trigger_supervisor", supervisor)
    done = invoke("trigger", "run", "of_nan:keep", *options, url=follow_url)

    assert (done.code, opened) == (2, [bool(options)])


def test_run_once_calls_each_cell_and_says_where_it_is(start, tmp_path, fresh_store, new_row, invoke, follow_url):  # noqa: F811
    """Two processes; parked cells, a shard that stands still, and each of the commands that deal with it."""
    rows = {fresh_store.put_cell(new_row(), "BASE", 1, {"n": n}).key.row_key for n in range(40)}
    bad = [fresh_store.put_cell(of_shard(fresh_store, new_row, 1), "BASE", 1, {"bad": 1}) for _ in range(2)]
    process = start("--workers", "2", "--once", "--json")
    out, err = process.communicate(timeout=120)

    def call(*arguments: object) -> Result:
        return invoke("trigger", *arguments, url=follow_url)

    assert process.returncode == 1, err
    assert '"stands": true' in out
    assert "trigger keep is new; it starts at the beginning of 4 shards" in err
    # At least once: while two processes share shards out, one may call a cell again that the other was at.
    assert set((tmp_path / "kept").read_text().split()) == set(map(str, rows))
    status = call("status", "keep", "--json")
    assert (status.code, status.json["parked"], status.json["shards"][0]["state"]) == (1, 1, "stopped")
    shown = call("status")
    assert "keep: running; cells of column BASE; 0 workers" in shown.out
    assert "shard 1 stopped: ValueError: no such fare" in shown.err
    assert "no worker is running it" in shown.err
    quiet = call("status", "-q")
    assert (quiet.code, quiet.out.partition("\n")[0]) == (1, shown.out.partition("\n")[0])
    assert quiet.err == (
        "schemaless: failed or found something to report (exit status 1); the same command without -q shows it\n"
    )
    parked = call("parked", "keep")
    assert f"({bad[0].key.row_key}, BASE, 1)" in parked.out
    assert call("parked", "keep", "--json").json[0]["added_id"] == bad[0].added_id
    one = ("--shards", 1, "--added-id", bad[0].added_id)
    dry = call("replay", "keep", *one)
    assert ("1 parked cell of keep would be tried again" in dry.out, "nothing was changed" in dry.err) == (True, True)
    assert call("replay", "keep", "--all", "--execute", "--json").json["executed"]
    assert "1 of them will be tried again" in call("parked", "keep").err
    assert call("skip", "keep", "--shards", 1, "--added-id", 99_999).code == 2
    assert "1 parked cell of keep will not be tried again" in call("skip", "keep", *one, "--execute").out
    assert "keep has no parked cells" in call("parked", "keep").out
    assert "1 stopped shard restarted" in call("resume", "keep").out
    assert "keep is paused" in call("pause", "keep").out
    assert call("status", "keep", "--json").json["wanted"] == "paused"
    assert call("reset", "keep", "--from-beginning", "--json").json["reset"] is False
    moved = call("reset", "keep", "--location", 3, "--shards", 1)
    assert "would continue from the new location in 1 shard" in moved.out
    assert call("reset", "keep", "--since", "2020-01-01T00:00+00:00", "--execute").code == 0
    assert call("status", "keep", "--json").json["ids_behind"] == 42
    paused = start("--once")
    assert "keep is paused; run 'schemaless trigger resume keep'" in paused.communicate(timeout=120)[1]
    assert paused.returncode == 1
    assert call("reset", "keep", "--since", "yesterday").code == 2
    assert "would be removed, with 0 parked cells" in call("remove", "keep").out
    assert "was removed" in call("remove", "keep", "--execute").out
    assert call("status", "keep").code == 2
    assert "no trigger has run yet" in call("status").out


@pytest.mark.guarantee("follower-poison")
@pytest.mark.once
@pytest.mark.long
def test_run_goes_on_with_a_worker_in_place_of_one_that_is_killed_until_ctrl_c(
    start, tmp_path, fresh_store, follow_store, new_row, eventually
):
    """Its only process is killed and replaced without waiting for the lease; Ctrl-C then releases the shards."""
    process = start("--workers", "1")
    triggers = Triggers(follow_store)
    eventually(lambda: triggers.names() == ["keep"] and triggers.status("keep").workers, "a worker lives")
    row = fresh_store.put_cell(new_row(), "BASE", 1, {"n": 1}).key.row_key
    eventually(lambda: str(row) in (tmp_path / "kept").read_text(), "it works")
    (before,) = triggers.status("keep").workers
    (worker,) = workers_of(process)
    os.kill(worker, signal.SIGKILL)
    row = fresh_store.put_cell(new_row(), "BASE", 1, {"n": 2}).key.row_key
    eventually(lambda: str(row) in (tmp_path / "kept").read_text(), "another one works")
    (after,) = triggers.status("keep").workers
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)

    assert before.worker != after.worker
    assert process.returncode == 3, err
    assert "ended (SIGKILL)" in err
    status = triggers.status("keep")
    assert status.workers == ()
    assert [each.row.worker for each in status.shards] == [None] * 4


@pytest.mark.long
@pytest.mark.once
def test_a_terminal_that_is_closed_ends_a_run_with_its_workers(start, tmp_path, fresh_store, new_row, eventually):
    """The signal reaches all of them; a call that outlasts the time to stop is killed."""
    fresh_store.put_cell(new_row(), "BASE", 1, {"long": 1})
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the suite may run under nohup, which programs respect
    try:
        process = start("--stop-timeout", "0.1")
    finally:
        signal.signal(signal.SIGHUP, before)
    eventually(lambda: (tmp_path / "kept.called").exists(), "the call has begun")
    workers = workers_of(process)
    for pid in (*workers, process.pid):
        os.kill(pid, signal.SIGHUP)
    _, err = process.communicate(timeout=120)

    assert process.returncode == 3, err
    assert "is still in a call after 0 s, so it is killed" in err
    assert "Traceback" not in err
    assert len(workers) == 1
    assert [pid for pid in workers if Path(f"/proc/{pid}").exists()] == []


@pytest.mark.once
@pytest.mark.long
def test_a_worker_that_starts_is_not_interrupted(start, tmp_path, fresh_store, new_row):
    """Ctrl-C at a terminal reaches the workers, too, while they still import modules: no traceback, and no death."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "if '--multiprocessing-fork' in sys.orig_argv:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
    )
    row = fresh_store.put_cell(new_row(), "BASE", 1, {"n": 1}).key.row_key
    process = start("--workers", "2", "--once", "--quiet")
    _, err = process.communicate(timeout=120)

    assert (process.returncode, err) == (0, "")
    assert set((tmp_path / "kept").read_text().split()) == {str(row)}


@pytest.mark.long
@pytest.mark.guarantee("follower-idempotent")
@pytest.mark.once
def test_the_example_bills_each_trip_once_with_a_crash_in_the_middle(accounts, fresh_url):
    """As it is run by hand: the bills add up, though a worker died between a bill and the word that it was written."""
    url = accounts.root(fresh_url)
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "fares" / "run.py", url],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "399 bills; a worker crashed in the middle: True" in done.stdout
    assert "exit status 9" in done.stderr


@pytest.mark.once
def test_info_shows_what_tables_beside_the_cells_take(fresh_store, accounts, fresh_url, invoke):  # noqa: F811
    """Followers' tables and whatever else is in a shard; an account that may not see file sizes gets a message."""
    whole = invoke("info", "--json", url=accounts.root(fresh_url)).json["clusters"]
    text = invoke("info", "--all", url=accounts.root(fresh_url)).out
    short = invoke("info", url=accounts.root(fresh_url)).out
    unseen = invoke("info", "--json", url=fresh_url).json["clusters"]

    for cluster in whole:
        assert cluster["other_tables"].keys() >= {"follower", "parked", "shard_identity"}
        assert "cell" not in cluster["other_tables"]
        assert cluster["other_tables"]["parked"]["file_bytes"] > 0
    assert "other tables: " in text
    assert "parked " in text
    assert "parked" not in short
    assert [cluster["other_tables"] for cluster in unseen] == [None] * len(whole)
