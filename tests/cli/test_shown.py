"""What a terminal obeys does not get there, and no spreadsheet takes text for a formula."""

from __future__ import annotations

import csv
import io
import json
import logging
import unicodedata

import pytest

from schemaless.base.events import Advanced
from schemaless.base.numbers import shards_text
from schemaless.cli import bench, migrate_report
from schemaless.cli.quantities import shards_of
from schemaless.store.internals import internals_of
from schemaless.ui.pages import capacity_json
from schemaless.ui.terminal import output
from schemaless.ui.terminal.shown import CSVText, JSONTerminal, csv_of, shown, shown_json

pytestmark = pytest.mark.guarantee("terminal-text")

OBEYED = [chr(code) for code in (*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0))]
TURNING = list("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
ALL = "".join([*OBEYED, *TURNING, "\u200e\u200f\u061c\u2028\u2029\udc9b"])
EVIL = "a\x1b]0;owned\x07\x1b[2J\x9b31m\u202egpj.exe\r\x08[bold]b"


class Terminal(io.TextIOWrapper):
    """A terminal that keeps what it got."""

    def __init__(self) -> None:
        self.got = io.BytesIO()
        super().__init__(self.got, encoding="utf-8", write_through=True)

    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        return self.got.getvalue().decode()


@pytest.fixture
def terminal(monkeypatch):
    """Puts standard output and standard error on a terminal without colours, and gives it."""

    def put() -> Terminal:
        made = Terminal()
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setenv("TERM", "dumb")
        monkeypatch.setattr("sys.stdout", made)
        monkeypatch.setattr("sys.stderr", made)
        return made

    return put


def obeyed(text: str) -> list[str]:
    return [character for character in text if character in ALL]


def test_shown_escapes_control_characters():
    """All of C0 but line ends and tabs, C1, what turns the direction, and lone surrogates; nothing else changes."""
    directions = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    assert [each for each in map(chr, range(0x11_0000)) if unicodedata.bidirectional(each) in directions] == TURNING
    assert obeyed(shown(ALL)) == []
    assert shown(EVIL) == "a\\x1b]0;owned\\x07\\x1b[2J\\x9b31m\\u202egpj.exe\\x0d\\x08[bold]b"
    assert shown("Z\u00fcrich \u05d0\u05d1 \U0001f600\t\n") == "Z\u00fcrich \u05d0\u05d1 \U0001f600\t\n"
    assert shown("a\tb\n", one_line=True) == "a\\x09b\\x0a"


def test_everything_printed_for_people_is_shown(terminal):
    """Text, errors, notes, tables with their titles, and progress: one console prints them all."""
    screen = terminal()
    output.out().print(EVIL, markup=False)
    output.out().print(f"[bold]{output.escape(EVIL)}[/]")
    output.error(f"{EVIL}\nschemaless: all is well")
    output.note(f"{EVIL}\nall is well")
    output.print_table(None, ["name", "cells"], [[EVIL, "1"]])
    with output.progress(EVIL, 2, "cells") as listener:
        listener(Advanced(2))

    assert obeyed(screen.text.replace("\x1b[?25l", "").replace("\x1b[?25h", "").replace("\r", "")) == []
    assert screen.text.count("owned") == 6
    assert "\nall is well" not in screen.text
    assert "\nschemaless: all is well" not in screen.text


def test_json_on_a_terminal_is_the_same_json(terminal):
    """Escaped there; in a pipe every character that may stand in JSON is as it was."""
    screen = terminal()
    output.print_json({"name": EVIL + ALL})
    sink = output.data_sink()
    line = json.dumps({"body": EVIL}, ensure_ascii=False).encode() + b"\n"
    sink.write(line)
    sink.flush()

    assert isinstance(sink, JSONTerminal)
    assert obeyed(screen.text) == []
    first, _, second = screen.text.rpartition("}\n{")
    assert json.loads(first + "}") == {"name": EVIL + ALL}
    assert json.loads("{" + second) == json.loads(line)


def test_json_in_a_pipe_is_unchanged(capsysbinary):
    """Programs get the bytes that are stored."""
    line = json.dumps({"body": EVIL}, ensure_ascii=False).encode() + b"\n"
    output.data_sink().write(line)
    output.print_json({"name": "\u202e\x9b"})

    assert capsysbinary.readouterr().out == line + '{\n  "name": "\u202e\x9b"\n}\n'.encode()


def test_shown_json_changes_nothing_that_json_needs():
    """Only inside strings: what stands between them is ASCII."""
    text = json.dumps([EVIL, {ALL.replace("\udc9b", ""): [1.5, None, True]}], ensure_ascii=False, indent=1)

    assert json.loads(shown_json(text)) == json.loads(text)


@pytest.mark.parametrize(
    "name", ["=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", "\uff1d1", "\x00=1"]
)
def test_csv_text_is_no_formula(name):
    """A name that begins like one is quoted, or begins with a control character spelled out; numbers stay numbers."""
    made = CSVText()
    made.writerow([name, "level", "-1.5", -2, 3.25, None, "a-b"])
    ((field, *rest),) = csv.reader(io.StringIO(made.getvalue()))

    assert field[0] in "'\\"
    assert field.endswith(name[-2:])
    assert rest == ["level", "-1.5", "-2", "3.25", "", "a-b"]


def test_every_csv_output_is_escaped():
    """There is no other writer of CSV on the command line."""
    assert capacity_json.CSVText is CSVText
    assert bench.csv_of is migrate_report.csv_of is csv_of
    for module in (bench, capacity_json, migrate_report):
        assert not hasattr(module, "csv")


def test_file_name_in_an_error_is_shown(invoke, tmp_path, monkeypatch):
    """A name that another person chose cannot rewrite the line that shows it."""
    monkeypatch.setenv("SCHEMALESS_URL", "mysql://u@nowhere.invalid/trips")
    for arguments in (("bench", "codecs", tmp_path / EVIL), ("info", "--url", f"mysql://{EVIL}/x"), (EVIL,)):
        result = invoke(*arguments)

        assert result.code in (1, 2)
        assert result.err
        assert obeyed(result.err) == []


def test_warning_of_the_library_is_shown(invoke):
    """A column's name in a warning is printed by Python's logging, and spelled out all the same."""
    invoke("--version")
    record = logging.LogRecord(
        "schemaless", logging.WARNING, "x", 1, "column %s is written as by default", (EVIL,), None
    )

    assert logging.lastResort is not None
    assert obeyed(logging.lastResort.format(record)) == []


@pytest.mark.mysql
def test_column_that_sql_wrote_is_shown(invoke, fresh_store, fresh_url, by_hand, row):
    """What the table holds under a name that no cell may have is named, not obeyed."""
    shard = fresh_store.shard_of(row)
    by_hand(fresh_store).execute(
        shard,
        b"INSERT INTO `%b`.cell (row_key, column_name, ref_key, body) VALUES (x'%b', '\x1b[31mE', 1, 'no JSON')"
        % (internals_of(fresh_store).shards.database(shard).encode(), row.hex.encode()),
    )
    for arguments in (("check",), ("cell", "history", row), ("dump",), ("codec", "advise")):
        result = invoke(*arguments, url=fresh_url)

        assert "x1b[31mE" in result.out + result.err or arguments[0] == "codec"
        assert obeyed(result.out + result.err) == []


@pytest.mark.parametrize("text", ["0", "0-3", "0-1,3,5-7", "2,4"])
def test_shards_are_shown_as_they_are_named(text):
    """Runs of neighbours as a range: a job of 4,096 shards is shown in a line."""
    assert shards_text(shards_of(text, 8)) == text
