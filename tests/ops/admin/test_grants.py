"""Grants: exact statements, and the privileges of each role's account on a server."""

from __future__ import annotations

import re
from contextlib import closing

import pymysql
import pytest

import schemaless
from schemaless import InvalidInput
from schemaless.base.keys import shard_database
from schemaless.ops.admin.grants import ROLES, grants, parse_account
from schemaless.schema.creation import catalog_tables
from schemaless.store.internals import internals_of
from schemaless.topology.model import Cluster, ShardRange, Topology
from schemaless.wire.accounts import Account
from schemaless.wire.errors import translated
from schemaless.wire.node import Node
from schemaless.wire.urls import parse_url
from tests.accounts import connect, run

APP = Account("app", "10.0.%")
CATALOG = Node("primary", host="db-0", port=3306)
TOPOLOGY = Topology(
    "trips_eu",
    3,
    (
        Cluster("a", (Node("primary", host="db-1", port=3306), Node("replica", host="db-2", port=3306))),
        Cluster("b", (CATALOG,)),
        Cluster("empty", (Node("primary", host="db-9", port=3306),)),
    ),
    (ShardRange(0, 1, "a"), ShardRange(2, 2, "b")),
)


def test_app_gets_tables_by_name_on_the_servers_that_have_them():
    """The catalog's server first, then each primary with shards; none for empty clusters and replicas."""
    catalog, other = grants("app", APP, TOPOLOGY, CATALOG)

    assert (str(catalog.node), catalog.holds) == ("db-0:3306", "the catalog, b with shards 2")
    assert catalog.statements == (
        r"GRANT SELECT ON `trips\_eu`.* TO 'app'@'10.0.%'",
        r"GRANT SELECT ON `trips\_eu\_heartbeat`.* TO 'app'@'10.0.%'",
        "GRANT SELECT, INSERT ON `trips_eu_0002`.`cell` TO 'app'@'10.0.%'",
        "GRANT SELECT ON `trips_eu_0002`.`shard_identity` TO 'app'@'10.0.%'",
        "GRANT SELECT ON `trips_eu_0002`.`erased_cell` TO 'app'@'10.0.%'",
        "GRANT SELECT ON `trips_eu_0002`.`cold_file` TO 'app'@'10.0.%'",
    )
    assert (str(other.node), other.holds) == ("db-1:3306", "a with shards 0 to 1")
    assert [statement.partition(" ON ")[2].partition(" TO ")[0] for statement in other.statements] == [
        r"`trips\_eu\_heartbeat`.*",
        "`trips_eu_0000`.`cell`",
        "`trips_eu_0000`.`shard_identity`",
        "`trips_eu_0000`.`erased_cell`",
        "`trips_eu_0000`.`cold_file`",
        "`trips_eu_0001`.`cell`",
        "`trips_eu_0001`.`shard_identity`",
        "`trips_eu_0001`.`erased_cell`",
        "`trips_eu_0001`.`cold_file`",
    ]


def test_options_of_grants():
    """CREATE USER, replicas without binary logging, literal names, LOCK TABLES for a tail."""
    parts = grants("tail", APP, TOPOLOGY, CATALOG, create_user=True, replicas=True, lock_tables=True)
    plain = grants("admin", APP, TOPOLOGY, CATALOG, partial_revokes=True)

    assert [str(part.node) for part in parts] == ["db-0:3306", "db-1:3306", "db-2:3306"]
    assert all("CREATE USER IF NOT EXISTS 'app'@'10.0.%' ACCOUNT LOCK" in part.statements for part in parts)
    assert parts[2].statements[0] == "SET SESSION sql_log_bin = 0"
    assert parts[2].statements[1:] == parts[1].statements
    assert parts[2].holds == "a replica of db-1:3306, a with shards 0 to 1"
    assert r"GRANT LOCK TABLES ON `trips\_eu\_0000`.* TO 'app'@'10.0.%'" in parts[1].statements
    assert "GRANT SELECT ON `performance_schema`.`metadata_locks` TO 'app'@'10.0.%'" in parts[1].statements
    assert not any("\\" in statement for part in plain for statement in part.statements)


