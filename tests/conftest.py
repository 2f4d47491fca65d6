"""Servers and datastores for the suite: real ones, MySQL first and MariaDB too.

``SERVER=mysql`` or ``SERVER=mariadb`` runs the suite on one of them only, ``SERVER=myrocks`` on MariaDB with all cells
in MyRocks (by default, that is for tests marked so), ``SERVER=docker`` on the containers of docker/compose.yaml,
``SERVER=mysql://...`` or two such URLs with a comma on servers that run already (docs/local.md).

Who does what: datastores are created and upgraded by an account with the privileges of ``schemaless grants --role
admin`` and no others (``admin_urls``, ``admin_url``), written, read and checked by ``app`` (``datastore_url``,
``fresh_url`` and the stores named after them), tailed by ``tail``, followed by ``follow``, re-encoded by ``migrate``.
Root (``server_urls``, ``by_hand``) makes these accounts, and looks at tables and damages them where a test wants that.
"""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from inspect import unwrap
from multiprocessing.util import Finalize
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import hypothesis
import pytest
from pytest_docker.plugin import Services
from sqlalchemy import make_url

import schemaless
from schemaless.local import processes
from schemaless.local.description import LocalServer
from schemaless.ops.failover.clusters import add_cluster
from schemaless.store.internals import internals_of
from schemaless.testing.datastores import Datastores
from schemaless.testing.servers import private_servers
from schemaless.topology.model import Topology
from schemaless.topology.shards import Shards
from schemaless.wire.pool import PoolOptions
from schemaless.wire.pools import Pools
from schemaless.wire.urls import parse_url
from tests import foreign
from tests.accounts import Accounts, accounts_on
from tests.loopback import Loopback, loopback_server
from tests.scratch import in_memory
from tests.skips import PRIVATE_ONLY

