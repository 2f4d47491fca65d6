"""``schemaless codec``: the way from advice to a migrated column, by the commands that it prints."""

from __future__ import annotations

import datetime
import random
import re
import shlex

import pytest

import schemaless
from schemaless.codec.engine import ENGINE
from schemaless.codec.envelope import dictionary_of
from schemaless.codec.trial import NEEDS_NATIVE, NOT_TRIED
from schemaless.schema.engine import session
from schemaless.store.cells.dictionary_replicas import DictionaryReplicas
from schemaless.store.internals import internals_of
from tests.dictionaries import COLUMN, cells, everywhere, kept, training

COUNT = 400


@pytest.fixture
def filled(fresh_store):
    """A column of documents that are alike, and one of short decimals, both as JSON text."""
    made = cells(COUNT)
    fresh_store.put_cells(made, codec="json+none")
    decimals = [
        schemaless.NewCell(
            cell.row_key, "FIX", 1, [round(((number * 7919 + step * 31) % 9973) / 9973, 4) for step in range(30)]
        )
        for number, cell in enumerate(made)
    ]
    fresh_store.put_cells(decimals, codec="json+none")
    return fresh_store


def body_bytes(store, column):
    return sum(len(cell.body) for shard in range(4) for cell in store.scan_shard(shard) if cell.column_name == column)


@pytest.mark.long
def test_following_the_advice_gives_the_predicted_sizes(invoke, filled, admin_url, migrate_url, fresh_url):
    """The commands that it prints are run as they stand: bodies come out within 5 % of what was promised."""
    asked = invoke("codec", "advise", "--seed", "3", "--cpu", "50", "--json", url=fresh_url)
    assert asked.code == 0
    by_column = {each["column_name"]: each for each in asked.json["columns"]}
    assert set(by_column) == {COLUMN, "FIX"}
    assert asked.json["days"] is None
    advice = by_column[COLUMN]
    assert advice["advice"]["dictionary_bytes"]
    assert advice["stored"] == {"json+none": COUNT}
    tried = {(each["codec"], each["level"], each["dictionary_bytes"] is None) for each in advice["candidates"]}
    assert len(tried) > 20
    assert ("packed+zstd" in {codec for codec, _, _ in tried}) is ENGINE.packed.native
    assert (NOT_TRIED in advice["notes"]) is not ENGINE.packed.native
    for each in by_column.values():
        advised = each["advice"] or {"codec": ""}
        assert (NEEDS_NATIVE in each["notes"]) is advised["codec"].startswith("packed")
    assert any("msgpack+zlib, takes" in note for note in by_column["FIX"]["notes"])

    train, setting, migration, rebuild = advice["commands"]
    trained = invoke(*shlex.split(train, comments=True)[1:], url=admin_url)
    assert trained.code == 0
    number = re.search(r"saved as dictionary (\d+)", trained.out).group(1)
    done = [
        invoke(*shlex.split(command.replace(" N ", f" {number} "), comments=True)[1:], url=url)
        for command, url in ((setting, admin_url), (migration, migrate_url))
    ]
    assert [each.code for each in done] == [0, 0], done
    assert rebuild == "schemaless rebuild --execute"
    assert body_bytes(filled, COLUMN) == pytest.approx(advice["advice"]["body_bytes"]["mid"], rel=0.05)
    with schemaless.connect(fresh_url) as writing:
        writing.put_cells(cells(COUNT + 5)[COUNT:])
        names = {
            dictionary_of(cell.body)
            for shard in range(4)
            for cell in writing.scan_shard(shard)
            if cell.column_name == COLUMN
        }
    assert names == {int(number)}
    again = invoke("codec", "advise", "--seed", "3", "--column", COLUMN, url=fresh_url)
    assert f"advice: keep the codec of {COLUMN}" in again.out


@pytest.mark.long
def test_advice_as_text_says_why_and_how_long_disks_last(invoke, filled, fresh_url):
    """A table, the truth about the default, the commands, and days of disk by what is given."""
    asked = invoke("codec", "advise", "--per-day", "1000000", "--disk", "1TB", "--all", url=fresh_url)
    assert asked.code == 0
    assert "advice:" in asked.out
    assert f"schemaless codec set --column {COLUMN} " in asked.out
    days = re.search(
        r"disks last ([\d,]+) days(?: \([\d,]+ to [\d,]+\))? with the current codecs, "
        r"([\d,]+) days \([\d,]+ to [\d,]+\) with the advised",
        asked.out,
    )
    assert days is not None, asked.out
    now, then = (int(each.replace(",", "")) for each in days.groups())
    assert now < then
    nothing = invoke("codec", "advise", "--column", "NONE", url=fresh_url)
    assert (nothing.code, nothing.out) == (0, "no cells found in these columns\n")


