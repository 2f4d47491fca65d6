"""``schemaless cell tail``: the change feed on standard output."""

from __future__ import annotations

import json
import signal
import uuid
from collections import Counter

import pytest

from schemaless import Datastore, NewCell, ServerUnavailable
from schemaless.ops.admin.ndjson import dump_line
from schemaless.store.internals import internals_of
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.urls import parse_url

pytestmark = pytest.mark.mysql


@pytest.fixture
def cells(fresh_store, new_row):
    """Twenty cells of two columns."""
    made = [NewCell(new_row(), "BASE" if number % 2 else "STATUS", 1, {"n": number}) for number in range(20)]
    fresh_store.put_cells(made)
    return made


def lines(out: str) -> list[dict]:
    return [json.loads(line) for line in out.splitlines()]


def test_tail_writes_every_cell_in_the_order_of_its_shard(invoke, fresh_store, tail_url, cells):
    """One cell a line, as dump writes it, with its shard; the end of what is there is the end."""
    result = invoke("cell", "tail", url=tail_url)

    found = lines(result.out)
    assert (result.code, result.err) == (0, "")
    assert {uuid.UUID(line["row_key"]): line["body"] for line in found} == {cell.row_key: cell.body for cell in cells}
    assert len(found) == 20
    for shard in range(4):
        of_shard = [line for line in found if line["shard"] == shard]
        assert [line["added_id"] for line in of_shard] == sorted(line["added_id"] for line in of_shard)
        assert all(fresh_store.shard_of(uuid.UUID(line["row_key"])) == shard for line in of_shard)


def test_tail_continues_where_it_stopped(invoke, fresh_store, tail_url, cells, tmp_path):
    """--limit ends it, --offsets keeps where; the next run begins there, and a run without news writes nothing."""
    offsets = tmp_path / "offsets"
    arguments = ("cell", "tail", "--offsets", offsets)
    first = invoke(*arguments, "--limit", 7, url=tail_url)
    rest = invoke(*arguments, url=tail_url)
    nothing = invoke(*arguments, url=tail_url)

    seen = [(line["shard"], line["added_id"]) for line in lines(first.out) + lines(rest.out)]
    assert (len(lines(first.out)), len(seen), len(set(seen))) == (7, 20, 20)
    assert nothing.out == ""
    assert json.loads(offsets.read_text())["datastore"] == fresh_store.name


def test_tail_of_one_shard_column_and_location(invoke, fresh_store, tail_url, cells):
    """Each narrows it, and the end says how to go on."""
    # Rows are random: of 20 cells the fullest of four shards has five at least.
    shards = Counter(line["shard"] for line in lines(invoke("cell", "tail", url=tail_url).out))
    of_one = ("cell", "tail", "--shards", shards.most_common(1)[0][0])
    everything = lines(invoke(*of_one, url=tail_url).out)
    some = invoke(*of_one, "--location", everything[0]["added_id"], "--limit", 1, url=tail_url)
    column = lines(invoke("cell", "tail", "--column", "STATUS", url=tail_url).out)

    assert lines(some.out) == everything[1:2]
    assert some.err.strip() == f"to continue from here: --shards {of_one[-1]} --location {everything[1]['added_id']}"
    assert {line["body"]["n"] for line in column} == set(range(0, 20, 2))


def test_tail_output_is_what_load_reads(invoke, fresh_store, fresh_url, tail_url, server_urls, cells):
    """A stored feed can be loaded into another datastore, byte for byte."""
    result = invoke("cell", "tail", "--stored", url=tail_url)
    again = invoke("load", "-", "--from-dump", url=fresh_url, stdin=result.out.encode())

    assert (again.code, again.err) == (0, "")
    assert again.out.startswith("0 cells created, 20 existed already")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--location", 3), "--shards"),
        (("--location", 3, "--from-end", "--shards", 1), "mutually exclusive"),
        (("--shards", 4), "0 to 3"),
        (("--shards", 1, "--location", 99), "location 99 is beyond"),
    ],
)
def test_unusable_arguments_are_reported(invoke, tail_url, arguments, word):
    """Usage errors, and a location that is not there."""
    result = invoke("cell", "tail", *arguments, url=tail_url)

    assert result.code in (1, 2)
    assert result.out == ""
    assert word in result.err


def test_offsets_of_another_datastore_are_refused(invoke, tail_url, tmp_path):
    """A file that is none, or another datastore's, is not used and not overwritten."""
    offsets = tmp_path / "offsets"
    for text in ("[]", "no JSON", '{"datastore": "other", "shard_count": 4, "locations": {"0": 17}}'):
        offsets.write_text(text)
        result = invoke("cell", "tail", "--offsets", offsets, url=tail_url)
        assert (result.code, result.out) == (2, "")
        assert "offsets" in result.err
        assert offsets.read_text() == text


