"""``schemaless create``, ``info`` and ``schema``."""

from __future__ import annotations

import re

import pytest

from schemaless import NewCell, connect
from schemaless.codec.envelope import is_delta
from schemaless.ops.admin.upgrades import DatabaseState, UpgradeOutcome
from schemaless.schema.versions import head
from schemaless.store.internals import internals_of

pytestmark = pytest.mark.mysql


def clusters(urls: list[str]) -> list[str]:
    return [part for url in urls for part in ("--cluster", url)]


def test_create_prints_the_url_and_how_to_use_it(invoke, admin_urls, new_name):
    """The URL is the one line on standard output; a second time the name is taken."""
    result = invoke("create", new_name, "--shards", 3, *clusters(admin_urls))
    again = invoke("create", new_name, "--shards", 3, *clusters(admin_urls))

    assert result.code == 0
    url = result.out.strip()
    assert f"export SCHEMALESS_URL='{url}'" in result.err
    with connect(url) as store:
        assert (store.name, store.shard_count) == (new_name, 3)
    assert (again.code, again.out) == (1, "")
    assert f"datastore '{new_name}' already exists" in again.err


def test_create_as_json(invoke, admin_urls, new_name):
    """--json: name, shards, url."""
    result = invoke("create", new_name, "--shards", 2, "--json", *clusters(admin_urls[:1]))

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
def test_create_with_what_it_cannot_use_is_exit_2(invoke, admin_urls, arguments, complaint):
    """Nothing is created."""
    result = invoke("create", *arguments, *clusters(admin_urls))

    assert (result.code, result.out) == (2, "")
    assert re.search(complaint, result.err)


def test_info_shows_topology_and_counts_exactly_when_asked(invoke, fresh_url, fresh_store, new_row):
    """--count counts; without it, the figure is marked as an estimate."""
    for _ in range(25):
        fresh_store.put_cell(new_row(), "BASE", 1, {})
    counted = invoke("info", "--count", "--json", url=fresh_url)
    estimated = invoke("info", "--json", url=fresh_url)
    shown = invoke("info", "--count", url=fresh_url)
    internals = invoke("info", "--all", url=fresh_url)

    assert counted.code == estimated.code == shown.code == 0
    assert counted.json["name"] == fresh_store.name
    assert (counted.json["shards"], counted.json["placement"]) == (4, "crc32")
    assert sum(cluster["cells"] for cluster in counted.json["clusters"]) == 25
    assert [cluster["shards"] for cluster in counted.json["clusters"]] == [2, 2]
    assert all(cluster["cells_exact"] for cluster in counted.json["clusters"])
    assert not any(cluster["cells_exact"] for cluster in estimated.json["clusters"])
    assert shown.out.splitlines()[0] == f"datastore {fresh_store.name}: 4 shards"
    assert internals.out.splitlines()[0] == f"datastore {fresh_store.name}: 4 shards, placed by crc32"


def test_info_shows_sizes_to_those_who_may_see_them(invoke, accounts, server_urls, fresh_url, fresh_store):
    """InnoDB shows them with PROCESS only; without it, that is said, and the rest is shown."""
    allowed = invoke("info", "--json", url=accounts.root(fresh_url))
    refused = invoke("info", "--json", url=fresh_url)
    shown = invoke("info", url=fresh_url)

    assert allowed.code == refused.code == shown.code == 0
    assert all(cluster["allocated_bytes"] > 0 for cluster in allowed.json["clusters"])
    assert [cluster["allocated_bytes"] for cluster in refused.json["clusters"]] == [None, None]
    assert shown.out.count("needs PROCESS") == 2


