"""The method: sizes, marks, factors, the front; never how long anything took."""

from __future__ import annotations

import csv
import functools
import gzip
import hashlib
import json
import re
import zlib
from collections import Counter
from dataclasses import replace
from unittest.mock import Mock

import pytest

from schemaless.base.events import Advanced, Event
from schemaless.bench import contenders, corpora, dictionaries, rounds
from schemaless.bench.article import ARTICLE
from schemaless.bench.contenders import Serializer
from schemaless.bench.corpora import Corpus, built_in, from_file
from schemaless.bench.fidelity import difference
from schemaless.bench.results import STAGES, front_of, spread_of
from schemaless.bench.rounds import Benchmark
from schemaless.codec.engine import ENGINE
from schemaless.codec.registry import MSGPACK
from schemaless.errors import InvalidInput
from tests.skips import shared


def corpus(*documents):
    return Corpus("made", "for tests", list(documents), [str(n) for n in range(len(documents))], False, "0" * 64)


def run(*documents, **options):
    return Benchmark(corpus(*documents), rounds=options.pop("rounds", 1), most_passes=1, **options).run()


@functools.cache
def everything():
    """Return the result of all contenders for the documents below."""
    return run(*DOCUMENTS)


def named(result):
    return {each.name: each for each in result.combinations}


STORED = ("json", "msgpack", "packed") if ENGINE.packed.native else ("json", "msgpack")
DOCUMENTS = [{"id": number, "name": "name " * 20, "fare": number / 4} for number in range(20)]
PLAIN = {"only_serializers": ["msgpack", "protobuf"], "only_compressors": ["none"]}


@pytest.fixture(autouse=True)
def _no_collections(monkeypatch):
    """Leave the garbage collector alone, which the suite's conftest has set up; no test asserts times."""
    monkeypatch.setattr(rounds, "gc", Mock())


def test_every_contender_is_measured_on_every_document():
    """Twelve serializers with six compressors, and the store's codecs, all exact on plain documents."""
    result = everything()

    names = {f"{one} {other}" for one in contenders.SERIALIZER_NAMES for other in contenders.COMPRESSOR_NAMES}
    ours = {f"store {one}+{other}" for one in STORED for other in ("none", "zlib", "zstd")}
    assert set(named(result)) == names | ours
    assert {each.fidelity.exact for each in result.combinations} == {len(DOCUMENTS)}
    assert {each.fidelity.mark for each in result.combinations} == {""}
    assert [each.name for each in result.absentees] == ([] if ENGINE.packed.native else ["store packed"])
    assert result.failed.keys() == {f"store {one}+zstd+dict" for one in STORED}, "too little to train on"


def test_sizes_are_those_of_the_bytes_and_factors_are_relative_to_json_and_zlib():
    """Total bytes of all documents, each compressed alone."""
    found = named(run(*DOCUMENTS, only_serializers=["msgpack"], only_compressors=["none"]))

    texts = [json.dumps(document, separators=(",", ":")).encode() for document in DOCUMENTS]
    assert found["json none"].size_bytes == sum(map(len, texts))
    assert found["json zlib"].size_bytes == sum(len(zlib.compress(text, 6)) for text in texts)
    assert found["json zlib"].size_factor == 1
    assert found["json zlib"].time_factor == spread_of([1.0])
    assert found["json none"].size_factor == found["json none"].size_bytes / found["json zlib"].size_bytes


def test_results_include_the_figures_of_the_article():
    """Twelve rows of its tables, and no others."""
    found = {(each.serializer, each.compressor): each.article for each in everything().combinations}

    assert {pair: figures for pair, figures in found.items() if figures} == ARTICLE


def test_the_articles_figures_are_those_of_the_seed():
    """The numbers that were carried over agree with the table that they come from, where that is at hand."""
    source = shared("seeds", "figures.csv")
    names = {"messagepack": "msgpack"}
    with source.open(encoding="utf-8", newline="") as file:
        rows = {
            (names.get(row["encoder"].lower(), row["encoder"].lower()), row["compressor"]): row
            for row in csv.DictReader(file)
        }

    assert rows.keys() == ARTICLE.keys()
    for pair, row in rows.items():
        figures = ARTICLE[pair]
        assert (figures.encode_ms, figures.decode_ms, figures.size_bytes) == (
            int(row["encode_ms"]),
            int(row["decode_ms"]),
            int(row["size_bytes"]),
        )
        assert round(figures.size_factor * 100) == int(row["size_factor_pct"])
        assert round(figures.speed_factor * 100) == int(row["speed_factor_pct"])


