"""Documents from NDJSON into cells, and cells back out: repeatable, exact, and without burning ids.

Each line is one document. A line becomes a body by the same rule as a migration makes one, so text that MessagePack
could not hold, or that parsing would change, is kept as text.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from schemaless.cell import CellKey, NewStoredCell, StoredCell
from schemaless.cells.dictionaries import dictionary_line, is_dictionary_line, parse_dictionary_line, source_of
from schemaless.cells.writing import EncodedCell, encoded_stored
from schemaless.codec.dictionaries import NO_DICTIONARIES, Dictionaries, Dictionary
from schemaless.codec.documents import MAX_DEPTH
from schemaless.codec.envelope import decode_body, dictionary_of, renumbered_body
from schemaless.codec.legacy import read_json
from schemaless.codec.lines import check_line
from schemaless.codec.recode import recode
from schemaless.codec.registry import DEFAULT, LEGACY, Codec
from schemaless.codec.values import MAX_VALUES
from schemaless.datastore import Datastore
from schemaless.errors import (
    BatchError,
    BodyTooLarge,
    CellConflict,
    CorruptBody,
    InvalidCell,
    InvalidInput,
    SchemalessError,
)
from schemaless.events import Advanced, Event, Listener, nobody
from schemaless.internals import internals_of

_BODY_FIELD: Final = b'"body":'
_HEAD_VALUES: Final = 32

KeyOf = Callable[[Any, bytes, int], CellKey]
"""This is a function that takes a document, its line and the line's number, and returns the cell's key."""


CreatedAtOf = Callable[[Any], datetime]
"""This is a function that takes a document and returns when it was first stored, aware."""

CodecFor = Callable[[str], Codec]
"""This is a function that takes a column_name and returns what its new bodies are written in."""


@dataclass(frozen=True, slots=True)
class BatchBounds:
    """How large a batch may be: it makes two statements for each shard, so it grows with their number, within bounds.

    Attributes:
        cells: the least, for each shard, and the most.
        body_bytes: likewise, of their bodies.
    """

    cells: tuple[int, int, int] = (500, 50, 100_000)
    body_bytes: tuple[int, int, int] = (4 << 20, 64 << 10, 64 << 20)

    def of(self, shard_count: int) -> tuple[int, int]:
        """Return how many cells, and bytes of bodies, a batch may have at most."""
        cells, size = (
            max(low, min(high, per_shard * shard_count)) for low, per_shard, high in (self.cells, self.body_bytes)
        )
        return cells, size


BATCH_BOUNDS: Final = BatchBounds()
"""A batch of a load is so large unless the caller says otherwise."""


@dataclass(slots=True)
class LoadOutcome:
    """What became of the lines.

    Attributes:
        created: cells written.
        there: cells that were there already, with the same document.
        body_bytes: what the bodies of the cells written take.
        failures: ``(line number, message)`` of lines that were passed over.
    """

    created: int = 0
    there: int = 0
    body_bytes: int = 0
    failures: list[tuple[int, str]] = field(default_factory=list)


class LineConflict(CellConflict):
    """A line's cell is there with another document; says which line."""

    def __init__(self, conflict: CellConflict, where: str) -> None:
        super().__init__(conflict.stored, conflict.shard)
        self.where = where

    def __str__(self) -> str:
        return f"{self.where}: {super().__str__()}, or pass such lines over with --keep-going"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (CellConflict(self.stored, self.shard), self.where)


class LineDamaged(CorruptBody):
    """A line's cell is there, and what is stored of it does not decode; says which line."""

    def __init__(self, damage: CorruptBody, where: str) -> None:
        super().__init__(damage.message)
        self.key = damage.key
        self.shard = damage.shard
        self.damage = damage
        self.where = where

    def __str__(self) -> str:
        return (
            f"{self.where}: stored {super().__str__()}; no document can be compared with it. 'schemaless check' names "
            "all such cells; pass such lines over with --keep-going"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.damage, self.where)


@dataclass(frozen=True, slots=True)
class _Line:
    """A line and its cell.

    Attributes:
        again: the numbers of later lines with the same cell and the same body.
    """

    number: int
    cell: EncodedCell
    again: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LinePassedOver(Event):
    """A line was passed over that is no document, or whose cell cannot be written.

    Attributes:
        number: the line's, from 1 on.
        message: why.
    """

    number: int
    message: str