def test_info_shows_whole_bodies_and_differences(invoke, fresh_store, fresh_url, admin_url, migrate_url, new_row):
    """As the latest measurement found them; without one, nothing."""
    row = new_row()
    fresh_store.put_cells([NewCell(row, "A", n, {"parts": [*range(200)], "n": n}) for n in range(40)])
    fresh_store.put_cell(row, "B", 1, {})
    assert invoke("info", "--json", url=fresh_url).json["stored"] is None
    assert invoke("migrate", "run", "--execute", "--history", url=migrate_url).code == 0
    assert invoke("capacity", "measure", url=admin_url).code == 0
    deltas = [len(cell.body) for cell in fresh_store.get_stored_versions(row, "A") if is_delta(cell.body)]
    stored = invoke("info", "--json", url=fresh_url).json["stored"]
    a, b = stored["columns"]
    assert a["deltas"] == {"cells": len(deltas), "body_bytes": sum(deltas)}
    assert (a["whole"]["cells"], len(deltas) > 30) == (40 - len(deltas), True)
    assert (b["column_name"], b["whole"]["cells"], b["deltas"]) == ("B", 1, {"cells": 0, "body_bytes": 0})
    shown = invoke("info", url=fresh_url).out
    assert "stored bodies, measured at " in shown
    assert re.search(rf"A +{40 - len(deltas)} +[0-9.]+ K?i?B +{len(deltas)} +", shown)


def test_info_of_no_datastore_is_exit_1(invoke, accounts, server_urls):
    """The server is there, the datastore is not."""
    result = invoke("info", url=accounts.root(server_urls[0], "nowhere"))

    assert (result.code, result.out) == (1, "")
    assert "no datastore 'nowhere'" in result.err


@pytest.mark.parametrize("command", [("info",), ("schema", "status"), ("schema", "upgrade"), ("dump",)])
def test_url_without_a_datastore_is_exit_2(invoke, server_urls, command):
    """A server is no datastore: the error says what is missing."""
    result = invoke(*command, url=server_urls[0])

    assert (result.code, result.out) == (2, "")
    assert "the URL names no datastore" in result.err


@pytest.mark.guarantee("upgrade-failed-shard")
def test_schema_status_and_upgrade(invoke, fresh_store, by_hand, admin_url):
    """All current: 0. A shard that lacks its revision: 1 and its name. An upgrade that fails there: 1, and the rest."""
    current = invoke("schema", "status", "--json", url=admin_url)
    upgraded = invoke("schema", "upgrade", "--json", url=admin_url)
    database, other = internals_of(fresh_store).shards.database(2), internals_of(fresh_store).shards.database(3)
    by_hand(fresh_store).execute(2, f"DROP TABLE `{database}`.alembic_version".encode())
    by_hand(fresh_store).execute(2, f"ALTER TABLE `{database}`.cell MODIFY body BLOB NOT NULL".encode())
    by_hand(fresh_store).execute(3, f"DROP TABLE `{other}`.alembic_version".encode())
    behind = invoke("schema", "status", url=admin_url)
    behind_json = invoke("schema", "status", "--json", url=admin_url)
    failed = invoke("schema", "upgrade", url=admin_url)
    failed_json = invoke("schema", "upgrade", "--json", url=admin_url)

    assert (current.code, len(current.json)) == (0, 5)
    assert all(state["current"] and state["revision"] for state in current.json)
    assert upgraded.code == 0
    assert upgraded.json == {"upgraded": [], "current": 5, "failed": {}}
    assert behind.code == behind_json.code == failed.code == failed_json.code == 1
    assert [line.split() for line in behind.out.splitlines()[1:]] == [
        ["branch", "revision", "which", "databases"],
        ["catalog", head("catalog"), "this", "version's", "1"],
        ["shard", "none", f"{database},", other, "2"],
        ["shard", head("shard"), "this", "version's", "2"],
    ]
    assert "3 of 5 databases" in behind.out
    assert "next: schemaless schema upgrade" in behind.err
    assert [state["database"] for state in behind_json.json if not state["current"]] == [database, other]
    assert failed.out == "upgraded 1 database; 3 already had this version's revision\n"
    assert f"failed: {database}: " in failed.err
    assert "modify_type cell.body. Correct them by hand" in failed.err
    assert (
        "1 database could not be upgraded, and all others are up to date; fix the errors and run the same "
        "command again" in failed.err
    )
    assert list(failed_json.json["failed"]) == [database]


