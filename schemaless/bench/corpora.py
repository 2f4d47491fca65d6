"""Corpora to benchmark: a user's file, the demo's logbooks, and synthetic documents.

Synthetic documents are seeded and identical on every machine and Python version; the digest confirms it.

- ``small``, ``medium``: tables of addresses, 1.4 and 16 kB, to measure the overhead of compression over encoding.
- ``large``, ``huge``: lists of products, 230 kB and 3 MB, to measure inflating and decoding separately.
- ``extremes``: documents whose values are of one kind, such as only integers, rather than a realistic mix.
"""

from __future__ import annotations

import hashlib
import json
import random
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from schemaless.bench import logbooks
from schemaless.cell import JSONDocument
from schemaless.codec.legacy import read_json
from schemaless.codec.lines import open_lines
from schemaless.errors import CorruptBody, InvalidInput

SEED: Final = 2013


@dataclass(frozen=True, slots=True)
class Corpus:
    """A corpus of documents.

    Attributes:
        name: name of the file or built-in set.
        about: one-line description.
        documents: all documents, in memory.
        rows: the row of each document; dictionaries are evaluated on rows they were not trained on.
        grouped: whether the rows are known; otherwise each document is a row.
        sha256: digest of the input lines, or of compact JSON for built-in sets, each line with its newline.
    """

    name: str
    about: str
    documents: list[JSONDocument]
    rows: list[str]
    grouped: bool
    sha256: str


def from_file(
    path: Path, *, limit: int | None = None, row_of: Callable[[JSONDocument, bytes], str] | None = None
) -> Corpus:
    """Read a file with one JSON document per line, plain or gzipped.

    Args:
        limit: maximum number of documents, from the beginning of the file.
        row_of: returns the row of a document, given the document and its line.

    Raises:
        InvalidInput: a line is not JSON, or the file holds no documents.
        OSError: the file cannot be read.
    """
    documents: list[JSONDocument] = []
    rows: list[str] = []
    digest = hashlib.sha256()
    for number, line in enumerate(_lines(path), 1):
        text = line.strip()
        if not text:
            continue
        if limit is not None and len(documents) == limit:
            break
        digest.update(text + b"\n")
        try:
            document = read_json(text).value
        except CorruptBody as problem:
            raise InvalidInput(f"{path}, line {number}: {problem}") from problem
        documents.append(document)
        rows.append(str(number) if row_of is None else row_of(document, text))
    if not documents:
        raise InvalidInput(f"{path} contains no documents; pass a file with one JSON document per line")
    name = path.name.removesuffix(".gz").removesuffix(".ndjson").removesuffix(".jsonl").removesuffix(".json")
    return Corpus(name, f"{path.name}, one document a line", documents, rows, row_of is not None, digest.hexdigest())


def built_in(name: str, *, limit: int | None = None, report: logbooks.Say | None = None) -> Corpus:
    """Return a built-in corpus.

    Args:
        name: one of ``names()``.
        limit: maximum number of documents.
        report: called with a message before the logbooks are downloaded.

    Raises:
        InvalidInput: no corpus has that name.
        SchemalessError: the logbooks are not cached and cannot be fetched.
    """
    if name == "logbooks":
        wanted = logbooks.SAMPLE_DOCUMENTS if limit is None else limit
        books = list(logbooks.documents(limit=wanted, report=report))
        bodies, rows = [book.body for book in books], [book.tail_number for book in books]
        about = "the demo's aircraft logbooks, one row per aircraft"
        return Corpus(name, about, bodies, rows, True, _digest(bodies))
    if name not in _MADE_UP:
        raise InvalidInput(f"there is no corpus {name!r}; choose one of {', '.join(names())}")
    about, count, make = _MADE_UP[name]
    count = count if limit is None else min(limit, count)
    # The seed includes the name, so that a corpus does not depend on which others are generated.
    source = random.Random(f"{SEED}/{name}")  # noqa: S311 - made-up documents
    documents = [make(source) for _ in range(count)]
    return Corpus(name, about, documents, [str(number) for number in range(count)], False, _digest(documents))


def names() -> list[str]:
    """Return the names of the built-in corpora; those in ``EXTREMES`` form a group."""
    return ["logbooks", *_MADE_UP]


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as raw:
        yield from open_lines(raw, str(path))


def _digest(documents: list[JSONDocument]) -> str:
    digest = hashlib.sha256()
    for document in documents:
        digest.update(json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode() + b"\n")
    return digest.hexdigest()


# ---- synthetic documents


def words_of(text: str) -> list[str]:
    """Split a text into words."""
    return text.split()


_FIRST: Final = words_of(
    "Ada Al Bob Chen Dana Eve Femi Grace Hugo Ines Jan Kofi Lena Mia Nils Olga Pia Raj Sven Uma Yan Zoe"
)
_LAST: Final = words_of(
    "Aranow Brand Costa Dietz Engel Fuchs Gray Holm Ito Jensen Kaya Lund Mora Novak Okoro Perez Roth Silva"
)
_STREETS: Final = words_of("Main Oak Park Cedar Lake Hill Church Mill Spring River Station Garden")
_CITIES: Final = words_of(
    "Anytown Bergen Cadiz Dover Essen Fargo Ghent Huelva Ithaca Jena Kiel Leeds Malmo Nice Oslo Porto"
)
_WORDS: Final = words_of(
    "adjustable black blue bottle brush cable case compact cotton cover dark desk double easy electric fit frame glass "
    "grip handle heavy home indoor kit lamp large light long metal mini outdoor pack pad pan paper pro rack red ring "
    "round set replica short silver size slim small soft stand steel storage table tray white wide wood"
)


