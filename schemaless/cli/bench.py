"""``schemaless bench``: compares codecs on your own documents."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from schemaless.base.numbers import bytes_text, counted
from schemaless.bench import corpora, dictionaries
from schemaless.bench import page as bench_page
from schemaless.bench.charts import charts_of
from schemaless.bench.contenders import COMPRESSOR_NAMES, SERIALIZER_NAMES
from schemaless.bench.corpora import Corpus
from schemaless.bench.results import BASELINE, Result
from schemaless.bench.rounds import Benchmark
from schemaless.bench.versions import codecs_with_versions, version_bytes
from schemaless.cell import JSONDocument
from schemaless.cli.command import QueryCommand
from schemaless.cli.option import option
from schemaless.codec.registry import SERIALIZERS
from schemaless.errors import InvalidInput
from schemaless.ops.admin.fields import field_at, row_key_in
from schemaless.ui.terminal.files import OutputFolder, write_whole
from schemaless.ui.terminal.output import (
    EXIT_STOPPED,
    facts,
    note,
    out,
    print_result,
    print_rows,
    print_table,
    progress,
)
from schemaless.ui.terminal.shown import csv_of


@click.group()
def bench() -> None:
    """Compare codecs on your own documents.

    'codecs' repeats the experiment of Uber's article on your documents, with all of the article's serializers and
    compressors, newer ones, and the codecs that schemaless supports.
    """


_SETS = {"extremes": list(corpora.EXTREMES)}
_SETS_PER_TABLE = 6


@bench.command("codecs", cls=QueryCommand)
@click.argument("files", nargs=-1, metavar="[FILE]...", type=click.Path(dir_okay=False, path_type=Path))
@option(
    "--corpus NAME",
    "Built-in documents: logbooks (those of the demo), small, medium, large, huge, extremes (all of the "
    "following), " + ", ".join(corpora.EXTREMES) + ". May be repeated.",
    name="sets",
    multiple=True,
    type=click.Choice([*corpora.names(), *_SETS]),
)
@option(
    "--rounds",
    "Number of measurement rounds; more rounds give more precise figures.",
    type=click.IntRange(1, 1000),
    default=5,
)
@option("--limit N", "Use only the first N documents.", type=click.IntRange(1))
@option(
    "--row-key PATH",
    "Field that contains the row key, as for 'schemaless load'. A dictionary is only evaluated on rows that "
    "it was not trained on.  [default: each document is its own row]",
)
@option(
    "--versions PATH",
    "Field that all versions of a document have in common; the file has them in order. Show only the bytes per "
    "version, whole and as differences, without measuring times.",
)
@option(
    "--serializer NAME",
    "Measure only this serializer: " + ", ".join(SERIALIZER_NAMES) + ", 'store json', 'store msgpack' or "
    "'store packed'. May be repeated.",
    name="only_serializers",
    multiple=True,
    type=click.Choice([*SERIALIZER_NAMES, *(f"store {serializer.name}" for serializer in SERIALIZERS.values())]),
)
@option(
    "--compressor NAME",
    f"Measure only this compressor: {', '.join(COMPRESSOR_NAMES)} or {dictionaries.NAME}. May be repeated.",
    name="only_compressors",
    multiple=True,
    type=click.Choice([*COMPRESSOR_NAMES, dictionaries.NAME]),
)
@option(
    "--out FOLDER",
    "Write the result to this folder: an HTML page, charts, JSON, CSV and the schemas.",
    name="folder",
    type=OutputFolder(),
)
def codecs(
    files: Sequence[Path],
    sets: Sequence[str],
    rounds: int,
    limit: int | None,
    row_key: str | None,
    versions: str | None,
    only_serializers: Sequence[str],
    only_compressors: Sequence[str],
    folder: Path | None,
) -> int:
    """Measure serializers and compressors on your documents.

    FILE contains one JSON document per line and may be gzipped. The command measures every serializer (JSON, UJSON,
    orjson, CBOR, BSON, MessagePack, Marshal, Pickle, Thrift, Protocol Buffers, Avro, FlatBuffers) with every compressor
    (none, Snappy, zlib, bz2, zstd, LZ4), and every codec that schemaless supports. Thrift, Protocol Buffers, Avro and
    FlatBuffers need a schema; the command derives one from the documents, and --out saves it with the result.

    Encoding, compressing, decompressing and decoding are timed separately, in interleaved rounds. Every decoded
    document is compared with the original, and formats that lose data are marked. Sizes and times are relative to JSON
    + zlib, and shown next to the figures from Uber's article. Rows marked * are on the Pareto front: no lossless
    combination is both smaller and faster.

    \b
    Examples:
      schemaless bench codecs trips.ndjson.gz --out codecs
      schemaless bench codecs trips.ndjson.gz --row-key uuid5:trip.vehicle \\
          --limit 500
      schemaless bench codecs history.ndjson.gz --versions trip.uuid
      schemaless bench codecs --corpus logbooks
      schemaless bench codecs --corpus small --corpus medium --serializer json \\
          --compressor zlib
      schemaless bench codecs --corpus extremes --compressor none --json

    Ctrl-C stops the measurement; if at least one round is complete, the result so far is still shown and written.
    docs/codecs.md explains how to read the result.
    """
    if versions is not None:
        if row_key or only_serializers or only_compressors or folder:
            raise InvalidInput("--versions only takes files, --corpus and --limit")
        return _compare_versions(_readers(files, sets, limit, lambda document, _: str(field_at(document, versions))))
    row_of = None if row_key is None else lambda document, line: str(row_key_in(document, row_key, line))
    readers = _readers(files, sets, limit, row_of)
    if folder is not None and find_spec("matplotlib") is None:
        raise InvalidInput("--out draws charts with Matplotlib; install it with: pip install 'schemaless-store[bench]'")
    benchmark = partial(
        Benchmark, rounds=rounds, only_serializers=only_serializers or None, only_compressors=only_compressors or None
    )
    results: list[Result] = []
    many = len(readers) > 1
    try:
        for result in _results(readers, benchmark):
            results.append(result)
            if folder is not None:
                _write(result, folder / result.corpus.name if many else folder)
            _show(result)
        stopped = results[-1].rounds < rounds
    except KeyboardInterrupt:
        if not results:
            note("stopped before the first round was complete, so there is no result")
            raise
        stopped = True
    print_result([result.as_json() for result in results] if many else results[0].as_json())
    if many:
        _show_matrices(results)
    if folder is not None:
        if many:
            write_whole(folder / "index.html", bench_page.summary_of(results))
            write_whole(folder / "all.csv", csv_text(results))
        note(f"written: {folder}")
    if stopped:
        saved = f"; saved in {folder}" if folder is not None else "; use --out FOLDER to save it"
        note(f"stopped: the result contains {results[-1].rounds} of {rounds} rounds of the last set{saved}")
        return EXIT_STOPPED
    return 0


def csv_text(results: Sequence[Result]) -> str:
    """Return results as CSV, one line per combination, in milliseconds and bytes; unknown values are empty."""
    return csv_of(
        {**facts(result.corpus, "sha256", "documents", corpus="name"), **combination}
        for result in results
        for combination in result.as_json()["combinations"]
    )


def _compare_versions(readers: Sequence[Callable[[], Corpus]]) -> int:
    found = []
    for read in readers:
        corpus = read()
        rows = len(set(corpus.rows))
        tried = codecs_with_versions()
        with progress(f"{corpus.name}, {counted(len(corpus.documents), 'version')}", len(tried), "codecs") as listener:
            codecs = version_bytes(corpus, tried, listener)
        found.append(
            {
                **facts(corpus, "name", "about", "sha256"),
                "rows": rows,
                "versions": len(corpus.documents),
                "codecs": [facts(each, "codec", "whole_bytes", "history_bytes", "deltas", "share") for each in codecs],
            }
        )
        title = f"{corpus.name}: {counted(len(corpus.documents), 'version')} of {counted(rows, 'document')}"
        lines = [
            {
                "codec": each.codec,
                "whole, bytes a version": f"{each.whole_bytes / each.versions:,.0f}",
                "with differences": f"{each.history_bytes / each.versions:,.0f}",
                "share": f"{each.share:.1%}",
                "differences": each.deltas,
            }
            for each in codecs
        ]
        print_rows(title, lines)
    print_result(found if len(found) > 1 else found[0])
    return 0


def _readers(
    files: Sequence[Path], sets: Sequence[str], limit: int | None, row_of: Callable[[JSONDocument, bytes], str] | None
) -> list[Callable[[], Corpus]]:
    names = [member for name in sets for member in _SETS.get(name, [name])]
    if not files and not names:
        raise InvalidInput("no documents: give a FILE with one JSON document per line, or --corpus logbooks")
    for file in files:
        if not file.is_file():
            raise InvalidInput(f"no such file: {file}; give a file with one JSON document per line")
    return [
        *(partial(corpora.from_file, file, limit=limit, row_of=row_of) for file in files),
        *(partial(corpora.built_in, name, limit=limit, report=note) for name in names),
    ]


def _results(readers: Sequence[Callable[[], Corpus]], prepare: Callable[[Corpus], Benchmark]) -> Iterator[Result]:
    """Yield the result of each set; stop after an interrupted one, which has fewer rounds."""
    for read in readers:
        corpus = read()
        benchmark = prepare(corpus)
        title = f"{corpus.name}, {counted(len(corpus.documents), 'document')}"
        with progress(title, benchmark.steps, "steps") as listener:
            result = benchmark.run(listener)
        yield result
        if result.rounds < result.rounds_wanted:
            return


def _write(result: Result, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in result.schemas.items():
        write_whole(folder / name, text)
    write_whole(folder / "result.json", json.dumps(result.as_json(), indent=2) + "\n")
    write_whole(folder / "result.csv", csv_text([result]))
    if not result.combinations:
        return
    for name, chart in charts_of(result).items():
        write_whole(folder / f"{name}.png", chart.png())
    write_whole(folder / "index.html", bench_page.bench_html(result))


def _show_matrices(results: Sequence[Result]) -> None:
    for first in range(0, len(results), _SETS_PER_TABLE):
        for title, header, rows in bench_page.matrices(results[first : first + _SETS_PER_TABLE]):
            out().print(f"\n{title}")
            print_table(None, header, rows)


def _show(result: Result) -> None:
    corpus = result.corpus
    rounds = counted(result.rounds, "round")
    out().print(
        f"\n{corpus.name}: {counted(corpus.documents, 'document')}, {bytes_text(corpus.json_bytes)} of JSON, "
        f"{rounds}, sizes and times relative to {' + '.join(BASELINE)}\n"
    )
    rows = [
        ["*" if combination.on_front else "", *bench_page.row_of(combination)] for combination in result.combinations
    ]
    print_table(None, ["", *bench_page.HEADER], rows, text_columns=2)
    lines: list[Any] = ["* is on the Pareto front: no lossless combination is both smaller and faster"]
    lines += [
        f"{name}: {reason}, in {count:,} of {counted(corpus.documents, 'document')}, first in document {first}"
        for name, reason, count, first in bench_page.losses(result)
    ]
    lines += [f"missing: {absentee.name} ({absentee.reason}); {absentee.install}" for absentee in result.absentees]
    lines += [f"not measured: {name}: {reason}" for name, reason in result.failed.items()]
    lines += [*bench_page.findings(result), bench_page.busy(result)]
    out().print("\n" + "\n".join(lines))
