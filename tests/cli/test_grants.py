"""``schemaless grants``: the printed SQL gives an account the privileges it needs."""

from __future__ import annotations

import pymysql
import pytest

import schemaless
from schemaless import AccessDenied
from schemaless.ops.admin.grants import ROLES
from schemaless.store.internals import internals_of
from schemaless.wire.accounts import Account
from schemaless.wire.urls import parse_url
from tests.accounts import connect, run

CLUSTERS = ("--cluster", "mysql://root@db-1/", "--cluster", "mysql://root@db-2:3307/")


def test_grants_for_a_datastore_to_be_created(invoke):
    """No server is contacted: db-1 does not exist."""
    result = invoke("grants", "--role", "admin", "--name", "trips", "--shards", 3, *CLUSTERS)

    assert (result.code, result.err) == (0, "")
    assert result.out == (
        "-- Role admin of datastore trips for 'admin'@'%': creates the datastore, upgrades its tables, and writes its "
        "catalog.\n"
        "-- If SELECT @@partial_revokes returns 1, use the SQL that --partial-revokes prints instead.\n"
        "-- Grants on *.* are optional: --no-server-wide omits them.\n"
        "\n"
        "-- db-1:3306: the catalog, cluster-1 with shards 0\n"
        "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX, REFERENCES ON `trips`.* TO 'admin'@'%';\n"
        "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON `trips\\_heartbeat`.* TO 'admin'@'%';\n"
        "GRANT SELECT ON `performance_schema`.`replication_connection_status` TO 'admin'@'%';\n"
        "GRANT SELECT ON `performance_schema`.`replication_applier_status` TO 'admin'@'%';\n"
        "GRANT SELECT ON `performance_schema`.`replication_applier_status_by_worker` TO 'admin'@'%';\n"
        "GRANT SELECT ON `performance_schema`.`replication_group_members` TO 'admin'@'%';\n"
        "GRANT SELECT ON `performance_schema`.`events_transactions_current` TO 'admin'@'%';\n"
        "GRANT SELECT ON `performance_schema`.`metadata_locks` TO 'admin'@'%';\n"
        "GRANT SELECT ON `performance_schema`.`threads` TO 'admin'@'%';\n"
        "GRANT SELECT, INSERT, CREATE, ALTER, INDEX ON `trips\\_0000`.* TO 'admin'@'%';\n"
        "GRANT CREATE, UPDATE ON `trips_0000`.`alembic_version` TO 'admin'@'%';\n"
        "GRANT SELECT ON `mysql`.`db` TO 'admin'@'%';\n"
        "GRANT PROCESS ON *.* TO 'admin'@'%';\n"
        "\n"
        "-- db-2:3307: cluster-2 with shards 1 to 2\n"
        "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON `trips\\_heartbeat`.* TO 'admin'@'%';\n"
        "GRANT SELECT ON `performance_schema`.`replication_connection_status` TO 'admin'@'%';\n"
        "GRANT SELECT ON `performance_schema`.`replication_applier_status` TO 'admin'@'%';\n"
        "GRANT SELECT ON `performance_schema`.`replication_applier_status_by_worker` TO 'admin'@'%';\n"
        "GRANT SELECT ON `performance_schema`.`replication_group_members` TO 'admin'@'%';\n"
        "GRANT SELECT ON `performance_schema`.`events_transactions_current` TO 'admin'@'%';\n"
        "GRANT SELECT ON `performance_schema`.`metadata_locks` TO 'admin'@'%';\n"
        "GRANT SELECT ON `performance_schema`.`threads` TO 'admin'@'%';\n"
        "GRANT SELECT, INSERT, CREATE, ALTER, INDEX ON `trips\\_0001`.* TO 'admin'@'%';\n"
        "GRANT CREATE, UPDATE ON `trips_0001`.`alembic_version` TO 'admin'@'%';\n"
        "GRANT SELECT, INSERT, CREATE, ALTER, INDEX ON `trips\\_0002`.* TO 'admin'@'%';\n"
        "GRANT CREATE, UPDATE ON `trips_0002`.`alembic_version` TO 'admin'@'%';\n"
        "GRANT SELECT ON `mysql`.`db` TO 'admin'@'%';\n"
        "GRANT PROCESS ON *.* TO 'admin'@'%';\n"
    )


