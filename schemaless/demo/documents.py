"""The demo's documents: the logbooks, or a user's file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from schemaless.base.events import Advanced, Listener, only, together
from schemaless.base.keys import cell_key
from schemaless.bench.logbooks import ALL_DOCUMENTS, COLUMN, documents
from schemaless.cell import CellKey, NewStoredCell
from schemaless.codec.lines import open_lines
from schemaless.codec.registry import LEGACY
from schemaless.demo.capacity import times
from schemaless.errors import CorruptBody, InvalidCell, InvalidInput, SchemalessError
from schemaless.ops.admin.fields import ref_key_in, row_key_in
from schemaless.ops.admin.ndjson import LineSkipped, LoadOutcome, document_reader, load
from schemaless.store.datastore import Datastore
from schemaless.ui.terminal.output import note, progress


def load_logbooks(store: Datastore) -> LoadOutcome:
    """Load the built-in logbooks as legacy JSON text, with invented times."""
    logbooks = documents(report=note)
    keys: dict[int, CellKey] = {}
    at = times(ALL_DOCUMENTS)

    def lines() -> Iterable[bytes]:
        for number, logbook in enumerate(logbooks, start=1):
            keys[number] = CellKey(logbook.row_key, COLUMN, logbook.ref_key)
            yield logbook.json_text()

    def to_cell(line: bytes, number: int) -> NewStoredCell:
        key = keys.pop(number)
        return NewStoredCell(key.row_key, key.column_name, key.ref_key, line, at(number))

    with progress("   loading", ALL_DOCUMENTS, "documents") as shown:
        return load(store, lines(), to_cell, source="logbooks", listener=_listener(shown))


def _listener(shown: Listener) -> Listener:
    """Return a listener that counts lines and reports skipped ones."""
    return together(
        only(Advanced, lambda line: shown(Advanced())),
        only(LineSkipped, lambda line: note(f"   skipped line {line.number}: {line.message}")),
    )


def _reader(row_key: str, ref_key: str) -> Callable[[bytes, int], NewStoredCell]:
    def key_of(document: object, line: bytes, number: int) -> CellKey:
        return CellKey(row_key_in(document, row_key, line), "DOC", ref_key_in(document, ref_key, number))

    return document_reader(key_of, LEGACY)


def check_file(path: Path, row_key: str, ref_key: str) -> None:
    """Raise InvalidInput if no line of a file can be loaded; stop reading at the first line that can."""
    if not path.is_file():
        raise InvalidInput(f"--data: there is no file {path}; give an NDJSON file, with one JSON document per line")
    to_cell = _reader(row_key, ref_key)
    first: SchemalessError | None = None
    with path.open("rb") as raw:
        for number, line in enumerate(open_lines(raw, str(path)), start=1):
            if not line.strip():
                continue
            try:
                cell = to_cell(line.rstrip(b"\r\n"), number)
                cell_key(cell.row_key, cell.column_name, cell.ref_key)
            except (InvalidInput, InvalidCell, CorruptBody) as error:
                first = first or error
            else:
                return
    why = "" if first is None else f" that can be loaded; the first error: {first}"
    raise InvalidInput(f"--data: {path} contains no document{why}")


def load_file(store: Datastore, path: Path, row_key: str, ref_key: str) -> LoadOutcome:
    """Load an NDJSON file as legacy JSON text, with invented times, reporting lines that cannot be loaded."""
    with path.open("rb") as raw:
        at = times(sum(1 for _ in open_lines(raw, str(path))))
    read = _reader(row_key, ref_key)
    with path.open("rb") as raw, progress("   loading", None, "documents") as shown:
        return load(
            store,
            open_lines(raw, str(path)),
            lambda line, number: replace(read(line, number), created_at=at(number)),
            source=str(path),
            keep_going=True,
            listener=_listener(shown),
        )
