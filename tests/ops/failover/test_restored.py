"""Backups, restored as the documentation says, beside a production that a restored datastore never touches."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, Self

import pymysql
import pytest

import schemaless
import schemaless.aio
from schemaless.errors import CatalogCopied, InvalidInput, TopologyError
from schemaless.local.description import LocalServer
from schemaless.local.servers import kill, start
from schemaless.ops.admin.upgrades import upgrade_schema
from schemaless.ops.erasure.ledger_file import ledger_lines
from schemaless.ops.export.exporter import follower_name
from schemaless.ops.failover.adopt import adopt
from schemaless.ops.failover.nodes import set_primary
from schemaless.ops.failover.restored import restored
from schemaless.store.followers.settings import Settings
from schemaless.store.internals import internals_of
from schemaless.testing.servers import private_servers
from schemaless.topology.catalog import is_identity, read_catalog, server_identity
from schemaless.wire.urls import parse_url
from tests.cli.conftest import invoke  # noqa: F401 - the fixture
from tests.client_programs import client_programs, program_command
from tests.promotion import caught_up, sql
from tests.test_docs_blocks import ROOT, blocks

pytestmark = pytest.mark.mysql

PAGE = ROOT / "docs/operations.md"
_names = itertools.count(1)
ROWS = [uuid.uuid5(uuid.NAMESPACE_OID, f"restored {number}") for number in range(40)]


@pytest.fixture(scope="module")
def drill(flavour: str, replicated: LocalServer) -> Iterator[list[LocalServer]]:
    """Servers to restore on: one with GTIDs, a past and a replica, and an empty one, on MySQL without GTIDs."""
    options = {"gtid-mode": "OFF", "enforce-gtid-consistency": "OFF"} if flavour == "mysql" else {}
    with private_servers(flavour, 1, options) as (empty,):
        yield [replicated, empty]


@pytest.fixture
def name() -> str:
    """A name that no datastore has."""
    return f"backup{next(_names)}"


@pytest.fixture
def url(name: str, servers: list[LocalServer], flavour: str) -> str:
    """The datastore in production, on two servers; on MySQL, the second one has a claim."""
    made = schemaless.create(name, 2, [server.url for server in servers])
    if flavour == "mysql":
        adopt(made, "cluster-2", servers[1].url)
    with schemaless.connect(made) as store:
        for row in ROWS:
            store.put_cell(row, "BASE", 1, {"row": str(row)})
        exports = Settings(internals_of(store).follower_access)
        exports.create(follower_name("lake"), {"uri": "s3://lake/cells"}, lambda shard: 0)
    sql(
        servers[0],
        f"INSERT INTO `{name}`.cold_store (only_row, uri, incarnation, set_by) "
        "VALUES (1, 's3://lake/cold', 'production', 'ops')",
    )
    return made


def at(server: LocalServer, name: str = "") -> str:
    return f"mysql://root@/{name}?unix_socket={server.socket}"


class Shell:
    """Runs the page's blocks in a folder.

    Attributes:
        folder: where the files of a backup go.
    """

    def __init__(self, folder: Path, flavour: str, name: str, hosts: dict[str, LocalServer]) -> None:
        self.folder = folder
        self._flavour, self._name, self._hosts = flavour, name, hosts
        (folder / "bin").mkdir()
        client_programs(flavour, folder / "bin", {host: server.socket for host, server in hosts.items()})

    def run(self, heading: str, containing: str, replaced: dict[str, str] | None = None) -> str:
        """Run the block below a heading that contains a text, as it is for this flavour; return what it prints."""
        text = PAGE.read_text(encoding="utf-8")
        first = text[: text.index(f"### {heading}\n")].count("\n")
        last = first + 1 + text.partition(f"### {heading}\n")[2].partition("\n#")[0].count("\n")
        other = "mysql -h" if self._flavour == "mariadb" else "mariadb -h"
        (block,) = [
            block
            for block in blocks(PAGE)
            if first < block.line < last
            and block.language == "console"
            and containing in block.text
            and other not in block.text
        ]
        script = "\n".join(line.removeprefix("$ ") for line in block.text.splitlines())
        for host, server in self._hosts.items():
            script = script.replace(f"mysql://admin@{host}:3306/mezzanine", at(server, self._name))
            script = script.replace(f"mysql://{host}:3306/", at(server))
        script = script.replace("mezzanine", self._name)
        for old, new in (replaced or {}).items():
            script = script.replace(old, new)
        return self.sh(script)

    def become(self, user: str) -> None:
        """Have the programs log in as another account."""
        for script in (self.folder / "bin").iterdir():
            script.write_text(re.sub(r"--user=\w+", f"--user={user}", script.read_text()))

    def sh(self, script: str) -> str:
        """Run a script; return what it prints."""
        path = f"{self.folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "SCHEMALESS_URL": at(self._hosts["db-1"], self._name)}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture
def shell(tmp_path: Path, flavour: str, name: str, servers: list[LocalServer], drill: list[LocalServer]) -> Shell:
    """Runs the page's blocks on production and on the servers to restore on."""
    hosts = {"db-1": servers[0], "db-2": servers[1], "drill-1": drill[0], "drill-2": drill[1]}
    return Shell(tmp_path, flavour, name, hosts)


