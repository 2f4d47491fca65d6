"""The command ``schemaless bench codecs``: table, files, page, and stopping it."""

from __future__ import annotations

import csv
import json
import re
import sys
from functools import partial
from html.parser import HTMLParser
from unittest.mock import Mock

import pytest
from playwright.sync_api import sync_playwright

from schemaless.bench import charts as bench_charts
from schemaless.bench import rounds
from schemaless.bench.corpora import Corpus
from schemaless.cli.main import run
from schemaless.codec.envelope import encode_body
from tests.cli.test_capacity_page import CHROMIUM, needs_chromium

DOCUMENTS = [{"id": number, "name": "name " * 20, "fare": number / 4} for number in range(12)]
FEW = ["--serializer", "msgpack", "--serializer", "protobuf", "--compressor", "none", "--rounds", "2"]


@pytest.fixture(autouse=True)
def one_pass(monkeypatch):
    """Measure each document once per round, and leave the garbage collector alone, as no test asserts times."""
    monkeypatch.setattr(rounds, "gc", Mock())
    monkeypatch.setattr("schemaless.cli.bench.Benchmark", partial(rounds.Benchmark, most_passes=1))


@pytest.fixture
def trips(tmp_path):
    path = tmp_path / "trips.ndjson"
    path.write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS), encoding="utf-8")
    return path