@pytest.mark.once
def test_a_refusal_names_a_role_that_has_the_privilege():
    """For each table that a role is granted by name; what a role may do on a whole database counts, too."""
    granted = re.compile(r"GRANT (?P<privileges>.*) ON `(?P<database>.*)`\.[`*]?(?P<table>\w*)`? TO .*")
    allowed: dict[str, set[tuple[str, str, str]]] = {role: set() for role in ROLES}
    for role in ROLES:
        for part in grants(role, APP, TOPOLOGY, CATALOG, indexes=[1]):
            for match in filter(None, map(granted.fullmatch, part.statements)):
                database = match["database"].replace("\\", "")
                for privilege in re.sub(r" \(.*?\)", "", match["privileges"]).split(", "):
                    allowed[role].add((database, match["table"], privilege))
    refused = {each for role in ROLES for each in allowed[role] if each[1]}
    suggested = {}
    for database, table, privilege in refused:
        denied = pymysql.err.OperationalError(1142, f"{privilege} command denied to user 'a'@'b' for table '{table}'")
        role = re.search(r"--role (\w+)'", str(translated(denied, "db-1", None, connecting=False)))
        suggested[database, table, privilege] = role and role[1]
        if role is not None:
            has = allowed[role[1]] & {(database, table, privilege), (database, "", privilege)}
            assert has, f"{role[1]} may not {privilege} {table}"
    assert (
        suggested["trips_eu", "legal_hold", "INSERT"] == suggested["trips_eu", "retention_policy", "UPDATE"] == "erase"
    )
    assert suggested["trips_eu", "capacity_sample", "INSERT"] == "measure"
    assert suggested["trips_eu", "shard_move", "UPDATE"] == "move"


def test_only_admin_creates_tables_in_the_catalog_and_others_write_to_theirs():
    """Each role's statements on tables of the catalog name tables that exist."""
    for role in ROLES:
        statements = grants(role, APP, TOPOLOGY, CATALOG)[0].statements
        scopes = [statement.partition(" ON ")[2].partition(" TO ")[0] for statement in statements]
        tables = {scope.rpartition(".")[2].strip("`") for scope in scopes if scope.startswith("`trips_eu`.")}

        assert tables <= catalog_tables()
        assert bool(tables) is (role in ("follow", "migrate", "erase", "move", "measure"))
        assert any(" CREATE, " in each and r"`trips\_eu`.*" in each for each in statements) is (role == "admin")


def test_migrate_gets_jobs_tokens_and_optional_server_wide_privileges():
    """Jobs are on the catalog's server; tokens and the others are on every server with shards."""
    catalog, other = grants("migrate", APP, TOPOLOGY, CATALOG)
    mariadb = grants("migrate", APP, TOPOLOGY, CATALOG, mariadb=True)
    less = grants("migrate", APP, TOPOLOGY, CATALOG, server_wide=False)

    jobs = [statement for statement in catalog.statements if ".`job" in statement]
    assert jobs[0] == "GRANT INSERT, UPDATE ON `trips_eu`.`job` TO 'app'@'10.0.%'"
    assert len(jobs) == 5
    assert not any(".`job" in statement for statement in other.statements)
    for part in (catalog, other):
        assert (
            r"GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON `trips\_eu\_heartbeat`.* TO 'app'@'10.0.%'"
            in part.statements
        )
        assert part.statements[-1] == (
            "GRANT PROCESS, REPLICATION CLIENT, SESSION_VARIABLES_ADMIN ON *.* TO 'app'@'10.0.%'"
        )
    assert mariadb[1].statements[-1] == "GRANT PROCESS, BINLOG MONITOR, BINLOG ADMIN ON *.* TO 'app'@'10.0.%'"
    assert [part.statements for part in less] == [part.statements[:-1] for part in (catalog, other)]


def test_follow_gets_an_optional_privilege_for_binary_logs():
    """It is a separate statement on servers with shards, because it exposes the changes of every database."""
    parts = grants("follow", APP, TOPOLOGY, CATALOG)
    less = grants("follow", APP, TOPOLOGY, CATALOG, server_wide=False)

    assert parts[1].statements[-1] == "GRANT REPLICATION SLAVE ON *.* TO 'app'@'10.0.%'"
    assert less[1].statements == parts[1].statements[:-1]


