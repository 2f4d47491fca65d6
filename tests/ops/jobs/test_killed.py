"""Kill -9 of a command, or of a server that it uses: run again, the command completes and nothing is lost.

Upgrades here are to the later revisions of ``tests/revisions``.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

import schemaless
from schemaless.base.keys import shard_database
from schemaless.codec.recode import recode
from schemaless.local import servers as local_servers
from schemaless.local.description import LocalServer
from schemaless.ops.admin.upgrades import schema_status, upgrade_schema
from schemaless.ops.migrate import run as migration
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.migrate.verify import check
from schemaless.schema.engine import session
from schemaless.store.internals import internals_of
from schemaless.testing.servers import private_servers
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.urls import parse_url
from tests.accounts import Accounts, accounts_on, connect, run
from tests.revisions import FIRST, LAST, installed

pytestmark = [pytest.mark.mysql]

DOCUMENTS = 2000
_names = iter(f"killed{number}" for number in range(1, 1000))


@pytest.fixture(scope="module")
def own_servers(flavour: str) -> Iterator[list[LocalServer]]:
    """Two servers that these tests may kill."""
    with private_servers(flavour, 2) as running:
        yield running


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2,000 documents of about 3 KB, as NDJSON."""
    path = tmp_path_factory.mktemp("killed") / "documents.ndjson"
    with path.open("w") as lines:
        for number in range(DOCUMENTS):
            document = {
                "id": str(uuid.UUID(int=number)),
                "n": number,
                "list": [number + 0.25] * 50,
                "text": "word " * 500,
            }
            lines.write(json.dumps(document) + "\n")
    return path


@pytest.fixture(scope="module")
def own_accounts(own_servers: list[LocalServer]) -> Iterator[Accounts]:
    """The accounts on these servers."""
    with accounts_on([server.url for server in own_servers]) as made:
        yield made


@pytest.fixture
def url(own_accounts: Accounts) -> str:
    """A new datastore of four shards on the servers that may be killed, for ``app``."""
    return own_accounts.create(next(_names), 4)


@pytest.fixture
def migrate(own_accounts: Accounts, url: str) -> str:
    """The new datastore for ``migrate``."""
    own_accounts.allow("migrate", str(parse_url(url).database), 4)
    return own_accounts.url("migrate", url)


@pytest.fixture
def move(own_accounts: Accounts, url: str) -> str:
    """The new datastore for ``move``."""
    own_accounts.allow("move", str(parse_url(url).database), 4)
    return own_accounts.url("move", url)


@pytest.fixture
def admin(own_accounts: Accounts, own_servers: list[LocalServer], url: str) -> str:
    """The new datastore for ``admin``, which may drop one table, as the test's later revisions do."""
    for server in own_servers:
        with closing(connect(server.url, None)) as root:
            for shard in range(4):
                database = shard_database(str(parse_url(url).database), shard)
                run(root, f"GRANT CREATE, DROP ON `{database}`.later TO {own_accounts.account('admin')}")
    return own_accounts.url("admin", url)