class Balanced(HTMLParser):
    """Checks that tags are balanced, and collects the addresses that a page would load."""

    VOID = frozenset({"meta", "br", "img", "link"})

    def __init__(self):
        super().__init__()
        self.open = []
        self.loads = []
        self.titles = []

    def handle_starttag(self, tag, attrs):
        self.loads += [value for name, value in attrs if name in ("src", "href", "srcset") and value[:1] != "#"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_table_has_every_combination(trips, capsys):
    """Sizes, times, marks and findings are on standard output."""
    assert run(["bench", "codecs", str(trips), *FEW]) == 0

    text = capsys.readouterr().out
    assert "trips: 12 documents" in text
    for name in ("json none", "json zlib", "msgpack none", "msgpack zlib", "protobuf none", "protobuf zlib"):
        assert re.search(rf"^\*? +{name} +[0-9,]+ +[0-9.]+ +[0-9.]+", text, re.MULTILINE)
    assert "Smallest: " in text
    assert "bz2" not in text


def test_json_has_everything(trips, capsys):
    """One object for one file, unaffected by the messages on standard error."""
    assert run(["bench", "codecs", str(trips), *FEW, "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["corpus"]["documents"] == 12
    assert {each["name"] for each in found["combinations"]} >= {"json zlib", "protobuf none"}


@pytest.mark.once
@pytest.mark.long
def test_several_files_and_sets_give_a_list(trips, capsys, tmp_path):
    """Each set gets a folder, and one CSV file has all figures."""
    out = tmp_path / "out"
    sets = ["--corpus", "small", "--limit", "5", "--out", str(out)]
    assert run(["bench", "codecs", str(trips), *sets, *FEW, "--json"]) == 0

    assert [each["corpus"]["name"] for each in json.loads(capsys.readouterr().out)] == ["trips", "small"]
    with (out / "all.csv").open(encoding="utf-8", newline="") as file:
        assert {(row["corpus"], row["documents"]) for row in csv.DictReader(file)} == {("trips", "5"), ("small", "5")}
    summary = Balanced()
    summary.feed((out / "index.html").read_text(encoding="utf-8"))
    assert summary.loads == ["trips/index.html", "small/index.html"]
    assert all((out / link).is_file() for link in summary.loads)


@pytest.mark.long
def test_several_sets_are_compared_side_by_side(trips, capsys):
    """One column per set, relative to JSON, and to JSON + zlib with compression."""
    assert run(["bench", "codecs", str(trips), "--corpus", "integers-10", "--limit", "5", *FEW]) == 0

    shown = capsys.readouterr().out.partition("Bytes, as a multiple of JSON text")[2]
    assert shown.split("\n")[1].split() == ["trips", "integers-10"]
    assert re.search(r"^json none +1.00 +1.00$", shown, re.MULTILINE)
    assert re.search(r"^json zlib +1.00 +1.00$", shown.partition("multiple of JSON + zlib")[2], re.MULTILINE)


@pytest.mark.long
def test_the_output_folder_has_page_charts_figures_and_schemas(trips, tmp_path):
    """All files of a result are written."""
    out = tmp_path / "out"
    assert run(["bench", "codecs", str(trips), *FEW, "--out", str(out)]) == 0

    assert {path.name for path in out.iterdir()} == {
        *("index.html", "result.json", "result.csv", "documents.proto"),
        *("size.png", "time.png", "front.png"),
    }
    assert all((out / f"{name}.png").read_bytes()[:4] == b"\x89PNG" for name in ("size", "time", "front"))
    with (out / "result.csv").open(encoding="utf-8", newline="") as file:
        rows = {f"{row['serializer']} {row['compressor']}": row for row in csv.DictReader(file)}
    assert rows["protobuf zlib"]["article_size_bytes"] == "10885018"
    assert rows["json zlib"]["size_factor"] == "1.0"


@pytest.mark.long
def test_the_page_is_self_contained(tmp_path, capsys):
    """Well-formed, no scripts, no external references, escaped names, and a list of losses."""
    path = tmp_path / "<b>&.ndjson"
    path.write_text('{"a": 1, "b": 2}\n{"b": 1, "a": 2}\n{"a": 99999999999999999999}\n', encoding="utf-8")
    out = tmp_path / "out"
    assert run(["bench", "codecs", str(path), *FEW, "--out", str(out)]) == 0

    page = (out / "index.html").read_text(encoding="utf-8")
    # A picture names the namespaces of SVG by their addresses, which nothing loads.
    page = re.sub(r'"data:image/svg\+xml,[^"]+"', '""', page)
    parser = Balanced()
    parser.feed(page)
    assert (parser.open, [load for load in parser.loads if load]) == ([], [])
    assert "<script" not in page
    assert "http" not in page
    assert "&lt;b&gt;&amp;" in page
    assert "<b>&" not in page
    assert "the order of keys" in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_a_missing_library_is_reported_and_the_others_are_measured(trips, capsys, monkeypatch):
    """The line has the command that installs the library."""
    monkeypatch.setitem(sys.modules, "cbor2", None)
    assert run(["bench", "codecs", str(trips), "--serializer", "cbor", "--compressor", "none", "--rounds", "1"]) == 0

    text = capsys.readouterr().out
    assert re.search(r"^missing: cbor \(.*\); pip install cbor2$", text, re.MULTILINE)
    assert "json none" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no documents: give a FILE with one JSON document per line, or --corpus logbooks"),
        (["nowhere.ndjson"], "no such file: nowhere.ndjson"),
        (["--corpus", "small", "--serializer", "xml"], "'xml' is not one of 'json', "),
        (["--corpus", "small", "--compressor", "rar"], "'rar' is not one of 'none', "),
    ],
)
def test_usage_errors_say_what_to_do(arguments, words, capsys):
    """Exit status 2 and one line on standard error."""
    assert run(["bench", "codecs", *arguments]) == 2

    assert words in " ".join(capsys.readouterr().err.split())


def test_missing_matplotlib_is_reported_before_measuring(trips, tmp_path, capsys, monkeypatch):
    """A long measurement must not fail at its end."""
    monkeypatch.setattr("schemaless.cli.bench.find_spec", lambda name: None)
    monkeypatch.setattr(rounds.Benchmark, "run", lambda *_: pytest.fail("it was measured"))

    assert run(["bench", "codecs", str(trips), "--out", str(tmp_path / "out")]) == 2
    assert "pip install 'schemaless-store[bench]'" in " ".join(capsys.readouterr().err.split())


@pytest.mark.long
def test_ctrl_c_keeps_complete_rounds(trips, tmp_path, capsys, monkeypatch):
    """They are shown and written, and the exit status is 3."""
    real = rounds.Benchmark.run_round

    def stops(self, number, listener):
        if number == 1:
            raise KeyboardInterrupt
        real(self, number, listener)

    monkeypatch.setattr(rounds.Benchmark, "run_round", stops)
    out = tmp_path / "out"
    assert run(["bench", "codecs", str(trips), *FEW, "--rounds", "5", "--out", str(out)]) == 3

    shown = capsys.readouterr()
    assert ", 1 round, " in shown.out
    assert f"the result contains 1 of 5 rounds of the last set; saved in {out}" in " ".join(shown.err.split())
    assert json.loads((out / "result.json").read_text(encoding="utf-8"))["rounds"] == 1


@pytest.mark.long
def test_ctrl_c_before_the_first_round_gives_no_result(trips, tmp_path, capsys, monkeypatch):
    """A message says so, and nothing is written."""

    def stops(self, number, listener):
        raise KeyboardInterrupt

    monkeypatch.setattr(rounds.Benchmark, "run_round", stops)
    out = tmp_path / "out"
    assert run(["bench", "codecs", str(trips), *FEW, "--out", str(out)]) == 3

    assert "so there is no result" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.long
def test_charts_of_a_single_combination():
    """One bar, and a front of one point."""
    corpus = Corpus("one", "for tests", [{"a": 1}], ["1"], False, "0" * 64)
    result = rounds.Benchmark(corpus, rounds=1, only_serializers=["json"], only_compressors=["zlib"]).run()

    for chart in bench_charts.charts_of(result).values():
        assert chart.png()[:4] == b"\x89PNG"
        assert "json zlib" in chart.svg() + chart.description


@pytest.mark.once
@needs_chromium
def test_the_page_fits_the_window_and_shows_each_chart_once(trips, tmp_path):
    """At desktop and phone width nothing overflows, the matching form is shown, and dark pages change the colours."""
    assert run(["bench", "codecs", str(trips), *FEW, "--out", str(tmp_path / "out")]) == 0
    found = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for width, scheme in [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]:
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page.goto((tmp_path / "out" / "index.html").as_uri())
            found[width, scheme] = page.evaluate(_SEEN)
            page.close()
        browser.close()

    for (width, _), seen in found.items():
        assert seen["width"] <= width
        assert seen["charts"] == ["narrow" if width < 640 else "wide"] * 3
        assert seen["outside"] == 0
    assert found[1280, "light"]["filter"] != found[1280, "dark"]["filter"]


_SEEN = """() => {
  const width = document.documentElement.scrollWidth;
  const shown = [...document.querySelectorAll("figure img")].filter(img => img.checkVisibility());
  const drawings = shown.map(img => {
    const text = decodeURIComponent(img.src.slice(img.src.indexOf(",") + 1));
    const svg = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
    img.after(svg);
    return svg;
  });
  const sticksOut = (svg, text) => {
    const box = svg.getBoundingClientRect(), inner = text.getBoundingClientRect();
    return inner.left < box.left - 2 || inner.right > box.right + 2;
  };
  return {
    width,
    charts: shown.map(img => img.className),
    outside: drawings.flatMap(svg => [...svg.querySelectorAll("text")].filter(text => sticksOut(svg, text))).length,
    filter: getComputedStyle(shown[0]).filter,
  };
}"""


def test_versions_of_documents_are_compared_whole_and_as_differences(invoke, tmp_path):
    """The versions of a document have a field in common and are in order; other documents may stand between them."""
    file = tmp_path / "history.ndjson"
    lines = [{"key": n % 3, "legs": [f"leg {leg}" for leg in range(100)], "at": n // 3} for n in range(120)]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    asked = invoke("bench", "codecs", file, "--versions", "key", "--json")
    assert (asked.code, asked.json["rows"], asked.json["versions"]) == (0, 3, 120)
    found = {each["codec"]: each for each in asked.json["codecs"]}["msgpack+zlib"]
    assert found["whole_bytes"] == sum(len(encode_body(line)) for line in lines)
    assert 100 < found["deltas"] <= 117
    assert found["history_bytes"] == pytest.approx(found["share"] * found["whole_bytes"])
    assert found["share"] < 0.35
    table = invoke("bench", "codecs", file, "--versions", "key").out
    assert re.search(r"msgpack\+zlib +[0-9,]+ +[0-9,]+ +[0-9.]+% +[0-9]+", table)
    refused = invoke("bench", "codecs", file, "--versions", "key", "--row-key", "key")
    assert (refused.code, "--versions only takes" in refused.err) == (2, True)
    assert "no field 'none'" in invoke("bench", "codecs", file, "--versions", "none").err
