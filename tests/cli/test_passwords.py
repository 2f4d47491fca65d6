"""A password goes to the server and nowhere else: an unusual one is looked for wherever something is shown or kept."""

from __future__ import annotations

import json
import logging
import pickle
import secrets
import traceback
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

import pymysql
import pytest

import schemaless
from schemaless.base.keys import row_key_for
from schemaless.ops.admin.grants import ROLES, grants
from schemaless.ops.failover.states import node_states
from schemaless.schema.engine import session
from schemaless.store.internals import internals_of
from schemaless.store.opening import opening_of
from schemaless.wire.accounts import Account
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.secret import Secret
from schemaless.wire.urls import parse_url
from tests.accounts import connect, run

pytestmark = [pytest.mark.mysql, pytest.mark.guarantee("passwords")]

TOKEN = secrets.token_hex(12)
"""The part that is looked for; it looks the same in a URL, in SQL and in JSON."""

PASSWORD = f'it\'s "ж" % \\ / @ : # {TOKEN}'
DATASTORE = "secretive"


@pytest.fixture(scope="module")
def datastore(loopback, flavour):
    """A datastore whose only account has the password and every role; gives its URL without a password."""
    account = Account("keeper")
    parsed = parse_url(loopback.url("keeper"))
    with closing(connect(loopback.root, None)) as root:
        run(root, f"CREATE USER {account} IDENTIFIED BY '{pymysql.converters.escape_string(PASSWORD)}'")
        topology = schemaless.topology.model.new_topology(DATASTORE, 2, [parsed.node])
        for statement in grants("admin", account, topology, parsed.node, mariadb=flavour == "mariadb")[0].statements:
            run(root, statement)
        # To set up TLS would take most of the time.
        url = schemaless.create(DATASTORE, 2, [loopback.url(f"keeper:{quote(PASSWORD, safe='')}", "ssl_mode=disabled")])
        for role in ROLES:
            for statement in grants(role, account, topology, parsed.node, mariadb=flavour == "mariadb")[0].statements:
                run(root, statement)
    return url


@pytest.fixture(params=["environment", "URL", "option file"])
def url(request, datastore, monkeypatch, tmp_path):
    """The datastore's URL, with the password in one of the three places where it may stand."""
    monkeypatch.delenv("SCHEMALESS_PASSWORD", raising=False)
    if request.param == "environment":
        monkeypatch.setenv("SCHEMALESS_PASSWORD", PASSWORD)
        return datastore
    if request.param == "URL":
        return datastore.replace("keeper@", f"keeper:{quote(PASSWORD, safe='')}@")
    file = tmp_path / "my.cnf"
    escaped = PASSWORD.replace("\\", "\\\\").replace("'", "\\'")
    file.write_text(f"[client]\npassword='{escaped}'\n")
    file.chmod(0o600)
    return f"{datastore}&read_default_file={file}"


def everything_said(error: BaseException) -> str:
    """Return all that an exception can show of itself, and those before it of themselves."""
    said = ["".join(traceback.format_exception(error))]
    chain = [error]
    for one in chain:
        said += [str(one), repr(one), repr(one.args), repr(vars(one))]
        with suppress(TypeError, AttributeError, pickle.PicklingError):
            said.append(pickle.dumps(one).decode("latin-1"))
        chain += [other for other in (one.__cause__, one.__context__) if other is not None and other not in chain]
    return "\n".join(said)