def _address(source: random.Random) -> dict[str, Any]:
    return {
        "id": f"{source.randrange(10_000):04}",
        "firstname": source.choice(_FIRST),
        "lastname": source.choice(_LAST),
        "street": f"{source.randrange(1, 400)} {source.choice(_STREETS)} St.",
        "city": source.choice(_CITIES),
        "state": "".join(source.choices(string.ascii_uppercase, k=2)),
        "zip": source.randrange(10_000, 99_999),
    }


def _addresses(rows: int) -> Callable[[random.Random], JSONDocument]:
    return lambda source: {"table": {"row": [_address(source) for _ in range(rows)]}}


def _words(source: random.Random, least: int, most: int) -> str:
    return " ".join(source.choices(_WORDS, k=source.randint(least, most)))


def _product(source: random.Random) -> dict[str, Any]:
    price = source.randrange(99, 50_000)
    item = source.randrange(10**8, 10**9)
    return {
        "item_id": item,
        "name": _words(source, 3, 9).capitalize(),
        "description": _words(source, 20, 60),
        "brand": source.choice(_LAST),
        "category": [_words(source, 1, 2) for _ in range(3)],
        "price": {"amount": price / 100, "list": round(price * 1.2) / 100, "currency": "USD"},
        "rating": {"average": source.randrange(10, 51) / 10, "count": source.randrange(5000)},
        "available": source.random() < 0.9,
        "images": [f"https://images.example/{item}/{number}.jpeg" for number in range(source.randint(1, 6))],
        "offers": [
            {
                "seller": source.choice(_LAST),
                "amount": source.randrange(price, price * 2) / 100,
                "in_stock": source.randrange(200),
                "ships_days": source.randrange(1, 9),
                "pickup": source.random() < 0.5,
            }
            for _ in range(source.randint(1, 5))
        ],
        "variants": None
        if source.random() < 0.4
        else [
            {"sku": f"{item}-{number}", "colour": source.choice(_WORDS), "weight": source.randrange(1, 9000) / 1000}
            for number in range(source.randint(1, 4))
        ],
    }


def _products(count: int) -> Callable[[random.Random], JSONDocument]:
    return lambda source: {"query": _words(source, 1, 3), "items": [_product(source) for _ in range(count)]}


def _integer(source: random.Random) -> int:
    return source.randrange(-(2**31), 2**31)


def _double(source: random.Random) -> float:
    return source.random() * 1000


def _text(length: int) -> Callable[[random.Random], str]:
    return lambda source: "".join(source.choices(string.ascii_letters + string.digits + " ", k=length))


def _fields(count: int, value: Callable[[random.Random], Any]) -> Callable[[random.Random], JSONDocument]:
    return lambda source: {f"field{number}": value(source) for number in range(1, count + 1)}


def _list(count: int, value: Callable[[random.Random], Any]) -> Callable[[random.Random], JSONDocument]:
    return lambda source: {"list": [value(source) for _ in range(count)]}


EXTREMES: Final[dict[str, tuple[str, int, Callable[[random.Random], JSONDocument]]]] = {
    "integers-1": ("one integer", 4000, _fields(1, _integer)),
    "integers-10": ("ten integers", 4000, _fields(10, _integer)),
    "doubles-1": ("one double", 4000, _fields(1, _double)),
    "doubles-10": ("ten doubles", 4000, _fields(10, _double)),
    "strings-short": ("one string of 8 characters", 4000, _fields(1, _text(8))),
    "strings-long": ("one string of 160 characters", 4000, _fields(1, _text(160))),
    "object-1": (
        "an object with one short string",
        4000,
        lambda source: {"object": _fields(1, _text(8))(source)},
    ),
    "object-5": ("an object with five short strings", 4000, lambda source: {"object": _fields(5, _text(8))(source)}),
    "object-10": ("an object with ten short strings", 4000, lambda source: {"object": _fields(10, _text(8))(source)}),
    "list-integers": ("a list of 100 integers", 1000, _list(100, _integer)),
    "list-doubles": ("a list of 100 doubles", 1000, _list(100, _double)),
    "list-objects": ("a list of 100 objects with one short string each", 1000, _list(100, _fields(1, _text(8)))),
}
"""Description, number of documents and generator of each corpus, by name."""

_MADE_UP: Final[dict[str, tuple[str, int, Callable[[random.Random], JSONDocument]]]] = {
    "small": ("1.4 kB each: twelve rows of a table of addresses", 2000, _addresses(12)),
    "medium": ("16 kB each: rows of a table of addresses", 500, _addresses(138)),
    "large": ("230 kB each: products", 24, _products(234)),
    "huge": ("3 MB each: products", 4, _products(3053)),
    **EXTREMES,
}
