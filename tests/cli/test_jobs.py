"""``job``: lists, shows and controls jobs of every kind, from any terminal."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import get_args

import pytest

import schemaless
from schemaless.ops.jobs.job import Kind, RunProgress, RunStarted
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.status import status_of
from schemaless.ops.jobs.throttle import Look, Thresholds
from schemaless.ops.migrate import body_updates, rebuild
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.rebuild import RebuildSpec
from schemaless.ops.migrate.reencode import BlockBounds
from schemaless.ops.migrate.restore import RESTORE, RestoreSpec
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.migrate.sql import update_bodies
from schemaless.store.internals import internals_of
from schemaless.ui.terminal.job_progress import JobProgress
from tests.faults.kinds import ONE_KIND
from tests.ops.migrate.originals import TEXTS, everything, load

pytestmark = [pytest.mark.mysql, ONE_KIND]


@pytest.fixture
def job(fresh_store, new_row, migrate_store):
    """A job without a runner."""
    load(fresh_store, new_row)
    return migrate.MIGRATE.begin_or_join(migrate_store, MigrateSpec())[0]


def test_status_shows_progress_and_the_command_to_continue(invoke, migrate_url, job):
    """Without a runner, the command that starts one; afterwards the result."""
    idle = invoke("job", "show", url=migrate_url)
    ran = invoke("migrate", "run", "--execute", "--max-lag", "1", url=migrate_url)
    done, data = invoke("job", "show", url=migrate_url), invoke("job", "show", "--json", url=migrate_url)
    every = invoke("job", "list", "--json", url=migrate_url)

    assert "no runner works on it now; start one with 'schemaless migrate run --execute --job 1'\n" in idle.out
    assert "thresholds of job 1: max_lag_s 5.0, " in ran.err
    assert done.out.startswith("job 1, migrate: done\n")
    assert "100.0% of " in done.out
    assert "nobody works" not in done.out
    assert (data.json["job"]["state"], data.json["fraction"], data.json["eta"]) == ("done", 1.0, None)
    assert [shard["state"] for shard in data.json["shards"]] == ["done"] * 4
    assert [event["what"] for event in data.json["events"]] == ["created, 4 shards", "done"]
    assert [each["job_id"] for each in every.json["jobs"]] == [1]


def test_a_wait_is_logged_once_not_every_second(migrate_store, job, monkeypatch, capsys):
    """Where no terminal is there: a log of weeks is read by people."""
    job_store = JobStore(migrate_store)
    state = job_store.leases.claim(job.job_id, 0, "a")
    cluster = internals_of(migrate_store).topology.cluster_of(0).name
    assert job_store.leases.renew(job.job_id, state, cluster).watches
    with JobProgress(job_store, look_s=0.0) as shown:
        shown(RunStarted(job, True))
        for reason in ["lags by 2.6 s", "lags by 3.6 s", "lags by 4.6 s", None]:
            job_store.leases.record_poll(job.job_id, cluster, "a", Look(reason, None, {}), {})
            shown(RunProgress(job))
    lines = capsys.readouterr().err.splitlines()

    assert [line for line in lines if "lags" in line] == [lines[1]]
    assert lines[1].endswith(f", waits on {cluster}: lags by 2.6 s")
    assert lines[2] == "job 1: continues"


def test_pause_resume_and_cancel_report_the_state(invoke, migrate_url, job):
    """Each may be said twice; what cannot be is one line."""
    invoke("job", "set", "--max-lag", "2", "--max-mb-per-s", "20", url=migrate_url)
    invoke("job", "pause", url=migrate_url)
    status = invoke("job", "show", url=migrate_url).out
    listed = invoke("job", "list", "--json", url=migrate_url).json["jobs"]
    invoke("job", "resume", url=migrate_url)
    said = [
        invoke("job", verb, *arguments, url=migrate_url)
        for verb, *arguments in [("pause",), ("pause",), ("resume",), ("cancel",), ("resume",), ("resume", "1")]
    ]

    assert [(wait["cluster"], wait["reason"][:9]) for wait in listed[0]["waits"]] == [("all clusters", "paused by")]
    assert (
        "thresholds: max_lag_s 2.0, max_threads_running 25, max_history_length 1000000, max_mb_per_s 20.0, " in status
    )
    assert ", waits on all clusters: paused by " in status
    assert [each.code for each in said] == [0, 0, 0, 0, 2, 1]
    assert said[0].out == "job 1 is paused\n"
    assert said[1].err == "job 1 is paused already\n"
    assert said[2].err == "no runner works on it now; start one with 'schemaless migrate run --execute --job 1'\n"
    assert said[4].err.startswith("schemaless: there is no unfinished job; ")
    assert said[5].err == "schemaless: job 1 is cancelled; only one that is paused can be running\n"


def test_status_of_a_rebuild_names_the_command_that_goes_on(invoke, migrate_url, migrate_store):
    """It is not one of migrate's."""
    job_store = JobStore(migrate_store)
    job_store.create("rebuild", RebuildSpec().as_json(), {0: 1}, ["cluster-1"], {})
    status = invoke("job", "show", "1", url=migrate_url)
    resumed = [invoke("job", verb, "1", url=migrate_url) for verb in ("pause", "resume")][1]
    verified = invoke("migrate", "verify", "--job", "1", url=migrate_url)

    assert "no runner works on it now; start one with 'schemaless rebuild --execute --job 1'\n" in status.out
    assert "'schemaless rebuild --execute --job 1'" in resumed.err
    assert (verified.code, verified.err) == (
        2,
        "schemaless: job 1 is a rebuild, not a migration; 'schemaless rebuild --execute --job 1' continues it\n",
    )


