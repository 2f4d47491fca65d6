"""The ``shards`` commands, as operators use them."""

from __future__ import annotations

import itertools
import logging
import random
import re
from typing import Any

import pytest

from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.move import run as moves
from schemaless.ops.move.record import Records
from schemaless.ops.move.spec import MoveSpec
from schemaless.planning.capacity.history import changes_since, keep
from schemaless.planning.capacity.measure import measure
from schemaless.store.internals import internals_of
from tests.cli.conftest import invoke  # noqa: F401 - the fixture
from tests.movers import query
from tests.ops.move.benches import SHARD, Killed, other

pytestmark = [pytest.mark.mysql]


def test_verify_compares_a_moved_shard_again(client, url, new_row, invoke, caplog):  # noqa: F811
    """Digests of both sides; a re-encoded body is the same document, and missing and differing cells are named."""
    rows = list(itertools.islice((row for row in iter(new_row, None) if client.shard_of(row) == SHARD), 9))
    puts = [client.put_cell(row, "BASE", 1, {"n": n, "text": "x" * 99}) for n, row in enumerate(rows)]
    moves.run(client, MoveSpec(other(client), accounts=False), [SHARD])
    client.put_cell(next(row for row in iter(new_row, None) if client.shard_of(row) == SHARD), "BASE", 1, "later")
    warned = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    status = invoke("job", "show", url=url)
    clean = invoke("shards", "verify", "--json", url=url)
    shown = invoke("shards", "verify", url=url)
    shards = internals_of(client).shards
    cell, node = f"`{shards.database(SHARD)}`.cell", shards.node_of(SHARD)
    json_text = """'{"n":0,"text":"%s"}'""" % ("x" * 99)
    query(
        node,
        f"UPDATE {cell} SET body={json_text} WHERE added_id={puts[0].added_id}",
        f"UPDATE {cell} SET body='[]' WHERE added_id={puts[1].added_id}",
        f"DELETE FROM {cell} WHERE added_id={puts[2].added_id}",
    )
    damaged = invoke("shards", "verify", "--json", url=url)
    said = invoke("shards", "verify", "--shards", SHARD, url=url)
    ((before,), (after,)) = (each.json["shards"] for each in (clean, damaged))

    assert not [message for message in warned if "are on another server" in message]
    header = next(line for line in status.out.splitlines() if line.startswith("shard") and "runner" in line)
    assert header.split() == ["shard", "state", "through", "cells", "copied", "runner"]
    assert (clean.code, before["same"], before["cells"], before["left_digest"]) == (0, True, 9, before["digest"])
    assert (shown.code, before["left_digest"][:16] in shown.out, "same" in shown.out) == (0, True, True)
    assert (damaged.code, after["left_digest"] != after["digest"]) == (1, True)
    assert after["left_digest"] == before["left_digest"]
    assert (after["re_encoded"], after["differing"], after["lacking"], after["strange"]) == (
        1,
        [puts[1].added_id],
        [puts[2].added_id],
        [],
    )
    assert f"1 cell missing from the moved shard, by added_id: {puts[2].added_id}" in said.err


@pytest.mark.long
def test_an_abort_killed_after_its_last_shard_is_continued_by_the_same_command(client, monkeypatch, request):
    """The job is done by then, but was not recorded as cancelled."""
    url, call, change = request.getfixturevalue("url"), request.getfixturevalue("invoke"), JobStore.change_state

    def killed(self: JobStore, job_id: int, before: Any, after: str, *message: str) -> bool:
        if after == "cancelled":
            raise Killed
        return change(self, job_id, before, after, *message)

    job, _ = moves.MOVE.begin_or_join(client, MoveSpec(other(client), accounts=False), [SHARD])
    with monkeypatch.context() as patch:
        patch.setattr(JobStore, "change_state", killed)
        with pytest.raises(Killed):
            moves.abort(client, job)
    assert JobStore(client).job(job.job_id).state == "done"
    codes = [call("shards", "abort", url=url).code for _ in range(2)]

    assert (codes, JobStore(client).job(job.job_id).state) == ([0, 0], "cancelled")


