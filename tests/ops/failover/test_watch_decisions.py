"""Decisions of ``Watch`` without servers: which members it trusts, and when it reads the catalog again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from schemaless.errors import AccessDenied, SchemalessError, ServerUnavailable
from schemaless.ops.failover import watch as watching
from schemaless.ops.failover.change import NodeChange
from schemaless.ops.failover.group_replication import GroupView
from schemaless.ops.failover.watch import Watch
from schemaless.topology.model import Cluster, ShardRange, Topology
from schemaless.wire.node import Node

pytestmark = pytest.mark.once

A, B, C, D = (Node("primary", host, 3306, None) for host in ("db-a", "db-b", "db-c", "db-d"))
MODES = {"o": "ONLINE", "r": "RECOVERING", "u": "UNREACHABLE", "e": "ERROR"}


def view(server: str, states: str, primary: str = "a", *, single_primary: bool = True) -> GroupView:
    """View of a server of members a, b, c, ... in these states."""
    rows = [
        (name, f"10.0.0.{name}", 3306, MODES[state], "PRIMARY" if name in primary else "SECONDARY")
        for name, state in zip("abcd", states, strict=False)
    ]
    return GroupView.of(server, rows, single_primary=single_primary)


def topology(*clusters: tuple[Node, ...]) -> Topology:
    """A topology of clusters with claim 1, whose first nodes are their primaries."""
    members = [
        Cluster(f"cluster-{number}", (nodes[0], *(node.having("replica") for node in nodes[1:])), 1)
        for number, nodes in enumerate(clusters, 1)
    ]
    return Topology("trips", 1, tuple(members), (ShardRange(0, 0, "cluster-1"),))


def down(node: Node) -> SchemalessError:
    return ServerUnavailable("gone", node=str(node))


class World:
    """Servers with scripted answers, and a record of adoptions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[Node, GroupView | SchemalessError | None] = {}
        self.catalogs: dict[Node, Topology] = {}
        self.adopted: list[Node] = []
        self.claims = {"db-a": 1}
        monkeypatch.setattr(watching, "group_view", lambda pool: self._answer(pool.node))
        monkeypatch.setattr(watching, "read_ready", self._read)
        monkeypatch.setattr(watching, "held_claim", lambda pool, *_: self.claims.get(pool.node.host))
        monkeypatch.setattr(watching, "is_read_only", lambda pool: False)
        monkeypatch.setattr(watching, "adopt", self._adopt)
        monkeypatch.setattr(Watch, "prove_quorum", lambda *_: None)

    def _answer(self, node: Node) -> GroupView | None:
        answer = self.answers.get(node, down(node))
        if isinstance(answer, SchemalessError):
            raise answer
        return answer

    def _read(self, pool, name):
        self._answer(pool.node)
        return SimpleNamespace(topology=self.catalogs[pool.node])

    def _adopt(self, url, cluster, node):
        self.adopted.append(node)
        return NodeChange(Cluster(cluster, (node,), 2), True, {}, {})


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def look(watch: Watch) -> list[tuple[str | None, str]]:
    return [(finding.cluster, finding.kind) for finding in watch.look()]