@pytest.mark.long
def test_advice_on_versions(invoke, fresh_store, fresh_url, migrate_url, new_row):
    """Their share of the bytes, now and as differences, and the command that makes them so."""
    row, parts = new_row(), [*map(str, range(300))]
    fresh_store.put_cells([schemaless.NewCell(row, "A", n, [n, *parts]) for n in range(30)])
    asked = "codec", "advise", "--seed", 3, "--cpu", 50
    text = invoke(*asked, url=fresh_url).out
    (advice,) = invoke(*asked, "--json", url=fresh_url).json["columns"]
    before, history = body_bytes(fresh_store, "A"), advice["history"]
    now, then = (history[share]["mid"] for share in ("superseded_share", "delta_share"))
    # Which codec is advised depends on measured times, so the two runs may differ in it.
    sentence = f"- 30.0 versions per row; superseded ones are {now:.1%} of the bytes; as differences they would take "
    command = "schemaless migrate run --execute --column A --history --to "
    assert re.search(rf"{re.escape(sentence)}[0-9.]+%: {command}.+\n", text)
    assert history["command"].startswith(command)
    assert now == pytest.approx(29 / 30, rel=0.01)

    assert invoke(*shlex.split(history["command"])[1:], url=migrate_url).code == 0
    assert "as differences" not in invoke(*asked, url=fresh_url).out
    latest = next(fresh_store.get_stored_versions(row, "A"))
    assert body_bytes(fresh_store, "A") - len(latest.body) == pytest.approx(then * before, rel=0.001)


def test_advice_takes_the_growth_of_recent_weeks(invoke, accounts, fresh_store, new_row):
    """An old import of few cells a day does not dilute the present growth, and short bodies are no erased cells."""
    now = datetime.datetime.now(datetime.UTC)
    at = [now - datetime.timedelta(day) for day in range(60, 0, -1) for _ in range(10 if day <= 30 else 1)]
    cells = [schemaless.NewCell(new_row(), "A", 1, [n], created_at=each) for n, each in enumerate(at)]
    fresh_store.put_cells(cells)
    accounts.allow("measure", fresh_store.name, 4)
    url = accounts.url("measure", accounts.servers[0], fresh_store.name)
    measured = invoke("capacity", "measure", "--json", url=url).json

    advice = invoke("codec", "advise", "--json", url=url).json
    assert advice["days"]["basis"].startswith("the 10 new cells a day measured on 20")
    (column,) = advice["columns"]
    # Both servers are on one disk, whose free space counts once.
    free = min(space["free_bytes"] for space in measured["clusters"])
    per_day = 10 * column["allocated_bytes"]["mid"] / column["cells"]["mid"]
    assert advice["days"]["now"]["mid"] == pytest.approx(free / per_day, rel=0.1)


@pytest.mark.long
def test_advice_says_which_figures_are_measured(invoke, filled, admin_url):
    """The growth is that of the option, and the disks are those of the last measurement."""
    disks = [part for name in ("cluster-1", "cluster-2") for part in ("--disk", f"{name}=4TB:1TB")]
    assert invoke("capacity", "measure", *disks, url=admin_url).code == 0
    asked = invoke("codec", "advise", "--per-day", "1000", url=admin_url)
    assert "the advised ones, at 1,000 new cells a day and disks as measured on 20" in asked.out


@pytest.mark.long
def test_train_keeps_only_a_dictionary_that_helps(invoke, filled, fresh_store, admin_url, new_row):
    """Exit status 1 and nothing kept where it does not help; usage where there is too little."""
    drawn = random.Random(6)
    noise = [schemaless.NewCell(new_row(), "NOISE", 1, drawn.randbytes(4_000).hex()) for _ in range(60)]
    fresh_store.put_cells(noise)
    useful = invoke("codec", "train", "--column", COLUMN, "--json", url=admin_url)
    useless = invoke("codec", "train", "--column", "NOISE", url=admin_url)
    few = invoke("codec", "train", "--column", "NONE", url=admin_url)
    listed = invoke("codec", "list", "--json", url=admin_url)

    assert useful.code == 0
    assert useful.json["helps"]
    assert (useless.code, "not saved" in useless.err) == (1, True), useless
    assert (few.code, "too few" in few.err) == (2, True)
    (entry,) = listed.json["dictionaries"]
    assert entry["state"] == "intact"
    assert entry["source"]["column"] == COLUMN
    assert entry["dictionary"] == useful.json["dictionary"] == 32_768


