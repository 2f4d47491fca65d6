"""The pytest plugin, in runs of pytest of its own, as users have them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from schemaless.local.binaries import cache_folder
from schemaless.wire.urls import parse_url
from tests.foreign import databases, rows

pytestmark = pytest.mark.once

pytest_plugins = ["pytester"]

PAGE = Path(__file__).parents[2] / "docs" / "local.md"
# pytester gives each run another home.
_CACHE = cache_folder()

# Of the other plugins that are installed here none but xdist is wanted, and they take half a second to import.
OPTIONS = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:docker")
NO_SERVER = "no server to test on (--schemaless-server selects a running one): "

NEW_IN_EACH_TEST = """
import asyncio, os, pathlib, uuid, pytest, schemaless

async def through_asyncio(opened):
    async with opened() as store:
        assert await store.get_row(uuid.uuid4()) == {}

@pytest.mark.parametrize("number", range(6))
def test_new(schemaless_datastore, schemaless_async_datastore, schemaless_url, schemaless_servers, number):
    assert schemaless_datastore.shard_count == 3
    assert schemaless_datastore.put_cell(uuid.uuid4(), "BASE", 1, {}).added_id == 1
    with schemaless.connect(schemaless_url) as store:
        assert store.name == schemaless_datastore.name
    asyncio.run(through_asyncio(schemaless_async_datastore))
    with pathlib.Path("seen").open("a") as file:
        print(os.getpid(), *schemaless_servers, file=file)
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., pytest.RunResult]:
    """Run pytest in a process of its own."""
    monkeypatch.setenv("SCHEMALESS_CACHE", str(_CACHE))
    monkeypatch.setenv("PYTHONPATH", str(PAGE.parents[1]))
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        monkeypatch.delenv(name)
    return lambda *arguments: pytester.runpytest_subprocess(*OPTIONS, "-W", "error", *arguments)


def seen(folder: Path) -> dict[str, list[str]]:
    """Return the URLs of servers that each process of a run wrote down."""
    lines = [line.split() for line in (folder / "seen").read_text().splitlines()]
    return {pid: urls for pid, *urls in lines}


