"""A command that works on a job is killed halfway and run again: it joins its own job, whatever that has done by then.

``tests/ops/jobs/test_killed.py`` kills at random points and compares every byte.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import schemaless
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.migrate import run as migration
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.move import run as moves
from schemaless.ops.move.spec import MoveSpec
from schemaless.planning.capacity.history import keep
from schemaless.planning.capacity.measure import measure
from schemaless.store.internals import internals_of
from tests.accounts import Accounts
from tests.ops.migrate.originals import load

pytestmark = [pytest.mark.mysql]

CHILD = """
import os, signal, sys
from schemaless.cli.main import run
from schemaless.ops.jobs.leases import Leases
from schemaless.ops.move.record import Records

place, number, when, *arguments = sys.argv[1:]
owner, name = {"claim": (Leases, "claim"), "flip": (Records, "flip")}[place]
call, calls = getattr(owner, name), []

def killed(*given, **named):
    calls.append(name)
    if len(calls) == int(number) and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    outcome = call(*given, **named)
    if len(calls) == int(number):
        os.kill(os.getpid(), signal.SIGKILL)
    return outcome

setattr(owner, name, killed)
sys.exit(run(arguments))
"""
"""Runs a command until the nth call of a method, and is killed there, before the call or after it."""

HALFWAY = ("claim", "2", "before")
ONE_FLIPPED = ("flip", "1", "after")
ALL_FLIPPED = ("flip", "2", "after")


@pytest.fixture
def root_url(accounts: Accounts, fresh_url: str) -> str:
    """The new datastore for root, who may do everything."""
    return accounts.root(fresh_url)


@pytest.fixture
def kill_in(root_url: str) -> Callable[..., None]:
    """Runs a command in a process of its own that is killed at a given point."""

    def call(point: tuple[str, str, str], *arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-c", CHILD, *point, *arguments],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "SCHEMALESS_URL": root_url},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr

    return call


def measured(store: schemaless.Datastore, new_row: Callable[[], Any]) -> None:
    """Store more on the first cluster than on the second, and measure it, so that a shard is to be moved."""
    for row in itertools.islice((row for row in iter(new_row, None) if store.shard_of(row) < 2), 40):
        store.put_cell(row, "BASE", 1, random.Random(row.int).randbytes(20_000).hex())
    keep(store, measure(store, trials=False))


MOVE = ("shards", "move", "--unchecked-accounts", "--execute")
DRAIN = (*MOVE, "--drain", "cluster-1", "--to", "cluster-2")
COMMANDS = {
    "migrate": (HALFWAY, ("migrate", "run", "--execute")),
    "restore": (HALFWAY, ("migrate", "restore", "--execute", "--archive", "{archive}")),
    "rebuild": (HALFWAY, ("rebuild", "--execute")),
    "move": (HALFWAY, (*MOVE, "0-1", "--to", "cluster-2")),
    "move, all cut over": (ALL_FLIPPED, (*MOVE, "0-1", "--to", "cluster-2")),
    "drain": (HALFWAY, DRAIN),
    "drain, one cut over": (ONE_FLIPPED, DRAIN),
    "drain, all cut over": (ALL_FLIPPED, DRAIN),
    "balance": (ONE_FLIPPED, (*MOVE, "--balance")),
}


SHORT = ("migrate",)


@pytest.mark.parametrize(
    "kind", [kind if kind in SHORT else pytest.param(kind, marks=pytest.mark.long) for kind in COMMANDS]
)
def test_the_same_command_joins_the_job_that_it_left_behind(
    kind, kill_in, invoke, root_url, fresh_store, new_row, tmp_path
):
    """Exit 0, and one job that is done: not another one, and no advice to name the job."""
    point, words = COMMANDS[kind]
    command = [word.format(archive=tmp_path) for word in words]
    load(fresh_store, new_row)
    with schemaless.connect(root_url) as store:
        if kind == "restore":
            migration.run(store, MigrateSpec(archive=str(tmp_path)))
        if kind == "balance":
            measured(store, new_row)
        before = len(JobStore(store).jobs())
        kill_in(point, *command)
        (left,) = JobStore(store).jobs()[before:]
        again = invoke(*command, url=root_url)
        job, *others = JobStore(store).jobs()[before:]

    assert left.unfinished
    # The plan of a balance may have more targets than the one that its first job was about.
    assert not others or (kind == "balance" and {other.state for other in others} == {"done"})
    assert again.code == 0, again.err
    assert f"job {job.job_id}: continued" in again.err
    assert (job.job_id, job.state) == (left.job_id, "done")


@pytest.mark.long
def test_a_drain_that_was_killed_also_moves_what_has_come_since(kill_in, invoke, root_url, fresh_store, new_row):
    """The rest of its own job first. Once the cluster is empty, there is nothing to do, which is no fault."""
    load(fresh_store, new_row)
    with schemaless.connect(root_url) as store:
        kill_in(ONE_FLIPPED, *DRAIN)
        (left,) = JobStore(store).jobs()
        moves.run(store, MoveSpec("cluster-1", accounts=False), [3])
        for place in moves.left_behind(store, [3]):
            moves.drop(store, place)
        again = invoke(*DRAIN, url=root_url)
        jobs = JobStore(store).jobs()
        empty, planned = invoke(*DRAIN, url=root_url), invoke("shards", "plan", *DRAIN[4:], url=root_url)
        shards = internals_of(store).shards
        shards.router.again(shards.routing)
        there = internals_of(store).topology.shards_of("cluster-1")
        after = len(JobStore(store).jobs())

    assert left.unfinished
    assert again.code == 0, again.err
    assert [(job.state, job.spec["target"], job.spec["drain"]) for job in jobs] == [
        ("done", "cluster-2", "cluster-1"),
        ("done", "cluster-1", None),
        ("done", "cluster-2", "cluster-1"),
    ]
    assert there == []
    assert (empty.code, after) == (0, len(jobs))
    assert empty.err.startswith("cluster-1 has no shards; there is nothing to move\n")
    assert (planned.code, planned.out) == (0, "there is nothing to move to cluster-2\n")


@pytest.mark.long
def test_an_abort_that_was_killed_is_continued_by_the_same_command(kill_in, invoke, root_url, fresh_store, new_row):
    """The shard that was cut over stays, the other one is given back."""
    load(fresh_store, new_row)
    kill_in(ONE_FLIPPED, *DRAIN)
    kill_in(HALFWAY, "shards", "abort", "--job", "1")
    again = invoke("shards", "abort", "--job", "1", "--json", url=root_url)

    assert again.code == 1, again.err
    assert [record["phase"] for record in again.json["shards"]] == ["verified", "aborted"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("begun", "asked", "difference"),
    [
        (
            ("migrate", "run", "--execute"),
            ("migrate", "run", "--execute", "--to", "json+zlib", "--chunk-ms", "50"),
            (
                "it differs from this command in to (job: msgpack+zlib, this command: json+zlib), "
                "chunk_ms (job: 200, this command: 50)\n"
            ),
        ),
        (
            (*MOVE, "0-1", "--to", "cluster-2"),
            (*MOVE, "1-2", "--to", "cluster-1"),
            (
                "differs from this command in target (job: cluster-2, this command: cluster-1), "
                "shards (job: 0-1, this command: 1-2)\n"
            ),
        ),
    ],
)
def test_another_command_learns_why_it_cannot_join(
    kill_in, invoke, root_url, fresh_store, new_row, begun, asked, difference
):
    """Which job is in the way, how to join or end it, and what is different about it."""
    load(fresh_store, new_row)
    kill_in(HALFWAY, *begun)
    refused = invoke(*asked, url=root_url)

    assert refused.code == 1
    assert "job 1 is running and has not finished shard 1; join it with" in refused.err
    assert refused.err.endswith(difference)