def contents(server: LocalServer, name: str) -> dict[str, Any]:
    """Return the rows of all tables of a datastore on a server."""
    tables = sql(
        server,
        "SELECT table_schema, table_name FROM information_schema.tables "
        f"WHERE table_schema REGEXP '^{name}(_[0-9]{{4}}|_heartbeat)?$'",
    )
    return {
        f"{database}.{table}": sorted(sql(server, f"SELECT * FROM {database}.{table}"), key=repr)
        for database, table in tables
    }


class Watched:
    """Production, as it was, and how many connections each of its servers has seen."""

    def __init__(self, servers: list[LocalServer], name: str) -> None:
        self._servers, self._name = servers, name
        self._before = [contents(server, name) for server in servers]
        self._sessions = [pymysql.connect(unix_socket=str(server.socket), user="root") for server in servers]
        self._connections = self._count()

    def _count(self) -> list[int]:
        counted = []
        for session in self._sessions:
            with session.cursor() as cursor:
                cursor.execute("SHOW GLOBAL STATUS LIKE 'Connections'")
                counted.append(int(cursor.fetchall()[0][1]))
        return counted

    def is_untouched(self) -> bool:
        """Return True if no connection was made, and no row of any table has changed."""
        connections = self._count()
        return (
            connections == self._connections
            and [contents(server, self._name) for server in self._servers] == self._before
        )

    def close(self) -> None:
        for session in self._sessions:
            session.close()


REFUSED = [
    ["cell", "put", str(ROWS[0]), "BASE", "9", "{}"],
    ["check"],
    ["info"],
    ["status"],
    ["topology", "show"],
    ["topology", "watch", "--once"],
    ["topology", "add-cluster", "mysql://nobody/"],
    ["schema", "status"],
    ["schema", "upgrade"],
    ["grants", "--role", "app"],
    ["erase", "replay", "--execute"],
    ["erase", "run", str(ROWS[0]), "--reason", "drill", "--execute"],
    ["migrate", "run", "--execute"],
    ["trigger", "status"],
    ["export", "status"],
]