@pytest.mark.long
@pytest.mark.mysql
def test_the_example_of_the_page_runs(pytester, run):
    """The tests and the settings that docs/local.md shows, where neither [cli] nor [fast] is installed."""
    page = PAGE.read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (settings,) = re.findall(r"^```ini\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    missing = ("click", "rich", "msgspec", "orjson", "ormsgpack")
    pytester.makeconftest(f"import sys\nsys.modules.update(dict.fromkeys({missing}))")
    pytester.makeini(settings)
    pytester.makepyfile(
        test_trips=example,
        test_settings="""
            from tests.foreign import rows

            def test_settings(schemaless_servers, schemaless_datastore):
                assert (len(schemaless_servers), schemaless_datastore.shard_count) == (1, 2)
                assert "MariaDB" not in rows(schemaless_servers[0], None, "SELECT VERSION()")[0][0]
        """,
        test_failing="""
            import uuid, pytest, schemaless

            @schemaless.trigger(column="BASE")
            def divide(cell, call):
                call.store.put_cell(cell.row_key, "QUOTIENT", 1, 1 / cell.body)

            @schemaless.trigger(column="QUOTIENT")
            def copy(cell, call):
                call.store.put_cell(cell.row_key, "COPY", 1, cell.body)

            def test_failing(schemaless_datastore, schemaless_catch_up):
                row, zero = uuid.uuid4(), uuid.uuid4()
                schemaless_datastore.put_cell(zero, "BASE", 1, 0)
                with pytest.raises(ZeroDivisionError):
                    schemaless_catch_up(copy, divide)
                schemaless_datastore.put_cell(row, "BASE", 1, 2)
                schemaless_catch_up(copy, divide)
                assert schemaless_datastore.get_cell(row, "COPY", 1).body == 0.5
                assert schemaless_datastore.get_cell(zero, "COPY", 1) is None
        """,
    )

    run().assert_outcomes(passed=5)


@pytest.mark.mysql
@pytest.mark.long
def test_each_worker_of_xdist_has_servers_of_its_own(pytester, run):
    """Every test has an empty datastore, workers meet nowhere, and nothing is left when the run ends."""
    pytester.makepyfile(NEW_IN_EACH_TEST)

    settings = ("--schemaless-shards=3", "--schemaless-servers=1", "--schemaless-flavour=mariadb")
    run("-n", "2", *settings).assert_outcomes(passed=6)

    by_worker = seen(pytester.path)
    sockets = {Path(str(parse_url(url).node.socket)) for (url,) in by_worker.values()}
    assert len(by_worker) == len(sockets) == 2
    assert [socket for socket in sockets if socket.exists()] == []


@pytest.mark.long
@pytest.mark.mysql
def test_servers_go_when_the_run_is_killed(pytester, run, eventually):
    """Kill -9 of pytest: the servers and their folder are removed all the same."""
    pytester.makepyfile(
        """
        import os, pathlib, signal
        from tests.foreign import rows

        def test_killed(schemaless_servers):
            (row,) = rows(schemaless_servers[0], None, "SELECT @@datadir")
            pathlib.Path("folder").write_text(str(pathlib.Path(row[0]).parents[1]))
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )

    assert run("--schemaless-flavour=mariadb").ret == -9
    folder = Path((pytester.path / "folder").read_text())
    eventually(lambda: not folder.exists(), f"{folder} is removed")


@pytest.mark.mysql
@pytest.mark.long
def test_on_servers_that_run_already_nothing_is_left_and_no_password_shows(pytester, run, servers):
    """--schemaless-server in place of private servers: both are used, and their databases are what they were."""
    urls = []
    for server in servers:
        rows(server.url, None, "CREATE USER plugin@localhost IDENTIFIED BY 'secret'")
        rows(server.url, None, "GRANT ALL ON *.* TO plugin@localhost")
        urls.append(server.url.replace("root@", "plugin:secret@"))
    before = [databases(server.url, None) for server in servers]
    pytester.makepyfile(NEW_IN_EACH_TEST + "    assert number != 5, (schemaless_url, schemaless_servers)")

    done = run("--schemaless-shards=3", *(f"--schemaless-server={url}" for url in urls))

    done.assert_outcomes(passed=5, failed=1)
    assert "secret" not in done.stdout.str() + done.stderr.str()
    assert list(seen(pytester.path).values()) == [[url.replace(":secret", "") for url in urls]]
    assert [databases(server.url, None) for server in servers] == before
    for server in servers:
        rows(server.url, None, "DROP USER plugin@localhost")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], NO_SERVER + "SCHEMALESS_MYSQLD"),
        (["--schemaless-server=mysql://root@/?unix_socket=/none"], NO_SERVER + "/none: "),
        (["--schemaless-server=postgresql://db"], NO_SERVER + "URL scheme must be mysql"),
        (["-o", "schemaless_servers=many"], "schemaless_servers in the configuration must be a number, got 'many'"),
    ],
    ids=["no program", "nobody there", "no MySQL", "no number"],
)
def test_without_a_server_each_test_fails_in_one_line(pytester, monkeypatch, arguments, message):
    """What came, and what to do; no traceback of ours."""
    monkeypatch.setenv("SCHEMALESS_MYSQLD", "/none/mysqld")
    pytester.makepyfile("def test_a(schemaless_datastore): pass\ndef test_b(schemaless_servers): pass")

    done = pytester.runpytest_inprocess(*OPTIONS, *arguments)

    done.assert_outcomes(errors=2)
    errors = re.findall(r"^_+ ERROR at setup of test_\w _+\n(.*\n)(?=[_=])", done.stdout.str(), re.MULTILINE)
    assert [line.startswith(message) for line in errors] == [True] * 2


def test_a_run_without_the_fixtures_pays_nothing(pytester, run):
    """The plugin is there, and has imported nothing of the library and no driver."""
    pytester.makepyfile(
        """
        import sys

        def test_imports(pytestconfig):
            assert pytestconfig.pluginmanager.has_plugin("schemaless")
            ours = {name for name in sys.modules if name.partition(".")[0] == "schemaless"}
            assert ours == {"schemaless", "schemaless.testing", "schemaless.testing.plugin"}
            assert not {"pymysql", "sqlalchemy", "msgpack", "alembic"} & set(sys.modules)
        """
    )

    run().assert_outcomes(passed=1)