@pytest.mark.parametrize(
    ("text", "account"),
    [
        ("app", Account("app", "%")),
        ("app@localhost", Account("app", "localhost")),
        ("'app'@'10.0.%'", Account("app", "10.0.%")),
        ("`trip app`@`::1`", Account("trip app", "::1")),
        ("app@corp@db-1", Account("app@corp", "db-1")),
    ],
)
def test_parse_account_accepts_mysqls_notation(text, account):
    """Quotes are optional."""
    assert parse_account(text) == account
    assert parse_account(str(account)) == account


@pytest.mark.parametrize("text", ["", "@host", "'app", "app'@'%", "a'; DROP DATABASE x; --", "a\\", "app@", "a\nb"])
def test_parse_account_refuses_text_that_could_end_a_string(text):
    """The account becomes part of statements that root runs."""
    with pytest.raises(InvalidInput, match="'name'@'host'"):
        parse_account(text)


# ---- on servers

SERVER_WIDE = [
    "SELECT COUNT(*) FROM information_schema.{tablespaces}",
    "SELECT COUNT(*) FROM information_schema.INNODB_METRICS",
    "SHOW BINARY LOGS",
    "SET SESSION binlog_row_image='NOBLOB'",
]
MEASUREMENTS = ["INSERT INTO {catalog}.capacity_sample (taken_at, figures) VALUES (NOW(), '{{}}')"]
JOBS = [
    "INSERT INTO {catalog}.job_event (job_id, who, what) VALUES (1, 'x', 'x')",
    "UPDATE {catalog}.job SET state='cancelled'",
    "INSERT INTO {catalog}_heartbeat.heartbeat_token (cluster, writer, token) VALUES ('c', 'w', REPEAT('x', 16))",
]
FOLLOWERS = [
    "INSERT INTO {catalog}.follower_setting (name, wanted, spec) VALUES ('x', 'new', '{{}}')",
    "UPDATE {shard}.follower SET location=0",
    "DELETE FROM {shard}.parked",
]
OF_THE_TOPOLOGY = [
    "INSERT INTO {catalog}.cluster (name) VALUES ('other')",
    "UPDATE {catalog}.datastore SET ready=0",
    "DELETE FROM {catalog}.node",
]
FORBIDDEN = {
    "app": [
        *FOLLOWERS,
        *SERVER_WIDE,
        *JOBS,
        *MEASUREMENTS,
        "UPDATE {cell} SET body='x'",
        "UPDATE {cell} SET ref_key=2",
        "DELETE FROM {cell}",
        "REPLACE INTO {cell} (row_key, column_name, ref_key, body) VALUES (REPEAT('k', 16), 'A', 1, 'x')",
        "INSERT INTO {cell} (row_key, ref_key) VALUES (REPEAT('k', 16), 1) ON DUPLICATE KEY UPDATE body='x'",
        "TRUNCATE TABLE {cell}",
        "INSERT INTO {identity} SELECT * FROM {identity}",
        "UPDATE {identity} SET shard=1",
        "SELECT COUNT(*) FROM performance_schema.metadata_locks",
    ],
    "tail": [
        *FOLLOWERS,
        *SERVER_WIDE,
        *JOBS,
        *MEASUREMENTS,
        "INSERT INTO {cell} (row_key, column_name, ref_key, body) VALUES (REPEAT('k', 16), 'A', 1, 'x')",
        "UPDATE {cell} SET body='x'",
        "DELETE FROM {cell}",
        "LOCK TABLES {cell} READ",
        "UPDATE performance_schema.setup_instruments SET ENABLED='NO'",
    ],
    "follow": [
        *SERVER_WIDE,
        *JOBS,
        *MEASUREMENTS,
        "INSERT INTO {cell} (row_key, column_name, ref_key, body) VALUES (REPEAT('k', 16), 'A', 1, 'x')",
        "UPDATE {cell} SET body='x'",
        "DELETE FROM {cell}",
        "LOCK TABLES {cell} READ",
        "DROP TABLE {shard}.parked",
        "UPDATE {identity} SET shard=1",
    ],
    "migrate": [
        *MEASUREMENTS,
        *FOLLOWERS,
        *(f"UPDATE {{cell}} SET {name}={name}" for name in ("added_id", "row_key", "column_name", "ref_key")),
        "UPDATE {cell} SET body=body, created_at=created_at",
        "DELETE FROM {catalog}.job_event",
        "INSERT INTO {cell} (row_key, column_name, ref_key, body) VALUES (REPEAT('k', 16), 'A', 1, 'x')",
        "DELETE FROM {cell}",
        "TRUNCATE TABLE {cell}",
        "UPDATE {identity} SET shard=1",
    ],
    "erase": [
        *SERVER_WIDE[2:],
        *MEASUREMENTS,
        FOLLOWERS[0],
        *OF_THE_TOPOLOGY,
        "DELETE FROM {catalog}.erasure",
        "DELETE FROM {shard}.erased_cell",
        "DELETE FROM {cell}",
        "INSERT INTO {cell} (row_key, column_name, ref_key, body) VALUES (REPEAT('k', 16), 'A', 1, 'x')",
        "TRUNCATE TABLE {cell}",
    ],
    "move": [
        *SERVER_WIDE[2:],
        *MEASUREMENTS,
        FOLLOWERS[0],
        *OF_THE_TOPOLOGY,
        "UPDATE {catalog}.shard_range SET cluster='x'",
        "DELETE FROM {catalog}.job",
        "GRANT SELECT ON {shard}.* TO CURRENT_USER()",
        "CREATE DATABASE {catalog}x0000",
        "SET GLOBAL max_connections=10",
    ],
    "measure": [
        *SERVER_WIDE[2:],
        *JOBS[:2],
        "INSERT INTO {catalog}_heartbeat.primary_claim (cluster, epoch, server, claimed_by) VALUES ('c', 9, 's', 'x')",
        "DELETE FROM {catalog}_heartbeat.heartbeat_token",
        "UPDATE {catalog}.capacity_sample SET figures='x'",
        "INSERT INTO {cell} (row_key, column_name, ref_key, body) VALUES (REPEAT('k', 16), 'A', 1, 'x')",
        "UPDATE {cell} SET body='x'",
        "DELETE FROM {cell}",
        "UPDATE {identity} SET shard=1",
    ],
    "backup": [
        *JOBS[:2],
        "DELETE FROM {catalog}_heartbeat.heartbeat_token",
        "INSERT INTO {cell} (row_key, column_name, ref_key, body) VALUES (REPEAT('k', 16), 'A', 1, 'x')",
        "UPDATE {cell} SET body='x'",
        "DELETE FROM {cell}",
        "DROP TABLE {cell}",
        "UPDATE {identity} SET shard=1",
        "GRANT SELECT ON {shard}.* TO CURRENT_USER()",
        "SET GLOBAL max_connections=10",
    ],
    "admin": [
        *SERVER_WIDE[2:],
        "UPDATE {cell} SET body='x'",
        "UPDATE {identity} SET shard=1",
        "DELETE FROM {cell}",
        "DROP TABLE {cell}",
        "DROP DATABASE {shard}",
        "TRUNCATE TABLE {cell}",
        "CREATE DATABASE {catalog}x0000",
        "GRANT SELECT ON {shard}.* TO CURRENT_USER()",
        "SET GLOBAL max_connections=10",
    ],
}
FORBIDDEN_TO_ALL = [
    "CREATE USER somebody",
    "SELECT COUNT(*) FROM mysql.user",
    "CREATE DATABASE {catalog}_else",
    "DROP TABLE {catalog}.node",
]
FORBIDDEN_EXCEPT_TO_ADMIN = [
    *OF_THE_TOPOLOGY,
    "ALTER TABLE {cell} COMMENT='x'",
    "CREATE TABLE {shard}.other (n INT)",
]