def load(
    store: Datastore,
    lines: Iterable[bytes],
    to_cell: Callable[[bytes, int], NewStoredCell | None],
    *,
    source: str,
    keep_going: bool = False,
    bounds: BatchBounds = BATCH_BOUNDS,
    listener: Listener = nobody,
) -> LoadOutcome:
    """Write one cell for each line.

    Cells that are there already with the same document are left alone, whatever codec they are in, so an interrupted
    load is simply run again.

    Args:
        lines: with or without their line ends; empty ones are passed over, and one that is cut is refused.
        to_cell: makes a cell of a line and its number, or None of one that is no cell's; raises for a line that cannot
            be one.
        source: the file's name, for errors.
        keep_going: pass over lines that are no document, or whose cell exists with another body or with one that does
            not decode; report them.
        bounds: how much is written at once.
        listener: told each advance, a line with its bytes, and each ``LinePassedOver``.

    Raises:
        InvalidInput: a line cannot be used; the batches before it are written.
        CellConflict: a cell is there with another document, likewise.
        CorruptBody: a cell is there and does not decode, likewise.
        ServerError: a server failed.
    """
    outcome = LoadOutcome()

    def fail(number: int, error: SchemalessError) -> None:
        if not keep_going:
            if isinstance(error, CellConflict):
                raise LineConflict(error, f"{source}, line {number}") from error
            if isinstance(error, CorruptBody) and error.key is not None:
                raise LineDamaged(error, f"{source}, line {number}") from error
            raise InvalidInput(
                f"{source}, line {number}: {error}. The lines before it are loaded; mend it and run the same command "
                "again, or pass such lines over with --keep-going"
            ) from error
        damaged = isinstance(error, CorruptBody) and error.key is not None
        message = f"stored {error}" if damaged else str(error)
        outcome.failures.append((number, message))
        listener(LinePassedOver(number, message))

    most_cells, most_bytes = bounds.of(store.shard_count)
    batch: dict[CellKey, _Line] = {}
    batch_bytes = 0
    for number, raw in enumerate(lines, start=1):
        line = raw.rstrip(b"\r\n")
        if line.strip():
            try:
                check_line(line)
                new = to_cell(line, number)
                cell = None if new is None else encoded_stored(new, store.decode)
            except (InvalidInput, InvalidCell, CorruptBody, BodyTooLarge) as error:
                if not keep_going:
                    _write(store, batch, outcome, fail)
                    batch, batch_bytes = {}, 0
                fail(number, error)
            else:
                if cell is None:
                    listener(Advanced(len(raw)))
                    continue
                first = batch.get(cell.key)
                if first is not None and first.cell.body == cell.body:
                    first.again.append(number)
                else:
                    if first is not None or len(batch) >= most_cells or batch_bytes + len(cell.body) > most_bytes:
                        _write(store, batch, outcome, fail)
                        batch, batch_bytes = {}, 0
                    batch[cell.key] = _Line(number, cell)
                    batch_bytes += len(cell.body)
        listener(Advanced(len(raw)))
    _write(store, batch, outcome, fail)
    return outcome


def _write(
    store: Datastore, batch: dict[CellKey, _Line], outcome: LoadOutcome, fail: Callable[[int, SchemalessError], None]
) -> None:
    cells = internals_of(store).cells
    parts = [list(batch.values())]
    while parts:
        part = parts.pop()
        causes: dict[int, SchemalessError] = {}
        try:
            puts = cells.put_batch([line.cell for line in part], look_first=True)
        except BatchError as error:
            puts, causes = error.written, error.causes
            for cause in causes.values():
                if not isinstance(cause, CellConflict | BodyTooLarge | CorruptBody):
                    raise cause from error
        pending = {line.cell.key: line for line in part}
        for put in puts:
            line = pending.pop(put.key)
            if put.created:
                outcome.created += 1
                outcome.body_bytes += len(line.cell.body)
            else:
                outcome.there += 1
            outcome.there += len(line.again)
        # A shard that refuses one cell has written none: leave that one out, and try the others again, by halves.
        refused: list[tuple[int, SchemalessError]] = []
        for shard, cause in causes.items():
            left = [line for line in pending.values() if store.shard_of(line.cell.key.row_key) == shard]
            culprit = left[0].cell.key if len(left) == 1 else _culprit(cause)
            if culprit is not None:
                refused += [(number, cause) for number in (pending[culprit].number, *pending[culprit].again)]
            left = [line for line in left if line.cell.key != culprit]
            middle = len(left) // 2
            parts += [half for half in (left[:middle], left[middle:]) if half]
        for number, cause in sorted(refused, key=lambda pair: pair[0]):
            fail(number, cause)


