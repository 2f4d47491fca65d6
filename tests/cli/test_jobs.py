"""``migrate status``, ``pause``, ``resume``, ``abort``: from any terminal, for every kind of job."""

from __future__ import annotations

import pytest

import schemaless
from schemaless.cli import jobs
from schemaless.cli.jobs import JobProgress
from schemaless.jobs import migrate
from schemaless.jobs.ledger import Ledger
from schemaless.jobs.migrate_spec import MigrateSpec
from schemaless.jobs.rebuild import RebuildSpec
from schemaless.jobs.status import status_of
from schemaless.jobs.throttle import Thresholds
from tests.faults.kinds import ONE_KIND
from tests.jobs.originals import load

pytestmark = [pytest.mark.mysql, ONE_KIND]


@pytest.fixture
def job(fresh_store, new_row, migrate_store):
    """A job that nobody works on."""
    load(fresh_store, new_row)
    return migrate.start(migrate_store, MigrateSpec())[0]


def test_status_says_how_far_it_is_and_how_to_go_on(invoke, migrate_url, job):
    """While nobody works on it, the command that does; afterwards what was done."""
    idle = invoke("migrate", "status", url=migrate_url)
    ran = invoke("migrate", "run", "--execute", "--max-lag", "1", url=migrate_url)
    done, data = invoke("migrate", "status", url=migrate_url), invoke("migrate", "status", "--json", url=migrate_url)
    every = invoke("migrate", "status", "--all", "--json", url=migrate_url)

    assert "nobody works on it now: 'schemaless migrate run --execute --job 1' does\n" in idle.out
    assert "job 1 waits by: max_lag_s 5.0, " in ran.err
    assert done.out.startswith("job 1, migrate: done\n")
    assert "100.0% of " in done.out
    assert "nobody works" not in done.out
    assert (data.json["job"]["state"], data.json["fraction"], data.json["eta"]) == ("done", 1.0, None)
    assert [shard["state"] for shard in data.json["shards"]] == ["done"] * 4
    assert [event["what"] for event in data.json["events"]] == ["created, 4 shards", "done"]
    assert [each["job_id"] for each in every.json["jobs"]] == [1]


def test_a_wait_is_a_line_and_not_one_for_each_second_of_lag(migrate_store, job, monkeypatch, capsys):
    """Where no terminal is there: a log of weeks is read by people."""
    monkeypatch.setattr(jobs, "_LOOK_S", 0.0)
    ledger = Ledger(migrate_store.catalog, migrate_store.name)
    state = ledger.claim(job.job_id, 0, "a")
    cluster = migrate_store.topology.cluster_of(0).name
    assert ledger.renew(job.job_id, state, cluster).watches
    with JobProgress(ledger) as shown:
        shown.begin(job, True)
        for reason in ["lags by 2.6 s", "lags by 3.6 s", "lags by 4.6 s", None]:
            ledger.note_look(job.job_id, cluster, "a", reason, {}, {})
            shown.turn()
    lines = capsys.readouterr().err.splitlines()

    assert [line for line in lines if "lags" in line] == [lines[1]]
    assert lines[1].endswith(f", waits on {cluster}: lags by 2.6 s")
    assert lines[2] == "job 1: goes on"


def test_pause_resume_abort_say_what_holds_now(invoke, migrate_url, job):
    """Each may be said twice; what cannot be is one line."""
    invoke("migrate", "throttle", "--max-lag", "2", "--max-mb-per-s", "20", url=migrate_url)
    invoke("migrate", "pause", url=migrate_url)
    status = invoke("migrate", "status", url=migrate_url).out
    invoke("migrate", "resume", url=migrate_url)
    said = [
        invoke("migrate", verb, *arguments, url=migrate_url)
        for verb, *arguments in [("pause",), ("pause",), ("resume",), ("abort",), ("resume",), ("resume", "--job", "1")]
    ]

    assert "waits by: max_lag_s 2.0, max_threads_running 25, max_history_length 1000000, max_mb_per_s 20.0, " in status
    assert ", waits on all clusters: paused by " in status
    assert [each.code for each in said] == [0, 0, 0, 0, 2, 1]
    assert said[0].out == "job 1 is paused; 0 runners hear of it within a second or two\n"
    assert said[1].err == "job 1 is paused already\n"
    assert said[2].err == "nobody works on it now: 'schemaless migrate run --execute --job 1' does\n"
    assert said[4].err.startswith("schemaless: there is no unfinished migration; ")
    assert said[5].err == "schemaless: job 1 is aborted; only one that is paused can be running\n"


def test_status_of_a_rebuild_names_the_command_that_goes_on(invoke, migrate_url, migrate_store):
    """It is not one of migrate's."""
    ledger = Ledger(migrate_store.catalog, migrate_store.name)
    ledger.create("rebuild", RebuildSpec().as_json(), {0: 1}, ["cluster-1"], {})
    status = invoke("migrate", "status", "--job", "1", url=migrate_url)
    resumed = [invoke("migrate", verb, "--job", "1", url=migrate_url) for verb in ("pause", "resume")][1]
    verified = invoke("migrate", "verify", "--job", "1", url=migrate_url)

    assert "nobody works on it now: 'schemaless rebuild --execute --job 1' does\n" in status.out
    assert "'schemaless rebuild --execute --job 1'" in resumed.err
    assert (verified.code, verified.err) == (2, "schemaless: job 1 is a rebuild; only migrations are verified\n")


def test_time_that_the_budget_takes_counts(fresh_store, new_row, migrate_url):
    """An ETA that left it out would promise the end of a slow job in minutes."""
    load(fresh_store, new_row)
    size = sum(len(cell.body) for shard in range(4) for cell in fresh_store.scan_shard(shard))
    with schemaless.connect(migrate_url) as store:
        report = migrate.run(store, MigrateSpec(thresholds=Thresholds(max_mb_per_s=size / 1e6)))
        states = status_of(Ledger(store.catalog, store.name), report.job_id).shards

    # Of four shards, the last waits until the bytes of the other three would be through.
    last = max(states, key=lambda state: state.ended_at)
    assert sum(state.busy_s for state in states) >= 1 - last.bytes_before / size - 0.1