@pytest.mark.long
@pytest.mark.guarantee("restored-datastore")
def test_a_backup_is_restored_beside_production_which_is_not_touched(url, shell, name, servers, drill, flavour, invoke):  # noqa: F811
    """The page's commands, literally; until 'topology restored', every call is refused and makes no connection."""
    shell.run("Backing up", "backup.sh\n$ sh backup.sh")
    subject, late = ROWS[:2]
    with schemaless.connect(url) as store:
        store.erase(subject, reason="gdpr-art-17")
        store.put_cell(late, "BASE", 2, "after the backup")
    shell.run("Backing up", "ledger.ndjson")
    copy = at(drill[0], name)
    with closing(Watched(servers, name)) as production:
        shell.run("Restoring", "catalog.sql")

        for command in ("adopt", "set-primary"):
            arguments = ["topology", command, "--cluster", "cluster-1", at(drill[1])]
            assert "topology restored" in invoke(*arguments, url=copy).err
        for arguments in REFUSED:
            result = invoke(*arguments, url=copy)
            assert (result.code, "schemaless topology restored --map" in result.err) == (1, True), arguments
        with pytest.raises(CatalogCopied, match=f"is a copy.*names {servers[0].socket}, {servers[1].socket}"):
            schemaless.connect(copy)

        with pytest.raises(CatalogCopied):
            asyncio.run(schemaless.aio.connect(copy))
        for wrong, message in (
            ({"cluster-1": at(drill[0])}, "no server is given for cluster-2"),
            ({"cluster-1": at(drill[0]), "cluster-2": at(servers[1])}, "is a server of the original"),
            ({"cluster-1": at(drill[0]), "cluster-2": at(drill[0])}, "the same server"),
            ({"cluster-1": at(drill[1]), "cluster-2": at(drill[0])}, "has no database"),
            ({"cluster-1": at(drill[0]), "cluster-2": at(drill[1]), "cluster-3": at(drill[1])}, "no cluster"),
        ):
            with pytest.raises((InvalidInput, TopologyError), match=message):
                restored(copy, wrong, lambda store: None)

        incarnations = []

        def interrupted(store: schemaless.Datastore) -> None:
            incarnations.extend(sql(drill[0], f"SELECT incarnation FROM `{name}`.cold_store"))
            raise KeyboardInterrupt

        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                restored(copy, {"cluster-1": at(drill[0]), "cluster-2": at(drill[1])}, interrupted)
        assert len(incarnations) == 2
        assert len({*incarnations, ("production",)}) == 2
        with pytest.raises(CatalogCopied):
            schemaless.connect(copy)

        said = shell.run("Restoring", "topology restored")

        with schemaless.connect(copy) as store:
            assert store.get_cell(subject, "BASE", 1) is None
            assert [cell.erased for cell in store.get_versions(subject, "BASE", include_erased=True)] == [True]
            assert store.get_cell_latest(late, "BASE").ref_key == 1
            assert {row for row in ROWS if store.get_cell(row, "BASE", 1)} == {*ROWS[1:]}
            store.put_cell(late, "BASE", 3, "drill")
            topology = internals_of(store).topology
        again = restored(copy, {str(servers[0].socket): at(drill[0]), "cluster-2": at(drill[1])}, lambda store: None)
        shown = invoke("topology", "show", url=copy)
        assert production.is_untouched()

    assert "erasure 1: 1 cell came back, erased again" in said
    assert "export lake writes to s3://lake/cells, as the original's does" in " ".join(said.split())
    assert [str(cluster.primary) for cluster in topology.clusters] == [str(server.socket) for server in drill]
    assert [cluster.epoch for cluster in topology.clusters] == [0, 2 if flavour == "mysql" else 0]
    assert (again.changed, shown.code) == (False, 0)
    with schemaless.connect(url) as store:
        assert store.get_cell_latest(late, "BASE").ref_key == 2
    with caught_up(drill[0]):
        there = contents(drill[0], name)
        assert len(there[f"{name}_0000.cell"]) > 2
        assert contents(drill[0].replicas[0], name) == there