def test_no_command_prints_the_password(invoke, url, tmp_path):
    """Neither what is done nor what fails, plain, as JSON or with a traceback."""
    dump = tmp_path / "dump.ndjson"
    put = ("cell", "put", "uuid5:trip", "BASE", 1)
    done = [
        (*put, '{"fare": 10}'),
        ("cell", "get", "uuid5:trip", "BASE", "--json"),
        ("cell", "history", "uuid5:trip", "BASE"),
        ("cell", "tail"),
        ("info",),
        ("info", "--json"),
        ("schema", "status", "--json"),
        ("schema", "upgrade", "--json"),
        ("dump", "--output", dump),
        ("load", dump, "--from-dump", "--json"),
        ("check", "--json"),
        ("migrate", "run", "--execute", "--json"),
        *(("grants", "--role", role, "--create-user") for role in ROLES),
        ("grants", "--role", "app", "--json"),
    ]
    failed = [
        (*put, '{"fare": 11}'),
        ("grants", "--role", "app", "--url", url, "--server", "nowhere"),
        ("create", DATASTORE, "--shards", 2, "--cluster", url),
        ("create", "other", "--shards", 2, "--cluster", url.replace(f"/{DATASTORE}", "/")),
        ("info", url),
        ("info", "--url", url.replace(f"/{DATASTORE}", "/elsewhere")),
        ("info", "--url", url.replace("localhost:", "localhost:1")),
        ("info", "--url", f"mysql://keeper:{TOKEN}@{TOKEN}@localhost/{DATASTORE}"),
        ("info", "--url", f"mysql://keeper:{TOKEN}/{TOKEN}@localhost:1/{DATASTORE}"),
        ("info", "--url", url.replace("disabled", "verify_ca")),
        ("info", "--url", f"{url}&password={TOKEN}&password={TOKEN}"),
        ("info", "--url", f"{url}&passwort={TOKEN}"),
    ]
    for arguments in done:
        result = invoke(*arguments, "--traceback", url=url)
        assert result.code == 0, (arguments[:2], result.err.replace(TOKEN, "TOKEN"))
        assert TOKEN not in result.out + result.err, arguments[:2]
    for arguments in failed:
        result = invoke(*arguments, "--traceback", url=url)
        assert result.code in (1, 2), arguments[:2]
        assert result.err
        assert TOKEN not in result.out + result.err, arguments[:2]


def test_no_error_contains_the_password(url):
    """Text, repr, attributes, traceback and pickle, through the whole chain down to the driver's."""
    wrong = (
        url.replace("localhost:", "localhost:1"),
        url.replace(f"/{DATASTORE}", "/elsewhere"),
        url.replace("keeper", "nobody"),
        url.replace("disabled", "verify_ca"),
        f"{url}&no_such_option=1",
    )
    for each in wrong:
        with pytest.raises(schemaless.SchemalessError) as caught:
            schemaless.connect(each)
        assert TOKEN not in everything_said(caught.value), each.replace(TOKEN, "TOKEN")
    parsed = parse_url(url)
    with closing(NodePool(parsed.node, parsed.credentials, PoolOptions())) as pool:
        for sql in (b"SELECT * FROM nowhere.cell", b"NO SQL"):
            with pytest.raises(schemaless.ServerError) as caught:
                pool.run(lambda connection, sql=sql: connection.rows(sql))
            assert TOKEN not in everything_said(caught.value)


def variables_of(error: BaseException) -> dict[str, str]:
    """Return what tools that keep variables on an error would send: of each frame of the chain but this test's own."""
    kept = {}
    chain = [error]
    for one in chain:
        for frame, line in traceback.walk_tb(one.__traceback__):
            if frame.f_code.co_filename == __file__:
                continue
            for name, value in frame.f_locals.items():
                with suppress(Exception):
                    inside = {slot: getattr(value, slot, None) for slot in getattr(value, "__dict__", ())}
                    kept[f"{frame.f_code.co_qualname}:{line} {name}"] = f"{value!r} {value!s} {inside!r}"
        chain += [other for other in (one.__cause__, one.__context__) if other is not None and other not in chain]
    return kept