def test_the_help_describes_each_role(invoke):
    """A role that the option accepts is explained above it."""
    described = invoke("grants", "--help").out

    assert [role for role in ROLES if f"\n    {role} " not in described] == []


def test_grants_as_json_and_for_one_server(invoke):
    """Statements by server; --server selects one."""
    arguments = ("grants", "--role", "admin", "--name", "trips", "--shards", 3, *CLUSTERS, "--account", "ops@localhost")
    everything = invoke(*arguments, "--json").json
    one = invoke(*arguments, "--json", "--server", "db-2:3307").json

    assert [everything[name] for name in ("datastore", "role", "account")] == ["trips", "admin", "'ops'@'localhost'"]
    assert [server["server"] for server in everything["servers"]] == ["db-1:3306", "db-2:3307"]
    assert one["servers"] == everything["servers"][1:]
    assert all(statement.endswith("TO 'ops'@'localhost'") for statement in one["servers"][0]["statements"])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--role", "app"), "--url or SCHEMALESS_URL"),
        (("--role", "root", "--name", "trips"), "'root' is not one of"),
        (("--role", "app", "--name", "trips", "--shards", 3, *CLUSTERS), "'trips' has none yet"),
        (("--role", "admin", "--name", "trips"), "needs --shards and --cluster"),
        (("--role", "admin", "--name", "trips_0001", "--shards", 3, *CLUSTERS), "like a shard's database"),
        (("--role", "admin", "--url", "mysql://db-1/trips", "--shards", 3), "go with --name"),
        (("--role", "admin", "--url", "mysql://db-1/"), "names no datastore"),
        (
            ("--role", "admin", "--name", "trips", "--shards", 3, *CLUSTERS, "--account", "a'b"),
            "an account must have the form",
        ),
        (("--role", "admin", "--name", "trips", "--shards", 3, *CLUSTERS, "--server", "db-3"), "db-1:3306, db-2:3307"),
    ],
)
def test_grants_with_unusable_arguments_is_exit_2(invoke, arguments, complaint):
    """No SQL is printed."""
    result = invoke("grants", *arguments)

    assert (result.code, result.out) == (2, "")
    assert complaint in result.err


@pytest.mark.mysql
def test_printed_grants_can_be_run(invoke, accounts, fresh_url, fresh_store, row):
    """An account that got the printed statements can write a cell."""
    account = Account(f"{accounts.account('app').name}_printed")
    printed = invoke("grants", "--role", "app", "--account", account, "--create-user", url=fresh_url)
    by_server = {
        server: invoke("grants", "--role", "app", "--account", account, "--server", server, url=fresh_url).out
        for server in map(str, (cluster.primary for cluster in internals_of(fresh_store).topology.clusters))
    }
    password = accounts.password or "of our own"
    roots = {str(parse_url(url).node): connect(url, accounts.password) for url in accounts.servers}
    try:
        assert f"--   ALTER USER {account} IDENTIFIED BY '...' ACCOUNT UNLOCK;" in printed.out
        for server, root in roots.items():
            run(root, f"CREATE USER {account} IDENTIFIED BY '{password}'")
            for line in by_server[server].splitlines():
                if line and not line.startswith("--"):
                    run(root, line.removesuffix(";"))
        url = fresh_url.replace(accounts.account("app").name, f"{account.name}:{password}", 1)
        with schemaless.connect(url) as store:
            assert store.put_cell(row, "BASE", 1, {"fare": 10}).created
    finally:
        for root in roots.values():
            run(root, f"DROP USER IF EXISTS {account}")
            root.close()