def test_job_of_another_kind_is_refused_with_the_command_that_joins_it(invoke, migrate_url, admin_url, job, tmp_path):
    """Wherever a command is about one kind."""
    with schemaless.connect(admin_url) as store:
        JobStore(store).change_state(job.job_id, ("running",), "cancelled")
        rebuild.REBUILD.begin_or_join(store, RebuildSpec())
    refused = invoke("migrate", "run", "--execute", url=migrate_url)
    wrong = [
        invoke("migrate", *words, "--job", "2", url=migrate_url)
        for words in [
            ("run", "--execute"),
            ("run",),
            ("restore", "--archive", tmp_path),
            ("report",),
            ("verify",),
            ("finalise",),
        ]
    ]
    other = [invoke("rebuild", *words, "--job", "1", url=admin_url) for words in [("--execute",), ()]]
    ended = invoke("migrate", "run", "--execute", "--job", "1", url=migrate_url)

    assert (
        refused.code,
        "; join it with 'schemaless rebuild --execute --job 2', or end it with 'schemaless job cancel 2'"
        in refused.err,
    ) == (
        1,
        True,
    )
    assert {(each.code, each.err) for each in wrong} == {
        (2, "schemaless: job 2 is a rebuild, not a migration; 'schemaless rebuild --execute --job 2' continues it\n")
    }
    assert {(each.code, each.err) for each in other} == {(2, "schemaless: job 1 is a migration, not a rebuild\n")}
    assert (ended.code, ended.err) == (
        1,
        "schemaless: cannot continue job 1: it is cancelled; start a new job with 'schemaless migrate run --execute'\n",
    )


@pytest.mark.parametrize("kind", get_args(Kind))
def test_jobs_of_every_kind_are_controlled_alike(invoke, migrate_url, migrate_store, kind):
    """By number, or without one if it is the only unfinished job; a move is ended by its own command."""
    job_store = JobStore(migrate_store)
    job_store.create(kind, {"thresholds": {}}, {0: 1}, ["cluster-1"], {})
    said = [
        invoke("job", verb, *number, url=migrate_url) for verb in ("pause", "set", "resume") for number in ([], [1])
    ]
    listed = invoke("job", "list", url=migrate_url)
    ended = invoke("job", "cancel", url=migrate_url)

    assert [each.code for each in said] == [0] * 6
    assert re.search(rf"\n *1 +{kind} +running ", listed.out)
    if kind == "move":
        assert (ended.code, ended.err) == (
            1,
            "schemaless: job 1 is a move; 'schemaless shards abort --job 1' ends it\n",
        )
    else:
        assert (ended.code, ended.out, job_store.job(1).state) == (0, "job 1 is cancelled\n", "cancelled")


