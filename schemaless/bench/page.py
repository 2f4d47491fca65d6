"""Render a codec benchmark as an HTML page, and its findings as sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from operator import attrgetter
from typing import Final
from urllib.parse import quote

from schemaless.base.numbers import bytes_text
from schemaless.bench import dictionaries
from schemaless.bench.charts import charts_of
from schemaless.bench.results import BASELINE, STAGES, Combination, Result
from schemaless.ui.pages import charts
from schemaless.ui.pages.frame import answers, html_page, section, table, terms

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
_SMALLEST: Final = "smallest"
_FASTEST: Final = "fastest"
_SUPPORTED: Final = "smallest that schemaless supports"
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
        answers((best.name, f"{label}: {_factors(best)}") for label, best in _best(result).items()),
        section("Size against time", _lead(LEADS["front"]) + pictures["front"].html()),
        section("Size", _lead(LEADS["size"]) + pictures["size"].html(), long=True),
        section("Time", _lead(LEADS["time"]) + pictures["time"].html(), long=True),
        section("All figures", _lead(*MARKS) + figures_table(result.combinations), long=True),
        section("Formats that lost data", losses_table(result)) if losses(result) else "",
        section("Not measured", _missing(result)) if result.absentees or result.failed else "",
        section("How it was measured", terms(method(result)), long=True),
    ]
    return html_page(
        f"Codecs on {corpus.name}",
        f"{corpus.documents:,} documents, {bytes_text(corpus.json_bytes)} of JSON: {corpus.about}",
        sections,
        style=charts.STYLE,
    )


LEADS: Final = {
    "front": "Down and to the left is better. The red line is the Pareto front: no lossless combination is both "
    "smaller and faster than one of these.",
    "size": "Total bytes, as a multiple of JSON + zlib. Names in red are on the Pareto front; bars marked > are cut "
    "off.",
    "time": "CPU time to encode, compress, decompress and decode, as a multiple of JSON + zlib.",
}
MARKS: Final = (
    "Coloured rows are on the Pareto front.",
    "~ loses the order of keys in some documents; ! loses more, or refuses some. Neither can be on the front.",
    "Sizes and times are multiples of JSON + zlib; the columns for 2016 are from Uber's article.",
    "Write cost: encoding and compressing as a multiple of encoding.",
    "Read cost: inflating and decoding as a multiple of decoding.",
    "Marshal and Pickle are only for comparison: reading bytes from an untrusted source with them is unsafe.",
)


def findings(result: Result) -> list[str]:
    """Return the main findings as sentences."""
    best, sentences = _best(result), []
    if best:
        sentences.append(f"Smallest: {_with(best[_SMALLEST])}. Fastest: {_with(best[_FASTEST])}.")
    if _SUPPORTED in best:
        sentences.append(f"Smallest among the codecs that schemaless supports: {_with(best[_SUPPORTED])}.")
    ours = {combination.name: combination for combination in result.combinations if not combination.fidelity.mark}
    pair = ours.get("store msgpack+zlib"), ours.get("store json+zlib")
    if pair[0] and pair[1]:
        ratio = pair[0].size_bytes / pair[1].size_bytes
        larger = f"{abs(ratio - 1):.1%} {'larger' if ratio > 1 else 'smaller'}"
        sentences.append(
            f"The default codec of the store, msgpack+zlib, is {larger} than json+zlib on these documents."
        )
    return sentences


def losses(result: Result) -> list[tuple[str, str, int, int]]:
    """Return (serializer, reason, count, first document number) for documents that were not restored exactly."""
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
        combination.label,
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
    """Return (title, header, rows) of tables that compare several corpora, one column each.

    Without compression: bytes, encoding time and decoding time relative to JSON. With compression: bytes and CPU time
    relative to JSON + zlib.
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
        ("Bytes, as a multiple of JSON text", rows(plain, json, attrgetter("size_bytes"))),
        ("Encoding, as a multiple of JSON", rows(plain, json, lambda combination: combination.stages["encode"].mid)),
        ("Decoding, as a multiple of JSON", rows(plain, json, lambda combination: combination.stages["decode"].mid)),
        ("Bytes, as a multiple of JSON + zlib", rows(packed, zlib, attrgetter("size_bytes"))),
        ("CPU time, as a multiple of JSON + zlib", rows(packed, zlib, lambda combination: combination.total_ms.mid)),
    ]
    return [(title, ["", *header], lines) for title, lines in tables if lines]


def summary_of(results: Sequence[Result]) -> str:
    """Return an HTML page that links to the pages of several corpora and shows the tables of ``matrices``."""
    corpora = [
        [result.corpus.name, f"{result.corpus.documents:,}", bytes_text(result.corpus.json_bytes), result.corpus.about]
        for result in results
    ]
    links = "".join(
        f'<li><a href="{quote(result.corpus.name)}/index.html">{escape(result.corpus.name)}</a></li>'
        for result in results
    )
    sections = [section("Documents", table(["", "documents", "as JSON", "content"], corpora) + f"<ul>{links}</ul>")]
    sections += [section(title, table(header, rows), long=True) for title, header, rows in matrices(results)]
    sections.append(section("How it was measured", terms(method(results[0])[1:]), long=True))
    below = f"{len(results)} sets, {sum(result.corpus.documents for result in results):,} documents. {MARKS[1]}"
    return html_page("Codecs on several sets of documents", below, sections)