@pytest.mark.parametrize(
    ("answers", "kind", "message"),
    [
        ({A: view("a", "oou"), B: view("b", "oou")}, "agrees", "is the primary of its group"),
        ({A: view("a", "ouu")}, "undecided", "sees 1 of the 3 members"),
        ({A: view("a", "oouu"), B: view("b", "oouu")}, "undecided", "sees 2 of the 4 members"),
        ({A: view("a", "roo", "b"), C: view("c", "roo", "b")}, "undecided", "db-b:3306 does not answer"),
        ({A: view("a", "uoo", ""), B: view("b", "uoo", "")}, "undecided", "is electing a primary"),
        ({A: view("a", "ooo", "a"), B: view("b", "ooo", "b")}, "undecided", "in the middle of changing"),
        ({A: view("a", "ooo", "abc")}, "failed", "multi-primary mode"),
        ({A: view("a", "orr", "a", single_primary=False)}, "failed", "multi-primary mode"),
        (
            {A: view("a", "oooo", "d"), B: view("b", "oooo", "d"), C: None},
            "stranger",
            "topology adopt --cluster cluster-1",
        ),
        ({A: None, B: down(B)}, "no group", "db-a:3306 is in no group"),
        ({A: AccessDenied("run there: GRANT", node="db-a", code=1142)}, "undecided", "run there: GRANT"),
        ({A: view("x", "ooo", "a"), B: view("b", "ooo"), C: view("c", "ooo")}, "stranger", "10.0.0.a:3306"),
    ],
)
def test_findings_by_the_members_views(world, answers, kind, message):
    """A majority must name one primary, which confirms it and is in the catalog; else nothing is adopted."""
    world.catalogs[D] = topology((A, B, C))
    world.answers = {D: None, **answers}
    (finding,) = Watch("mysql://db-d/trips").look()

    assert (finding.cluster, finding.kind) == ("cluster-1", kind)
    assert message in finding.message
    assert world.adopted == []


def test_an_unreachable_replica_of_a_cluster_without_a_group_does_not_block_others(world):
    """The catalog's cluster is not a group, and one of its replicas is down: a group elsewhere is still adopted."""
    world.catalogs[A] = topology((A, B), (C, D))
    world.claims["db-c"] = 1
    world.answers = {A: None, C: GroupView.of("c", [("c", "10.0.0.c", 3306, "ONLINE", "PRIMARY")])}
    watch = Watch("mysql://db-a/trips")
    assert look(watch) == [("cluster-1", "no group"), ("cluster-2", "agrees")]
    world.answers = {A: None, D: GroupView.of("d", [("d", "10.0.0.d", 3306, "ONLINE", "PRIMARY")])}

    assert look(watch) == [("cluster-2", "adopted")]
    assert world.adopted == [D]


def test_an_unknown_primary_is_found_after_an_adoption_by_hand(world):
    """While the elected primary is unknown, the catalog is read from a trusted member, which shows the adoption."""
    world.catalogs = dict.fromkeys((A, B, C), topology((A, B)))
    world.answers = {A: view("a", "oo"), B: view("b", "oo")}
    watch = Watch("mysql://db-a/trips")
    assert look(watch) == [("cluster-1", "agrees")]
    world.answers = {B: view("b", "uoo", "c"), C: view("c", "uoo", "c")}
    assert look(watch) == [("cluster-1", "stranger")]
    world.catalogs = dict.fromkeys((B, C), topology((C, B)))
    world.claims = {"db-c": 1}

    assert look(watch) == []
    assert look(watch) == [("cluster-1", "agrees")]


def test_a_catalog_with_another_address_in_the_url_is_found_again(world):
    """Servers are identified by UUID, not by address: the URL's address is gone after a change of the primary."""
    world.catalogs = dict.fromkeys((A, B, D), topology((A, B)))
    world.answers = {A: view("a", "oo"), B: view("b", "oo"), D: view("a", "oo")}
    watch = Watch("mysql://db-d/trips")
    assert look(watch) == [("cluster-1", "agrees")]
    assert look(watch) == []
    world.answers = {A: view("a", "oo", "b"), B: view("b", "oo", "b")}
    world.claims = {"db-b": 1}
    world.catalogs = dict.fromkeys((A, B), topology((B, A)))

    assert look(watch) == [("cluster-1", "agrees")]


def test_a_primary_that_waits_for_a_majority_was_replaced(world):
    """Only if the majority of its own group elected the other one, and it has no majority itself."""
    new, waits = view("b", "uoo", "b"), view("a", "ouu")

    assert new.has_replaced(waits)
    assert not new.has_replaced(view("a", "ooo"))
    assert not view("b", "ooo", "a").has_replaced(waits)
    assert not view("b", "uou", "b").has_replaced(waits)
    assert not GroupView.of("x", [("x", "h", 1, "ONLINE", "PRIMARY")]).has_replaced(waits)
    assert not new.has_replaced(view("a", "euu"))