@pytest.mark.parametrize("matters", ["target", "source"])
@pytest.mark.long
def test_the_operator_chooses_between_two_cell_tables(bench, movers, client, monkeypatch, request, matters):
    """The source failed over to a replica without the RENAME: nothing changes, and the message says what to do by hand.

    If the operator keeps the target, cells that only the source has are restored; else the target's copy is dropped.
    """

    def killed(*_: object) -> None:
        raise Killed

    url, call = request.getfixturevalue("url"), request.getfixturevalue("invoke")
    source = internals_of(client).shards.node_of(SHARD)
    target = internals_of(client).topology.cluster(other(client)).primary
    database = internals_of(client).shards.database(SHARD)
    job = bench.begin()
    with monkeypatch.context() as patch:
        patch.setattr(Records, "flip", killed)
        movers.move(client, job)
    bench.free(job)
    leftovers = {name for (name,) in query(source, f"SHOW TABLES FROM `{database}` LIKE '%\\_moved\\_%'")}
    for name in leftovers:
        query(source, f"RENAME TABLE `{database}`.{name} TO `{database}`.{name.partition('_moved_')[0]}")
    bench.put()
    said = call("shards", "move", "--job", job.job_id, "--execute", url=url)
    given_up = call("shards", "abort", "--job", job.job_id, url=url)
    found = re.search(r"to (cell_moved_\w+) on the source, to (cell_incoming_\w+) on the target", said.err)
    assert found is not None, said.err
    name, node = (found[1], source) if matters == "target" else (found[2], target)
    query(node, f"RENAME TABLE `{database}`.cell TO `{database}`.{name}")
    JobStore(client).change_state(job.job_id, ("paused",), "running")
    verb = ("move", "--execute") if matters == "target" else ("abort",)
    again = call("shards", *verb, "--job", job.job_id, url=url)

    assert (said.code, given_up.code, "a move never ends in that state" in given_up.err) == (1, 1, True)
    assert again.code == 0, again.err
    assert bench.check(job) == ("verified" if matters == "target" else "aborted")


@pytest.mark.long
def test_clusters_are_evened_out(client, url, new_row, invoke):  # noqa: F811
    """The plan agrees with the capacity report, and the move carries it out; then nothing is left to do.

    An unfinished move is continued first, and measurements from before a move are ignored.
    """
    for row in itertools.islice((row for row in iter(new_row, None) if client.shard_of(row) < 2), 40):
        client.put_cell(row, "BASE", 1, random.Random(row.int).randbytes(20_000).hex())
    early = invoke("shards", "plan", "--balance", url=url)
    beside = invoke("shards", "plan", "--balance", "--to", "cluster-2", url=url)
    before = measure(client, trials=False)
    keep(client, before)
    planned = invoke("shards", "plan", "--balance", "--unchecked-accounts", "--json", url=url)
    shown = invoke("shards", "plan", "--balance", "--unchecked-accounts", url=url)
    shard = planned.json["targets"][0]["shards"][0]["shard"]
    begun, _ = moves.MOVE.begin_or_join(client, MoveSpec("cluster-2", max_pause_s=0.9, accounts=False), [shard])
    moved = invoke("shards", "move", "--balance", "--unchecked-accounts", "--execute", "--json", url=url)
    again = invoke("shards", "plan", "--balance", url=url)
    internals_of(client).shards.router.again(internals_of(client).shards.routing)
    assert changes_since(client, before)[0] == f"move {begun.job_id} has moved shards"
    keep(client, measure(client, trials=False))
    even = invoke("shards", "plan", "--balance", url=url)
    for left in moves.left_behind(client):
        moves.drop(client, left)
    moves.run(client, MoveSpec("cluster-1", accounts=False), [shard])
    stale = invoke("shards", "plan", "--balance", url=url)
    for left in moves.left_behind(client):
        moves.drop(client, left)
    ((target,), (record,)) = planned.json["targets"], moved.json["shards"]

    assert ("there is no measurement yet" in early.err, "--balance chooses" in beside.err) == (True, True)
    assert (planned.code, target["target"], target["total"]["shards"]) == (0, "cluster-2", 1)
    assert planned.json["cluster_ratio"] > planned.json["cluster_ratio_after"]
    assert "the fullest cluster has" in shown.out
    assert (moved.code, record["target"], record["phase"]) == (0, "cluster-2", "verified"), moved.err
    assert record["shard"] == target["shards"][0]["shard"]
    assert (again.code, "would move to" in again.out) == (0, False)
    assert "all these shards have been moved" in again.err
    assert record["job_id"] == begun.job_id
    assert "nothing to move" in even.out
    assert (stale.code, f"shard {shard} has been moved since the measurement" in stale.err) == (2, True)
