"""``schemaless create``, ``info`` and ``schema``."""

from __future__ import annotations

import itertools
import re

import pytest

from schemaless import connect

pytestmark = pytest.mark.mysql

_numbers = itertools.count(1)


def clusters(urls: list[str]) -> list[str]:
    return [part for url in urls for part in ("--cluster", url)]


def test_create_prints_the_url_and_how_to_use_it(invoke, server_urls):
    """The URL is the one line on standard output; a second time the name is taken."""
    name = f"by_hand_{next(_numbers)}"
    result = invoke("create", name, "--shards", 3, *clusters(server_urls))
    again = invoke("create", name, "--shards", 3, *clusters(server_urls))

    assert result.code == 0
    url = result.out.strip()
    assert f"export SCHEMALESS_URL='{url}'" in result.err
    with connect(url) as store:
        assert (store.name, store.shard_count) == (name, 3)
    assert (again.code, again.out) == (1, "")
    assert f"datastore '{name}' exists" in again.err


def test_create_as_json(invoke, server_urls):
    """--json: name, shards, url."""
    name = f"by_hand_{next(_numbers)}"
    result = invoke("create", name, "--shards", 2, "--json", *clusters(server_urls[:1]))

    assert list(result.json) == ["name", "shards", "url"]
    assert result.json["shards"] == 2
    assert result.json["url"].startswith("mysql://")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("Trips", "--shards", 2), "name"),
        (("trips", "--shards", 0), "1 to 65,?536"),
        (("trips", "--shards", "many"), "not a valid integer"),
        (("trips",), "--shards"),
    ],
)
def test_create_with_what_it_cannot_use_is_exit_2(invoke, server_urls, arguments, complaint):
    """Nothing is created."""
    result = invoke("create", *arguments, *clusters(server_urls))

    assert (result.code, result.out) == (2, "")
    assert re.search(complaint, result.err)


def test_info_shows_topology_and_counts_exactly_when_asked(invoke, fresh_url, fresh_store, new_row):
    """--count counts; without it, the figure is marked as an estimate."""
    for _ in range(25):
        fresh_store.put_cell(new_row(), "BASE", 1, {})
    counted = invoke("info", "--count", "--json", url=fresh_url)
    estimated = invoke("info", "--json", url=fresh_url)
    shown = invoke("info", "--count", url=fresh_url)

    assert counted.code == estimated.code == shown.code == 0
    assert counted.json["name"] == fresh_store.name
    assert (counted.json["shards"], counted.json["placement"]) == (4, "crc32")
    assert sum(cluster["cells"] for cluster in counted.json["clusters"]) == 25
    assert [cluster["shards"] for cluster in counted.json["clusters"]] == [2, 2]
    assert all(cluster["cells_exact"] and cluster["allocated_bytes"] > 0 for cluster in counted.json["clusters"])
    assert not any(cluster["cells_exact"] for cluster in estimated.json["clusters"])
    assert shown.out.splitlines()[0] == f"datastore {fresh_store.name}: 4 shards, placed by crc32"


def test_info_of_no_datastore_is_exit_1(invoke, server_urls):
    """The server is there, the datastore is not."""
    result = invoke("info", url=server_urls[0].replace("/?", "/nowhere?"))

    assert (result.code, result.out) == (1, "")
    assert "no datastore 'nowhere'" in result.err


@pytest.mark.parametrize("command", [("info",), ("schema", "status"), ("schema", "upgrade"), ("dump",)])
def test_url_without_a_datastore_is_exit_2(invoke, server_urls, command):
    """A server is no datastore: the error says what is missing."""
    result = invoke(*command, url=server_urls[0])

    assert (result.code, result.out) == (2, "")
    assert "the URL names no datastore" in result.err


def test_schema_status_and_upgrade(invoke, fresh_url, fresh_store):
    """All current: 0. A shard that lacks its revision: 1 and its name. An upgrade that fails there: 1."""
    current = invoke("schema", "status", "--json", url=fresh_url)
    upgraded = invoke("schema", "upgrade", "--json", url=fresh_url)
    database = fresh_store.shards.database(2)
    fresh_store.shards.execute(2, f"DROP TABLE `{database}`.alembic_version".encode())
    behind = invoke("schema", "status", url=fresh_url)
    behind_json = invoke("schema", "status", "--json", url=fresh_url)
    failed = invoke("schema", "upgrade", url=fresh_url)
    failed_json = invoke("schema", "upgrade", "--json", url=fresh_url)

    assert (current.code, len(current.json)) == (0, 5)
    assert all(state["current"] and state["revision"] for state in current.json)
    assert upgraded.code == 0
    assert upgraded.json == {"upgraded": [], "current": 5, "failed": {}}
    assert behind.code == behind_json.code == failed.code == failed_json.code == 1
    assert "4 of 5 databases" in behind.out
    assert database in behind.out
    assert "next: schemaless schema upgrade" in behind.err
    assert [state["database"] for state in behind_json.json if not state["current"]] == [database]
    assert f"failed: {database}: " in failed.err
    assert list(failed_json.json["failed"]) == [database]


def test_schema_upgrade_says_what_it_did(invoke, fresh_url, fresh_store):
    """A shard whose tables are gone gets them."""
    database = fresh_store.shards.database(1)
    for table in ("alembic_version", "cell", "shard_identity"):
        fresh_store.shards.execute(1, f"DROP TABLE `{database}`.{table}".encode())
    result = invoke("schema", "upgrade", url=fresh_url)

    assert result.code == 0
    assert result.out == "upgraded 1 databases; 4 were at this version's revision already\n"
    assert invoke("schema", "status", url=fresh_url).out == "5 of 5 databases are at this version's revision\n"
