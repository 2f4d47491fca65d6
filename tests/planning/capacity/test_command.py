"""The command ``schemaless capacity model``: its sentence, table, JSON and usage errors."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from schemaless.cli.main import run

pytestmark = pytest.mark.once

ARTICLE = ["capacity", "model", "--documents-per-day", "1M", "--bytes-per-document", "20KB", "--disk", "1024GB"]
START = ["--start", "2016-03-01"]


def exactly(value) -> dict:
    return {"low": value, "mid": value, "high": value}


def answer(capsys, *arguments: str) -> dict:
    assert run([*ARTICLE, *START, "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_answer_comes_first(capsys):
    """The first line is the answer with its date, the second the answer after re-encoding."""
    assert run([*ARTICLE, *START, "--overhead", "40%", "--bytes-per-document-after", "2822"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "Full in 30 days, on 2016-03-31.",
        "After re-encoding: full in 217 days, on 2016-10-04: 187 days more (86 %).",
    ]
    assert lines[3].split() == ["now", "after", "re-encoding"]
    assert ["bytes", "a", "document", "20,000", "2,822"] in [line.split() for line in lines]


def test_json_holds_the_inputs_and_every_figure(capsys):
    """--json is one object with units in its names, including the parsed inputs."""
    result = answer(capsys, "--overhead", "0.4", "--bytes-per-document-after", "2822", "--for-days", "365")

    assert result["inputs"] == {
        "documents_per_day": exactly(1_000_000),
        "bytes_per_document": exactly(20_000),
        "disk_bytes_per_host": exactly(1_024_000_000_000),
        "overhead_share": exactly(0.4),
        "stored_bytes": exactly(0),
        "growth_share_per_year": exactly(0),
        "growth_kind": "compound",
        "weekdays": None,
        "retention_days": None,
        "copies": 1,
        "hosts": 1,
        "start": "2016-03-01",
        "for_days": 365.0,
        "price_per_tb": None,
        "body_bytes": None,
        "bytes_per_document_after": exactly(2_822),
        "server": "mysql",
        "column_name": "BASE",
        "codec_now": "legacy",
    }
    assert list(result) == ["inputs", "bytes_per_day", "usable_bytes", "days_until_full", "full_on", "then", "after"]
    assert result["bytes_per_day"] == exactly(2e10)
    assert result["days_until_full"] == pytest.approx(exactly(30.72))
    assert result["full_on"] == exactly("2016-03-31")
    assert result["then"]["hosts_needed"] == exactly(12)
    assert result["then"]["stored_bytes"] == exactly(7.3e12)
    assert result["then"]["headroom_share"]["mid"] == pytest.approx(1 - 7.3e12 / 6.144e11)
    assert result["after"]["days_until_full"] == pytest.approx(exactly(217.7179), rel=1e-6)
    assert result["after"]["then"]["hosts_needed"] == exactly(2)


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
def test_sizes_are_parsed_in_common_spellings(capsys, text, size_bytes):
    """KB to PB are powers of 1,000, KiB to PiB powers of 1,024, in upper or lower case."""
    assert answer(capsys, "--disk", text)["inputs"]["disk_bytes_per_host"] == exactly(size_bytes)


def test_a_price_gives_the_cost_of_a_month_and_what_is_saved(capsys):
    """20 GB a day at 90 per TB are 54.75 in an average month; with 2,822 bytes a document, 47.02 less."""
    given = [*ARTICLE, *START, "--bytes-per-document-after", "2822", "--price-per-tb", "90"]
    result = answer(capsys, *given[len(ARTICLE) :])
    assert run(given) == 0
    lines = capsys.readouterr().out.splitlines()

    now, after = result["price_per_month"]["mid"], result["after"]["price_per_month"]["mid"]
    assert now == pytest.approx(result["bytes_per_day"]["mid"] * 365 / 12 / 1e12 * 90)
    assert lines[1].endswith(f" days more, {now - after:,.2f} a month less (86 %).")
    assert ["a", "month", "at", "90", "per", "TB", f"{now:.2f}", f"{after:.2f}"] in [line.split() for line in lines]


def test_a_loss_is_not_shown_as_a_negative_gain(capsys):
    """Documents that get longer fill the disk earlier and cost more."""
    assert run([*ARTICLE, *START, "--bytes-per-document-after", "40kB", "--price-per-tb", "90"]) == 0

    assert capsys.readouterr().out.splitlines()[1].endswith(": 26 days less, 54.75 a month more (100 %).")


@pytest.mark.parametrize("place", [0, len(ARTICLE)])
def test_sizes_are_shown_in_binary_units_on_request(capsys, place):
    """``--binary``, anywhere on the command line, changes texts, but not the bytes of JSON."""
    binary = [*ARTICLE, *START]
    binary.insert(place, "--binary")
    outputs = []
    for arguments in ([*binary, "--json"], binary, [*ARTICLE, *START]):
        assert run(arguments) == 0
        outputs.append(capsys.readouterr().out)

    assert json.loads(outputs[0]) == answer(capsys)
    assert [("954 GiB" in text, "1.02 TB" in text) for text in outputs[1:]] == [(True, False), (False, True)]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--disk", "1T"], "'1T' can be read two ways; write TB for 1,000s or TiB for 1,024s"),
        (["--disk", "1XB"], "'1XB': the unit must be B, kB, MB, GB, TB, PB"),
        (["--disk", "-1TB"], "'-1TB' is not a size; write, for example"),
        (["--disk", "much"], "'much' is not a size"),
        (["--disk", "1,5TB"], "'1,5TB' is not a size"),
        (["--documents-per-day", "1,00"], "'1,00' is not a number of 0 or more"),
        (["--disk", "nan"], "'nan' is not a size"),
        (["--disk", "9e400GB"], "'9e400GB' is too large to calculate with"),
        (["--disk", "0"], "disk_bytes_per_host must be 1 byte or more, got 0"),
        (["--documents-per-day", "1MB"], "'1MB' is not a number of 0 or more"),
        (["--overhead", "40"], "'40' is not a share of at least 0 % and below 100 %; write, for example, 40%"),
        (["--overhead", "most"], "'most' is not a share"),
        (["--overhead", "nan"], "'nan' is not a share"),
        (["--copies", "0"], "copies must be an integer of at least 1, got 0"),
        (["--copies", "3", "--hosts", "2"], "3 copies need at least 3 hosts, got 2"),
        (["--for-days", "nan"], "days must be finite, got nan"),
        (["--for-days", "-1"], "days must be 0 or more, got -1"),
        (["--overhead", "30%..10%"], "'30%..10%' is not in ascending order"),
        (["--disk", "1TB..2TB..3TB..4TB"], "expected VALUE, LOW..HIGH or LOW..MID..HIGH, got"),
        (["--growth", "-100%"], "'-100%' is not a growth rate above -100 %; write, for example, 50%, 0.5 or -10%"),
        (["--weekdays", "1,2"], "weekdays must be 7 numbers of 0 or more, Monday first, not all 0; got 2: 1, 2"),
        (["--weekdays", "Mon"], "'Mon' is not seven numbers, Monday first"),
        (["--retention", "0"], "retention_days must be 1 to 36,525, got 0"),
        (["--body", "20KB"], "give either --bytes-per-document (disk space of a document) or --body"),
        (["--codec", "msgpack+zstd"], "no published ratio for codec 'msgpack+zstd', only for legacy, json+zlib, msgpa"),
        (["--codec", "msgpack+zstd=0"], "'0' is not a ratio above 0; write, for example, 14% or 0.14"),
        (["--codec", "=14%"], "--codec =14%: give the name of a codec"),
        (["--codec", "json+zlib", "--codec", "json+zlib=20%"], "--codec json+zlib is given twice"),
        (["--for-days", "3", "--until", "2030-01-01"], "give --for-days or --until, not both"),
        (["--start", "2016-03-01", "--until", "2016-02-01"], "--until 2016-02-01 is before the first day, 2016-03-01"),
        (["--start", "tomorrow"], "'tomorrow' does not match the format '%Y-%m-%d'"),
    ],
)
def test_an_invalid_value_is_a_usage_error(capsys, arguments, complaint):
    """Exit status 2, an error that says what to write, and no output."""
    assert run([*ARTICLE, *arguments]) == 2

    printed = capsys.readouterr()
    assert complaint in " ".join(printed.err.split())
    assert printed.out == ""


def test_without_new_documents_the_answer_is_never(capsys):
    """JSON has no infinity, so it is null there."""
    assert run([*ARTICLE, "--documents-per-day", "0"]) == 0
    assert capsys.readouterr().out.startswith("Never full: no documents are written.\n")

    result = answer(capsys, "--documents-per-day", "0")
    assert result["days_until_full"] == result["full_on"] == exactly(None)


def test_hosts_default_to_the_number_of_copies(capsys):
    """--copies 3 alone means three hosts, not an error."""
    result = answer(capsys, "--copies", "3")

    assert result["inputs"]["hosts"] == 3
    assert result["days_until_full"]["mid"] == pytest.approx(51.2)


def test_two_years_and_more_are_also_given_in_years(capsys):
    """983 days are 2.7 years."""
    assert run([*ARTICLE, *START, "--overhead", "40%", "--hosts", "32"]) == 0

    assert capsys.readouterr().out.startswith("Full in 983 days (2.7 years), on 2018-11-09.\n")


def test_a_century_is_the_longest_time_in_words(capsys):
    """A disk that lasts for millions of years is not given a number of days, except in JSON."""
    tiny = ["--documents-per-day", "1..10", "--bytes-per-document-after", "2822", "--disk", "10GB..10TB"]
    assert run([*ARTICLE, *START, *tiny, "--for-days", "2000000"]) == 0
    printed = capsys.readouterr().out.splitlines()

    assert printed[:2] == ["Full in over 100 years.", "After re-encoding: full in over 100 years."]
    assert "days until full over 100 years over 100 years" in [" ".join(line.split()) for line in printed]
    assert any(line.startswith("hosts for 2,000,000 days") for line in printed)
    assert answer(capsys, *tiny)["days_until_full"]["high"] == 500_000_000

    assert run([*ARTICLE, *START, "--documents-per-day", "1..1M"]) == 0
    assert "and over 100 years.\n" in capsys.readouterr().out


def test_ranges_give_ranges(capsys):
    """Worst and best case combine the bad and the good ends, in the sentence, the table and JSON."""
    ranges = ["--documents-per-day", "800k..1M..1.25M", "--disk", "1000GB", "--until", "2016-03-26"]
    result = answer(capsys, *ranges)

    assert result["days_until_full"] == {"low": 40, "mid": 50, "high": 62.5}
    assert result["full_on"] == {"low": "2016-04-10", "mid": "2016-04-20", "high": "2016-05-02"}
    assert result["then"]["headroom_share"] == pytest.approx({"low": 0.375, "mid": 0.5, "high": 0.6})
    assert run([*ARTICLE, *START, *ranges]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(
        "Full in 50 days, on 2016-04-20; between 40 days, on 2016-04-10, and 62 days, on 2016-05-02.\n"
    )
    assert "50 % (37 % to 60 %)" in printed


def test_codecs_are_compared_with_now(capsys):
    """Published ratios name their source; with --body, each codec gets its own page overhead."""
    bodies = ["capacity", "model", "--documents-per-day", "1M", "--body", "20KB", "--disk", "1024GB", *START]
    codecs = ["--codec", "msgpack+zlib", "--codec", "msgpack+zstd=10%..12%"]
    assert run([*bodies, *codecs, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)

    assert list(result["codecs"]) == ["msgpack+zlib", "msgpack+zstd"]
    assert result["codecs"]["msgpack+zlib"]["ratio_source"].startswith("Uber's encoding test of 2016")
    assert result["codecs"]["msgpack+zlib"]["ratio"]["mid"] == pytest.approx(0.1378, abs=1e-4)
    assert result["codecs"]["msgpack+zstd"]["ratio"] == pytest.approx({"low": 0.1, "mid": 0.11, "high": 0.12})
    assert result["codecs"]["msgpack+zstd"]["body_bytes"]["high"] == pytest.approx(2_400)
    assert result["inputs"]["bytes_per_document"]["mid"] > 32_768
    assert run([*bodies, *codecs]) == 0
    printed = capsys.readouterr().out
    assert "\nWith msgpack+zstd: full in " in printed
    assert (
        "msgpack+zlib: bodies are 13.8% of their present size, according to Uber's encoding test of 2016, on "
        in printed
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--retention", "30"], "Never full: deleting documents after 30 days frees enough space for new ones."),
        (["--growth", "-99.99%"], "Never full: growth is negative, and all future documents fit on the disks."),
        (
            ["--growth", "-99.99%..-99.98%..0%"],
            "Never full at the middle values; in the worst case, full in 51 days, on 2016-04-21.",
        ),
        (
            ["--growth", "-99.99%..0%"],
            "Full in 53 days, on 2016-04-23; between 51 days, on 2016-04-21, and never.",
        ),
        (["--stored", "2TB"], "Full in less than a day, on 2016-03-01."),
        (["--weekdays", "1,1,1,1,1,0,0", "--disk", "100GB"], "Full in 3 days, on 2016-03-04."),
    ],
)
def test_the_sentence_says_why_never_and_how_wide(capsys, arguments, sentence):
    """Retention, negative growth, ranges that include never, and disks that are already full."""
    assert run([*ARTICLE, *START, *arguments]) == 0
    assert capsys.readouterr().out.splitlines()[0] == sentence


def test_the_help_teaches_with_the_articles_example(capsys):
    """The example in --help can be copied, and gives the result that the help states."""
    assert run(["capacity", "model", "--help"]) == 0

    text = capsys.readouterr().out
    command = text.split("schemaless capacity model ")[-1].split("\n\n")[0].replace("\\\n", " ").split()
    assert run(["capacity", "model", *command]) == 0
    assert capsys.readouterr().out.startswith("Full in 30 days")
    assert run(["capacity", "model", *command, "--bytes-per-document-after", "2822"]) == 0
    assert "After re-encoding: full in 217 days" in capsys.readouterr().out


def test_the_page_shows_what_the_command_prints(capsys):
    """The example in docs/capacity.md matches the current output."""
    page = Path(__file__).parents[3] / "docs" / "capacity.md"
    block = page.read_text(encoding="utf-8").split("```console\n$ schemaless capacity model ")[1].split("```")[0]
    command, printed = re.fullmatch(r"((?:[^\n]*\\\n)*[^\n]*\n)(.*)", block, re.DOTALL).groups()

    assert run(["capacity", "model", *shlex.split(command.replace("\\\n", " "))]) == 0

    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == printed.splitlines()