def start(url: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a command on a datastore."""
    return subprocess.Popen(
        [sys.executable, "-m", "schemaless.cli.entry", *arguments],
        env={**os.environ, "SCHEMALESS_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(url: str, *arguments: str) -> str:
    """Run a command to its end and return what it printed."""
    process = start(url, *arguments)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


def load_arguments(source: Path) -> tuple[str, ...]:
    return ("load", str(source), "--column", "BASE", "--row-key", "id", "--ref-key", "n", "--as", "legacy")


def put(url: str, source: Path) -> None:
    """Store the cells that an undisturbed load stores, without the command."""
    with schemaless.connect(url) as store:
        store.put_stored_cells([schemaless.NewStoredCell(*key, body) for key, body in expected_cells(source).items()])


MIGRATE = ("migrate", "run", "--execute")


def wait_until(done: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Poll until the command has made progress; it must still be running then."""
    deadline = time.monotonic() + 60
    while not done():
        assert process.poll() is None, "the command ended before it could be killed in the middle"
        assert time.monotonic() < deadline
        time.sleep(0.002)


def counter(url: str, server: LocalServer, condition: bytes) -> Callable[[], int]:
    """Return a function that counts the cells of the datastore's first shard on a server."""
    name = parse_url(url).database
    parsed = parse_url(server.url)
    pool = NodePool(parsed.node, parsed.credentials, PoolOptions(pool_size=1))
    database = f"{name}_{0 if server.number == 1 else 2:04d}"
    sql = b"SELECT COUNT(*) FROM `%b`.cell WHERE %b" % (database.encode(), condition)
    return lambda: int(pool.run(lambda connection: connection.rows(sql))[0][0])


def everything(url: str, *, checked: bool = True) -> dict[object, tuple[bytes, int, object]]:
    """Return body, added_id and created_at by key, having checked that keys are unique and cells valid."""
    found: dict[object, tuple[bytes, int, object]] = {}
    with schemaless.connect(url) as store:
        for shard in range(store.shard_count):
            for cell in store.scan_shard(shard):
                assert cell.key not in found
                found[cell.key] = (cell.body, cell.added_id, cell.created_at)
        assert not checked or check(store).faults == {}
    return found


def expected_cells(source: Path) -> dict[tuple[uuid.UUID, str, int], bytes]:
    """Return the cells that an undisturbed load stores."""
    lines = source.read_bytes().splitlines()
    return {(uuid.UUID(int=number), "BASE", number): line for number, line in enumerate(lines)}


def undisturbed(before: dict[object, tuple[bytes, int, object]]) -> dict[object, tuple[bytes, int, object]]:
    """Return the cells after an undisturbed migration."""
    return {key: (recode(body).body, added_id, created_at) for key, (body, added_id, created_at) in before.items()}


@pytest.mark.long
@pytest.mark.guarantee("migrate-killed")
def test_load_killed_and_run_again_equals_an_undisturbed_load(own_servers, url, source):
    """Kill -9 of a load: no cell is lost, duplicated or changed."""
    count = counter(url, own_servers[0], b"1")
    process = start(url, *load_arguments(source))
    wait_until(lambda: count() >= 100, process)
    process.kill()
    process.communicate()
    partly = len(everything(url))
    finish(url, *load_arguments(source))

    assert 0 < partly < DOCUMENTS
    assert {key: body for key, (body, _, _) in everything(url).items()} == expected_cells(source)


@pytest.mark.guarantee("migrate-killed")
@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.long), "2"])
def test_migrate_killed_and_run_again_equals_an_undisturbed_run(own_servers, url, migrate, source, workers):
    """Kill -9 of a migration with all its workers: the result is byte for byte that of an undisturbed run."""
    put(url, source)
    before = everything(url, checked=False)
    count = counter(url, own_servers[0], b"SUBSTRING(body,1,1)=x'C1'")
    process = start(migrate, *MIGRATE, "--workers", workers)
    wait_until(lambda: count() >= 100, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    partly = sum(body[:1] == b"\xc1" for body, _, _ in everything(url).values())
    finish(migrate, *MIGRATE)

    assert 0 < partly < DOCUMENTS
    assert everything(url) == undisturbed(before)
    assert "nothing to do" in finish(migrate, *MIGRATE)


@pytest.mark.long
@pytest.mark.parametrize("workers", ["1", "2"])
def test_restore_killed_and_run_again_gives_back_every_first_byte(own_servers, url, migrate, source, tmp_path, workers):
    """Kill -9 of a restore with all its workers: the same command continues, and the counts include all runs."""
    archive = ("--archive", str(tmp_path / "originals"))
    put(url, source)
    before = everything(url, checked=False)
    with schemaless.connect(migrate) as store:
        migration.run(store, MigrateSpec(archive=archive[1]))
    count = counter(url, own_servers[0], b"SUBSTRING(body,1,1)<>x'C1'")
    command = ("migrate", "restore", "--execute", *archive, "--workers", workers)
    process = start(migrate, *command)
    wait_until(lambda: count() >= 100, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    partly = sum(body[:1] != b"\xc1" for body, _, _ in everything(url).values())
    report = json.loads(finish(migrate, *command, "--json"))

    assert 0 < partly < DOCUMENTS
    assert everything(url) == before
    assert (report["job"], report["archived"], report["missing_originals"]) == (2, DOCUMENTS, [])
    assert report["restored"] + report["already"] == DOCUMENTS


@pytest.mark.long
def test_server_killed_under_a_load_and_restarted_loses_nothing(own_servers, url, source):
    """Kill -9 of a MySQL server: the command says which server failed, and completes when run again."""
    server = own_servers[0]
    count = counter(url, server, b"1")
    process = start(url, *load_arguments(source))
    wait_until(lambda: count() >= 100, process)
    local_servers.kill(server)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    assert str(server.socket) in err
    own_servers[0] = local_servers.start(server)
    finish(url, *load_arguments(source))

    assert {key: body for key, (body, _, _) in everything(url).items()} == expected_cells(source)


@pytest.mark.long
@pytest.mark.guarantee("migrate-killed")
def test_server_killed_under_a_migration_and_restarted_is_waited_for(own_servers, url, migrate, source):
    """Kill -9 of a primary: the run logs it, waits, and continues when the server is back."""
    put(url, source)
    before = everything(url, checked=False)
    server = own_servers[1]
    count = counter(url, server, b"SUBSTRING(body,1,1)=x'C1'")
    process = start(migrate, *MIGRATE)
    wait_until(lambda: count() >= 100, process)
    local_servers.kill(server)
    own_servers[1] = local_servers.start(server)
    _, err = process.communicate(timeout=120)

    assert process.returncode == 0, err
    assert everything(url) == undisturbed(before)


UPGRADE = """
import sys
from schemaless.cli.main import run
from tests.revisions import installed
with installed():
    sys.exit(run(["schema", "upgrade", "--json"]))
"""


def start_upgrade(url: str) -> subprocess.Popen[str]:
    """Start an upgrade to the later revisions."""
    return subprocess.Popen(
        [sys.executable, "-c", UPGRADE],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "SCHEMALESS_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def revisions_of(url: str) -> list[str | None]:
    """Return the revision of each shard."""
    return [state.revision for state in schema_status(parse_url(url)) if state.branch == "shard"]


def tables_in_shards(url: str) -> set[str]:
    """Return the distinct definitions of the shards' cell tables."""
    with schemaless.connect(url) as store:
        return {
            str(
                internals_of(store).shards.rows(
                    shard, f"SHOW CREATE TABLE `{internals_of(store).shards.database(shard)}`.cell".encode()
                )[0][1]
            )
            for shard in range(store.shard_count)
        }


@pytest.mark.long
@pytest.mark.guarantee("upgrade-interrupted")
def test_upgrade_killed_and_run_again_goes_on(own_servers, url, admin):
    """Kill -9 of an upgrade during an ALTER: the other shards are upgraded, and the next run upgrades that one."""
    name = parse_url(url).database
    node = parse_url(own_servers[1].url)
    pool = NodePool(node.node, node.credentials, PoolOptions(pool_size=2))
    waiting = b"SELECT COUNT(*) FROM information_schema.processlist WHERE state LIKE '%metadata lock%'"
    with session(pool, f"{name}_0003") as reader:
        # The ALTER of this table waits for its reader.
        reader.exec_driver_sql("START TRANSACTION")
        reader.exec_driver_sql("SELECT * FROM cell")
        process = start_upgrade(admin)
        wait_until(
            lambda: (
                revisions_of(admin) == [LAST, LAST, LAST, "shard_0001"]
                and pool.run(lambda connection: connection.rows(waiting)) == ((1,),)
            ),
            process,
        )
        process.kill()
        process.communicate()
        reader.exec_driver_sql("COMMIT")
    again = start_upgrade(admin)
    out, err = again.communicate(timeout=60)
    pool.close()

    assert again.returncode == 0, err
    assert json.loads(out) == {"upgraded": [f"{name}_0003"], "current": 4, "failed": {}}
    assert revisions_of(admin) == [LAST] * 4
    assert len(tables_in_shards(url)) == 1


@pytest.mark.guarantee("upgrade-interrupted")
@pytest.mark.parametrize(
    "statement", ["ALTER TABLE cell ADD", pytest.param("alembic_version SET", marks=pytest.mark.long)]
)
def test_server_killed_under_an_upgrade_and_restarted_goes_on(own_servers, url, admin, statement):
    """Kill -9 of a server after an ALTER, before or after the revision is stored: its shards are named, then done."""
    name = parse_url(url).database
    server = own_servers[1]
    killed: list[bool] = []

    def kill(connection, cursor, sql, parameters, context, executemany) -> None:
        on_it = connection.engine.url.query["unix_socket"] == str(server.socket)
        if statement in sql and on_it and not killed:
            killed.append(True)
            local_servers.kill(server)

    event.listen(Engine, "after_cursor_execute", kill)
    try:
        with installed():
            outcome = upgrade_schema(parse_url(admin), at_once=1)
    finally:
        event.remove(Engine, "after_cursor_execute", kill)
    with installed():
        states = {state.database: state for state in schema_status(parse_url(admin))}
        own_servers[1] = local_servers.start(server)
        middle = revisions_of(admin)
        rest = upgrade_schema(parse_url(admin))

    assert outcome.upgraded == [f"{name}_0000", f"{name}_0001"]
    # The upgrade also refreshes the cluster's copy of the dictionaries.
    assert list(outcome.failed) == [f"{name}_heartbeat of cluster-2", f"{name}_0002", f"{name}_0003"]
    assert all(str(server.socket) in message for message in outcome.failed.values())
    # Without a reply a moment ago, the next attempt is refused unsent: "check that the server is running".
    assert re.search("is the server running|the server is running", outcome.failed[f"{name}_0003"])
    assert [state.database for state in states.values() if state.error] == [f"{name}_0002", f"{name}_0003"]
    assert middle == [LAST, LAST, "shard_0001" if statement.startswith("ALTER") else FIRST, "shard_0001"]
    assert (rest.upgraded, rest.current, rest.failed) == ([f"{name}_0002", f"{name}_0003"], 3, {})
    assert revisions_of(admin) == [LAST] * 4
    assert len(tables_in_shards(url)) == 1


REBUILD = ("rebuild", "--execute", "--shards", "2", "--lock-wait", "60", "--json")


@pytest.mark.long
def test_rebuild_killed_and_run_again_is_completed(own_servers, url, move, flavour):
    """Kill -9 of a rebuild: on MariaDB, the server completes the rebuild; on MySQL, the next run begins again."""
    name = parse_url(url).database
    node = parse_url(own_servers[1].url)
    pool = NodePool(node.node, node.credentials, PoolOptions(pool_size=2))
    begun = {
        "mariadb": b"SELECT COUNT(*) FROM information_schema.processlist WHERE state LIKE '%metadata lock%'",
        "mysql": b"SELECT COUNT(*) FROM information_schema.tables WHERE table_name LIKE 'cell\\_incoming%'",
    }[flavour]
    with session(pool, f"{name}_0002") as reader:
        reader.exec_driver_sql("START TRANSACTION")
        reader.exec_driver_sql("SELECT * FROM cell")
        process = start(move, *REBUILD)
        wait_until(lambda: pool.run(lambda connection: connection.rows(begun)) == ((1,),), process)
        process.kill()
        process.communicate()
        reader.exec_driver_sql("COMMIT")
    again = json.loads(finish(move, *REBUILD))
    pool.close()

    [shard] = again["shards"]
    assert shard["state"] == "done"
    assert shard["message"] == ("its runner died, but the rebuild was complete" if flavour == "mariadb" else None)
    assert len(tables_in_shards(url)) == 1


@pytest.mark.long
def test_server_killed_under_a_rebuild_leaves_the_table_as_it_was(own_servers, url, move, flavour):
    """Kill -9 of a server during a rebuild: no cell is lost, no file is left over, and the run continues."""
    name = parse_url(url).database
    server = own_servers[1]
    with schemaless.connect(url) as store:
        rows = (uuid.uuid5(uuid.NAMESPACE_OID, str(number)) for number in range(4_000))
        cells = [
            schemaless.NewStoredCell(row, "BASE", 1, b'"%b"' % (b"x" * 15_000))
            for row in rows
            if store.shard_of(row) == 2
        ]
        store.put_stored_cells(cells, trusted=True)
    folder = server.data / f"{name}_0002"
    before = everything(url, checked=False)
    files = sorted(path.name for path in folder.glob("*.ibd"))
    copy = "#sql" if flavour == "mariadb" else "cell_incoming_"
    process = start(move, *REBUILD)
    wait_until(lambda: any(folder.glob(f"{copy}*.ibd")), process)
    local_servers.kill(server)
    middle = sorted(path.name for path in folder.glob("*.ibd"))
    own_servers[1] = local_servers.start(server)
    out, err = process.communicate(timeout=120)

    assert process.returncode == 0, err
    assert any(name.startswith(copy) for name in middle)
    assert [shard["state"] for shard in json.loads(out)["shards"]] == ["done"]
    assert everything(url) == before
    assert sorted(path.name for path in folder.glob("*.ibd")) == files
    assert not any(name.startswith(copy) for name in files)