@pytest.mark.mysql
@pytest.mark.twice
def test_grants_are_applied_where_the_account_exists(invoke, accounts, fresh_url, tmp_path):
    """Servers without the account are left out, unless it is created there; files have the same SQL."""
    account = Account(f"{accounts.account('app').name}_applied")
    roots = [connect(url, accounts.password) for url in accounts.servers]

    def grant(*options: object):
        return invoke("grants", "--role", "app", "--account", account, *options, url=accounts.root(fresh_url))

    def granted(root: pymysql.Connection) -> str:
        with root.cursor() as cursor:
            cursor.execute(f"SHOW GRANTS FOR {account}")
            return str(cursor.fetchall())

    try:
        nowhere = grant("--apply")
        run(roots[1], f"CREATE USER {account}")
        second = grant("--apply")
        assert "INSERT" in granted(roots[1])
        with pytest.raises(pymysql.err.OperationalError, match="no such grant"):
            granted(roots[0])
        files = grant("--to", tmp_path / "second")
        both = grant("--apply", "--create-user", "--to", tmp_path / "both")
        assert all("INSERT" in granted(root) for root in roots)
    finally:
        for root in roots:
            run(root, f"DROP USER IF EXISTS {account}")
            root.close()

    assert (nowhere.code, nowhere.err.count(f"it has no account {account}; --create-user creates it")) == (1, 2)
    assert (second.code, second.out.count(" statements run"), both.out.count(" statements run")) == (0, 1, 2)
    assert ["ACCOUNT UNLOCK" in each.err for each in (second, both)] == [False, True]
    (file,) = (tmp_path / "second").iterdir()
    assert files.out == f"{file}\n"
    assert file.read_text().startswith("-- Role app of datastore ")
    texts = [each.read_text() for each in (tmp_path / "both").iterdir()]
    assert [text.count("\nCREATE USER IF NOT EXISTS") for text in texts] == [1, 1]


@pytest.mark.mysql
def test_migrate_gets_the_privilege_names_of_its_server(invoke, fresh_url, flavour):
    """MariaDB has other names for server-wide privileges; an option omits them."""
    whole = invoke("grants", "--role", "migrate", url=fresh_url).out
    less = invoke("grants", "--role", "migrate", "--no-server-wide", url=fresh_url).out

    least = "BINLOG MONITOR, BINLOG ADMIN" if flavour == "mariadb" else "REPLICATION CLIENT, SESSION_VARIABLES_ADMIN"
    assert whole.count(f"GRANT PROCESS, {least} ON *.* TO 'migrate'@'%';") == 2
    assert "--no-server-wide" in whole
    assert "*.*" not in less


@pytest.mark.mysql
@pytest.mark.parametrize(
    ("command", "role", "needed"),
    [
        (("migrate", "run", "--execute"), "app", "migrate"),
        (("rebuild", "--execute"), "app", "move"),
        (("erase", "run", "uuid5:x", "--reason", "x", "--execute"), "migrate", "erase"),
        (("retention", "hold", "uuid5:x", "--by", "x", "--reason", "x"), "app", "erase"),
        (("cell", "put", "uuid5:x", "BASE", "1", "{}"), "tail", "app"),
        (("schema", "upgrade"), "app", "admin"),
        (("info",), "nobody", "app"),
    ],
)
def test_command_that_lacks_a_privilege_says_which_role_has_it(
    invoke, accounts, fresh_store, fresh_url, migrate_url, tail_url, by_hand, new_row, command, role, needed
):
    """The error has a command that can be copied."""
    fresh_store.put_stored_cells([schemaless.NewStoredCell(new_row(), "BASE", 1, b"{}")])
    if role == "nobody":
        url = accounts.url("admin", accounts.servers[0], "nothing_of_that_name")
    else:
        url = {"app": fresh_url, "tail": tail_url}.get(role, migrate_url)
    result = invoke(*command, url=url)

    assert result.code == 1
    assert f"schemaless grants --role {needed}" in result.err


@pytest.mark.mysql
def test_connect_that_may_not_read_a_catalog_names_both_reasons(accounts):
    """An account without privileges cannot distinguish a missing datastore from an existing one."""
    with pytest.raises(AccessDenied, match="no datastore 'elsewhere', or this account may not read it"):
        schemaless.connect(accounts.url("app", accounts.servers[0], "elsewhere"))