def test_one_of_several_unfinished_jobs_must_be_named(invoke, migrate_url, migrate_store):
    """No command guesses; ``show`` falls back to the last job only if all have ended."""
    job_store = JobStore(migrate_store)
    none = invoke("job", "show", url=migrate_url)
    for kind in ("erase", "migrate"):
        job_store.create(kind, {}, {0: 1}, ["cluster-1"], {})
    several = [invoke("job", verb, url=migrate_url) for verb in ("show", "pause", "resume", "cancel", "set")]
    states = [job.state for job in job_store.jobs()]
    invoke("job", "cancel", 1, url=migrate_url)
    only = invoke("job", "show", "--json", url=migrate_url)
    invoke("job", "cancel", url=migrate_url)
    last = invoke("job", "show", "--json", url=migrate_url)
    absent = invoke("job", "show", "7", url=migrate_url)

    assert (none.code, "there is no unfinished job" in none.err) == (2, True)
    assert {(each.code, each.err) for each in several} == {
        (2, "schemaless: several jobs are unfinished, so name one of them: 1 (erasure), 2 (migration)\n")
    }
    assert states == ["running", "running"]
    assert [each.json["job"]["job_id"] for each in (only, last)] == [2, 2]
    assert (absent.code, "has no job 7; 'schemaless job list' lists its jobs" in absent.err) == (2, True)


def test_run_of_a_job_without_execute_shows_what_that_job_is_about(invoke, migrate_url, migrate_store, job):
    """Not what the other options would ask for."""
    dry = invoke("migrate", "run", "--job", "1", "--to", "legacy", "--shards", "0", url=migrate_url)

    assert dry.code == 0
    assert "to msgpack+zlib: 4 shards of " in dry.out


def test_set_changes_what_is_named_and_nothing_else(invoke, migrate_url, migrate_store, tmp_path):
    """One after the other; without a name it shows them, and a job that has ended has none to change."""
    given = Thresholds(2.0, 7, 500, 20.0, str(tmp_path / "wait"), 50.0)
    migrate.MIGRATE.begin_or_join(migrate_store, MigrateSpec(thresholds=given))
    job_store = JobStore(migrate_store)

    def now() -> dict:
        return job_store.job(1).spec["thresholds"]

    lag = invoke("job", "set", "--max-lag", "1", url=migrate_url)
    assert now() == {**given.asdict(), "max_lag_s": 1.0}
    off = invoke("job", "set", "--max-mb-per-s", "off", "--flag-file", "off", url=migrate_url)
    assert now() == {**given.asdict(), "max_lag_s": 1.0, "max_mb_per_s": None, "flag_file": None}
    shown = invoke("job", "set", url=migrate_url)
    wrong = invoke("job", "set", "--max-lag", "-1", url=migrate_url)
    assert now()["max_lag_s"] == 1.0
    assert lag.out.startswith("thresholds of job 1: max_lag_s 1.0, max_threads_running 7, max_history_length 500, ")
    assert (shown.out, wrong.code) == (off.out, 2)
    assert [what for _, _, what in job_store.events(1)].count(f"thresholds: {json.dumps(now())}") == 1
    job_store.change_state(1, ("running",), "cancelled")
    ended = invoke("job", "set", "1", "--max-lag", "3", url=migrate_url)
    assert (ended.code, "is cancelled; only running and paused jobs have thresholds" in ended.err) == (1, True)


def test_later_commands_ignore_runs_that_replaced_nothing(invoke, migrate_url, migrate_store, job, tmp_path):
    """Report, verify and finalise take the last that replaced a body; by its number, any."""
    ran = [invoke("migrate", "run", "--execute", url=migrate_url) for _ in range(3)]
    said = {verb: invoke("migrate", verb, "--json", url=migrate_url) for verb in ("report", "verify", "finalise")}
    third = invoke("migrate", "report", "--json", "--job", "3", url=migrate_url)

    assert [each.code for each in (*ran, *said.values())] == [0] * 6
    assert ran[2].out.startswith("nothing to do: every body is in msgpack+zlib")
    assert [said[verb].json["job"] for verb in ("report", "verify", "finalise")] == [1, 1, 1]
    assert said["report"].json["total"]["cells"] > 0
    assert (third.json["job"], third.json["total"]["cells"]) == (3, 0)
    # An unfinished one comes first, whatever it has done.
    migrate.MIGRATE.begin_or_join(migrate_store, MigrateSpec(to="json+zlib"))
    assert invoke("migrate", "report", "--json", url=migrate_url).json["job"] == 4


