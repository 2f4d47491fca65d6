"""Commands on a terminal of 80 columns: no line of tables, notes or progress is wider."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest
from rich.cells import cell_len

from schemaless.cell import NewStoredCell

pytestmark = [pytest.mark.mysql, pytest.mark.once]

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[=>])")


def on_terminal(*arguments: str, url: str, columns: int = 80) -> tuple[int, str]:
    """Run a command whose streams are a terminal; return its exit status and what it wrote there."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    variables = {**os.environ, "SCHEMALESS_URL": url, "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [sys.executable, "-m", "schemaless.cli.entry", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=variables,
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            part = os.read(ours, 65_536)
        except OSError:  # Linux reports the end of a terminal like this
            break
        if not part:
            break
        written += part
    os.close(ours)
    return process.wait(), written.decode()


def rows(written: str) -> list[str]:
    """Return the rows that a terminal would show, if none was too long for it."""
    return [row for line in written.split("\n") for row in _ESCAPES.sub("", line).split("\r")]


@pytest.fixture
def filled(fresh_store, fresh_url, accounts, new_row):
    """A datastore of 60 legacy cells; gives its URL."""
    fresh_store.put_stored_cells(
        [NewStoredCell(new_row(), "AB"[n % 2], 1, json.dumps({"text": "text " * (40 + n)}).encode()) for n in range(60)]
    )
    return accounts.root(fresh_url)


@pytest.mark.long
def test_commands_on_a_terminal_of_80_columns_write_no_longer_line(filled):
    """What is wider holds one word that is, such as the path of a socket: that is for copying."""
    commands = [
        ("info", "--count", "--all"),
        ("topology", "show"),
        ("migrate", "plan"),
        ("migrate", "run", "--execute"),
        ("job", "show", "--shards"),
        ("check",),
    ]
    seen = {}
    for command in commands:
        code, written = on_terminal(*command, url=filled)
        assert code == 0, (command, written)
        seen[" ".join(command)] = rows(written)

    wide = {
        name: [row for row in found if cell_len(row) > 80 and not re.search(r"\S{40}", row)]
        for name, found in seen.items()
    }
    assert {name: found for name, found in wide.items() if found} == {}
    assert any("100.0%" in row for row in seen["migrate run --execute"])