@pytest.mark.mysql
@pytest.mark.twice
@pytest.mark.parametrize("role", ROLES)
def test_a_role_has_no_further_privileges(accounts, fresh_store, new_row, role, flavour):
    """Each statement is refused for lack of a privilege, and changes nothing."""
    row = next(row for row in iter(new_row, None) if fresh_store.shard_of(row) == 0)
    fresh_store.put_cell(row, "BASE", 1, {"fare": 10})
    accounts.allow(role, fresh_store.name, 4)
    before = list(fresh_store.scan_shard(0))
    names = {
        "catalog": fresh_store.name,
        "shard": shard_database(fresh_store.name, 0),
        "cell": f"{shard_database(fresh_store.name, 0)}.cell",
        "identity": f"{shard_database(fresh_store.name, 0)}.shard_identity",
        "tablespaces": "INNODB_SYS_TABLESPACES" if flavour == "mariadb" else "INNODB_TABLESPACES",
    }
    allowed = []
    connection = connect(accounts.url(role, accounts.servers[0]), accounts.password)
    for statement in (
        FORBIDDEN[role] + FORBIDDEN_TO_ALL + ([] if role in ("admin", "move") else FORBIDDEN_EXCEPT_TO_ADMIN)
    ):
        try:
            run(connection, statement.format(**names))
        except pymysql.Error as error:
            assert error.args[0] in (1044, 1142, 1143, 1227, 1410), (statement, error)  # noqa: PT017
        else:
            allowed.append(statement)
    connection.close()

    assert allowed == []
    assert list(fresh_store.scan_shard(0)) == before