def test_cells_erased_during_a_migration_are_reported_and_no_fault(
    invoke, migrate_url, fresh_store, new_row, by_hand, monkeypatch
):
    """Nothing is left of them: the migration is done."""
    load(fresh_store, new_row)
    erased: list[int] = []

    def update(database, changes):
        changes = list(changes)
        if not erased:
            erased.append(changes[0][0])
            sql = f"DELETE FROM `{database}`.cell WHERE added_id = {changes[0][0]}".encode()
            by_hand(fresh_store).execute(0, sql)
        return update_bodies(database, changes)

    monkeypatch.setattr(body_updates, "update_bodies", update)
    monkeypatch.setattr(
        "schemaless.cli.migrate_run.run_migration", partial(migrate.run, bounds=BlockBounds(next_pass_s=0.01))
    )
    ran = invoke("migrate", "run", "--execute", "--follow", url=migrate_url)
    data = invoke("migrate", "report", "--json", url=migrate_url).json

    assert len(erased) == 1
    assert ran.code == 0
    assert "\n1 cell erased during the run\n" in ran.out
    assert (data["total"]["erased"], data["total"]["left"]) == (1, {})


@pytest.mark.long
def test_the_eta_includes_waits_for_the_budget(fresh_store, new_row, migrate_url):
    """An ETA that left it out would promise the end of a slow job in minutes."""
    load(fresh_store, new_row)
    size = sum(len(cell.body) for shard in range(4) for cell in fresh_store.scan_shard(shard))
    with schemaless.connect(migrate_url) as store:
        report = migrate.run(store, MigrateSpec(thresholds=Thresholds(max_mb_per_s=size / 4e6)))
        states = status_of(JobStore(store), report.job_id).shards

    # The last of four shards waits until the bytes of the other three would be through at this rate, less the time that
    # passes between shards. Without its wait, the whole job takes less than a tenth of a second.
    last = max(states, key=lambda state: state.ended_at)
    assert sum(state.busy_s for state in states) >= 4 * (1 - last.bytes_before / size) / 2


def test_a_restore_is_controlled_like_a_migration(invoke, fresh_store, new_row, migrate_store, migrate_url, tmp_path):
    """Paused, shown, throttled and resumed by its number; the command in its status continues it."""
    load(fresh_store, new_row)
    before = everything(fresh_store)
    originals = tmp_path / "originals"
    migrate.run(migrate_store, MigrateSpec(archive=str(originals)))
    job, _ = RESTORE.begin_or_join(migrate_store, RestoreSpec((str(originals),), (0, 1, 2, 3)))
    number = ("--job", str(job.job_id))
    said = [invoke("job", verb, job.job_id, url=migrate_url) for verb in ("pause", "set", "show", "resume", "show")]
    goes_on = f"schemaless migrate restore --execute --job {job.job_id}"
    nothing = invoke("migrate", "restore", url=migrate_url)
    dry = invoke("migrate", "restore", *number, url=migrate_url)
    unchanged = everything(fresh_store) != before
    done = invoke("migrate", "restore", "--execute", "--workers", "2", "--json", *number, url=migrate_url)
    ended = invoke("migrate", "restore", "--execute", *number, url=migrate_url)
    listed = invoke("job", "list", "--json", url=migrate_url).json["jobs"]

    assert [each.code for each in (*said, dry, done)] == [0] * 7
    assert f"job {job.job_id}, restore: paused (by " in said[2].out
    assert f"archives {originals}, shards 0-3\n" in said[2].out
    assert f"no runner works on it now; start one with '{goes_on}'" in said[4].out
    assert (nothing.code, "name the archive with --archive, or use --job to name the restore" in nothing.err) == (
        2,
        True,
    )
    assert (dry.out.startswith(f"{len(TEXTS)} originals to restore, in 4 shards"), unchanged) == (True, True)
    assert (done.json["job"], done.json["restored"], done.json["executed"]) == (job.job_id, len(TEXTS), True)
    assert (
        ended.code,
        f"job {job.job_id}: it is done; start a new job with 'schemaless migrate restore" in ended.err,
    ) == (
        1,
        True,
    )
    assert [(each["kind"], each["state"]) for each in listed] == [("migrate", "done"), ("restore", "done")]
    assert everything(fresh_store) == before
