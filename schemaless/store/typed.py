"""``Column``: the documents of one column as instances of a model, converted by msgspec or pydantic."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial
from typing import Any, Final, Generic, Protocol

from schemaless.base.keys import cell_key, check_column_name, check_each, row_key_bytes
from schemaless.base.type_variables import T
from schemaless.cell import Cell, CellKey, JSONDocument, NewCell, Put, RowKey
from schemaless.errors import DocumentMismatch, InvalidBody, InvalidInput
from schemaless.topology.shards import ReadFrom

_INDEX: Final = re.compile(r"\[\d+\]")

Upcast = Callable[[Any], Any]
"""Function that converts a document of an older shape to the current one, and returns any other as it is."""


class Store(Protocol):
    """The calls of ``Datastore`` that a column makes; each has its arguments and results."""

    def put_cell(self, row_key: RowKey, column_name: str, ref_key: int, body: Any, *, codec: str | None) -> Put:
        """Write one cell."""

    def put_cells(self, cells: Iterable[NewCell], *, codec: str | None) -> list[Put]:
        """Write a batch of cells."""

    def append_cell(
        self, row_key: RowKey, column_name: str, body: Any, *, if_latest: int | None, refill: bool, codec: str | None
    ) -> Put:
        """Write the next version."""

    def get_cell(self, row_key: RowKey, column_name: str, ref_key: int, *, read_from: ReadFrom) -> Cell | None:
        """Read one cell."""

    def get_cell_latest(
        self, row_key: RowKey, column_name: str, *, at: datetime | None, read_from: ReadFrom
    ) -> Cell | None:
        """Read the latest version."""

    def get_cells_latest(
        self, keys: Iterable[tuple[RowKey, str]], *, at: datetime | None, read_from: ReadFrom
    ) -> dict[tuple[uuid.UUID, str], Cell]:
        """Read the latest versions of many rows."""

    def get_versions(
        self,
        row_key: RowKey,
        column_name: str,
        *,
        after: int | None,
        before: int | None,
        descending: bool,
        limit: int | None,
        read_from: ReadFrom,
    ) -> Iterator[Cell]:
        """Iterate over the versions of a row."""


class Column(Generic[T]):
    """The documents of one column as instances of a model, as returned by ``Datastore.column``.

        @dataclass
        class Trip:
            driver: UUID
            fare: Decimal
            requested_at: datetime

        trips = store.column("BASE", Trip)
        trips.put(row_key, 1, Trip(driver, Decimal("12.50"), datetime.now(UTC)))
        cell = trips.latest(row_key)  # Cell[Trip] | None

    The methods have the arguments, results and errors of the methods of ``Datastore`` that they call. In addition,
    writes raise ``InvalidBody`` for a document that the model would not read back, with a secret that pydantic would
    write as asterisks, or with a datetime without a time zone, which indexes and other readers would take for UTC,
    before anything is sent; reads raise ``DocumentMismatch`` for a stored document that does not fit the model.
    """

    def __init__(self, store: Store, column_name: str, model: type[T], upcast: Upcast | None) -> None:
        self._store = store
        self._name = check_column_name(column_name)
        self._model = model
        given: object = upcast
        if given is not None and (not callable(given) or inspect.iscoroutinefunction(given)):
            raise InvalidInput(f"upcast must be a function that returns a document, and no 'async def', got {upcast!r}")
        self._upcast = upcast
        self._dump, self._load, self._native, self._refusals = _conversion(model)

    def __repr__(self) -> str:
        return f"Column({self._name!r}, {_name_of(self._model)})"

    def put(self, row_key: RowKey, ref_key: int, document: T, *, codec: str | None = None) -> Put:
        """Write a document as one version; see ``Datastore.put_cell``."""
        body = self._body(document, cell_key(row_key, self._name, ref_key))
        return self._store.put_cell(row_key, self._name, ref_key, body, codec=codec)

    def put_many(self, documents: Iterable[tuple[RowKey, int, T]], *, codec: str | None = None) -> list[Put]:
        """Write a batch of documents, each with its row_key and ref_key; see ``Datastore.put_cells``."""

        def cell(item: object) -> NewCell:
            if not isinstance(item, (tuple, list)) or len(item) != 3:
                raise InvalidInput(f"expected a tuple of row_key, ref_key and document, got {type(item).__name__}")
            row_key, ref_key, document = item
            body = self._body(document, cell_key(row_key, self._name, ref_key))
            return NewCell(row_key, self._name, ref_key, body)

        return self._store.put_cells([*check_each(documents, "documents", cell)], codec=codec)

    def append(
        self,
        row_key: RowKey,
        document: T,
        *,
        if_latest: int | None = None,
        refill: bool = True,
        codec: str | None = None,
    ) -> Put:
        """Write a document as the next version; see ``Datastore.append_cell``."""
        body = self._body(document, f"({row_key!s}, {self._name}, next)")
        return self._store.append_cell(row_key, self._name, body, if_latest=if_latest, refill=refill, codec=codec)

    def get(self, row_key: RowKey, ref_key: int, *, read_from: ReadFrom = "primary") -> Cell[T] | None:
        """Read one version; see ``Datastore.get_cell``."""
        return self._typed(self._store.get_cell(row_key, self._name, ref_key, read_from=read_from))

    def latest(self, row_key: RowKey, *, at: datetime | None = None, read_from: ReadFrom = "primary") -> Cell[T] | None:
        """Read the latest version; see ``Datastore.get_cell_latest``."""
        return self._typed(self._store.get_cell_latest(row_key, self._name, at=at, read_from=read_from))

    def latest_of(
        self, row_keys: Iterable[RowKey], *, at: datetime | None = None, read_from: ReadFrom = "primary"
    ) -> dict[uuid.UUID, Cell[T]]:
        """Read the latest versions in many rows, by row_key; see ``Datastore.get_cells_latest``."""
        keys = [(row_key, self._name) for row_key in check_each(row_keys, "row_keys", row_key_bytes)]
        cells = self._store.get_cells_latest(keys, at=at, read_from=read_from)
        return {row_key: self._converted(cell) for (row_key, _), cell in cells.items()}

    def versions(
        self,
        row_key: RowKey,
        *,
        after: int | None = None,
        before: int | None = None,
        descending: bool = True,
        limit: int | None = None,
        read_from: ReadFrom = "primary",
    ) -> Iterator[Cell[T]]:
        """Iterate over the versions of a row; see ``Datastore.get_versions``."""
        cells = self._store.get_versions(
            row_key,
            self._name,
            after=after,
            before=before,
            descending=descending,
            limit=limit,
            read_from=read_from,
        )
        return map(self._converted, cells)

    def convert(self, cell: Cell) -> Cell[T]:
        """Convert a cell that was read otherwise: by a trigger, the change feed, an index or ``Datastore.get_row``.

        Raises:
            InvalidInput: the argument is no cell, or one of another column.
            DocumentMismatch: the document does not fit the model, or it was erased.
        """
        if not isinstance(cell, Cell):
            raise InvalidInput(f"expected a Cell, such as row.cells[{self._name!r}], got {type(cell).__name__}")
        if cell.column_name != self._name:
            raise InvalidInput(f"cell {cell.key} is not of column {self._name}")
        if cell.erased:
            raise DocumentMismatch(cell.key, _name_of(self._model), "it was erased")
        return self._converted(cell)

    def _body(self, document: T, cell: CellKey | str) -> JSONDocument:
        try:
            body = self._dump(document)
            loaded = self._load(body)
        except self._refusals as error:
            raise InvalidBody(
                f"cell {cell}: this {_name_of(self._model)} could not be read back: {_reason(error)}. "
                "Nothing was written"
            ) from error
        if self._native is not None:
            self._check_values(self._native(document), self._native(loaded), cell)
        return body

    def _check_values(self, document: Any, loaded: Any, cell: CellKey | str) -> None:
        values = [*_values(document)]
        for field, value in values:
            if isinstance(value, datetime) and value.utcoffset() is None:
                raise InvalidBody(
                    f"cell {cell}: {_name_of(self._model)}{field} is a datetime without a time zone, which readers "
                    "would take for UTC; use an aware one, such as datetime.now(UTC), or declare a str. Nothing was "
                    "written"
                )
        secrets = [each for each in values if hasattr(each[1], "get_secret_value")]
        if secrets and secrets != [each for each in _values(loaded) if hasattr(each[1], "get_secret_value")]:
            raise InvalidBody(
                f"cell {cell}: {_name_of(self._model)}{secrets[0][0]} is a {type(secrets[0][1]).__name__}, which is "
                "written as asterisks; declare a str, or a field_serializer that returns its get_secret_value(). "
                "Nothing was written"
            )

    def _typed(self, cell: Cell | None) -> Cell[T] | None:
        return None if cell is None else self._converted(cell)

    def _converted(self, cell: Cell) -> Cell[T]:
        body = cell.body
        if self._upcast is not None:
            try:
                body = self._upcast(body)
            except Exception as error:
                error.add_note(f"raised by upcast for cell {cell.key}")
                raise
        try:
            document = self._load(body)
        except self._refusals as error:
            raise DocumentMismatch(cell.key, _name_of(self._model), _reason(error)) from error
        return type(cell)(cell.row_key, cell.column_name, cell.ref_key, document, cell.added_id, cell.created_at)


def _name_of(model: Any) -> str:
    return getattr(model, "__qualname__", None) or repr(model)


def _reason(error: Exception) -> str:
    """Return the text of a conversion error; pydantic's own also has values of the document."""
    details = error.errors(include_url=False, include_input=False) if hasattr(error, "errors") else ()
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in details) or str(error)


