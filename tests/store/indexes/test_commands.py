"""The ``schemaless index`` commands."""

from __future__ import annotations

import uuid

import pytest

from schemaless.store.followers import sql as table_caches
from schemaless.store.indexes.admin import Watch
from tests.cli.conftest import Result, invoke  # noqa: F401 - the fixture

pytestmark = [pytest.mark.mysql]

FIELDS = ("--shard-field", "BASE.client:uuid", "--field", "BASE.at:time", "--field", "status=STATUS.s:text(8)")
CLIENT = uuid.UUID(int=7)


def test_an_index_is_created_filled_asked_and_dropped(
    invoke,  # noqa: F811
    kept,
    admin_url,
    follow_url,
    fresh_store,
    new_row,
    monkeypatch,
):
    """Each command with the account and the grants that it asks for."""

    def admin(*arguments: object) -> Result:
        return invoke("index", *arguments, url=admin_url)

    rows = {
        fresh_store.put_cell(new_row(), "BASE", 1, {"client": str(CLIENT), "at": f"2026-03-{n:02}"}).key.row_key
        for n in range(1, 9)
    }
    assert "there is no index yet" in admin("status").out
    made = admin("create", "trips", *FIELDS)
    assert ("index trips created, number 1: backfilling" in made.out, made.code) == (True, 0)
    assert "grant the roles follow, app and admin again" in made.err
    again = admin("create", "trips", *FIELDS, "--json").json
    assert (again["created"], again["number"], again["fields"]) == (False, 1, ["client", "at", "status"])
    sql = invoke("grants", "--role", "app", url=admin_url).out
    assert "GRANT SELECT ON `" in sql
    assert sql.count("`index_1`") == 4
    kept.allow(1)
    assert admin("status", "trips", "--json").json[0]["ids_behind"] == 8
    done = invoke("index", "run", "trips", "--once", url=follow_url)
    assert (done.code, "ready" in done.out) == (0, True), done.err
    assert "maintaining trips (1)" in done.err
    with monkeypatch.context() as patch:
        patch.setattr(Watch, "__call__", lambda watch: watch.gave_up.update({"trips (1)": {2: "died"}}) or True)
        left = invoke("index", "run", "trips", "--once", url=follow_url)
    assert (left.code, "shard 2: new or erased cells of index trips (1) are not handled" in left.err) == (1, True)
    monkeypatch.setattr(table_caches, "SELECT_TABLE_CACHE", b"SELECT 5, 1, 5")
    status = admin("status")
    assert "100.0%" in status.out
    assert status.err.count("its 2 shards read 6 tables") == 2

    found = fresh_store.index("trips").query(client=CLIENT, order_by="-at", limit=5)
    assert {row.row_key for row in found.rows} < rows
    assert [row.entry["at"].day for row in found.rows] == [8, 7, 6, 5, 4]
    dry = admin("drop", "trips")
    assert ("number 1, ready, would be dropped" in dry.out, "nothing was changed" in dry.err) == (True, True)
    assert admin("drop", "trips", "--replaced", "--execute").code == 2
    kept.allow(1)
    assert admin("drop", "trips", "--execute", "--json").json["numbers"] == [1]
    assert admin("drop", "trips").code == 2
    assert "there is no index yet" in invoke("index", "run", url=follow_url).err


@pytest.mark.once
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (("--shard-field", "BASE.x:float"), "a field of type float cannot be the shard field"),
        (("--shard-field", "BASE.x:number"), "the type must be uuid, int, float, bool, time or text(N)"),
        (("--shard-field", "BASE:int"), "a field must be declared as [NAME=]COLUMN.PATH:TYPE"),
        (("--shard-field", "BASE.Client:int"), "give the field another name with NAME=COLUMN.PATH:TYPE"),
        (("--shard-field", "BASE.limit:int"), "or an argument of query()"),
        (("--shard-field", "BASE.x:int", "--field", "B.a.x:int"), "two fields of index trips have the same name: x"),
        (("--shard-field", "BASE.x:text(768)"), "would have 3,075 bytes; the maximum is 3,072"),
        (
            ("--shard-field", "BASE.x:int", *(word for n in range(16) for word in ("--field", f"B.f{n}:int"))),
            "has 17 fields; the maximum is 16",
        ),
    ],
)
def test_what_cannot_be_an_index_is_refused_when_it_is_declared(invoke, fields, said):  # noqa: F811
    """Before any server is contacted."""
    refused = invoke("index", "create", "trips", *fields, url="mysql://nobody@127.0.0.1:1/none")

    assert (refused.code, said in refused.err) == (2, True), refused.err