_ON_FOREIGN = foreign.DOCKER or bool(foreign.GIVEN)
_KINDS = ["given"] if foreign.GIVEN else [foreign.CHOSEN] if foreign.CHOSEN else ["mysql", "mariadb"]
_THROUGH_THE_SOCKET = ("test_stopped_load_continues", "test_a_stopped_migration_continues")
_ON_TWO_SERVERS = (
    "test_create_spreads_shards_over_both_servers",
    "test_create_beside_a_datastore_with_a_longer_name",
    "test_shards_swapped_between_servers_are_refused",
    "test_info_shows_topology_and_counts_exactly_when_asked",
)
# How long an example takes says how busy the machine is. The suite has the same examples in each run; 'make test-all'
# has more, and other ones each time.
hypothesis.settings.register_profile(
    "schemaless",
    deadline=None,
    derandomize=True,
    max_examples=25,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "long", hypothesis.settings.get_profile("schemaless"), derandomize=False, max_examples=500
)
hypothesis.settings.load_profile("schemaless")
_LINUX_ONLY = {
    os: "copy_file_range eventfd fdatasync memfd_create pidfd_open posix_fadvise posix_fallocate sched_getaffinity "
    "sched_setaffinity splice O_DIRECT O_NOATIME O_PATH",
    signal: "pidfd_send_signal sigtimedwait sigwaitinfo SIGRTMIN SIGRTMAX",
    socket: "AF_NETLINK SOCK_CLOEXEC SOCK_NONBLOCK SO_PEERCRED TCP_KEEPIDLE TCP_USER_TIMEOUT",
    time: "CLOCK_BOOTTIME",
}
_PASSWORD = pytest.StashKey[str | None]()
_names = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    """Make SIGTERM unwind like Ctrl-C, so that servers are stopped; forget the terminal; choose a folder."""

    def interrupt(signum: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    # Tables are as wide as they are, whatever the terminal's width, which processes of pytest-xdist are given as 80.
    os.environ.pop("COLUMNS", None)
    config.stash[_PASSWORD] = foreign.configure()
    # A process of xdist has this from the one that started it.
    if (folder := in_memory()) is not None:
        # At the end, after multiprocessing has removed a folder of its own in there, which has priority -100.
        Finalize(None, shutil.rmtree, (folder,), {"ignore_errors": True}, exitpriority=-200)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect only the files that mark tests ``twice`` if only those run: importing all takes seconds.

    Tests that another file imports from them do not run twice there.
    """
    if not config.option.markexpr.startswith("twice") or not collection_path.name.startswith("test_"):
        return None
    return (collection_path.is_file() and "mark.twice" not in collection_path.read_text(encoding="utf-8")) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests that foreign servers or storage engines are not fit for."""
    elsewhere = [
        item for item in items if is_for_myrocks_only(item) and item.callspec.params["server_kind"] != "myrocks"
    ]
    config.hook.pytest_deselected(items=elsewhere)
    items[:] = [item for item in items if item not in set(elsewhere)]
    for item in items:
        marker = item.get_closest_marker("innodb")
        if marker is not None and item.callspec.params["server_kind"] == "myrocks":
            item.add_marker(pytest.mark.skip(reason=f"about InnoDB: {marker.args[0]}"))
    socket = pytest.mark.skip(reason=f"{PRIVATE_ONLY} (comes in through the socket of one)")
    second = pytest.mark.skip(
        reason="SERVER names one server, and this test spreads a datastore over two: name a second, or SERVER=mysql"
    )
    for item in items if _ON_FOREIGN else ():
        if item.name.startswith(_THROUGH_THE_SOCKET):
            item.add_marker(socket)
        if item.name.startswith(_ON_TWO_SERVERS) and len(foreign.GIVEN) == 1:
            item.add_marker(second)


def pytest_collection_finish() -> None:
    """Leave what was collected out of garbage collections, each of which would go through a million objects.

    Tests leave few cycles, so that fewer collections do: they took a twentieth of the time of the tests' processes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def is_for_myrocks_only(item: pytest.Item) -> bool:
    """Return True if a test is about MyRocks, so that it runs on no other kind of server."""
    marker = item.get_closest_marker("myrocks")
    return marker is not None and bool(marker.kwargs.get("only"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give the password of foreign servers to the tests that use them; private servers have none."""
    password = item.config.stash[_PASSWORD]
    if password is not None and "server_urls" in getattr(item, "fixturenames", ()):
        os.environ["SCHEMALESS_PASSWORD"] = password
    elif _ON_FOREIGN:
        os.environ.pop("SCHEMALESS_PASSWORD", None)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run everything that uses a server on each kind, and what is marked so on MariaDB with MyRocks too.

    What names its kind itself (``ONE_KIND``) runs on that one only, and shares the servers with the rest.
    """
    named = any("server_kind" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "server_kind" in metafunc.fixturenames and not named:
        on_myrocks = "mariadb" in _KINDS and metafunc.definition.get_closest_marker("myrocks") is not None
        metafunc.parametrize(
            "server_kind", [*_KINDS, *(["myrocks"] if on_myrocks else [])], indirect=True, scope="session"
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Make MyRocks the default engine for a test about it and its fixtures, and restore the default afterwards."""
    callspec = getattr(item, "callspec", None)
    with pytest.MonkeyPatch.context() as patch:
        if callspec is not None and callspec.params.get("server_kind") == "myrocks":
            for call in (schemaless.create, unwrap(add_cluster), unwrap(private_servers)):
                patch.setitem(call.__kwdefaults__, "engine", "rocksdb")
        return (yield)


@pytest.fixture(scope="session")
def server_kind(request: pytest.FixtureRequest) -> str:
    """The kind of server: "mysql", "mariadb", or "myrocks", where each datastore keeps its cells in MyRocks."""
    return str(request.param)


@pytest.fixture(scope="session")
def flavour(request: pytest.FixtureRequest, server_kind: str) -> str:
    """The server's flavour, "mysql" or "mariadb"."""
    if _ON_FOREIGN:
        return str(request.getfixturevalue("_foreign").flavour)
    return "mariadb" if server_kind == "myrocks" else server_kind


@pytest.fixture(scope="session")
def servers(flavour: str) -> Iterator[list[LocalServer]]:
    """Two private servers, for the whole session. Tests that stop or kill one start their own."""
    if _ON_FOREIGN:
        pytest.skip(PRIVATE_ONLY)
    with private_servers(flavour, 2) as running:
        yield running


@pytest.fixture(scope="session")
def replicated(flavour: str) -> Iterator[LocalServer]:
    """A private server with one replica, for the whole session; tests leave them replicating.

    Their processes are in a time zone other than UTC, where summer time begins in twelve hours; nothing may depend on
    it.
    """
    if _ON_FOREIGN:
        pytest.skip(PRIVATE_ONLY)
    summer = datetime.now(UTC) + timedelta(hours=9 + 12)
    day = summer.timetuple().tm_yday - 1
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TZ", f"EAST-9SUMMER,{day}/{summer:%H:%M:%S},{(day + 100) % 365}/0")
            (primary,) = stack.enter_context(private_servers(flavour, 1, replicas=1))
        yield primary


@pytest.fixture(scope="session")
def server_urls(request: pytest.FixtureRequest, flavour: str) -> list[str]:
    """The URLs of the two servers for root."""
    if _ON_FOREIGN:
        urls: list[str] = request.getfixturevalue("_foreign").urls
        return urls
    return [server.url for server in request.getfixturevalue("servers")]


@pytest.fixture(scope="session")
def prefix(request: pytest.FixtureRequest) -> str:
    """What the name of a new datastore begins with: nothing on servers of our own, else something of this run's."""
    return str(request.getfixturevalue("_foreign").prefix) if _ON_FOREIGN else ""


@pytest.fixture(scope="session")
def accounts(request: pytest.FixtureRequest, server_urls: list[str], prefix: str) -> Iterator[Accounts]:
    """The accounts of all roles on the two servers."""
    with accounts_on(server_urls, request.config.stash[_PASSWORD], prefix, clean=_ON_FOREIGN) as made:
        yield made


@pytest.fixture
def new_name(accounts: Accounts, prefix: str) -> str:
    """A name that no datastore has, for one of up to eight shards that ``admin`` may create."""
    unused = f"{prefix}made{next(_names)}"
    accounts.allow_admin_anywhere(unused, 8)
    return unused


@pytest.fixture(scope="session")
def admin_urls(accounts: Accounts) -> list[str]:
    """The URLs of the two servers for ``admin``."""
    return accounts.urls("admin")


@pytest.fixture(scope="session")
def loopback(flavour: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    """A private server of its own that also listens on loopback, with TLS."""
    with loopback_server(flavour, tmp_path_factory.mktemp("loopback")) as server:
        yield server


@pytest.fixture(scope="session")
def datastore_url(accounts: Accounts, prefix: str) -> str:
    """A datastore of four shards over two servers for ``app``, shared by tests that keep to rows of their own."""
    return accounts.create(f"{prefix}shared", 4)


@pytest.fixture(scope="session")
def shared_store(datastore_url: str) -> Iterator[schemaless.Datastore]:
    """A connection to the shared datastore."""
    with schemaless.connect(datastore_url) as opened:
        yield opened


@pytest.fixture
def store(shared_store: schemaless.Datastore) -> schemaless.Datastore:
    """The shared datastore; rows of others are in it."""
    return shared_store


@pytest.fixture(scope="session")
def _datastores(accounts: Accounts, prefix: str) -> Iterator[Datastores]:
    made = Datastores(accounts.servers, lambda name: accounts.create(name, 4), f"{prefix}fresh")
    yield made
    made.close(drop=False)


@pytest.fixture
def fresh_url(_datastores: Datastores) -> Iterator[str]:
    """An empty datastore of four shards over two servers, as good as new, for ``app``."""
    with _datastores.fresh() as url:
        yield url


@pytest.fixture
def fresh_store(fresh_url: str) -> Iterator[schemaless.Datastore]:
    """A connection to the new datastore, as ``app``."""
    with schemaless.connect(fresh_url) as opened:
        yield opened


@pytest.fixture
def admin_url(accounts: Accounts, fresh_url: str) -> str:
    """The new datastore for ``admin``."""
    return accounts.url("admin", fresh_url)


def _role_url(role: str) -> Any:
    """Make a fixture: the new datastore for a role, which is granted there."""

    @pytest.fixture(name=f"{role}_url")
    def role_url(accounts: Accounts, fresh_url: str) -> str:
        accounts.allow(role, str(make_url(fresh_url).database), 4)
        return accounts.url(role, fresh_url)

    return role_url


_migrate_url, _tail_url, _follow_url = _role_url("migrate"), _role_url("tail"), _role_url("follow")
_erase_url, _move_url, _measure_url = _role_url("erase"), _role_url("move"), _role_url("measure")


@pytest.fixture
def migrate_store(migrate_url: str) -> Iterator[schemaless.Datastore]:
    """A connection to the new datastore, as ``migrate``."""
    with schemaless.connect(migrate_url) as opened:
        yield opened


@pytest.fixture
def tail_store(tail_url: str) -> Iterator[schemaless.Datastore]:
    """A connection to the new datastore, as ``tail``."""
    with schemaless.connect(tail_url) as opened:
        yield opened


@pytest.fixture
def follow_store(follow_url: str) -> Iterator[schemaless.Datastore]:
    """A connection to the new datastore, as ``follow``."""
    with schemaless.connect(follow_url) as opened:
        yield opened


@pytest.fixture
def erase_store(erase_url: str) -> Iterator[schemaless.Datastore]:
    """A connection to the new datastore, as ``erase``."""
    with schemaless.connect(erase_url) as opened:
        yield opened


@pytest.fixture
def like_macos(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove what Python and ``cp`` have on Linux and lack on macOS, and ``/proc``."""
    for module, names in _LINUX_ONLY.items():
        for name in names.split():
            monkeypatch.delattr(module, name, raising=False)
    monkeypatch.setattr(processes, "PROC", tmp_path / "no proc")
    program = tmp_path / "bin/cp"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\ncase "$*" in *--sparse*) exit 64;; esac\nexec /bin/cp "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def by_hand(server_urls: list[str]) -> Iterator[Callable[[schemaless.Datastore], Shards]]:
    """Gives the shards of a store as root reaches them, for tests that look at tables or damage them."""
    opened: dict[Topology, Shards] = {}

    def shards_of(store: schemaless.Datastore) -> Shards:
        topology = internals_of(store).topology
        if topology not in opened:
            opened[topology] = Shards(topology, Pools(parse_url(server_urls[0]).credentials, PoolOptions()))
        return opened[topology]

    yield shards_of
    for shards in opened.values():
        shards.close()


@pytest.fixture
def new_row(request: pytest.FixtureRequest) -> Callable[[], uuid.UUID]:
    """Makes row_keys that no other test has; the same ones in each run, whatever ran before."""
    numbers = itertools.count(1)
    return lambda: uuid.uuid5(uuid.NAMESPACE_OID, f"row {next(numbers)} of {request.node.nodeid}")


@pytest.fixture
def row(new_row: Callable[[], uuid.UUID]) -> uuid.UUID:
    """A row_key that no other test has."""
    return new_row()


@pytest.fixture
def eventually() -> Callable[..., None]:
    """Poll until a condition holds, or fail."""

    def wait(condition: Callable[[], object], what: str, timeout_s: float = 120) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"after {timeout_s} s, not yet: {what}")
            time.sleep(0.01)

    return wait


# ---- servers that are not ours


@pytest.fixture(scope="session")
def docker_compose_command() -> str:
    """What pytest-docker runs Compose with."""
    return foreign.compose_command()


@pytest.fixture(scope="session")
def docker_compose_file(pytestconfig: pytest.Config) -> str:
    """The servers that users get, too."""
    return str(Path(pytestconfig.rootpath, "docker", "compose.yaml"))


@pytest.fixture(scope="session")
def docker_compose_project_name() -> str:
    """Containers and volumes of this run are named so; what a killed run left is found by it."""
    return f"schemaless-test-{os.getpid()}"


@pytest.fixture(scope="session")
def docker_setup() -> list[str]:
    """Started; ``compose_ports`` waits for them."""
    return ["up --detach"]


@pytest.fixture(scope="session")
def compose_ports(docker_services: Services) -> dict[str, int]:
    """The port on loopback of each server of docker/compose.yaml; all are healthy, and replicas replicate."""
    return foreign.healthy_ports(docker_services)


@pytest.fixture(scope="session")
def _foreign(request: pytest.FixtureRequest) -> Iterator[foreign.Foreign]:
    password = request.config.stash[_PASSWORD]
    urls = foreign.GIVEN
    if foreign.DOCKER:
        ports = request.getfixturevalue("compose_ports")
        host = request.getfixturevalue("docker_ip")
        urls = [f"mysql://root@{host}:{ports[name]}" for name in ("primary-1", "primary-2")]
    with foreign.foreign_servers([foreign.bare(url) for url in urls], password, clean=not foreign.DOCKER) as found:
        yield found
