"""Servers that a shard has left: their replicas and logs may keep documents, and a restore brings tables back."""

from __future__ import annotations

import itertools
import json
import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import schemaless
from schemaless.local.description import LocalServer
from schemaless.ops.erasure.job import ErasureSpec
from schemaless.ops.erasure.job import run as run_erasure
from schemaless.ops.erasure.receipt import receipt
from schemaless.ops.erasure.replay import replay, undone
from schemaless.ops.erasure.verify import verify
from schemaless.ops.failover.nodes import add_replica
from schemaless.ops.jobs.throttle import Thresholds
from schemaless.ops.move import run as moves
from schemaless.ops.move.spec import MoveSpec
from schemaless.store.erasures.ledger import target
from schemaless.store.internals import internals_of
from tests.cli.conftest import Result, _of_no_configuration, invoke
from tests.promotion import caught_up, sql, word

__all__ = ["_of_no_configuration", "invoke"]

_names = itertools.count(1)


@pytest.fixture
def url(replicated: LocalServer, servers: list[LocalServer]) -> Iterator[str]:
    """A datastore as root: shard 1 on a server with a replica; shard 0 and the catalog on another server."""
    name = f"former{next(_names)}"
    made = schemaless.create(name, 2, [servers[0].url, replicated.url])
    add_replica(made, "cluster-2", replicated.replicas[0].url)
    yield made
    for server in (replicated, servers[0]):
        found = sql(server, f"SHOW DATABASES LIKE '{name}%'")
        sql(server, *(f"DROP DATABASE `{database}`" for (database,) in found))


@pytest.fixture
def store(url: str) -> Iterator[schemaless.Datastore]:
    with schemaless.connect(url) as opened:
        yield opened


@pytest.fixture
def subject(store: schemaless.Datastore, new_row: Callable[[], uuid.UUID]) -> uuid.UUID:
    """A row of shard 1 with a document."""
    row = next(row for row in iter(new_row, None) if store.shard_of(row) == 1)
    store.put_cell(row, "BASE", 1, {"who": "anna"}, codec="json+none")
    return row


def move(store: schemaless.Datastore) -> None:
    moves.run(store, MoveSpec("cluster-1", accounts=False), [1])
    internals = internals_of(store)
    internals.shards.router.again(internals.shards.routing)


def erase(store: schemaless.Datastore, row: uuid.UUID, replica_patience_s: float = 120) -> int:
    number = internals_of(store).erasures.ledger.intend("gdpr-art-17", [target(row)])
    run_erasure(store, ErasureSpec(number, replica_patience_s=replica_patience_s))
    return number


@pytest.mark.long
@pytest.mark.guarantee("erasure-former-servers")
def test_an_erasure_reaches_the_replicas_of_a_cluster_that_the_shard_has_left(store, subject, replicated, invoke, url):
    """The replica does not apply the erasure: it is reported, and the receipt names these servers, too."""
    (replica,) = replicated.replicas
    move(store)
    with caught_up(replicated):
        sql(replica, f"STOP {word(replica)} SQL_THREAD")
    try:
        number = erase(store, subject, replica_patience_s=0.1)
        (behind,) = internals_of(store).erasures.ledger.entry(number).notes["replicas_behind"]
        found = verify(store, number)
        issued = receipt(store, number)
    finally:
        sql(replica, f"START {word(replica)} SQL_THREAD")

    assert str(replica.socket) in behind
    ((where, count),) = found.faults.items()
    assert re.fullmatch(rf"{store.name}_0001\.cell_moved_\w+ on {replica.socket}", where)
    assert count == 1
    assert found.status.entry.verified_at is None
    remains = [each["where"] for each in issued["remains"]]
    assert {str(replicated.socket), str(replica.socket)} < {*remains}
    assert any(where.startswith(f"replica {replica.socket}: ") for where in remains)

    with caught_up(replicated):
        assert (
            "acknowledged_at  by all followers; 'schemaless erase verify 1'"
            not in invoke("erase", "status", number, url=url).out
        ), "verify has recorded it"
        assert verify(store, number).status.state == "verified"
    # The old table is restored from before the erasure.
    (left,) = moves.left_behind(store, [1])
    old = next(name for name in left.tables if name.startswith("cell_moved_"))
    sql(replicated, f"UPDATE {store.name}_0001.{old} SET body=REPEAT('a', 9)")
    (back,) = undone(store)
    assert (back.cells, back.copies) == ({}, {1: 1})
    replay(store, [back], Thresholds())
    with caught_up(replicated):
        assert (undone(store), verify(store, number).clean) == ([], True)
    moves.drop(store, left)
    logs = {each["where"]: each["until"] for each in receipt(store, number)["remains"]}
    assert {str(replicated.socket), str(replica.socket)} < logs.keys()
    assert "binary log" in logs[str(replicated.socket)]


def test_a_state_that_is_not_recorded_says_so(store, subject, invoke, url):
    """The erasure is acknowledged by all followers, of which there are none, but nothing has recorded when."""
    number = erase(store, subject)
    lines = invoke("erase", "status", number, url=url).out.splitlines()
    assert lines[0].startswith(f"erasure {number}: acknowledged;")
    assert f"acknowledged_at  by all followers; 'schemaless erase verify {number}' records when it was" in lines
    verify(store, number)
    assert "not yet" not in invoke("erase", "status", number, url=url).out


