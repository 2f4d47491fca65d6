"""Tables in a terminal: no value breaks inside a word, however narrow it is."""

from __future__ import annotations

import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from schemaless import NewStoredCell
from schemaless.ui.terminal import output
from schemaless.ui.terminal.tables import table_lines, wrapped
from tests.cases import each

WORD = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=12)
VALUE = st.lists(WORD, max_size=6).map(" ".join)
TABLES = st.integers(1, 6).flatmap(
    lambda width: st.lists(st.lists(VALUE, min_size=width, max_size=width), min_size=1, max_size=5)
)


@pytest.mark.parametrize(
    ("decrease", "words", "text"),
    [
        (6.29e6, (), "6.29 MB less"),
        (0, (), "0 B less"),
        (-6.29e6, (), "6.29 MB more"),
        (-6.29e6, ("given back", "more space used"), "6.29 MB more space used"),
        (6.29e6, ("",), "6.29 MB"),
    ],
)
def test_a_growth_is_no_negative_decrease(decrease, words, text):
    """The sign becomes a word."""
    assert output.bytes_change_text(decrease, *words) == text


@pytest.mark.once
@given(TABLES, st.integers(1, 100), st.integers(0, 6))
def test_a_table_of_any_width_breaks_no_word(cells, width, text_columns):
    """Each word of each value stands somewhere, unbroken, and no line is wider than there is room for its words."""
    columns, *rows = cells
    header, lines = table_lines(columns, rows, text_columns=text_columns, width=width)

    assert {word for row in rows for value in row for word in value.split()} <= set(" ".join(header + lines).split())
    if header:
        assert all(cell_len(line) <= width for line in header + lines)


def test_table_without_a_width_has_a_line_for_each_row():
    """What goes into a file or a pipe is one line a row, however long."""
    rows = [[str(number), "words " * 100, "1.0 MiB (0.9 to 1.1)"] for number in range(3)]

    header, lines = table_lines(["", "text", "size"], rows, text_columns=2, width=None)

    assert len(header) == 1
    assert len(lines) == 3


def test_table_a_little_too_wide_breaks_before_brackets_and_keeps_numbers_with_units():
    """An interval goes to the next line as a whole; 1.0 MiB is never torn apart."""
    rows = [["cluster-1", "19.6 MiB (18.9 to 20.4)", "2.8 MiB"], ["cluster-2", "5.0 MiB (4.0 to 6.0)", "17.2 MiB"]]

    header, lines = table_lines(["cluster", "as JSON text", "body bytes"], rows, text_columns=1, width=37)

    assert header == ["cluster      as JSON text  body bytes"]
    assert lines == [
        "cluster-1        19.6 MiB     2.8 MiB",
        "           (18.9 to 20.4)",
        "cluster-2         5.0 MiB    17.2 MiB",
        "             (4.0 to 6.0)",
    ]


def test_table_far_too_wide_becomes_a_block_for_each_row():
    """A path that is longer than the terminal is wide stays whole, so that it can be copied."""
    path = "/run/user/1000/schemaless/" + "0af23d6ceb6f27e2" * 3 + ".sock"

    header, lines = table_lines(
        ["cluster", "server", "note"], [["cluster-1", path, ""], ["7", path, "a note"]], text_columns=3, width=60
    )

    assert header == []
    assert lines == ["cluster-1", f"  server   {path}", "cluster 7", f"  server   {path}", "  note     a note"]


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("30.8 MiB (19.3 to 42.4)", 23, ["30.8 MiB (19.3 to 42.4)"]),
        ("30.8 MiB (19.3 to 42.4)", 22, ["30.8 MiB", "(19.3 to 42.4)"]),
        ("30.8 MiB (19.3 to 42.4)", 9, ["30.8 MiB", "(19.3 to", "42.4)"]),
        ("2 of 4 shards", 10, ["2 of", "4 shards"]),
        ("10.25 ms, 2.26 ms", 10, ["10.25 ms,", "2.26 ms"]),
        ("trained dictionary of 112,640 bytes", 14, ["trained", "dictionary of", "112,640 bytes"]),
        ("", 5, [""]),
    ],
)
def test_wrapped_breaks_where_a_reader_would(text, width, lines):
    """Brackets begin a line, and a number keeps its unit."""
    assert wrapped(text, width) == lines


def test_print_breaks_prose_between_words_and_no_path_at_all():
    """What can be copied is not torn apart: the terminal shows a long path on two lines, and knows it as one."""
    screen = io.StringIO()
    console = output._Console(screen, width=40, force_terminal=True, color_system=None)
    path = "/run/user/1000/schemaless/" + "0af23d6ceb6f27e2" * 3 + ".sock"

    console.print("a server of the datastore listens at this place")
    console.print(f"it is {path}, which is a socket", markup=False)

    assert screen.getvalue() == (
        f"a server of the datastore listens at \nthis place\nit is {path}, which is a socket\n"
    )


# ---- the commands


@pytest.fixture
def migrated(invoke, fresh_store, migrate_url, new_row):
    """A migrated datastore of 60 cells in two columns; gives its URL."""
    fresh_store.put_stored_cells(
        [NewStoredCell(new_row(), "AB"[n % 2], 1, json.dumps({"text": "text " * (40 + n)}).encode()) for n in range(60)]
    )
    assert invoke("migrate", "run", "--execute", url=migrate_url).code == 0
    return migrate_url


@pytest.mark.long
@pytest.mark.mysql
@each("width", ["80", "60"])
@each(
    "command",
    [
        ("info", "--count"),
        ("topology", "show"),
        ("job", "show"),
        ("job", "list"),
        ("migrate", "report", "--all"),
        ("migrate", "plan", "--to", "legacy"),
    ],
)
def test_commands_in_a_narrow_terminal_break_no_word(invoke, monkeypatch, migrated, command, width):
    """Every word of the narrow output stands in that of full width; what is too wide holds one that is too long."""
    wide = invoke(*command, url=migrated)
    with monkeypatch.context() as patch:
        patch.setenv("COLUMNS", width)
        narrow = invoke(*command, url=migrated)

    assert narrow.code == wide.code == 0
    changing = re.compile(r"[0-9][0-9.,:]*")  # seconds, bytes of a log that grows
    assert {changing.sub("0", word) for word in narrow.out.split()} <= {
        changing.sub("0", word) for word in wide.out.split()
    }
    table = [line for line in narrow.out.splitlines() if re.search(r"\S {2,}\S", line)]
    assert [line for line in table if len(line) > int(width) and not re.search(r"\S{40}", line)] == []