@pytest.mark.guarantee("restored-datastore")
@pytest.mark.parametrize("command", ["adopt", "set-primary"])
@pytest.mark.long
def test_a_copy_is_not_taken_for_a_promoted_server(url, shell, name, servers, drill, flavour, invoke, command):  # noqa: F811
    """A command that names the copy's server as the new primary reads the old one, which is writable, and refuses."""
    shell.run("Backing up", "backup.sh\n$ sh backup.sh")
    shell.run("Restoring", "catalog.sql")
    before = [contents(server, name) for server in (*servers, drill[0])]
    result = invoke("topology", command, "--cluster", "cluster-1", at(drill[0]), url=at(drill[0], name))
    unsupported = flavour == "mariadb" and command == "adopt"
    refusal = "is MariaDB" if unsupported else "run 'schemaless topology restored' instead"
    assert (result.code, refusal in " ".join(result.err.split())) == (1, True)
    assert [contents(server, name) for server in (*servers, drill[0])] == before
    with pytest.raises(CatalogCopied):
        schemaless.connect(at(drill[0], name))


class Puts:
    """An application of production, which puts cells for as long as the block lasts."""

    def __init__(self, url: str) -> None:
        self.rows: list[uuid.UUID] = []
        self._url, self._stop = url, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with schemaless.connect(self._url) as store:
            while not self._stop.wait(0.002):
                self.rows.append(uuid.uuid4())
                store.put_cell(self.rows[-1], "BASE", 1, {"row": str(self.rows[-1])})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def start_on(server: LocalServer, copy: Path) -> LocalServer:
    """Start a server on a copy of another one's files."""
    kill(server)
    shutil.rmtree(server.data)
    shutil.copytree(copy, server.data)
    return start(server)


@pytest.mark.long
@pytest.mark.guarantee("restored-datastore")
@pytest.mark.parametrize("kind", ["dump", "files"])
def test_a_drill_beside_a_production_that_takes_puts(url, shell, name, servers, drill, flavour, invoke, kind):  # noqa: F811
    """Every put acknowledged before the backup is in the copy; production keeps its bytes, and what it was given."""
    with Puts(url) as puts, private_servers(flavour, 2) if kind == "files" else nullcontext(drill) as copies:
        while len(puts.rows) < 50:
            time.sleep(0.01)
        acknowledged = puts.rows[:-1]
        narrow = ["--no-server-wide"] if kind == "dump" else []
        grants = ["grants", "--role", "backup", "--account", f"{name}_dumper", "--create-user", "--apply", *narrow]
        assert invoke(*grants, url=url).code == 0
        for server in servers:
            sql(server, f"ALTER USER {name}_dumper ACCOUNT UNLOCK")
        if kind == "dump":
            shell.become(f"{name}_dumper")
            shell.run("Backing up", "backup.sh\n$ sh backup.sh")
            shell.become("root")
            backup = sorted((shell.folder / "backup").iterdir())
            catalog = next(path for path in backup if path.name == "catalog.sql")
            cut = shell.folder / catalog.name
            cut.write_bytes(catalog.read_bytes()[:-100])
            broken = invoke("backup", "check", cut, *(path for path in backup if path != catalog))
            assert (broken.code, f"{cut} is incomplete" in broken.err) == (1, True)
            shell.run("Restoring", "catalog.sql")
        else:
            back_up_files(shell, name, flavour, servers)
            folders = [shell.folder / f"cluster-{number}" for number in (1, 2)]
            broken = invoke("backup", "check", "--datastore", name, "--shards", "3", *folders)
            assert (broken.code, "no folder has the cells of shards 2" in broken.err) == (1, True)
            copies = [start_on(each, shell.folder / f"cluster-{number}") for number, each in enumerate(copies, start=1)]
        before = [contents(server, name) for server in servers]
        with schemaless.connect(url) as store:
            store.erase(ROWS[0], reason="gdpr-art-17")
            (shell.folder / "ledger.ndjson").write_bytes(b"\n".join(ledger_lines(store)))
        arguments = [f"--map=cluster-{number}={at(each)}" for number, each in enumerate(copies, start=1)]
        ledger = ["--from", str(shell.folder / "ledger.ndjson")]
        done = invoke("topology", "restored", *arguments, *ledger, url=at(copies[0], name))
        assert (done.code, "erased again" in done.out + done.err) == (0, True)
        checked = invoke("check", url=at(copies[0], name))
        with schemaless.connect(at(copies[0], name)) as store:
            assert {row for row in acknowledged if store.get_cell(row, "BASE", 1) is None} == set()
            assert store.get_cell(ROWS[0], "BASE", 1) is None
            store.put_cell(ROWS[1], "BASE", 7, "drill")
    assert checked.code == 0
    for server in servers:
        sql(server, f"DROP USER {name}_dumper")
    with schemaless.connect(url) as store:
        assert {row for row in puts.rows if store.get_cell(row, "BASE", 1) is None} == set()
        assert store.get_cell(ROWS[1], "BASE", 7) is None
    for server, old in zip(servers, before, strict=True):
        new = contents(server, name)
        for table in (each for each in old if each.endswith((".cell", ".shard_identity", ".node", ".shard_range"))):
            changed = [row for row in old[table] if row not in new[table]]
            assert [row for row in changed if row[1] != ROWS[0].bytes] == [], "only the erased cell has changed"


