"""``schemaless capacity model``: the answer first, sizes for people, JSON for programs."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from schemaless.cli.main import run

ARTICLE = ["capacity", "model", "--documents-per-day", "1M", "--bytes-per-document", "20KB", "--disk", "1024GB"]
START = ["--start", "2016-03-01"]


def answer(capsys, *arguments: str) -> dict:
    assert run([*ARTICLE, *START, "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_answer_comes_first(capsys):
    """The first line is the answer, with its date; the second what re-encoding makes of it."""
    assert run([*ARTICLE, *START, "--overhead", "40%", "--bytes-per-document-after", "2822"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["Full in 30 days, on 2016-03-31.", "After re-encoding: full in 217 days, on 2016-10-04."]
    assert lines[3].split() == ["now", "after", "re-encoding"]
    assert ["bytes", "a", "document", "20,000", "2,822"] in [line.split() for line in lines]


def test_json_holds_the_inputs_and_every_figure(capsys):
    """--json is one object with units in its names, the inputs as they were understood among them."""
    assert answer(capsys, "--overhead", "0.4", "--bytes-per-document-after", "2822", "--for-days", "365") == {
        "inputs": {
            "documents_per_day": 1_000_000,
            "bytes_per_document": 20_000,
            "disk_bytes_per_host": 1_024_000_000_000,
            "overhead_share": 0.4,
            "copies": 1,
            "hosts": 1,
            "start": "2016-03-01",
            "for_days": 365.0,
            "bytes_per_document_after": 2_822,
        },
        "bytes_per_day": 2e10,
        "usable_bytes": pytest.approx(6.144e11),
        "days_until_full": pytest.approx(30.72),
        "full_on": "2016-03-31",
        "hosts_needed": 12,
        "hosts_needed_for_days": 365.0,
        "after": {
            "bytes_per_day": 2.822e9,
            "usable_bytes": pytest.approx(6.144e11),
            "days_until_full": pytest.approx(217.7179),
            "full_on": "2016-10-04",
            "hosts_needed": 2,
            "hosts_needed_for_days": 365.0,
        },
    }


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("2000000", 2_000_000),
        ("2,000,000", 2_000_000),
        ("2_000_000b", 2_000_000),
        ("1TB", 10**12),
        ("1.5 tb", 1_500_000_000_000),
        ("512GiB", 512 * 2**30),
        ("1PiB", 2**50),
        (".5MB", 500_000),
        ("1e3KiB", 1_024_000),
    ],
)
def test_sizes_are_read_as_people_write_them(capsys, text, size_bytes):
    """KB to PB are powers of 1,000, KiB to PiB powers of 1,024, whatever the case."""
    assert answer(capsys, "--disk", text)["inputs"]["disk_bytes_per_host"] == size_bytes


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--disk", "1T"], "'1T' can be read two ways; write TB for 1,000s or TiB for 1,024s"),
        (["--disk", "1XB"], "'1XB': the unit is B, one of KB, MB, GB, TB, PB"),
        (["--disk", "-1TB"], "'-1TB' is not a size; write for example"),
        (["--disk", "much"], "'much' is not a size"),
        (["--disk", "nan"], "'nan' is not a size"),
        (["--disk", "9e400GB"], "'9e400GB' is too large to calculate with"),
        (["--disk", "0"], "disk_bytes_per_host must be 1 byte or more, got 0"),
        (["--documents-per-day", "1MB"], "'1MB' is not a number of 0 or more"),
        (["--overhead", "40"], "'40' is not from 0 to below 100 %; write 40% or 0.4"),
        (["--overhead", "most"], "'most' is not a share"),
        (["--overhead", "nan"], "'nan' is not from 0 to below 100 %"),
        (["--copies", "0"], "copies must be a whole number of 1 or more, got 0"),
        (["--copies", "3", "--hosts", "2"], "3 copies need at least 3 hosts, got 2"),
        (["--for-days", "nan"], "days must be finite, got nan"),
        (["--for-days", "-1"], "days must be 0 or more, got -1"),
        (["--start", "tomorrow"], "'tomorrow' does not match the format '%Y-%m-%d'"),
    ],
)
def test_what_cannot_be_used_is_a_usage_error(capsys, arguments, complaint):
    """A value that makes no sense ends with status 2 and says what to write; nothing is printed as data."""
    assert run([*ARTICLE, *arguments]) == 2

    printed = capsys.readouterr()
    assert complaint in " ".join(printed.err.split())
    assert printed.out == ""


def test_where_nothing_is_written_the_answer_is_never(capsys):
    """No documents a day: never full, and null in JSON, where infinity does not exist."""
    assert run([*ARTICLE, "--documents-per-day", "0"]) == 0
    assert capsys.readouterr().out.startswith("Never full: no documents are written.\n")

    result = answer(capsys, "--documents-per-day", "0")
    assert (result["days_until_full"], result["full_on"]) == (None, None)


def test_copies_without_hosts_take_as_many_hosts(capsys):
    """--copies 3 alone means three hosts, not an error."""
    result = answer(capsys, "--copies", "3")

    assert result["inputs"]["hosts"] == 3
    assert result["days_until_full"] == pytest.approx(51.2)


def test_years_stand_beside_many_days(capsys):
    """Two years and more are said in years too."""
    assert run([*ARTICLE, *START, "--overhead", "40%", "--hosts", "32"]) == 0

    assert capsys.readouterr().out.startswith("Full in 983 days (2.7 years), on 2018-11-09.\n")


def test_the_help_teaches_with_the_articles_example(capsys):
    """The example in --help can be copied, and gives what the help says."""
    assert run(["capacity", "model", "--help"]) == 0

    text = capsys.readouterr().out
    command = text.split("schemaless capacity model ")[-1].split("\n\n")[0].replace("\\\n", " ").split()
    assert run(["capacity", "model", *command]) == 0
    assert capsys.readouterr().out.startswith("Full in 30 days")
    assert run(["capacity", "model", *command, "--bytes-per-document-after", "2822"]) == 0
    assert "After re-encoding: full in 217 days" in capsys.readouterr().out


def test_the_page_shows_what_the_command_prints(capsys):
    """The example in docs/capacity-model.md is what the command prints today."""
    page = Path(__file__).parents[2] / "docs" / "capacity-model.md"
    block = page.read_text(encoding="utf-8").split("```console\n$ ")[1].split("```")[0]
    command, printed = re.fullmatch(r"((?:[^\n]*\\\n)*[^\n]*\n)(.*)", block, re.DOTALL).groups()

    assert run(shlex.split(command.replace("\\\n", " "))[1:]) == 0

    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == printed.splitlines()
