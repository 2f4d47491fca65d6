"""The containers of docker/compose.yaml: only with SERVER=docker, but what they are given is looked at always."""

from __future__ import annotations

import configparser
import contextlib
import os
import time
from pathlib import Path

import pytest

import schemaless
from schemaless.local import options
from tests import foreign

ROOT = Path(__file__).parents[2]
containers = pytest.mark.skipif(
    not foreign.DOCKER,
    reason="docker/compose.yaml is not running: needs Docker; 'make test SERVER=docker' starts it and runs this",
)


def test_servers_in_containers_have_the_options_of_private_ones():
    """What the store relies on is the same here and there; socket, paths and secure-file-priv are the image's."""
    parser = configparser.ConfigParser(allow_no_value=True)
    parser.read(ROOT / "docker" / "my.cnf", encoding="utf-8")
    given = {name.removeprefix("loose-"): value for part in parser.sections() for name, value in parser.items(part)}
    arguments = [*options._COMMON, *(argument for flavour in options._OF_FLAVOUR.values() for argument in flavour)]
    split = (argument.removeprefix("--").removeprefix("loose-").partition("=") for argument in arguments)
    expected = {name: value for name, _, value in split if name not in ("skip-networking", "secure-file-priv")}

    assert {name: (given[name] or "").strip("'") for name in expected} == expected


@pytest.fixture
def root_rows(server_urls, compose_ports, docker_ip):
    """Runs a statement as root on a service, over TCP."""

    def run(service: str, sql: str):
        url = f"mysql://root@{docker_ip}:{compose_ports[service]}"
        return foreign.rows(url, os.environ["SCHEMALESS_PASSWORD"], sql)

    return run


@containers
@pytest.mark.mysql
@pytest.mark.twice
def test_what_a_primary_stores_is_on_its_replica_and_on_no_other(root_rows, fresh_url, new_row):
    """Each primary has a replica of its own, by GTID."""
    rows = [new_row() for _ in range(20)]
    with schemaless.connect(fresh_url) as store:
        for row in rows:
            store.put_cell(row, "BASE", 1, {"n": 1})
        name = store.name
    counts = {}
    for number, shards in ((1, (0, 1)), (2, (2, 3))):
        tables = [f"SELECT COUNT(*) AS n FROM `{name}_{shard:04d}`.cell" for shard in shards]
        count = f"SELECT SUM(n) FROM ({' UNION ALL '.join(tables)}) AS counted"
        counts[number] = root_rows(f"primary-{number}", count)
        deadline = time.monotonic() + 60
        while not root_rows(f"replica-{number}", f"SHOW DATABASES LIKE '{name}\\_000{shards[1]}'") or (
            root_rows(f"replica-{number}", count) != counts[number]
        ):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    assert sum(rows[0][0] for rows in counts.values()) == 20
    assert root_rows("replica-1", f"SHOW DATABASES LIKE '{name}\\_0002'") == ()


@containers
@pytest.mark.mysql
@pytest.mark.twice
def test_root_logs_in_over_tcp_the_way_the_server_wants(root_rows, flavour):
    """MySQL asks for caching_sha2_password, which PyMySQL answers with its extra [rsa]."""
    plugin = {"mysql": "caching_sha2_password", "mariadb": "mysql_native_password"}[flavour]

    assert root_rows("primary-1", "SELECT plugin FROM mysql.user WHERE user = 'root' AND host = '%'") == ((plugin,),)
    assert root_rows("primary-1", "SELECT CURRENT_USER()") == (("root@%",),)


@containers
@pytest.mark.mysql
@pytest.mark.twice
def test_metadata_locks_are_seen_in_containers_too(root_rows):
    """What the change feed reads is switched on, on primaries and replicas."""
    sql = "SELECT enabled FROM performance_schema.setup_instruments WHERE name = 'wait/lock/metadata/sql/mdl'"

    assert [root_rows(name, sql) for name in ("primary-1", "replica-1", "primary-2", "replica-2")] == [(("YES",),)] * 4


@containers
@pytest.mark.mysql
@pytest.mark.twice
def test_replicas_are_read_only(root_rows):
    """Nobody writes to a replica by mistake."""
    assert root_rows("replica-1", "SELECT @@read_only") == ((1,),)
    assert root_rows("primary-1", "SELECT @@read_only") == ((0,),)


@containers
@pytest.mark.mysql
@pytest.mark.twice
def test_password_is_in_no_command_line(server_urls):
    """It goes through the environment only: to Compose, into the containers, to the tests."""
    password = os.environ["SCHEMALESS_PASSWORD"].encode()
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            lines.append(path.read_bytes())

    assert lines
    assert not any(password in line for line in lines)
