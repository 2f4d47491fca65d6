"""Loads documents from NDJSON into cells and dumps cells to NDJSON.

Each line is one document. Lines are encoded by the same rules as in a migration, so text that MessagePack cannot
represent, or that parsing would change, is kept as text. Repeating a load creates no cells and uses no added_ids.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from schemaless.base.events import Advanced, Event, Listener, ignore_events
from schemaless.cell import CellKey, NewStoredCell, StoredCell
from schemaless.codec.dictionaries import NO_DICTIONARIES, Dictionaries, Dictionary
from schemaless.codec.documents import MAX_DEPTH
from schemaless.codec.envelope import (
    decode_body,
    dictionary_of,
    erasure_of,
    is_reference,
    renumbered_body,
    tombstone,
    whole_body,
)
from schemaless.codec.exact_text import exact_text
from schemaless.codec.legacy import check_text_finite, read_json
from schemaless.codec.lines import check_line
from schemaless.codec.recode import recode
from schemaless.codec.references import inlined
from schemaless.codec.registry import DEFAULT, LEGACY, Codec
from schemaless.codec.values import MAX_VALUES
from schemaless.errors import (
    BatchError,
    BodyTooLarge,
    CellConflict,
    CellErased,
    CorruptBody,
    InvalidCell,
    InvalidInput,
    SchemalessError,
)
from schemaless.store.cells.dictionaries import dictionary_line, is_dictionary_line, parse_dictionary_line, source_of
from schemaless.store.cells.writing import EncodedCell, encoded_stored
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of

_BODY_FIELD: Final = b'"body":'
_HEAD_VALUES: Final = 32
_BOM: Final = b"\xef\xbb\xbf"
_OF_ONE_LINE: Final = re.compile(r", got |; | \(|: ['\"]|, the limit")
"""Begins the part of a message that differs from line to line."""

KeyOf = Callable[[Any, bytes, int], CellKey]
"""Function that returns a cell's key for a document, its line and the line's number."""


CreatedAtOf = Callable[[Any], datetime]
"""Function that returns a document's created_at, as an aware datetime."""

CodecFor = Callable[[str], Codec]
"""Function that returns the codec for new bodies of a column."""


@dataclass(frozen=True, slots=True)
class BatchBounds:
    """Bounds of a batch's size, which grows with the number of shards: a batch needs two statements per shard.

    Attributes:
        cells: limit on the number of cells: its minimum, its amount per shard, and its maximum.
        body_bytes: limit on the size of their bodies, in bytes: its minimum, its amount per shard, and its maximum.
    """

    cells: tuple[int, int, int] = (500, 50, 100_000)
    body_bytes: tuple[int, int, int] = (4 << 20, 64 << 10, 64 << 20)

    def of(self, shard_count: int) -> tuple[int, int]:
        """Return the maximum number of cells and of body bytes in a batch."""
        cells, size = (
            max(low, min(high, per_shard * shard_count)) for low, per_shard, high in (self.cells, self.body_bytes)
        )
        return cells, size


BATCH_BOUNDS: Final = BatchBounds()
"""Default bounds of a load's batches."""


@dataclass(slots=True)
class LoadOutcome:
    """Result of a load.

    Attributes:
        created: number of cells written.
        there: number of cells that already existed with the same document.
        erased: number of lines skipped because their cell was erased.
        blank: number of blank lines, which are ignored.
        body_bytes: size of the written bodies, in bytes.
        bom: True if a byte order mark at the start was ignored.
        reasons: number of skipped lines by reason.
        failures: ``(line number, message)`` of skipped lines; empty if ``load`` keeps the text of lines.
    """

    created: int = 0
    there: int = 0
    erased: int = 0
    blank: int = 0
    body_bytes: int = 0
    bom: bool = False
    reasons: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Line:
    """A line and its cell.

    Attributes:
        numbers: its number, and those of later lines with the same key and body.
        texts: the text of each, or an empty one if it is not needed.
    """

    cell: EncodedCell
    numbers: list[int]
    texts: list[bytes]