def test_refused_documents_are_counted_by_reason_and_excluded():
    """Bytes and factors are of the others, and such a combination is not on the front."""
    found = named(run(*DOCUMENTS, {"id": 2**70, "name": "x", "fare": 0.5}))

    refused = found["msgpack zlib"]
    assert (refused.fidelity.exact, refused.fidelity.refused, refused.fidelity.mark) == (20, 1, "!")
    assert [(count, first) for count, first in refused.fidelity.reasons.values()] == [(1, 21)]
    assert refused.size_bytes == named(everything())["msgpack zlib"].size_bytes
    assert (refused.time_factor, refused.on_front) == (None, False)
    assert found["json zlib"].fidelity.exact == found["store msgpack+zlib"].fidelity.exact == 21


def test_the_baseline_takes_every_document():
    """What others are held against has what the store keeps: deep ones, lone surrogates, long integers."""
    deep: list[object] = []
    for _ in range(400):
        deep = [deep]
    result = run({"a": 2**70}, {"a": "\ud800"}, {"a": deep})

    found = named(result)
    assert {name for name, each in found.items() if each.fidelity.exact == 3} >= {
        *("json none", "json zlib", "store json+zlib", "store msgpack+zlib")
    }
    for name in ("thrift", "protobuf", "avro", "flatbuffers"):
        assert result.failed[name] == "too deeply nested for a schema"


def test_a_lost_order_of_keys_has_a_mark_of_its_own():
    """The same members in another order are no changed document, and not the same one either."""
    found = named(run({"a": 1, "b": 2}, {"b": 1, "a": 2}, {"a": 5, "b": 7}, **PLAIN))

    assert (found["protobuf none"].fidelity.exact, found["protobuf none"].fidelity.order) == (2, 1)
    assert found["protobuf none"].fidelity.mark == "~"
    assert found["protobuf none"].fidelity.reasons == {rounds.KEY_ORDER: (1, 2)}
    assert found["msgpack none"].fidelity.mark == ""
    assert not found["protobuf none"].on_front


@pytest.mark.parametrize(
    ("document", "decoded", "words"),
    [
        ({"a": 1}, {"a": 1.0}, "int comes back as float"),
        ({"a": True}, {"a": 1}, "bool comes back as int"),
        ({"a": 0.0}, {"a": -0.0}, "float comes back with another value"),
        ({"a": [1]}, {"a": [1, 2]}, "a list comes back longer or shorter"),
        ({"a": 1}, {}, "a key is missing"),
        ({"a": None}, {"a": b""}, "NoneType comes back as bytes"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, rounds.KEY_ORDER),
        ({"a": 1, "b": 2}, {"b": 1, "a": 1}, "int comes back with another value"),
    ],
)
def test_a_difference_is_said_in_words_that_documents_share(document, decoded, words):
    """What was lost is named by its kind."""
    assert difference(document, decoded) == words


def test_a_decoder_that_returns_a_subclass_is_seen(monkeypatch):
    """An int that is not quite one is not the document, though both are equal."""

    class Odd(int):
        pass

    one = Serializer("odd", lambda document: json.dumps(document).encode(), lambda _: {"a": Odd(1)})
    monkeypatch.setattr(rounds, "serializers", lambda root: iter([*contenders.serializers(root), one]))

    found = named(run({"a": 1}, only_serializers=["odd"], only_compressors=["none"]))
    assert found["odd none"].fidelity.reasons == {"int comes back as Odd": (1, 1)}


def test_an_inconsistent_decoder_is_detected(monkeypatch):
    """Each decode of each round is compared, not the first one only."""
    calls: Counter[str] = Counter()

    def decode(payload):
        calls["decode"] += 1
        return {"a": 1 if calls["decode"] < 3 else 2}

    one = Serializer("moody", lambda document: json.dumps(document).encode(), decode)
    monkeypatch.setattr(rounds, "serializers", lambda root: iter([*contenders.serializers(root), one]))

    found = named(run({"a": 1}, rounds=3, only_serializers=["moody"], only_compressors=["none"]))
    assert (found["moody none"].fidelity.exact, found["moody none"].fidelity.changed) == (0, 1)
    assert found["moody none"].fidelity.mark == "!"


