"""What ``Watch`` makes of what members say, without servers: who is believed, and what is read again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from schemaless.errors import AccessDenied, SchemalessError, ServerUnavailable
from schemaless.failover import watch as watching
from schemaless.failover.adopt import Adoption
from schemaless.failover.group_replication import GroupView
from schemaless.failover.watch import Watch
from schemaless.topology.model import Cluster, ShardRange, Topology
from schemaless.wire.node import Node

pytestmark = pytest.mark.once

A, B, C, D = (Node("primary", host, 3306, None) for host in ("db-a", "db-b", "db-c", "db-d"))
MODES = {"o": "ONLINE", "r": "RECOVERING", "u": "UNREACHABLE", "e": "ERROR"}


def view(server: str, states: str, primary: str = "a", *, single_primary: bool = True) -> GroupView:
    """What a server says of members a, b, c, ... in these states."""
    rows = [
        (name, f"10.0.0.{name}", 3306, MODES[state], "PRIMARY" if name in primary else "SECONDARY")
        for name, state in zip("abcd", states, strict=False)
    ]
    return GroupView.of(server, rows, single_primary=single_primary)


def topology(*clusters: tuple[Node, ...]) -> Topology:
    """Clusters with claim 1, and their primaries first."""
    made = [
        Cluster(f"cluster-{number}", (nodes[0], *(node.having("replica") for node in nodes[1:])), 1)
        for number, nodes in enumerate(clusters, 1)
    ]
    return Topology("trips", 1, tuple(made), (ShardRange(0, 0, "cluster-1"),))


def down(node: Node) -> SchemalessError:
    return ServerUnavailable("gone", node=str(node))


class World:
    """Servers that answer as they are told, and what was adopted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.says: dict[Node, GroupView | SchemalessError | None] = {}
        self.catalogs: dict[Node, Topology] = {}
        self.adopted: list[Node] = []
        self.claims = {"db-a": 1}
        monkeypatch.setattr(watching, "group_view", lambda pool: self._answer(pool.node))
        monkeypatch.setattr(watching, "read_ready", self._read)
        monkeypatch.setattr(watching, "held_claim", lambda pool, *_: self.claims.get(pool.node.host))
        monkeypatch.setattr(watching, "is_read_only", lambda pool: False)
        monkeypatch.setattr(watching, "adopt_node", self._adopt)
        monkeypatch.setattr(Watch, "prove_quorum", lambda *_: None)

    def _answer(self, node: Node) -> GroupView | None:
        answer = self.says.get(node, down(node))
        if isinstance(answer, SchemalessError):
            raise answer
        return answer

    def _read(self, pool, name):
        self._answer(pool.node)
        return SimpleNamespace(topology=self.catalogs[pool.node])

    def _adopt(self, url, name, cluster, node):
        self.adopted.append(node)
        return Adoption(Cluster(cluster, (node,), 2), True, {}, {})


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def look(watch: Watch) -> list[tuple[str | None, str]]:
    return [(finding.cluster, finding.what) for finding in watch.look()]


@pytest.mark.parametrize(
    ("says", "what", "message"),
    [
        ({A: view("a", "oou"), B: view("b", "oou")}, "agrees", "is the primary of its group"),
        ({A: view("a", "ouu")}, "undecided", "sees 1 of the 3 members"),
        ({A: view("a", "oouu"), B: view("b", "oouu")}, "undecided", "sees 2 of the 4 members"),
        ({A: view("a", "roo", "b"), C: view("c", "roo", "b")}, "undecided", "db-b:3306 does not answer"),
        ({A: view("a", "uoo", ""), B: view("b", "uoo", "")}, "undecided", "about to choose"),
        ({A: view("a", "ooo", "a"), B: view("b", "ooo", "b")}, "undecided", "in the middle of a change"),
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
def test_who_is_believed(world, says, what, message):
    """A majority that names one primary, which says so itself and is in the catalog; else nothing is adopted."""
    world.catalogs[D] = topology((A, B, C))
    world.says = {D: None, **says}
    (finding,) = Watch("mysql://db-d/trips").look()

    assert (finding.cluster, finding.what) == ("cluster-1", what)
    assert message in finding.message
    assert world.adopted == []


def test_a_replica_that_is_down_beside_a_plain_primary_holds_nobody_up(world):
    """The catalog's own cluster is of no group and lacks a replica: a group elsewhere is looked at all the same."""
    world.catalogs[A] = topology((A, B), (C, D))
    world.claims["db-c"] = 1
    world.says = {A: None, C: GroupView.of("c", [("c", "10.0.0.c", 3306, "ONLINE", "PRIMARY")])}
    watch = Watch("mysql://db-a/trips")
    assert look(watch) == [("cluster-1", "no group"), ("cluster-2", "agrees")]
    world.says = {A: None, D: GroupView.of("d", [("d", "10.0.0.d", 3306, "ONLINE", "PRIMARY")])}

    assert look(watch) == [("cluster-2", "adopted")]
    assert world.adopted == [D]


def test_what_somebody_adopts_by_hand_ends_a_strangers_time(world):
    """A primary that the catalog did not name is found once it does: the catalog is read of a member meanwhile."""
    world.catalogs = dict.fromkeys((A, B, C), topology((A, B)))
    world.says = {A: view("a", "oo"), B: view("b", "oo")}
    watch = Watch("mysql://db-a/trips")
    assert look(watch) == [("cluster-1", "agrees")]
    world.says = {B: view("b", "uoo", "c"), C: view("c", "uoo", "c")}
    assert look(watch) == [("cluster-1", "stranger")]
    world.catalogs = dict.fromkeys((B, C), topology((C, B)))
    world.claims = {"db-c": 1}

    assert look(watch) == []
    assert look(watch) == [("cluster-1", "agrees")]


def test_a_catalog_that_the_url_has_by_another_address_is_found_again(world):
    """Servers are told apart by what they say they are, and not by their addresses: the URL's is gone with one."""
    world.catalogs = dict.fromkeys((A, B, D), topology((A, B)))
    world.says = {A: view("a", "oo"), B: view("b", "oo"), D: view("a", "oo")}
    watch = Watch("mysql://db-d/trips")
    assert look(watch) == [("cluster-1", "agrees")]
    assert look(watch) == []
    world.says = {A: view("a", "oo", "b"), B: view("b", "oo", "b")}
    world.claims = {"db-b": 1}
    world.catalogs = dict.fromkeys((A, B), topology((B, A)))

    assert look(watch) == [("cluster-1", "agrees")]


def test_a_primary_that_waits_for_a_majority_was_replaced(world):
    """Only where the majority of its own group has chosen the other one, and where it has none itself."""
    new, waits = view("b", "uoo", "b"), view("a", "ouu")

    assert new.has_replaced(waits)
    assert not new.has_replaced(view("a", "ooo"))
    assert not view("b", "ooo", "a").has_replaced(waits)
    assert not view("b", "uou", "b").has_replaced(waits)
    assert not GroupView.of("x", [("x", "h", 1, "ONLINE", "PRIMARY")]).has_replaced(waits)
    assert not new.has_replaced(view("a", "euu"))