@dataclass(frozen=True, slots=True)
class LineSkipped(Event):
    """A line was skipped because it is not a document, or its cell cannot be written.

    Attributes:
        number: the line's number, from 1.
        message: the reason.
        text: the line without its end, if ``load`` keeps the text of lines.
    """

    number: int
    message: str
    text: bytes


def load(
    store: Datastore,
    lines: Iterable[bytes],
    to_cell: Callable[[bytes, int], NewStoredCell | None],
    *,
    source: str,
    keep_going: bool = False,
    keep_text: bool = False,
    bounds: BatchBounds = BATCH_BOUNDS,
    listener: Listener = ignore_events,
) -> LoadOutcome:
    """Write one cell for each line.

    Cells that already exist with the same document stay unchanged, whatever their codec, so an interrupted load can be
    repeated. Cells that were erased stay erased; their lines are counted and skipped.

    Args:
        store: the datastore.
        lines: lines with or without their line ends; blank lines and a byte order mark at the start are ignored, and
            lines over ``MAX_LINE_BYTES`` are refused.
        to_cell: returns the cell for a line and its number, or None if the line does not describe a cell; raises an
            error for a bad line.
        source: name of the file, for error messages.
        keep_going: skip and report lines that are not documents, or whose cell already exists with a different or
            undecodable body.
        keep_text: keep the text of each line until its cell is written, for ``LineSkipped``.
        bounds: bounds of a batch's size, which includes text that is kept.
        listener: receives progress events, in bytes of lines, and each ``LineSkipped``.

    Raises:
        InvalidInput: a line cannot be used; the batches before it are written.
        CellConflict: a cell exists with a different document; the batches before it are written.
        CorruptBody: a cell exists and does not decode; the batches before it are written.
        ServerError: a server failed.
    """
    outcome = LoadOutcome()

    def fail(number: int, error: SchemalessError, text: bytes) -> None:
        damaged = isinstance(error, CorruptBody) and error.key is not None
        message = f"stored {error}" if damaged else str(error)
        if not keep_going:
            where = f"{source}, line {number}"
            if isinstance(error, CellConflict):
                error.args = (f"{where}: {message}, or skip such lines with --keep-going",)
                raise error
            if damaged:
                raise CorruptBody(
                    f"{where}: {message}; so the line cannot be compared with it. 'schemaless check' lists all such "
                    "cells; skip such lines with --keep-going"
                ) from error
            raise InvalidInput(
                f"{where}: {message}. The lines before it have been loaded; correct the line and run the same command "
                "again, or skip such lines with --keep-going"
            ) from error
        outcome.reasons[_reason(error, message)] += 1
        if not keep_text:
            outcome.failures.append((number, message))
        listener(LineSkipped(number, message, text if keep_text else b""))

    batch = _Batch(bounds.of(store.shard_count), lambda lines: _write(store, lines, outcome, fail))
    for number, raw in enumerate(lines, start=1):
        line = _without_end(raw, number, outcome)
        if line.strip():
            try:
                check_line(line)
                new = to_cell(line, number)
                cell = None if new is None else encoded_stored(new, store.decode, internals_of(store).dictionaries)
            except (InvalidInput, InvalidCell, CorruptBody, BodyTooLarge) as error:
                if not keep_going:
                    batch.flush()
                fail(number, error, line)
            else:
                if cell is not None:
                    batch.add(cell, number, line if keep_text else b"")
        listener(Advanced(len(raw)))
    batch.flush()
    return outcome


def _without_end(raw: bytes, number: int, outcome: LoadOutcome) -> bytes:
    """Return a line without its end and without a byte order mark; count it if it is blank."""
    line = raw.rstrip(b"\r\n")
    if number == 1 and line.startswith(_BOM):
        outcome.bom = True
        line = line.removeprefix(_BOM)
    outcome.blank += not line.strip()
    return line


def _reason(error: SchemalessError, message: str) -> str:
    """Return what a message has in common with those about other lines."""
    if isinstance(error, CellConflict):
        return "the cell exists with another document"
    if isinstance(error, BodyTooLarge):
        return "the body is too large"
    if isinstance(error, CorruptBody) and error.key is not None:
        return "the stored cell is damaged"
    return _OF_ONE_LINE.split(message, maxsplit=1)[0]