def test_a_stopped_training_is_not_to_be_repeated_blindly(invoke, fresh_store, admin_url, monkeypatch):
    """Another sample gives another dictionary, so the same command may save a second one."""

    def stopped(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("schemaless.cli.codec.train_column", lambda *given, **options: (training(), {}))
    monkeypatch.setattr(DictionaryReplicas, "copy", stopped)
    result = invoke("codec", "train", "--column", COLUMN, url=admin_url)

    assert result.code == 3
    assert result.err.endswith("kept, and 'schemaless codec list' shows whether the dictionary was saved\n")


def test_list_set_export_import_and_remove(invoke, fresh_store, admin_url, fresh_url, tmp_path):
    """Each says what it did; what is lost is seen by list, and an export heals it."""
    with schemaless.connect(admin_url) as admin:
        number = kept(admin).id
        assert invoke("codec", "list", url=fresh_url).out.endswith("all columns are written in msgpack+zlib\n")
        done = invoke(
            "codec", "set", "--column", COLUMN, "msgpack+zstd", "--level", 9, "--dictionary", number, url=admin_url
        )
        assert (done.code, f"level 9 with dictionary {number}" in done.out) == (0, True)
        path = tmp_path / "backup.ndjson"
        assert invoke("codec", "export", "--output", path, url=fresh_url).code == 0
        assert invoke("codec", "export", number, url=fresh_url).out.encode() == path.read_bytes()
        everywhere(admin, "UPDATE {table} SET content='gone'")
        lost = invoke("codec", "list", url=fresh_url)
        assert (lost.code, "damaged" in lost.out, "codec import" in lost.err) == (1, True, True)
        assert invoke("codec", "export", url=fresh_url).code == 1
        healed = invoke("codec", "import", path, url=admin_url)
        assert healed.out == f"dictionary {number} is in the catalog\n"
        assert invoke("codec", "list", url=fresh_url).code == 0
        held = invoke("codec", "remove", number, "--execute", url=admin_url)
        assert (held.code, COLUMN in held.err) == (1, True)
        history = invoke("codec", "set", "--column", COLUMN, "msgpack+zlib", "--history", url=admin_url)
        assert "msgpack+zlib, superseded versions as differences;" in history.out
        assert invoke("codec", "list", "--json", url=fresh_url).json["columns"][0]["history"] is True
        assert invoke("codec", "set", "--column", COLUMN, "default", url=admin_url).code == 0
        assert "would retire" in invoke("codec", "remove", number, url=admin_url).out
        retired = invoke("codec", "remove", number, "--execute", url=admin_url)
        assert (retired.code, "60 minutes" in retired.out) == (1, True)
        with session(internals_of(admin).catalog, admin.name) as connection:
            connection.exec_driver_sql("UPDATE dictionary SET retired_at=retired_at - INTERVAL 61 MINUTE")
        removed = invoke("codec", "remove", number, "--execute", url=admin_url)
        assert (removed.code, "removed" in removed.out) == (0, True), removed
        assert training().dictionary.id == number


def test_stored_dump_is_loaded_elsewhere_with_its_dictionary(
    invoke, fresh_store, fresh_url, admin_url, migrate_url, accounts, new_name, tmp_path
):
    """Its number is taken there, so the copy has another one; a run to another codec than is set is remarked."""
    made = cells(40)
    fresh_store.put_cells(made)
    with schemaless.connect(admin_url) as admin:
        number = kept(admin).id
    to = ("--to", "msgpack+zstd", "--dictionary", number)
    assert invoke("codec", "set", "--column", COLUMN, "msgpack+zstd", "--dictionary", number, url=admin_url).code == 0
    assert f"written in msgpack+zstd with dictionary {number}" in invoke("migrate", "run", url=migrate_url).err
    dry = invoke("migrate", "run", *to, url=migrate_url)
    assert (f"msgpack+zstd with dictionary {number}" in dry.out, "written in" in dry.err) == (True, False)
    assert invoke("migrate", "plan", *to, "--json", url=migrate_url).json["columns"]
    assert invoke("migrate", "run", "--execute", *to, url=migrate_url).code == 0
    path = tmp_path / "dump.ndjson"
    assert invoke("dump", "--stored", "--output", path, url=fresh_url).code == 0

    url = accounts.url("admin", accounts.create(new_name, 4))
    with schemaless.connect(url) as copy:
        kept(copy, 900)
        assert invoke("load", path, "--from-dump", url=url).code == 0
        assert copy.get_cell(made[3].row_key, COLUMN, 1).body == made[3].body
        assert {dictionary_of(cell.body) for shard in range(4) for cell in copy.scan_shard(shard)} == {number + 1}
        assert invoke("check", url=url).code == 0
        again = invoke("codec", "import", path, url=url)
        assert f"as {number + 1}, because its own number is taken" in again.out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("set", "--column", COLUMN, "default", "--level", "3"), "'default' has its own level"),
        (("set", "--column", COLUMN, "msgpack+zlib", "--level", "12"), "levels 1 to 9"),
        (
            ("set", "--column", COLUMN, "msgpack+zlib", "--dictionary", "32768"),
            "is not in the catalog of",
        ),
        (("remove", "40000"), "no dictionary 40000"),
        (("export", "40000"), "no dictionary 40000"),
        (("import", "/no/such/file"), "cannot read"),
        (("import", "-"), "none of its lines"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(invoke, admin_url, arguments, complaint):
    """Usage errors name what came and what there is."""
    result = invoke("codec", *arguments, url=admin_url)
    assert result.code in (1, 2)
    assert re.search(complaint, result.err), result.err
    assert len(result.err.splitlines()) == 1