def _culprit(cause: SchemalessError) -> CellKey | None:
    """Return the key of the cell that stopped a shard, where the error says it."""
    if isinstance(cause, CellConflict):
        return cause.stored.key
    return cause.key if isinstance(cause, CorruptBody) else None


def document_reader(
    key_of: KeyOf, codec: Codec | CodecFor, created_at_of: CreatedAtOf | None = None
) -> Callable[[bytes, int], NewStoredCell]:
    """Return a ``to_cell`` for lines that are plain documents.

    Args:
        key_of: finds the key in the document.
        codec: what bodies are stored in, or what tells it by the column_name; ``LEGACY`` stores each line's very bytes.
        created_at_of: finds in the document when it was first stored; the server's clock unless given.
    """

    def to_cell(line: bytes, number: int) -> NewStoredCell:
        document = read_json(line).value
        key = key_of(document, line, number)
        at = None if created_at_of is None else created_at_of(document)
        chosen = codec if isinstance(codec, Codec) else codec(key.column_name)
        body = line if chosen is LEGACY else recode(line, chosen).body
        return NewStoredCell(key.row_key, key.column_name, key.ref_key, body, at)

    return to_cell


class DumpDictionaries:
    """The dictionaries that a dump brings along, and what they are called here."""

    def __init__(self, here: Dictionaries, bring: Callable[[Dictionary, dict[str, Any]], Dictionary]) -> None:
        """Take a datastore's.

        Args:
            here: those that the datastore has.
            bring: gives it one more, and returns that under the id that it has there.
        """
        self._here = here
        self._bring = bring
        self._of_dump: dict[int, Dictionary] = {}
        self._numbers: dict[int, int] = {}

    def take(self, fields: dict[str, Any]) -> None:
        """Take a dictionary's line; bodies that follow and name it may be given to ``renumbered``."""
        dictionary, source = parse_dictionary_line(fields)
        kept = self._bring(dictionary, source)
        self._of_dump[dictionary.id] = dictionary
        self._numbers[dictionary.id] = kept.id

    def get(self, dictionary_id: int) -> Dictionary:
        """Return the dictionary that bodies of the dump name, as ``Dictionaries`` has it."""
        return self._of_dump.get(dictionary_id) or self._here.get(dictionary_id)

    def renumbered(self, body: bytes) -> bytes:
        """Return a sound body of the dump as it is to be stored: it names a dictionary as that is called here."""
        named = dictionary_of(body)
        number = None if named is None else self._numbers.get(named, named)
        return body if number is None or number == named else renumbered_body(body, number)