class _Batch:
    """Lines to write together, with distinct keys.

    Args:
        limits: maximum number of cells and of body bytes.
        write: writes the lines of a full batch.
    """

    def __init__(self, limits: tuple[int, int], write: Callable[[list[_Line]], None]) -> None:
        self._max_cells, self._max_bytes = limits
        self._write = write
        self._lines: dict[CellKey, _Line] = {}
        self._bytes = 0

    def add(self, cell: EncodedCell, number: int, text: bytes) -> None:
        first = self._lines.get(cell.key)
        if first is not None and first.cell.body == cell.body:
            first.numbers.append(number)
            first.texts.append(text)
            self._bytes += len(text)
            return
        size = len(cell.body) + len(text)
        is_full = len(self._lines) >= self._max_cells or self._bytes + size > self._max_bytes
        if first is not None or is_full:
            self.flush()
        self._lines[cell.key] = _Line(cell, [number], [text])
        self._bytes += size

    def flush(self) -> None:
        lines, self._lines, self._bytes = list(self._lines.values()), {}, 0
        self._write(lines)


def _write(
    store: Datastore, lines: list[_Line], outcome: LoadOutcome, fail: Callable[[int, SchemalessError, bytes], None]
) -> None:
    cells = internals_of(store).cells
    parts = [lines]
    while parts:
        part = parts.pop()
        causes: dict[int, SchemalessError] = {}
        try:
            puts = cells.put_batch([line.cell for line in part], look_first=True)
        except BatchError as error:
            puts, causes = error.written, error.causes
            for cause in causes.values():
                if not isinstance(cause, CellConflict | CellErased | BodyTooLarge | CorruptBody):
                    raise cause from error
        pending = {line.cell.key: line for line in part}
        for put in puts:
            line = pending.pop(put.key)
            if put.created:
                outcome.created += 1
                outcome.body_bytes += len(line.cell.body)
            else:
                outcome.there += 1
            outcome.there += len(line.numbers) - 1
        # A shard that refuses one cell writes none of its cells: drop that one, and retry the others in halves.
        refused: list[tuple[int, SchemalessError, bytes]] = []
        for shard, cause in causes.items():
            unwritten = [line for line in pending.values() if store.shard_of(line.cell.key.row_key) == shard]
            culprit = unwritten[0].cell.key if len(unwritten) == 1 else _culprit(cause)
            if culprit is not None and isinstance(cause, CellErased):
                outcome.erased += len(pending[culprit].numbers)
            elif culprit is not None:
                line = pending[culprit]
                refused += [(number, cause, text) for number, text in zip(line.numbers, line.texts, strict=True)]
            unwritten = [line for line in unwritten if line.cell.key != culprit]
            middle = len(unwritten) // 2
            parts += [half for half in (unwritten[:middle], unwritten[middle:]) if half]
        for number, cause, text in sorted(refused, key=lambda one: one[0]):
            fail(number, cause, text)


def _culprit(cause: SchemalessError) -> CellKey | None:
    """Return the key of the refused cell, or None if the error does not name it."""
    if isinstance(cause, CellConflict):
        return cause.stored.key
    return cause.key if isinstance(cause, CorruptBody | CellErased) else None


def document_reader(
    key_of: KeyOf, codec: Codec | CodecFor, created_at_of: CreatedAtOf | None = None, *, allow_nan: bool = False
) -> Callable[[bytes, int], NewStoredCell]:
    """Return a ``to_cell`` for lines that are plain documents.

    Args:
        key_of: returns the key of a document.
        codec: codec of the stored bodies, or a function of the column_name; ``LEGACY`` stores the exact bytes of each
            line.
        created_at_of: returns a document's created_at; by default, the server's clock is used.
        allow_nan: whether to accept NaN and infinities.
    """

    def to_cell(line: bytes, number: int) -> NewStoredCell:
        document = read_json(line).value
        if not allow_nan:
            check_text_finite(line)
        key = key_of(document, line, number)
        at = None if created_at_of is None else created_at_of(document)
        chosen = codec if isinstance(codec, Codec) else codec(key.column_name)
        body = line if chosen is LEGACY else recode(line, chosen).body
        return NewStoredCell(key.row_key, key.column_name, key.ref_key, body, at)

    return to_cell


