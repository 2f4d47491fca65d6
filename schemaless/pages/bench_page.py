"""A codec benchmark as one HTML page, and its findings in sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Final
from urllib.parse import quote

from schemaless.bench import dictionaries
from schemaless.bench.results import BASELINE, STAGES, Combination, Result
from schemaless.pages import charts
from schemaless.pages.bench_charts import charts_of
from schemaless.pages.frame import answers, html_page, section, table, terms
from schemaless.terminal.output import bytes_text

HEADER: Final = (
    "combination",
    "bytes",
    "size",
    "time",
    "spread",
    *(f"{stage} ms" for stage in STAGES),
    "write cost",
    "read cost",
    "size 2016",
    "time 2016",
)
_QUIET_SHARE: Final = 0.95
_QUIET_LOAD: Final = 0.5


def bench_html(result: Result) -> str:
    """Return the page.

    Raises:
        SchemalessError: Matplotlib is missing.
    """
    pictures = charts_of(result)
    corpus = result.corpus
    sections = [
        answers(_answers(result)),
        section("Size against time", _lead(LEADS["front"]) + pictures["front"].html()),
        section("Size", _lead(LEADS["size"]) + pictures["size"].html(), long=True),
        section("Time", _lead(LEADS["time"]) + pictures["time"].html(), long=True),
        section("All figures", _lead(*MARKS) + figures_table(result.combinations), long=True),
        section("What was not exact", losses_table(result)) if losses(result) else "",
        section("What is missing", _missing(result)) if result.absentees or result.failed else "",
        section("How it was measured", terms(method(result)), long=True),
    ]
    return html_page(
        f"Codecs on {corpus.name}",
        f"{corpus.documents:,} documents, {bytes_text(corpus.json_bytes)} of JSON: {corpus.about}",
        sections,
        style=charts.STYLE,
    )


LEADS: Final = {
    "front": "Down and to the left is better. The red line joins what nothing exact beats in both: the Pareto front.",
    "size": "Total bytes, as a multiple of those of JSON + zlib. Names in red are on the front; bars with > are cut.",
    "time": "CPU time of encoding, compressing, inflating and decoding, as a multiple of that of JSON + zlib.",
}
MARKS: Final = (
    "Rows in colour are on the Pareto front.",
    "~ loses the order of keys in some documents, ! loses more or refuses some; neither is on the front.",
    "Sizes and times are multiples of JSON + zlib; those of 2016 are the article's.",
    "Costs are those of compression: writing as a multiple of encoding, reading as a multiple of decoding.",
    "Marshal and Pickle are for comparison: they run what the bytes say.",
)


def findings(result: Result) -> list[str]:
    """Return what the figures say, each in a sentence."""
    exact = [combination for combination in result.combinations if not combination.fidelity.mark]
    sentences = []
    if exact:
        smallest = min(exact, key=_size)
        fastest = min(exact, key=_time)
        sentences.append(f"Smallest: {_with(smallest)}. Fastest: {_with(fastest)}.")
    kept = [combination for combination in exact if combination.store and combination.compressor != "none"]
    if kept:
        best = min(kept, key=_size)
        sentences.append(f"Smallest of what the store keeps: {_with(best)}.")
    ours = {combination.name: combination for combination in exact}
    pair = ours.get("store msgpack+zlib"), ours.get("store json+zlib")
    if pair[0] and pair[1]:
        ratio = pair[0].size_bytes / pair[1].size_bytes
        larger = f"{abs(ratio - 1):.1%} {'larger' if ratio > 1 else 'smaller'}"
        sentences.append(f"The store's default, msgpack+zlib, is {larger} than json+zlib on these documents.")
    return sentences


def losses(result: Result) -> list[tuple[str, str, int, int]]:
    """Return (serializer, reason, documents, number of the first) for whatever did not come back exactly."""
    by_serializer = {combination.serializer: combination.fidelity for combination in result.combinations}
    return [
        (serializer, reason, count, first)
        for serializer, fidelity in by_serializer.items()
        for reason, (count, first) in fidelity.reasons.items()
    ]


def row_of(combination: Combination) -> list[str]:
    """Return the figures of a combination in the order of ``HEADER``."""
    time = combination.time_factor
    article = combination.article
    return [
        f"{combination.name} {combination.fidelity.mark}".rstrip(),
        f"{combination.size_bytes:,}",
        f"{combination.size_factor:.2f}",
        "-" if time is None else f"{time.mid:.2f}",
        "-" if time is None else f"{(time.high - time.low) / time.mid:.0%}",
        *(f"{combination.stages[stage].mid:,.1f}" for stage in STAGES),
        f"{combination.write_cost:.1f}",
        f"{combination.read_cost:.1f}",
        "" if article is None else f"{article.size_factor:.2f}",
        "" if article is None else f"{article.speed_factor:.2f}",
    ]


def matrices(results: Sequence[Result]) -> list[tuple[str, list[str], list[list[str]]]]:
    """Return (title, header, rows) of tables with a column for each of several corpora.

    Of what is not compressed: bytes, encoding and decoding relative to JSON; of what is: bytes relative to JSON + zlib.
    """
    by_corpus = [{combination.name: combination for combination in result.combinations} for result in results]
    header = [result.corpus.name for result in results]
    plain = [name for name in _in_any(by_corpus) if name.endswith(("none", "+none"))]
    packed = [name for name in _in_any(by_corpus) if name.endswith(("zlib", "zstd", dictionaries.NAME))]

    def rows(names: Sequence[str], base: str, of: Callable[[Combination], float]) -> list[list[str]]:
        return [
            [name, *(_relative(of_corpus.get(name), of_corpus.get(base), of) for of_corpus in by_corpus)]
            for name in names
        ]

    json, zlib = " ".join((BASELINE[0], "none")), " ".join(BASELINE)
    tables = [
        ("Bytes, as a multiple of JSON text", rows(plain, json, _size)),
        ("Encoding, as a multiple of JSON", rows(plain, json, lambda one: one.stages["encode"].mid)),
        ("Decoding, as a multiple of JSON", rows(plain, json, lambda one: one.stages["decode"].mid)),
        ("Bytes, as a multiple of JSON + zlib", rows(packed, zlib, _size)),
        ("CPU time, as a multiple of JSON + zlib", rows(packed, zlib, lambda one: one.total_ms.mid)),
    ]
    return [(title, ["", *header], lines) for title, lines in tables if lines]


def summary_of(results: Sequence[Result]) -> str:
    """Return a page that leads to those of several corpora, with the tables of ``matrices``."""
    corpora = [
        [result.corpus.name, f"{result.corpus.documents:,}", bytes_text(result.corpus.json_bytes), result.corpus.about]
        for result in results
    ]
    links = "".join(
        f'<li><a href="{quote(result.corpus.name)}/index.html">{escape(result.corpus.name)}</a></li>'
        for result in results
    )
    sections = [section("Documents", table(["", "documents", "as JSON", "what"], corpora) + f"<ul>{links}</ul>")]
    sections += [section(title, table(header, rows), long=True) for title, header, rows in matrices(results)]
    sections.append(section("How it was measured", terms(method(results[0])[1:]), long=True))
    return html_page("Codecs on several sets of documents", _lead_text(results), sections)


def _lead_text(results: Sequence[Result]) -> str:
    return f"{len(results)} sets, {sum(result.corpus.documents for result in results):,} documents. {MARKS[1]}"


def _in_any(by_corpus: Sequence[dict[str, Combination]]) -> list[str]:
    return list(dict.fromkeys(name for of_corpus in by_corpus for name in of_corpus))


def _relative(one: Combination | None, base: Combination | None, of: Callable[[Combination], float]) -> str:
    if one is None or base is None or one.fidelity.refused or not of(base):
        return "-"
    return f"{of(one) / of(base):.2f}{one.fidelity.mark}"


def _size(combination: Combination) -> float:
    return combination.size_bytes


def figures_table(combinations: Sequence[Combination]) -> str:
    """Return the table of all figures as HTML."""
    front = [number for number, combination in enumerate(combinations) if combination.on_front]
    return table(HEADER, [row_of(combination) for combination in combinations], front=front)


def losses_table(result: Result) -> str:
    """Return the table of what did not come back exactly as HTML."""
    rows = [[name, reason, f"{count:,}", f"{first:,}"] for name, reason, count, first in losses(result)]
    return table(["serializer", "what", "documents", "first of them"], rows)


def method(result: Result) -> list[tuple[str, str]]:
    """Return terms and what they mean, with what was measured where."""
    corpus, machine = result.corpus, result.machine
    rows = "each document a row of its own" if corpus.rows is None else f"{corpus.rows:,} rows"
    rounds = f"{result.rounds}"
    if result.rounds < result.rounds_wanted:
        rounds += f" of {result.rounds_wanted}: it was stopped"
    documents = (
        f"{corpus.documents:,}, {rows}; {corpus.json_bytes:,} bytes as compact JSON, the median "
        f"{corpus.median_bytes:,}, the largest {corpus.largest_bytes:,}. SHA-256 of their lines: {corpus.sha256}."
    )
    where = f"{machine.processor}, {machine.cores} cores, {machine.memory_gib} GiB, {machine.system}. {busy(result)}"
    versions = [machine.python, *(f"{name} {number}" for name, number in machine.libraries.items())]
    return [
        ("Documents", documents),
        ("Rounds", f"{rounds}. {_ROUNDS}"),
        ("Time", _TIME),
        ("Exactness", _EXACTNESS),
        ("Store", _STORE),
        ("Settings", "; ".join(f"{name}: {what}" for name, what in result.settings.items())),
        ("Machine", where),
        ("Versions", ", ".join(versions)),
        ("Begun", f"{result.measured_at} (UTC)"),
        ("Article", _ARTICLE),
    ]


_ROUNDS: Final = (
    "They are interleaved: with each chunk of about a MB every contender has its turn before the next. Figures are "
    "medians; the spread is the distance of the quartiles, relative to the median."
)
_TIME: Final = (
    "CPU time of one thread, for all documents: encode (for Thrift, Protocol Buffers, Avro and FlatBuffers with what "
    "makes their objects of a document), compress, inflate, decode, each to Python's own objects."
)
_EXACTNESS: Final = (
    "Each decode of each round is compared with its document: 1 is not 1.0, and the order of keys counts."
)
_STORE: Final = (
    "What is called store is this store's own: with exact check, envelope and checksum, and with what the extra [fast] "
    "brings. Dictionaries are trained on one half of the rows and judged on the other, each half in turn."
)
_ARTICLE: Final = (
    "Uber Engineering, 2016: 2,219 trips on their machines, with the libraries of that time; its factors are relative "
    "to its own JSON + zlib."
)


def busy(result: Result) -> str:
    """Return how much of the machine there was."""
    load = f"load {result.load[0]:.1f} at the beginning, {result.load[1]:.1f} at the end"
    if result.cpu_share >= _QUIET_SHARE and result.load[0] <= _QUIET_LOAD * result.machine.cores:
        return f"The machine was quiet: this process had its processor {result.cpu_share:.0%} of the time ({load})."
    return (
        f"The machine was busy: this process had its processor {result.cpu_share:.0%} of the time ({load}). "
        "CPU time leaves the waiting out, but not what others do to caches and clocks."
    )


def _answers(result: Result) -> list[tuple[str, str]]:
    exact = [
        combination for combination in result.combinations if not combination.fidelity.mark and combination.time_factor
    ]
    kept = [combination for combination in exact if combination.store]
    boxes = []
    for what, among, of in (
        ("smallest", exact, _size),
        ("fastest", exact, _time),
        ("smallest that the store keeps", kept, _size),
    ):
        if among:
            best = min(among, key=of)
            boxes.append((best.name, f"{what}: {_factors(best)}"))
    return boxes


def _time(combination: Combination) -> float:
    return float("inf") if combination.time_factor is None else combination.time_factor.mid


def _with(combination: Combination) -> str:
    return f"{combination.name} ({_factors(combination)})"


def _factors(combination: Combination) -> str:
    time = "" if combination.time_factor is None else f", {combination.time_factor.mid:.2f} of the time"
    return f"{combination.size_factor:.2f} of the bytes{time} of JSON + zlib"


def _missing(result: Result) -> str:
    rows = [[absent.name, absent.reason, absent.install] for absent in result.absentees]
    rows += [[name, reason, ""] for name, reason in result.failed.items()]
    return table(["contender", "why", "what brings it"], rows)


def _lead(*lines: str) -> str:
    return f'<p class="soft">{" ".join(lines)}</p>'