def back_up_files(shell: Shell, name: str, flavour: str, servers: list[LocalServer]) -> None:
    """Copy the servers' files with the commands that 'backup plan' prints."""
    tool = "mariadb-backup" if flavour == "mariadb" else "clone"
    if flavour == "mariadb":
        command = " ".join(program_command(flavour, tool, tool))
        script = shell.folder / "bin" / tool
        script.write_text(f'#!/bin/sh\nexec {command} --no-defaults --user=root "$@"\n')
        script.chmod(0o755)
    else:
        for server in servers:
            sql(server, "INSTALL PLUGIN clone SONAME 'mysql_clone.so'")
    try:
        shell.become(f"{name}_dumper")
        shell.run("Backing up", "--tool mariadb-backup", {"/backup": str(shell.folder), "mariadb-backup": tool})
        shell.sh("sh backup.sh")
    finally:
        for server in servers if flavour == "mysql" else ():
            sql(server, "UNINSTALL PLUGIN clone")


def recorded(server: LocalServer, name: str) -> list[str | None]:
    """Return the identities that a catalog has for its nodes, in order."""
    return [identity for (identity,) in sql(server, f"SELECT server FROM {name}.node ORDER BY node_id")]


@pytest.mark.guarantee("restored-datastore")
@pytest.mark.parametrize("change", ["upgrade", "set-primary"])
def test_missing_identities_are_recorded_and_refuse_nobody_until_then(url, name, servers, tmp_path, change):
    """An upgraded catalog has none. Until all are known, an address that it does not name may be its own server's."""
    (tmp_path / "renamed.sock").symlink_to(servers[0].socket)
    alias = f"mysql://root@/{name}?unix_socket={tmp_path / 'renamed.sock'}"
    known = sorted(map(str, recorded(servers[0], name)))
    sql(
        servers[0],
        f"UPDATE {name}.node SET server=NULL",
        f"INSERT INTO {name}.node (cluster, role, socket) VALUES ('cluster-1', 'replica', '/nowhere/gone.sock')",
    )
    with schemaless.connect(alias) as running:
        if change == "upgrade":
            assert upgrade_schema(parse_url(url)).failed == {}
        else:
            set_primary(url, "cluster-2", servers[1].url)
        router = internals_of(running).shards.router
        router.look_at_s = 0
        running.put_cell(ROWS[0], "BASE", 2, "still follows changes")
        assert router.routing.token == read_catalog(internals_of(running).catalog, name).token
    assert sorted(map(str, recorded(servers[0], name))) == sorted([*known, "None"])
    sql(servers[0], f"UPDATE {name}.node SET server='another' WHERE server IS NOT NULL")
    schemaless.connect(alias).close()
    sql(servers[0], f"DELETE FROM {name}.node WHERE role='replica'")
    with pytest.raises(CatalogCopied):
        schemaless.connect(alias)


