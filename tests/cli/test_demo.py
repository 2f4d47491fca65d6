"""``schemaless demo`` on a small file: the whole story, twice, and away again."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest

import schemaless
from schemaless.demo import index_and_trigger as ways
from schemaless.demo import story
from schemaless.demo.gain import command_name
from schemaless.errors import LocalServerError, SchemalessError
from schemaless.local import servers as local_servers
from schemaless.ops.admin.create import create

FLAVOUR = "mariadb" if os.environ.get("SERVER") == "mariadb" else "mysql"


@pytest.fixture
def folder(tmp_path):
    """A folder with a space in its path; what runs in it at the end is ended."""
    path = tmp_path / "my demo"
    yield path
    with contextlib.suppress(LocalServerError):
        local_servers.down(path, delete=True)


def documents(first: int, count: int) -> bytes:
    return b"".join(
        json.dumps({"id": f"trip {number}", "text": "some text " * 4_000}).encode() + b"\n"
        for number in range(first, first + count)
    )


@pytest.mark.once
@pytest.mark.mysql
@pytest.mark.long
def test_demo_on_a_file_of_ones_own(invoke, folder, tmp_path, capsys, monkeypatch):
    """It loads, migrates and checks what it is given; run twice it starts clean; what it prints at the end works."""
    monkeypatch.setattr(story, "create", lambda name, shards, urls: create(name, 4, urls))
    data = tmp_path / "data.ndjson"
    # A line that is no document, and one that is there twice, are passed over.
    data.write_bytes(documents(0, 60) + b"{cut\n" + documents(0, 1))
    arguments = ("demo", "--folder", folder, "--flavour", FLAVOUR, "--row-key", "uuid5:id")
    first = invoke(*arguments, "--data", data)
    data.write_bytes(documents(100, 40))
    second = invoke(*arguments, "--data", data)

    assert first.code == second.code == 0
    assert "skipped line 61: " in first.err
    size = sum(map(len, documents(0, 60).splitlines()))
    assert f"60 cells, {size:,} body bytes, {size / 60:,.0f} on average" in first.out
    assert "second run: 0 cells to re-encode" in first.out
    assert "clean: 60 cells decoded" in first.out
    assert "clean: 40 cells decoded" in second.out
    for heading in ("Result", "of body bytes reclaimed", "pages in use", "A disk of 1 TB"):
        assert heading in second.out

    page = Path(second.out.strip().splitlines()[-1].split(": ")[-1].strip())
    assert page == folder / "capacity.html"
    assert "First disk full in" in page.read_text()
    assert "the report uses the given one" not in page.read_text()  # No disk was given.
    # One figure for one thing, from its step to the last page.
    said = re.search(r"predicted file size: (.+)", second.out)[1]
    assert f"step 5 predicted {said}\n" in second.out
    assert f"rebuilt: {said}." in page.read_text()
    assert (
        f"<td>files after a rebuild, predicted just before it</td><td>{said}</td>"
        in (folder / "report.html").read_text()
    )

    url = re.search("export SCHEMALESS_URL='(.+)'", second.out)[1]
    assert sum(cluster["cells"] for cluster in invoke("info", "--count", "--json", url=url).json["clusters"]) == 40
    assert invoke("cell", "get", "uuid5:trip 139", "DOC", url=url).json["id"] == "trip 139"
    assert invoke("cell", "get", "uuid5:trip 0", "DOC", url=url).code == 1
    assert f"local down --delete --folder '{folder}'" in second.out

    # Its last step is about logbooks, and not taken with other documents.
    assert "9. find logbooks" not in second.out
    with schemaless.connect(url) as store:
        for number, plane in enumerate([("AIRBUS", 150), ("AIRBUS", 200), ("BOEING", 400)], start=1):
            made = dict(zip(("manufacturer", "seats"), plane, strict=True), model="A 1")
            legs = [{"carrier": {"name": "Some Air"}}] * number
            store.put_cell(uuid.UUID(int=number), "LOG", 1, {"tail_number": f"N{number}", "plane": made, "legs": legs})
        ways.show(store)
        store.put_cell(uuid.UUID(int=4), "LOG", 1, {"tail_number": "N4"})
        monkeypatch.setattr(ways.Worker, "run", lambda self: None)
        with pytest.raises(SchemalessError, match="the worker ended before"):
            ways.show(store)
    told = capsys.readouterr().out
    assert ": N2 (A 1, 200), N1 (A 1, 150)\n" in told
    assert "trigger: 6 flights of 1 airline: Some Air 6\n" in told

    # Neither these lines nor their keys can be used: what is there is not given up for them.
    for lines, options in ((b"\n{cut\n", ()), (documents(0, 3), ("--row-key", "no.such.field"))):
        data.write_bytes(lines)
        refused = invoke(*arguments, *options, "--data", data)
        assert (refused.code, refused.out) == (2, "")
        assert f"{data} contains no document that can be loaded; the first error: " in refused.err
    assert invoke("cell", "get", "uuid5:trip 139", "DOC", url=url).json["id"] == "trip 139"
    down = invoke("local", "down", "--delete", "--folder", folder)
    assert (down.code, folder.exists()) == (0, False)


@pytest.mark.parametrize("content", [None, b"", b"\n{cut\n"])
def test_demo_without_a_document_is_exit_2(invoke, folder, tmp_path, content):
    """No such file, or one without a document: it says so, and no server is started or deleted for it."""
    data = tmp_path / "data.ndjson"
    if content is not None:
        data.write_bytes(content)
    result = invoke("demo", "--folder", folder, "--flavour", FLAVOUR, "--data", data)

    assert (result.code, result.out) == (2, "")
    assert f"there is no file {data}" in result.err or f"{data} contains no document" in result.err
    assert not folder.exists()


@pytest.mark.parametrize(
    ("broken", "state"),
    [
        ("down", "an earlier demo in {} may be partly deleted"),
        ("up", "{} may contain servers without data"),
        ("create", "the servers in {} are running, with an incomplete datastore"),
        ("connect", "the servers in {} are running, with the documents loaded so far"),
    ],
)
@pytest.mark.parametrize(("how", "code"), [(KeyboardInterrupt(), 3), (LocalServerError("gone"), 1)])
def test_demo_left_early_says_what_is_there_and_what_to_run(
    invoke, folder, tmp_path, monkeypatch, broken, state, how, code
):
    """Interrupted, or failed: in which state things are, and the two ways on."""

    def breaks(*arguments, **options):
        raise how

    data = tmp_path / "data.ndjson"
    data.write_bytes(documents(0, 1))
    server = SimpleNamespace(flavour=FLAVOUR, version="1", url="mysql://root@/")
    monkeypatch.setattr(local_servers, "down", lambda *arguments, **options: None)
    monkeypatch.setattr(local_servers, "up", lambda *arguments, **options: [server])
    monkeypatch.setattr(story, "create", lambda *arguments: "mysql://root@/demo")
    monkeypatch.setattr(local_servers if broken in ("down", "up") else story, broken, breaks)
    result = invoke("demo", "--folder", folder, "--data", data)
    monkeypatch.undo()

    assert result.code == code
    said, last = filter(None, result.err.splitlines())
    assert said.startswith(f"the demo did not finish: {state.format(folder)}. Run the same command to start over")
    assert said.endswith(f"delete the servers with: {command_name()} local down --delete --folder '{folder}'")
    assert last.startswith("schemaless: ")


def test_the_demo_names_its_command_as_it_can_be_called_here(tmp_path, monkeypatch):
    """Only in a checkout whose .venv runs the demo is the command the one in that .venv."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "elsewhere"))
    assert command_name() == "schemaless"

    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    assert command_name() == ".venv/bin/schemaless"