@pytest.mark.mysql
@pytest.mark.twice
def test_app_of_a_datastore_sees_no_datastore_with_a_longer_name(accounts, new_name):
    """Neither its catalog nor its shards."""
    longer = f"{new_name}_eu"
    accounts.allow_admin_anywhere(longer, 2)
    accounts.create(new_name, 2)
    admin = accounts.urls("admin")
    schemaless.create(longer, 2, admin)
    connection = connect(accounts.url("app", accounts.servers[0]), accounts.password)
    visible = {name for (name,) in run(connection, "SHOW DATABASES") if str(name).startswith(new_name)}
    connection.close()

    assert visible == {new_name, f"{new_name}_0000", f"{new_name}_heartbeat"}


@pytest.mark.mysql
@pytest.mark.twice
def test_created_account_cannot_log_in_until_it_has_a_password(accounts, server_urls, fresh_store):
    """After CREATE USER, the account is locked until the operator sets a password."""
    account = Account(f"{accounts.account('app').name}_new")
    root = connect(server_urls[0], accounts.password)
    node = parse_url(server_urls[0]).node
    try:
        for part in grants("app", account, internals_of(fresh_store).topology, node, create_user=True):
            if part.node == node:
                for _ in range(2):
                    for statement in part.statements:
                        run(root, statement)
        url = accounts.url("app", server_urls[0]).replace(accounts.account("app").name, account.name, 1)
        with pytest.raises(pymysql.OperationalError, match="lock"):
            connect(url, None)
        run(root, f"ALTER USER {account} IDENTIFIED BY 'of Our own 1' ACCOUNT UNLOCK")
        connection = connect(url, "of Our own 1")
        assert run(connection, f"SELECT COUNT(*) FROM {shard_database(fresh_store.name, 0)}.cell") == ((0,),)
        connection.close()
    finally:
        run(root, f"DROP USER IF EXISTS {account}")
        root.close()


@pytest.mark.mysql
@pytest.mark.twice
def test_admin_creates_where_partial_revokes_is_on(accounts, servers, flavour):
    """With it, a backslash is part of a database's name, and an underscore is not a wildcard."""
    if flavour == "mariadb":
        with closing(connect(servers[0].url, None)) as root, pytest.raises(pymysql.OperationalError, match="1193"):
            run(root, "SELECT @@partial_revokes")
        return
    name = "literal_names"
    roots = [connect(server.url, None) for server in servers]
    try:
        for root in roots:
            run(root, "SET GLOBAL partial_revokes=ON")
        accounts.allow("admin", name, 2)
        with pytest.raises(schemaless.AccessDenied):
            schemaless.create(name, 2, accounts.urls("admin"))
        accounts.allow("admin", name, 2, partial_revokes=True)
        url = schemaless.create(name, 2, accounts.urls("admin"))
    finally:
        for root in roots:
            run(root, "SET GLOBAL partial_revokes=OFF")
            run(root, "FLUSH PRIVILEGES")  # names with wildcards are looked up by what it was until then
            root.close()

    assert url.split("?")[0].endswith(f"/{name}")