@pytest.mark.parametrize(
    "change",
    [
        ("localhost:", "localhost:1"),
        (f"/{DATASTORE}", "/elsewhere"),
        ("keeper", "nobody"),
        ("ssl_mode=disabled", "ssl_mode=required"),
        ("ssl_mode=disabled", "ssl_mode=verify_ca"),
        ("ssl_mode=disabled", "ssl_mode=disabled&no_such_option=1"),
        ("ssl_mode=disabled", "ssl_mode=disabled&read_timeout=word"),
        ("ssl_mode=disabled", "ssl_mode=nonsense"),
        ("ssl_mode=disabled", "charset=latin1"),
        (f"/{DATASTORE}", "/Bad-Name"),
        ("mysql://", "postgresql://"),
        ("mysql://", "mysql://@"),
    ],
    ids=" to ".join,
)
def test_no_variable_of_a_failed_connect_holds_the_password(url, change):
    """At each level, down to the driver's: a wrong server, name, account or option, with TLS and without."""
    assert change[0] in url
    each = url.replace(*change)
    if "required" in change[1]:
        each = each.replace("keeper", "nobody")
    for call in (schemaless.connect, lambda url: schemaless.create("other", 2, [url]), node_states):
        with pytest.raises(schemaless.SchemalessError) as caught:
            call(each)
        kept = variables_of(caught.value)

        assert [where for where, shown in kept.items() if TOKEN in shown] == []


def test_no_object_shows_the_password(url, row):
    """What ends up in logs and in a debugger: reprs, and the URL that a store names."""
    parsed = parse_url(url)
    with schemaless.connect(url) as store:
        store.put_cell(row, "BASE", 1, {})
        pools = [
            internals_of(store).catalog,
            *(
                internals_of(store).shards.pool_for(cluster.primary)
                for cluster in internals_of(store).topology.clusters
            ),
        ]
        with session(internals_of(store).catalog, store.name) as connection:
            shown = [
                store,
                str(internals_of(store).url),
                internals_of(store).shards,
                *pools,
                internals_of(store).catalog.engine,
                connection,
                internals_of(store).topology,
            ]
        shown += [parsed, str(parsed), parsed.credentials, parsed.for_database("x"), [vars(pool) for pool in pools]]

    assert parsed.credentials.password == Secret(PASSWORD)
    assert TOKEN not in repr(shown)
    pickled = pickle.dumps(opening_of(store))
    assert TOKEN.encode() not in pickled
    with pickle.loads(pickled).open() as again:
        assert again.get_cell(row, "BASE", 1).body == {}


def test_no_log_record_contains_the_password(url, row, caplog):
    """Of this library or of SQLAlchemy, which logs each statement and each connection if it is asked to."""
    with caplog.at_level(logging.DEBUG):
        for name in ("schemaless", "sqlalchemy", "sqlalchemy.engine", "sqlalchemy.pool"):
            caplog.set_level(logging.DEBUG, logger=name)
        with schemaless.connect(url) as store:
            store.put_cell(row, "BASE", 1, {})
            with session(internals_of(store).catalog, store.name) as connection:
                connection.exec_driver_sql("SELECT 1")
        with pytest.raises(schemaless.SchemalessError):
            schemaless.connect(url.replace("keeper", "nobody"))

    assert any(record.name.startswith("sqlalchemy.") for record in caplog.records)
    assert TOKEN not in "".join(f"{record.getMessage()}{record.args}{record.exc_text}" for record in caplog.records)


@pytest.mark.parametrize("url", ["environment"], indirect=True)
def test_no_process_has_the_password_in_its_arguments(start, eventually, datastore, url):
    """Commands that run, and the private servers: everybody on the machine may read those."""
    process = start("cell", "tail", "--follow", url=url)
    with closing(schemaless.connect(url)) as store:
        store.put_cell(row_key_for("followed"), "BASE", 1, {})
    assert json.loads(process.stdout.readline())
    arguments = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            arguments[int(path.parent.name)] = path.read_bytes().decode("utf-8", "replace")

    assert "tail" in arguments[process.pid]
    assert any("skip-networking=0" in words for words in arguments.values())
    assert [pid for pid, words in arguments.items() if TOKEN in words] == []


def test_no_table_contains_the_password(loopback, datastore):
    """Whoever reads the catalog learns where servers are, and nothing more."""
    kept = []
    with closing(connect(loopback.root, None)) as root:
        for (database,) in run(root, f"SHOW DATABASES LIKE '{DATASTORE}%'"):
            for (table,) in run(root, f"SHOW TABLES FROM `{database}`"):
                kept += run(root, f"SELECT * FROM `{database}`.`{table}`")

    assert "keeper" not in repr(kept)
    assert TOKEN not in repr(kept)
    assert kept