def test_a_compressor_that_loses_bytes_is_not_measured_and_named(monkeypatch):
    """What does not inflate to the payload has no figures."""
    bad = contenders.Compressor("bad", None, lambda payload: payload[:-1], lambda stored: stored)
    monkeypatch.setattr(rounds, "compressors", lambda: iter([*contenders.compressors(), bad]))

    result = run({"a": 1}, only_serializers=["cbor"], only_compressors=["bad"])
    assert result.failed == dict.fromkeys(("json bad", "cbor bad"), "document 1: does not decompress to the original")
    assert "cbor bad" not in named(result)


def test_the_pareto_front_has_the_exact_undominated_combinations():
    """Smaller or faster than each other one; what is marked has no place on it."""
    result = run(*DOCUMENTS, {"id": 1, "fare": 0.5, "name": "key order"})
    points = {
        each.name: (each.size_bytes, each.time_factor.mid)
        for each in result.combinations
        if not each.fidelity.mark and each.time_factor
    }

    front = front_of(result.combinations)
    assert front == {each.name for each in result.combinations if each.on_front}
    assert front < points.keys() < named(result).keys()
    for name, (size, time) in points.items():
        beaten = any(other[0] <= size and other[1] <= time for key, other in points.items() if key != name)
        assert beaten == (name not in front)