def test_follow_writes_new_cells_and_keeps_its_offsets(start, eventually, fresh_store, tail_url, new_row, tmp_path):
    """Ctrl-C ends it with exit 3; what was written before is in the file, and comes once."""
    offsets = tmp_path / "offsets"
    arguments = ("cell", "tail", "--follow", "--from-end", "--poll", "0.02", "--offsets", offsets)
    fresh_store.put_cell(new_row(), "BASE", 1, "before")
    process = start(*arguments, url=tail_url)
    eventually(offsets.exists, "it has found the end")
    for number in range(3):
        fresh_store.put_cell(new_row(), "BASE", 1, number)
    seen = [json.loads(process.stdout.readline())["body"] for _ in range(3)]
    eventually(lambda: sum(json.loads(offsets.read_text())["locations"].values()) == 4, "offsets are kept")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    fresh_store.put_cell(new_row(), "BASE", 1, "later")
    again = start("cell", "tail", "--offsets", offsets, url=tail_url)
    out_again, _ = again.communicate(timeout=120)

    assert sorted(seen) == [0, 1, 2]
    assert (process.returncode, out) == (3, b""), err
    assert [line["body"] for line in lines(out_again.decode())] == ["later"]


def test_follow_waits_for_a_server_that_is_away(invoke, tail_url, cells, monkeypatch):
    """From where it was, with a note, while other shards continue; without --follow, the command fails."""
    read, failures, dumped = Datastore.get_stored_cells_for_shard, {0: 2, 2: 1}, []

    def fail_first(store, shard, *arguments, **options):
        if failures.get(shard, 0):
            failures[shard] -= 1
            raise ServerUnavailable("connection refused", node="db-1:3306", shard=shard)
        return read(store, shard, *arguments, **options)

    def fail_third(cell, **options):
        dumped.append(cell)
        if len(dumped) == 3:
            raise ServerUnavailable("no dictionary", node="db-1:3306")
        return dump_line(cell, **options)

    monkeypatch.setattr(Datastore, "get_stored_cells_for_shard", fail_first)
    monkeypatch.setattr("schemaless.cli.cell_tail.dump_line", fail_third)
    failed = invoke("cell", "tail", url=tail_url)
    assert (failed.code, failed.out) == (1, "")
    assert "connection refused" in failed.err

    result = invoke("cell", "tail", "--follow", "--poll", 0.01, "--limit", 20, url=tail_url)
    assert result.code == 0
    assert Counter(line["body"]["n"] for line in lines(result.out)) == Counter(range(20))
    assert "db-1:3306: no dictionary" in result.err
    for shard in (0, 2):
        assert f"shard {shard} waits after added_id 0: db-1:3306, shard {shard}: connection refused" in result.err


@pytest.mark.long
def test_follow_reports_what_holds_the_feed(
    start, eventually, fresh_store, tail_url, server_urls, new_row, monkeypatch
):
    """An open transaction is named on standard error after two seconds, and so is the end of the wait."""
    row = new_row()
    shard = fresh_store.shard_of(row)
    (url,) = (
        parse_url(url) for url in server_urls if parse_url(url).node == internals_of(fresh_store).shards.node_of(shard)
    )
    pool = NodePool(url.node, url.credentials, PoolOptions())
    database = internals_of(fresh_store).shards.database(shard)
    insert = f"INSERT INTO `{database}`.cell (row_key,column_name,ref_key,body) VALUES "
    with pool.connection() as late:
        late.execute(b"START TRANSACTION")
        late.execute((insert + f"(x'{uuid.uuid4().hex}','BASE',1,'0')").encode())
        fresh_store.put_cell(row, "BASE", 1, "waits")
        process = start("cell", "tail", "--follow", "--limit", 1, url=tail_url)
        first = process.stderr.readline().decode()
        late.execute(b"ROLLBACK")
    pool.close()
    out, err = process.communicate(timeout=120)

    assert first.startswith(f"shard {shard} waits after added_id 0: open transactions on ")
    assert ": thread " in first
    assert [line["body"] for line in lines(out.decode())] == ["waits"]
    assert f"shard {shard} continues, after " in err.decode()


def test_a_damaged_cell_ends_the_tail_and_names_the_option_to_continue(
    invoke, fresh_store, tail_url, server_urls, new_row
):
    """What came before is written; the cell is named, and the option that goes past it."""
    puts = [fresh_store.put_cell(new_row(), "BASE", 1, [number]) for number in range(12)]
    damaged = puts[8]
    shard = fresh_store.shard_of(damaged.key.row_key)
    (url,) = (
        parse_url(url) for url in server_urls if parse_url(url).node == internals_of(fresh_store).shards.node_of(shard)
    )
    pool = NodePool(url.node, url.credentials, PoolOptions())
    with pool.connection() as connection:
        connection.execute(
            f"UPDATE `{internals_of(fresh_store).shards.database(shard)}`.cell SET body=INSERT(body,4,1,'?') "
            f"WHERE added_id={damaged.added_id}".encode()
        )
    pool.close()
    result = invoke("cell", "tail", "--shards", shard, url=tail_url)

    assert result.code == 1
    assert str(damaged.key.row_key) in result.err
    assert f"--shards {shard} --location {damaged.added_id}" in result.err
