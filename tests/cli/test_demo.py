"""``schemaless demo`` on a small file: the whole story, twice, and away again."""

from __future__ import annotations

import contextlib
import json
import os
import re

import pytest

from schemaless.errors import LocalServerError
from schemaless.local import servers as local_servers

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
        json.dumps({"id": f"trip {number}", "text": "some text " * 40}).encode() + b"\n"
        for number in range(first, first + count)
    )


@pytest.mark.mysql
def test_demo_on_a_file_of_ones_own(invoke, folder, tmp_path):
    """It loads, migrates and checks what it is given; run twice it starts clean; what it prints at the end works."""
    data = tmp_path / "data.ndjson"
    # A line that is no document, and one that is there twice, are passed over.
    data.write_bytes(documents(0, 60) + b"{cut\n" + documents(0, 1))
    arguments = ("demo", "--folder", folder, "--flavour", FLAVOUR, "--row-key", "uuid5:id")
    first = invoke(*arguments, "--data", data)
    data.write_bytes(documents(100, 40))
    second = invoke(*arguments, "--data", data)

    assert first.code == second.code == 0
    assert "passed over line 61: " in first.err
    size = sum(map(len, documents(0, 60).splitlines()))
    assert f"60 cells, {size:,} body bytes, {size / 60:,.0f} on average" in first.out
    assert "run a second time: 0 cells to do" in first.out
    assert "clean: 60 cells decoded" in first.out
    assert "clean: 40 cells decoded" in second.out
    for heading in ("What it gained", "of body bytes reclaimed", "tablespace", "A disk of 1 TB"):
        assert heading in second.out

    url = re.search("export SCHEMALESS_URL='(.+)'", second.out)[1]
    assert sum(cluster["cells"] for cluster in invoke("info", "--count", "--json", url=url).json["clusters"]) == 40
    assert invoke("cell", "get", "uuid5:trip 139", "DOC", url=url).json["id"] == "trip 139"
    assert invoke("cell", "get", "uuid5:trip 0", "DOC", url=url).code == 1
    assert f"local down --delete --folder '{folder}'" in second.out
    down = invoke("local", "down", "--delete", "--folder", folder)
    assert (down.code, folder.exists()) == (0, False)


@pytest.mark.parametrize("content", [None, b"\n{cut\n"])
def test_demo_without_a_document_is_exit_2(invoke, folder, tmp_path, content):
    """No such file, or one without a document: it says so."""
    data = tmp_path / "data.ndjson"
    if content is None:
        result = invoke("demo", "--folder", folder, "--flavour", FLAVOUR, "--data", data)
        assert f"there is no file {data}" in result.err
        assert not folder.exists()
    else:
        data.write_bytes(content)
        result = invoke("demo", "--folder", folder, "--flavour", FLAVOUR, "--data", data)
        assert f"{data} holds no document" in result.err

    assert result.code == 2