@pytest.mark.guarantee("erasure-former-servers")
def test_tables_that_a_restore_brings_back_to_a_server_without_the_shard_are_found(
    store, subject, replicated, invoke, url
):
    """The old cluster is restored from before the move: its table has the document. Control: before the restore."""
    (replica,) = replicated.replicas
    database = f"{store.name}_0001"
    sql(replicated, f"CREATE DATABASE {store.name}_kept", f"CREATE TABLE {store.name}_kept.cell LIKE {database}.cell")
    sql(replicated, f"INSERT INTO {store.name}_kept.cell SELECT * FROM {database}.cell")
    move(store)
    number = erase(store, subject)
    with caught_up(replicated):
        assert reports(invoke, url, number) == [0, 0, 0, 0]
    (left,) = moves.left_behind(store, [1])
    moves.drop(store, left)
    with caught_up(replicated):
        assert reports(invoke, url, number) == [0, 0, 0, 0]

    sql(replicated, f"CREATE DATABASE {database}", f"RENAME TABLE {store.name}_kept.cell TO {database}.cell")
    with caught_up(replicated):
        checked, shown, status, verified = results = commands(invoke, url, number)
    assert [result.code for result in results] == [1, 1, 1, 1]
    strays = [fault for fault in checked.json["faults"] if fault["kind"] == "StrayTable"]
    assert {(fault["shard"], fault["server"], fault["table"]) for fault in strays} == {
        (1, str(server.socket), "cell") for server in (replicated, replica)
    }
    texts = [
        f"of shards 1, such as `{database}`.cell: {cause} a backup that is older than a move"
        for cause in ("was it restored from", "the replica is behind, or was restored from")
    ]
    for text, node in zip(texts, shown.json["clusters"][1]["nodes"], strict=True):
        assert text in node["fault"]
        assert any(text in finding["text"] for finding in status.json["findings"])
    (on_replica,) = (fault["message"] for fault in strays if fault["server"] == str(replica.socket))
    assert texts[1] in on_replica
    assert "Drop them" not in on_replica
    assert verified.json["faults"] == {f"{database}.cell on {server.socket}": 1 for server in (replicated, replica)}
    assert {"where": f"{database}.cell on {replica.socket}", "what": "documents as of a backup"}.items() <= next(
        each for each in receipt(store, number)["remains"] if each["where"].endswith(f"cell on {replica.socket}")
    ).items()

    sql(replicated, f"DROP DATABASE {database}")
    with caught_up(replicated):
        assert reports(invoke, url, number) == [0, 0, 0, 0]


@pytest.mark.long
def test_tables_on_a_replica_that_is_behind_are_left_to_replication(store, subject, replicated, invoke, url):
    """A move has left them there, and replication will drop them. Control: a table that no replication drops."""
    (replica,) = replicated.replicas
    database = f"{store.name}_0001"
    number = erase(store, subject)
    move(store)
    (left,) = moves.left_behind(store, [1])
    old = next(name for name in left.tables if name.startswith("cell_moved_"))
    with caught_up(replicated):
        sql(replica, f"STOP {word(replica)} SQL_THREAD")
    try:
        # As if it had stopped before it renamed the table, and before it dropped the copy of an earlier move.
        only_on(replica, f"RENAME TABLE {database}.{old} TO {database}.cell")
        only_on(replica, f"CREATE TABLE {database}.cell_incoming_a LIKE {database}.cell")
        sql(replicated, f"ALTER TABLE {database}.{old} COMMENT 'the replica lacks this'")
        assert strays_of(invoke, url, number) == []
        moves.drop(store, left)
        assert strays_of(invoke, url, number) == []
        only_on(replica, f"RENAME TABLE {database}.cell TO {database}.{old}")
    finally:
        sql(replica, f"START {word(replica)} SQL_THREAD")
    with caught_up(replicated):
        only_on(replica, f"CREATE DATABASE {database}", f"CREATE TABLE {database}.cell_incoming_a (a INT)")
    try:
        found, on_replica = strays_of(invoke, url, number)
    finally:
        only_on(replica, f"DROP DATABASE {database}")
    assert "cell_incoming_a: the replica is behind, or was restored from a backup" in found
    assert on_replica == (
        f"table {database}.cell_incoming_a on {replica.socket}, on a server that should not have it: "
        "'schemaless check' says what to do"
    )


def only_on(replica: LocalServer, *statements: str) -> None:
    """Run statements on a replica that no other server has."""
    lock = [f"SET GLOBAL super_read_only = {on}" for on in (0, 1)] if replica.flavour == "mysql" else ["DO 0"] * 2
    sql(replica, lock[0], "SET sql_log_bin = 0", *statements, lock[1])


def strays_of(invoke: Callable[..., Result], url: str, number: int) -> list[str]:
    """Return what the commands report of tables that a server should not have."""
    checked, _, _, verified = results = commands(invoke, url, number)
    assert "Drop them" not in "".join(result.out for result in results)
    return [
        *(fault["message"] for fault in checked.json["faults"] if fault["kind"] == "StrayTable"),
        *(each for each in verified.json["outstanding"] if "should not have it" in each),
    ]


def commands(invoke: Callable[..., Result], url: str, number: int) -> list[Result]:
    arguments: list[Any] = [("check",), ("topology", "show"), ("status", "--disk-full-from", 100)]
    arguments.append(("erase", "verify", number))
    return [invoke(*each, "--json", url=url) for each in arguments]


def reports(invoke: Callable[..., Result], url: str, number: int) -> list[int]:
    """Return the exit statuses of the commands that look for tables of shards."""
    results = commands(invoke, url, number)
    assert "StrayTable" not in json.dumps(results[0].json)
    return [result.code for result in results]