def _in_any(by_corpus: Sequence[dict[str, Combination]]) -> list[str]:
    return list(dict.fromkeys(name for of_corpus in by_corpus for name in of_corpus))


def _relative(combination: Combination | None, base: Combination | None, value: Callable[[Combination], float]) -> str:
    if combination is None or base is None or combination.fidelity.refused or not value(base):
        return "-"
    return f"{value(combination) / value(base):.2f}{combination.fidelity.mark}"


def figures_table(combinations: Sequence[Combination]) -> str:
    """Return the table of all figures as HTML."""
    front = [number for number, combination in enumerate(combinations) if combination.on_front]
    return table(HEADER, [row_of(combination) for combination in combinations], front=front)


def losses_table(result: Result) -> str:
    """Return the table of documents that were not restored exactly, as HTML."""
    rows = [[name, reason, f"{count:,}", f"{first:,}"] for name, reason, count, first in losses(result)]
    return table(["serializer", "loss", "documents", "first document"], rows)


def method(result: Result) -> list[tuple[str, str]]:
    """Return (term, text) pairs that describe how and where the benchmark was run."""
    corpus, machine = result.corpus, result.machine
    rows = "each in its own row" if corpus.rows is None else f"in {corpus.rows:,} rows"
    rounds = f"{result.rounds}"
    if result.rounds < result.rounds_wanted:
        rounds += f" of {result.rounds_wanted}, because the run was stopped"
    documents = (
        f"{corpus.documents:,}, {rows}; {corpus.json_bytes:,} bytes as compact JSON (median {corpus.median_bytes:,}, "
        f"largest {corpus.largest_bytes:,}). SHA-256 of the lines: {corpus.sha256}."
    )
    memory = bytes_text(machine.memory_gib * 2**30)
    where = f"{machine.processor}, {machine.cores} cores, {memory}, {machine.system}. {busy(result)}"
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
        ("Started", f"{result.measured_at} (UTC)"),
        ("Article", _ARTICLE),
    ]


_ROUNDS: Final = (
    "Rounds are interleaved: every contender processes a chunk of about 1 MB before the next one begins. Figures are "
    "medians; the spread is the interquartile range relative to the median."
)
_TIME: Final = (
    "CPU time of one thread for all documents: encode, compress, inflate (decompress) and decode, from and to plain "
    "Python objects. For Thrift, Protocol Buffers, Avro and FlatBuffers that includes converting to and from their own "
    "objects."
)
_EXACTNESS: Final = (
    "Every decoded document of every round is compared with the original: 1 is not 1.0, and the order of keys counts."
)
_STORE: Final = (
    "Serializers named 'store' are the codecs of schemaless, including the exactness check, envelope and "
    "checksum, and the "
    "packages of the [fast] extra if they are installed. Dictionaries are trained on one half of the rows and "
    "evaluated on the other, then the other way round."
)
_ARTICLE: Final = (
    "Uber Engineering, 2016: 2,219 trips on Uber's machines with the libraries of that time, relative to its own JSON "
    "+ zlib."
)


def busy(result: Result) -> str:
    """Return a sentence on how busy the machine was during the benchmark."""
    load = f"load {result.load[0]:.1f} at the start, {result.load[1]:.1f} at the end"
    if result.cpu_share >= _QUIET_SHARE and result.load[0] <= _QUIET_LOAD * result.machine.cores:
        return f"The machine was quiet: this process was running {result.cpu_share:.0%} of the time ({load})."
    return (
        f"The machine was busy: this process was running {result.cpu_share:.0%} of the time ({load}). CPU times "
        "do not include waiting, but other processes still affect caches and clock speed."
    )


def _best(result: Result) -> dict[str, Combination]:
    """Return the best lossless combinations by what is best about them, as far as there are any."""
    exact = [combination for combination in result.combinations if not combination.fidelity.mark]
    kept = [combination for combination in exact if combination.store and combination.compressor != "none"]
    size = attrgetter("size_bytes")
    candidates = {_SMALLEST: (exact, size), _FASTEST: (exact, attrgetter("time")), _SUPPORTED: (kept, size)}
    return {label: min(among, key=key) for label, (among, key) in candidates.items() if among}


def _with(combination: Combination) -> str:
    return f"{combination.name} ({_factors(combination)})"


def _factors(combination: Combination) -> str:
    time = "" if combination.time_factor is None else f" and {combination.time_factor.mid:.2f} times the CPU time"
    return f"{combination.size_factor:.2f} times the bytes{time} of JSON + zlib"


def _missing(result: Result) -> str:
    rows = [[absent.name, absent.reason, absent.install] for absent in result.absentees]
    rows += [[name, reason, ""] for name, reason in result.failed.items()]
    return table(["contender", "reason", "how to install it"], rows)


def _lead(*lines: str) -> str:
    return f'<p class="soft">{" ".join(lines)}</p>'