@pytest.mark.parametrize(
    ("recorded", "found", "same"),
    [
        ("uuid", "uuid", True),
        ("uuid", "other", False),
        ("place", "place:card", True),
        ("place:card", "place", True),
        ("place:card", "place:card", True),
        ("place:card", "place:other", False),
        ("place:card", "elsewhere:card", False),
        ("place", None, False),
    ],
)
def test_an_identity_survives_an_upgrade_of_mariadb_but_no_other_network_card(recorded, found, same):
    """Two cards in the same place are two servers: a copy that was taken for the original would write to it."""
    assert is_identity(recorded, found) is same


def test_a_catalog_that_is_no_copy_keeps_its_servers(url, servers, drill, flavour):
    """Only an explicit option makes the command work on the original, where it renews the claims."""
    with pytest.raises(TopologyError, match=r"is not a copy.*set-primary"):
        restored(url, {"cluster-1": at(drill[0]), "cluster-2": at(servers[1])}, lambda store: None)
    with pytest.raises(InvalidInput, match="no server is given"):
        restored(url, {}, lambda store: None)
    done = restored(url, {}, lambda store: None, replaces_original=True)
    with schemaless.connect(url) as store:
        store.put_cell(ROWS[0], "BASE", 2, "still here")
        topology = internals_of(store).topology
    assert done.changed
    assert [str(cluster.primary) for cluster in topology.clusters] == [str(server.socket) for server in servers]
    assert topology.clusters[1].epoch == (2 if flavour == "mysql" else 0)


def test_two_clusters_restored_on_one_server_are_refused(url, name, servers, tmp_path):
    """Under two addresses, too: the tables of each cluster would be in the wrong place to the other."""
    link = tmp_path / "another.sock"
    link.symlink_to(servers[0].socket)
    sql(servers[0], f"CREATE DATABASE {name}_0001")
    for (table,) in sql(servers[0], f"SHOW TABLES FROM {name}_0000"):
        sql(servers[0], f"CREATE TABLE {name}_0001.{table} LIKE {name}_0000.{table}")
        sql(servers[0], f"INSERT INTO {name}_0001.{table} SELECT * FROM {name}_0000.{table}")
    sql(servers[0], f"UPDATE {name}_0001.shard_identity SET shard=1")
    before = recorded(servers[0], name)

    with pytest.raises(InvalidInput, match=r"another\.sock are the same server under two addresses"):
        restored(
            url,
            {"cluster-1": at(servers[0]), "cluster-2": f"mysql://root@/?unix_socket={link}"},
            lambda store: None,
            replaces_original=True,
        )

    assert recorded(servers[0], name) == before


@pytest.mark.guarantee("restored-datastore")
def test_a_catalog_is_at_home_by_the_identity_or_the_address_of_its_server(url, name, servers, drill, tmp_path):
    """Another address of the same server is fine, and so is another server at the same address, as after a failover."""
    link = tmp_path / "renamed.sock"
    link.symlink_to(servers[0].socket)
    with schemaless.connect(f"mysql://root@/{name}?unix_socket={link}") as store:
        pool = internals_of(store).catalog
        assert pool.run(lambda connection: connection.rows(b"SELECT 1"))
        own = server_identity(pool)
    assert sql(servers[0], f"SELECT server FROM {name}.node ORDER BY node_id")[0] == (own,)
    sql(servers[0], f"UPDATE {name}.node SET server='another'")
    schemaless.connect(url).close()
    with pytest.raises(CatalogCopied):
        schemaless.connect(f"mysql://root@/{name}?unix_socket={link}")
    set_primary(f"mysql://root@/{name}?unix_socket={link}", "cluster-1", servers[0].url)
    schemaless.connect(f"mysql://root@/{name}?unix_socket={link}").close()