def _values(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values inside dicts and collections, keys included, with their paths."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _values(key, f"{path}.{key}")
            yield from _values(item, f"{path}.{key}")
    elif isinstance(value, list | tuple | set | frozenset):
        for position, item in enumerate(value):
            yield from _values(item, f"{path}[{position}]")
    else:
        yield path, value


def _has_native(described: object) -> bool:
    """Return False if a model's description shows no datetimes and secrets, which are not searched for then."""
    text = repr(described)
    return any(name in text for name in ("DateTimeType", "AnyType", "CustomType", "'datetime'", "'any'", "Secret"))


def _conversion(
    model: type[T],
) -> tuple[
    Callable[[T], JSONDocument],
    Callable[[JSONDocument], T],
    Callable[[T], Any] | None,
    tuple[type[Exception], ...],
]:
    """Return functions that convert a model to a document and back, and the errors that they raise.

    The third function returns the document with its datetimes and secrets as such; None if the model has none.

    Raises:
        InvalidInput: msgspec is not installed, or does not support the model.
    """
    if hasattr(model, "__pydantic_validator__"):
        pydantic, core = importlib.import_module("pydantic"), importlib.import_module("pydantic_core")
        adapter = pydantic.TypeAdapter(model)
        as_json = partial(adapter.dump_python, mode="json", by_alias=True, round_trip=True)

        def dump(document: T) -> JSONDocument:
            body, left_out = written(document)
            if left_out:
                # Those that a serializer of the model leaves out are missing again, elsewhere in a set.
                usual = {_INDEX.sub("[]", path) for path in written(load(body))[1]}
                if further := [path for path in left_out if _INDEX.sub("[]", path) not in usual]:
                    raise ValueError(f"{_name_of(model)}{min(further)} is not a field of the model")
            return body

        def written(document: T) -> tuple[JSONDocument, set[str]]:
            """Return the body of a document, and the paths of what the document has but its body does not."""
            body = as_json(document, warnings="error")
            # With the fields of subclasses, which pydantic leaves out of the body without a word.
            full = as_json(document, warnings=False, fallback=lambda _: None, serialize_as_any=True)
            return body, set() if full == body else dict(_values(full)).keys() - dict(_values(body))

        def load(body: JSONDocument) -> T:
            # As JSON text, so that strict models accept a datetime as text too.
            return adapter.validate_json(core.to_json(body, inf_nan_mode="constants"))  # type: ignore[no-any-return]

        def native(document: T) -> Any:
            return adapter.dump_python(document, by_alias=True, round_trip=True)

        return dump, load, native if _has_native(adapter.core_schema) else None, (TypeError, ValueError)
    try:
        msgspec = importlib.import_module("msgspec")
    except ImportError:
        raise InvalidInput(
            f"documents of {_name_of(model)} need msgspec: pip install 'schemaless-store[typed]'"
        ) from None
    try:
        msgspec.json.Decoder(model)
    except TypeError as error:
        raise InvalidInput(f"{_name_of(model)} cannot be the model of a column: {error}") from error

    def dates_of(document: T) -> Any:
        return msgspec.to_builtins(document, builtin_types=(datetime,))

    return (
        # Through JSON text, because to_builtins keeps tuples.
        lambda document: json.loads(json.dumps(msgspec.to_builtins(document, str_keys=True))),
        lambda body: msgspec.convert(body, model, str_keys=True),
        dates_of if _has_native(msgspec.inspect.type_info(model)) else None,
        (TypeError, ValueError, msgspec.MsgspecError),
    )