class DumpDictionaries:
    """Dictionaries in a dump, and their numbers in the datastore that it is loaded into."""

    def __init__(self, here: Dictionaries, bring: Callable[[Dictionary, dict[str, Any]], Dictionary]) -> None:
        """Start without any dictionaries from the dump.

        Args:
            here: dictionaries of the datastore.
            bring: adds a dictionary to the datastore, and returns it with the number it has there.
        """
        self._here = here
        self._bring = bring
        self._of_dump: dict[int, Dictionary] = {}
        self._numbers: dict[int, int] = {}

    def take(self, fields: dict[str, Any]) -> None:
        """Add the dictionary of a dump's line, so that ``renumbered`` accepts bodies that name it."""
        dictionary, source = parse_dictionary_line(fields)
        kept = self._bring(dictionary, source)
        self._of_dump[dictionary.id] = dictionary
        self._numbers[dictionary.id] = kept.id

    def get(self, dictionary_id: int) -> Dictionary:
        """Return a dictionary by its number in the dump, or else in the datastore."""
        return self._of_dump.get(dictionary_id) or self._here.get(dictionary_id)

    def renumbered(self, body: bytes) -> bytes:
        """Return the dump's body, which must be valid, with its dictionary's number in the datastore."""
        named = dictionary_of(body)
        number = None if named is None else self._numbers.get(named, named)
        return body if number is None or number == named else renumbered_body(body, number)


def dump_reader(
    codec: Codec | None,
    created_at_of: CreatedAtOf | None = None,
    *,
    codec_for: CodecFor = lambda column_name: DEFAULT,
    dictionaries: DumpDictionaries | None = None,
    allow_nan: bool = False,
) -> Callable[[bytes, int], NewStoredCell | None]:
    """Return a ``to_cell`` for the lines that ``dump_line`` and ``dump_lines`` write.

    Args:
        codec: codec of the stored bodies; None keeps stored bytes, and uses ``codec_for`` for documents.
        created_at_of: returns the created_at of a line's cell; by default, the server's clock is used.
        codec_for: returns the codec of a column.
        dictionaries: collects the dump's dictionaries; None refuses bodies that name one.
        allow_nan: whether to accept NaN and infinities in documents; stored bytes may have them in any case.
    """
    known: Dictionaries = NO_DICTIONARIES if dictionaries is None else dictionaries

    def to_cell(line: bytes, number: int) -> NewStoredCell | None:
        # The line adds one level and a few values around the body.
        fields = read_json(line, MAX_DEPTH + 1, MAX_VALUES + _HEAD_VALUES).value
        if dictionaries is not None and is_dictionary_line(fields):
            dictionaries.take(fields)
            return None
        names = {"row_key", "column_name", "ref_key"}
        kinds = {"body", "stored", "erased"}
        if not isinstance(fields, dict) or not names < fields.keys() or not kinds & fields.keys():
            raise InvalidInput(
                "not a line of 'schemaless dump': it needs row_key, column_name, ref_key, and one of body, "
                "stored and erased"
            )
        if "erased" in fields:
            number = fields["erased"]
            if type(number) is not int or not 0 < number < 1 << 64:
                raise InvalidInput(f"the field erased is not the number of an erasure: {number!r}")
            body = tombstone(number)
        elif "stored" in fields:
            try:
                body = base64.b64decode(fields["stored"], validate=True)
            except (ValueError, TypeError):
                raise InvalidInput("the field stored is not base64") from None
            if codec is None:
                decode_body(body, dictionaries=known)
                body = body if dictionaries is None else dictionaries.renumbered(body)
            else:
                body = recode(body, codec, dictionaries=known).body
        else:
            # The body is the last field; its text is kept, because parsing could lose details of it.
            _, marker, rest = line.partition(_BODY_FIELD)
            if not marker:
                raise InvalidInput(
                    'the last field must be the body, written exactly as "body": followed by the document, as in a dump'
                )
            text = rest[: rest.rindex(b"}")].strip()
            if not allow_nan:
                check_text_finite(text)
            body = recode(text, codec or codec_for(str(fields["column_name"]))).body
        try:
            row_key = uuid.UUID(fields["row_key"])
        except (ValueError, AttributeError, TypeError):
            raise InvalidInput(f"row_key is not a UUID: {fields['row_key']!r}") from None
        at = None if created_at_of is None else created_at_of(fields)
        return NewStoredCell(row_key, fields["column_name"], fields["ref_key"], body, at)

    return to_cell