def dump_reader(
    codec: Codec | None,
    created_at_of: CreatedAtOf | None = None,
    *,
    codec_for: CodecFor = lambda column_name: DEFAULT,
    dictionaries: DumpDictionaries | None = None,
) -> Callable[[bytes, int], NewStoredCell | None]:
    """Return a ``to_cell`` for the lines that ``dump_line`` and ``dump_lines`` write.

    Args:
        codec: what bodies are stored in; None keeps stored bytes as they are, and documents go to ``codec_for``.
        created_at_of: finds in the line when its cell was first stored; the server's clock unless given.
        codec_for: tells by the column_name.
        dictionaries: takes those of the dump, and has them; None refuses bodies that name one.
    """
    known: Dictionaries = NO_DICTIONARIES if dictionaries is None else dictionaries

    def to_cell(line: bytes, number: int) -> NewStoredCell | None:
        # The line adds a level to its body, and a few values.
        fields = read_json(line, MAX_DEPTH + 1, MAX_VALUES + _HEAD_VALUES).value
        if dictionaries is not None and is_dictionary_line(fields):
            dictionaries.take(fields)
            return None
        names = {"row_key", "column_name", "ref_key"}
        if not isinstance(fields, dict) or not names < fields.keys() or not {"body", "stored"} & fields.keys():
            raise InvalidInput(
                "not a line of 'schemaless dump': it lacks row_key, column_name, ref_key, or body or stored"
            )
        if "stored" in fields:
            try:
                body = base64.b64decode(fields["stored"], validate=True)
            except (ValueError, TypeError):
                raise InvalidInput("stored is no base64") from None
            if codec is None:
                decode_body(body, dictionaries=known)
                body = body if dictionaries is None else dictionaries.renumbered(body)
            else:
                body = recode(body, codec, dictionaries=known).body
        else:
            # The dump's last field: taken as it stands, since parsing it could lose what only its text has.
            _, marker, rest = line.partition(_BODY_FIELD)
            if not marker:
                raise InvalidInput('"body": has to be written like this, and to be the last field, as dump writes it')
            text = rest[: rest.rindex(b"}")].strip()
            body = recode(text, codec or codec_for(str(fields["column_name"]))).body
        try:
            row_key = uuid.UUID(fields["row_key"])
        except (ValueError, AttributeError, TypeError):
            raise InvalidInput(f"row_key is no UUID: {fields['row_key']!r}") from None
        at = None if created_at_of is None else created_at_of(fields)
        return NewStoredCell(row_key, fields["column_name"], fields["ref_key"], body, at)

    return to_cell


def dump_lines(store: Datastore, cells: Iterable[StoredCell], *, stored: bool) -> Iterator[tuple[StoredCell, bytes]]:
    """Yield cells with their lines; with ``stored``, a dictionary stands before the first that needs it.

    Raises:
        CorruptBody: as ``dump_line``; with ``stored``, only where a body's dictionary cannot be had.
        ServerError: the catalog's server cannot be reached, and a body names a dictionary.
    """
    internals = internals_of(store)
    written: set[int] = set()
    for cell in cells:
        lines = [dump_line(cell, stored=stored, dictionaries=internals.dictionaries), b""]
        number = _named(cell) if stored else None
        if number is not None and number not in written:
            try:
                dictionary = internals.dictionaries.get(number)
            except CorruptBody as error:
                raise error.at(cell.key, cell.shard) from error.__cause__
            lines.insert(0, dictionary_line(dictionary, source_of(internals.catalog, store.name, number)))
            written.add(number)
        yield cell, b"\n".join(lines)


def _named(cell: StoredCell) -> int | None:
    """Return the dictionary that a body names; None too for one that is damaged, which is dumped as it is."""
    try:
        return dictionary_of(cell.body)
    except CorruptBody:
        return None


def dump_line(cell: StoredCell, *, stored: bool, dictionaries: Dictionaries = NO_DICTIONARIES) -> bytes:
    """Return a cell as one line of JSON, without its line end.

    An object of ``row_key``, ``column_name``, ``ref_key``, ``added_id``, ``created_at`` and, last, ``body``, which is
    the JSON text that the body means; or, instead of it, ``stored``: its stored bytes in base64.

    Args:
        cell: as it was read.
        stored: write the stored bytes instead of the document.
        dictionaries: those that bodies name.

    Raises:
        CorruptBody: the body does not decode; with ``stored``, it need not.
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
    if stored:
        return head + b', "stored": "' + base64.b64encode(cell.body) + b'"}'
    try:
        text = recode(cell.body, LEGACY, dictionaries=dictionaries).body.strip()
    except CorruptBody as error:
        raise error.at(cell.key, cell.shard) from error.__cause__
    if b"\n" in text or b"\r" in text:
        # Between tokens they may be spaces; inside strings JSON has none of them.
        text = text.replace(b"\r", b" ").replace(b"\n", b" ")
    return head + b", " + _BODY_FIELD + b" " + text + b"}"


def iter_dump(store: Datastore, shards: Iterable[int], column_name: str | None) -> Iterator[StoredCell]:
    """Yield the cells of shards, of one column or of all, in ``added_id`` order within a shard."""
    for shard in shards:
        yield from store.scan_shard(shard, column_name=column_name)