@pytest.mark.guarantee("upgrade-failed-shard")
def test_schema_status_and_upgrade_of_shards_that_cannot_be_asked(invoke, fresh_store, by_hand, admin_url):
    """A database that is gone, a revision of a later version: named with the reason, the others are done."""
    gone, later, none = (internals_of(fresh_store).shards.database(shard) for shard in (0, 1, 2))
    by_hand(fresh_store).execute(0, f"DROP DATABASE `{gone}`".encode())
    by_hand(fresh_store).execute(1, f"UPDATE `{later}`.alembic_version SET version_num = 'shard_9999'".encode())
    for table in ("alembic_version", "cell", "shard_identity"):
        by_hand(fresh_store).execute(2, f"DROP TABLE `{none}`.{table}".encode())
    status = invoke("schema", "status", url=admin_url)
    states = {state["database"]: state for state in invoke("schema", "status", "--json", url=admin_url).json}
    failed = invoke("schema", "upgrade", "--json", url=admin_url)

    assert status.code == failed.code == 1
    assert "2 of 5 databases" in status.out
    assert f"not read: {gone}: the database does not exist" in status.err
    assert [states[name]["revision"] for name in (gone, later, none)] == [None, "shard_9999", None]
    assert [bool(states[name]["error"]) for name in (gone, later, none)] == [True, False, False]
    assert failed.json["upgraded"] == [none]
    assert failed.json["current"] == 2
    assert list(failed.json["failed"]) == [gone, later]
    assert "Unknown database" in failed.json["failed"][gone]
    assert "revision 'shard_9999', which this version does not know; use a later" in failed.json["failed"][later]


def test_schema_says_for_many_shards_once_what_is_the_same(invoke, monkeypatch):
    """Thousands of shards: how many are at which revision, a few names, and each reason once."""
    names = [f"trips_{shard:04d}" for shard in range(4096)]
    states = [DatabaseState("trips", "db-1:3306", "catalog", "catalog_0010", True)]
    states += [
        DatabaseState(name, "db-1:3306", "shard", *(("shard_0002", True) if shard < 40 else ("shard_0000", False)))
        for shard, name in enumerate(names[:2048])
    ]
    states += [DatabaseState(name, "db-2:3306", "shard", None, False, "db-2:3306: gone") for name in names[2048:]]
    failed = {name: f"{name} is odd" for name in names[:30]} | dict.fromkeys(names[2048:], "db-2:3306: gone")
    monkeypatch.setattr("schemaless.cli.schema.schema_status", lambda url, listener: states)
    monkeypatch.setattr(
        "schemaless.cli.schema.upgrade_schema",
        lambda url, at_once, listener: UpgradeOutcome(names[30:2048], 1, failed),
    )
    status = invoke("schema", "status", url="mysql://root@db-1/trips")
    upgraded = invoke("schema", "upgrade", url="mysql://root@db-1/trips")

    assert [line.split() for line in status.out.splitlines()[2:]] == [
        ["catalog", "catalog_0010", "this", "version's", "1"],
        ["shard", "not", "read", "trips_2048,", "trips_2049,", "trips_2050", "and", "2,045", "more", "2,048"],
        ["shard", "shard_0000", "trips_0040,", "trips_0041,", "trips_0042", "and", "2,005", "more", "2,008"],
        ["shard", "shard_0002", "this", "version's", "40"],
    ]
    assert "not read: trips_2048, trips_2049, trips_2050 and 2,045 more: db-2:3306: gone\n" in status.err
    assert upgraded.out == "upgraded 2,018 databases; 1 already had this version's revision\n"
    *lines, more, last = upgraded.err.splitlines()
    assert lines == [f"failed: {name}: {name} is odd" for name in names[:20]]
    assert more == "failed: 11 more: other messages; --json lists them all"
    assert last.startswith(
        "2,078 databases could not be upgraded, and all others are up to date; fix the errors and run the same command"
    )


def test_schema_upgrade_says_what_it_did(invoke, fresh_store, by_hand, admin_url):
    """A shard whose tables are gone gets them."""
    database = internals_of(fresh_store).shards.database(1)
    for table in ("alembic_version", "cell", "shard_identity"):
        by_hand(fresh_store).execute(1, f"DROP TABLE `{database}`.{table}".encode())
    result = invoke("schema", "upgrade", "--at-once", 1, url=admin_url)

    assert result.code == 0
    assert result.out == "upgraded 1 database; 4 already had this version's revision\n"
    assert invoke("schema", "status", url=admin_url).out == "5 of 5 databases have this version's revision\n"
    assert invoke("schema", "upgrade", "--at-once", 0, url=admin_url).code == 2