@pytest.mark.long
def test_an_interrupt_keeps_complete_rounds():
    """Ctrl-C after a round returns what there is, and how many rounds it comes from; before that, there is nothing."""
    benchmark = Benchmark(corpus(*DOCUMENTS), rounds=5, only_serializers=["cbor"], only_compressors=["none"])
    steps = iter(range(benchmark.steps // 2))

    def stop(more):
        if next(steps, None) is None:
            raise KeyboardInterrupt

    result = benchmark.run(stop)
    assert (result.rounds, result.rounds_wanted) == (2, 5)
    assert named(result)["cbor none"].size_bytes

    with pytest.raises(KeyboardInterrupt):
        Benchmark(corpus(*DOCUMENTS), only_serializers=["cbor"]).run(lambda more: stop(more))


def test_progress_reports_as_many_steps_as_it_announced():
    """The bar reaches its end."""
    benchmark = Benchmark(corpus(*DOCUMENTS), rounds=2, only_serializers=["cbor"], only_compressors=["none"])
    told: list[Event] = []
    benchmark.run(told.append)

    assert told == [Advanced()] * benchmark.steps


def test_a_result_says_where_it_comes_from():
    """Machine, versions, the documents and their digest, the schemas that were used."""
    result = everything()

    data = json.loads(json.dumps(result.as_json()))
    assert data["machine"]["libraries"].keys() >= {"cbor2", "fastavro", "protobuf", "thriftpy2", "zstandard"}
    assert data["corpus"]["sha256"] == "0" * 64
    assert data["schemas"] == sorted(f"documents.{end}" for end in ("avsc", "fbs", "proto", "thrift"))
    assert all(data["combinations"][0]["stages"][stage].keys() == {"mid", "low", "high"} for stage in STAGES)


def test_half_of_the_rows_are_apart():
    """Documents of one row are on one side of what a dictionary is trained on, and judged on the other."""
    made = replace(corpus(*DOCUMENTS), rows=["a", "b", "c", "d"] * 5)
    benchmark = Benchmark(made, only_serializers=["cbor"])

    sides = {}
    for chunk in benchmark._chunks:
        for place in chunk:
            assert sides.setdefault(made.rows[place], benchmark._folds[chunk[0]]) == benchmark._folds[place]
    assert sorted(place for chunk in benchmark._chunks for place in chunk) == list(range(len(DOCUMENTS)))


# ---- dictionaries


ROWS = [f"row {number // 2}" for number in range(400)]
MANY = [
    {"id": number, "airline": "Endeavor Air Inc.", "airport": "La Guardia", "zone": "America/New_York", "t": number / 8}
    for number in range(400)
]


def test_a_dictionary_is_judged_on_rows_that_it_has_not_seen(monkeypatch):
    """Each half has its own, trained on the other half alone; no row is on both sides."""
    seen: list[set[bytes]] = []
    real = dictionaries.train

    def train(cells, codec, *, values):
        cells = list(cells)
        seen.append({row_key for row_key, _ in cells})
        return real(cells, codec)

    monkeypatch.setattr(dictionaries, "train", train)
    halves = [number // 2 % 2 for number in range(400)]
    first, second = dictionaries.compressors(MSGPACK, MANY, ROWS, halves)

    assert len(seen) == 2
    assert not seen[0] & seen[1]
    judged = {hashlib.sha256(row.encode()).digest()[:16] for row, half in zip(ROWS, halves, strict=True) if half == 0}
    assert not judged & seen[0], "the compressor of half 0 was trained on half 1"
    assert first.level != ""
    assert second.level != ""


@pytest.mark.long
def test_a_dictionary_of_the_store_takes_part():
    """Every document comes back, in fewer bytes than without it, and the setting is in the result."""
    made = replace(corpus(*MANY), rows=ROWS, grouped=True)
    result = Benchmark(made, rounds=1, only_serializers=["store msgpack"], only_compressors=["zstd", "zstd+dict"]).run()

    found = named(result)["store msgpack+zstd+dict"]
    assert (found.fidelity.exact, found.fidelity.mark, result.failed) == (400, "", {})
    assert found.size_bytes < named(result)["store msgpack+zstd"].size_bytes
    assert re.match(r"level 3 with [0-9,]+ bytes", result.settings["store msgpack+zstd+dict"])


# ---- corpora


@pytest.mark.parametrize(
    ("name", "bytes_each"),
    [("small", 1_400), ("medium", 16_000), ("large", 230_000), pytest.param("huge", 3_000_000, marks=pytest.mark.long)],
)
def test_payloads_have_the_sizes_of_the_articles(name, bytes_each):
    """1.4 and 16 KB messages, 230 KB and 3 MB payloads."""
    made = built_in(name, limit=20)
    sizes = [len(json.dumps(document, separators=(",", ":"))) for document in made.documents]

    assert sum(sizes) / len(sizes) == pytest.approx(bytes_each, rel=0.03)


def test_synthetic_documents_are_the_same_everywhere():
    """Digests of seeded documents never change: another one is another corpus."""
    digests = {name: built_in(name, limit=3).sha256[:12] for name in ("small", "doubles-10", "list-objects")}

    assert digests == DIGESTS


DIGESTS = {"small": "a89572555944", "doubles-10": "03a602095bb2", "list-objects": "9a8647145375"}


@pytest.mark.parametrize("name", corpora.EXTREMES)
def test_each_extreme_has_values_of_one_kind(name):
    """Not one realistic mix: each has values of one kind."""
    kinds = {type(leaf) for document in built_in(name, limit=5).documents for leaf in leaves(document)}

    assert len(kinds) == 1


def leaves(value):
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from leaves(one)
    else:
        yield value


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_is_read_plain_or_gzipped_with_the_same_digest(tmp_path, packed):
    """Blank lines count for nothing."""
    text = b'{"a": 1}\n\n[2]\r\n'
    path = tmp_path / "trips.ndjson"
    path.write_bytes(gzip.compress(text) if packed else text)

    found = from_file(path)
    assert (found.name, found.documents) == ("trips", [{"a": 1}, [2]])
    assert found.sha256 == from_file(path, limit=2).sha256 != from_file(path, limit=1).sha256


def test_a_line_that_is_too_long_is_named(tmp_path, monkeypatch):
    """A small gzip file that holds one endless line is refused like any other bad line."""
    monkeypatch.setattr("schemaless.codec.lines.MAX_LINE_BYTES", 1_000)
    path = tmp_path / "trips.ndjson.gz"
    path.write_bytes(gzip.compress(b"[1]\n" + b" " * 5_000))

    with pytest.raises(InvalidInput, match=r"trips.ndjson.gz, line 2: longer than"):
        from_file(path)


def test_a_bad_line_is_named(tmp_path):
    """Which file, which line, and why."""
    path = tmp_path / "trips.ndjson"
    path.write_text('{"a": 1}\n{"a": \n', encoding="utf-8")

    with pytest.raises(InvalidInput, match=r"trips.ndjson, line 2: "):
        from_file(path)
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(InvalidInput, match="contains no documents"):
        from_file(path)