def dump_lines(store: Datastore, cells: Iterable[StoredCell], *, stored: bool) -> Iterator[tuple[StoredCell, bytes]]:
    """Yield cells with their lines; with ``stored``, each dictionary's line precedes the first cell that needs it.

    Raises:
        CorruptBody: as for ``dump_line``; with ``stored``, only if a body's dictionary is not available.
        ServerError: a body names a dictionary, and the catalog's server cannot be reached.
    """
    internals = internals_of(store)
    written: set[int] = set()
    for cell in cells:
        lines = [dump_line(cell, stored=stored, dictionaries=internals.dictionaries), b""]
        number = _dictionary_of(cell) if stored else None
        if number is not None and number not in written:
            try:
                dictionary = internals.dictionaries.get(number)
            except CorruptBody as error:
                raise error.at(cell.key, cell.shard) from error.__cause__
            lines.insert(0, dictionary_line(dictionary, source_of(internals.catalog, store.name, number)))
            written.add(number)
        yield cell, b"\n".join(lines)


def _dictionary_of(cell: StoredCell) -> int | None:
    """Return the dictionary that a body names; None if there is none, or the body is damaged."""
    try:
        return dictionary_of(cell.body)
    except CorruptBody:
        return None


def dump_line(cell: StoredCell, *, stored: bool, dictionaries: Dictionaries = NO_DICTIONARIES) -> bytes:
    """Return a cell as one line of JSON, without a line end.

    The fields are ``row_key``, ``column_name``, ``ref_key``, ``added_id``, ``created_at`` and, last, either ``body``,
    the document as JSON text, or ``stored``, the stored bytes in base64, or ``erased``, the number of the erasure.

    Args:
        cell: the cell.
        stored: write the stored bytes instead of the document.
        dictionaries: dictionaries that bodies may refer to.

    Raises:
        CorruptBody: the body does not decode; never raised with ``stored``.
    """
    head = json.dumps(
        {
            "row_key": str(cell.row_key),
            "column_name": cell.column_name,
            "ref_key": cell.ref_key,
            "added_id": cell.added_id,
            "created_at": cell.created_at.isoformat(),
        }
    )[:-1].encode()
    try:
        erasure = erasure_of(cell.body)
    except CorruptBody:
        erasure = None  # a damaged body, like any other
    if erasure is not None:
        return head + b', "erased": %d}' % erasure
    try:
        if stored:
            body = whole_body(inlined(cell.body), dictionaries, compressed=True)
            return head + b', "stored": "' + base64.b64encode(body) + b'"}'
        if is_reference(cell.body):
            text = bytes(exact_text(cell.body, dictionaries=dictionaries)[0]).strip()
        else:
            text = recode(cell.body, LEGACY, dictionaries=dictionaries).body.strip()
    except CorruptBody as error:
        raise error.at(cell.key, cell.shard) from error.__cause__
    if b"\n" in text or b"\r" in text:
        # Line breaks occur only between tokens, where spaces are equivalent; JSON strings cannot contain them.
        text = text.replace(b"\r", b" ").replace(b"\n", b" ")
    return head + b", " + _BODY_FIELD + b" " + text + b"}"


def iter_dump(store: Datastore, shards: Iterable[int], column_name: str | None) -> Iterator[StoredCell]:
    """Yield the cells of shards, of one column or all columns, in ``added_id`` order within each shard."""
    for shard in shards:
        yield from store.scan_shard(shard, column_name=column_name)
