"""``schemaless load``."""

from __future__ import annotations

import base64
import functools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Final, Self

import click

from schemaless.base.events import Advanced, Event, Listener
from schemaless.base.keys import check_column_name
from schemaless.base.numbers import bytes_text, counted
from schemaless.cell import CellKey, NewStoredCell
from schemaless.cli.command import JSONCommand
from schemaless.cli.option import option
from schemaless.cli.options import allow_nan_option, codec_option
from schemaless.codec.lines import open_lines
from schemaless.codec.registry import Codec, codec_named
from schemaless.errors import InvalidInput
from schemaless.ops.admin import ndjson as loading
from schemaless.ops.admin.fields import check_ref_key_expression, created_at_in, ref_key_in, row_key_in
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.store.opening import connect
from schemaless.ui.terminal.output import EXIT_FAILED, facts, hint, note, out, print_result, progress

_REASONS_SHOWN: Final = 20


@click.command(cls=JSONCommand)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@option("--column NAME", "The column_name of every loaded cell.")
@option("--row-key EXPR", "Where a line has the row_key: PATH, uuid5:PATH or @line, as above.")
@option("--ref-key EXPR", "Where a line has the ref_key: PATH, =N or @line, as above.", default="=1")
@option(
    "--created-at PATH",
    "Where a document has its creation time: ISO 8601 (UTC if it has no offset) or seconds since 1970.  "
    "[default: the server's clock]",
)
@codec_option(
    "--as",
    legacy=True,
    default=None,
    help_text="The codec of stored bodies; legacy keeps the exact bytes of each line.  [default: the column's codec, "
    "usually msgpack+zlib; the stored bytes of 'dump --stored' are kept]",
)
@option("--from-dump", "The lines are those of 'schemaless dump', which contain their keys.", is_flag=True)
@allow_nan_option
@option("--keep-going", "Skip and report lines that cannot be loaded.", is_flag=True)
@option(
    "--rejects FILE",
    "Skip lines that cannot be loaded, and write them to this new file.",
    type=click.Path(path_type=Path),
)
def load(
    files: tuple[str, ...],
    url: str,
    column: str | None,
    row_key: str | None,
    ref_key: str,
    created_at: str | None,
    codec: str | None,
    from_dump: bool,
    allow_nan: bool,
    keep_going: bool,
    rejects: Path | None,
) -> int:
    """Load documents from an NDJSON file.

    The file has one JSON document per line. FILE may be compressed by gzip or zstd, a pipe, or - for standard input.
    Blank lines are ignored. Cells that already exist with the same document stay unchanged, so after a crash you can
    run the same command again. Cells that were erased are not written again.

    With --rejects, lines that cannot be loaded go to a file, one JSON object per line with file, line, reason and text
    (base64 if it is not UTF-8); it is deleted if there are none. 'jq -r .text FILE' prints them to be corrected.

    Without --created-at, loaded documents count as new on the day of the load, and capacity reports show them as
    growth. With it, each cell gets the time in its document. A cell that already exists keeps its time.

    \b
    A row_key is one of
      PATH         a field that holds a UUID, such as trip.id or /trip/id
      uuid5:PATH   a field that holds a name or number, hashed (uuid5)
      @line        the line itself, hashed: equal lines get the same row_key
    A ref_key is one of
      PATH         a field that holds an integer
      =N           the same number for all
      @line        the line's number

    \b
    Examples:
      schemaless load trips.ndjson.gz --column BASE --row-key trip.uuid \\
          --ref-key version
      schemaless load old.ndjson --column BASE --row-key trip.uuid \\
          --created-at trip.requested_at
      schemaless load logs.ndjson --column LOG --row-key uuid5:tail_number \\
          --ref-key month --as legacy
      schemaless load trips.ndjson.zst --column BASE --row-key trip.uuid \\
          --rejects rejects.ndjson
      schemaless load cells.ndjson --from-dump --created-at created_at
      zcat old.gz | schemaless load - --column BASE --row-key @line
      schemaless dump | schemaless load - --from-dump --url mysql://root@db-9/copy

    Exit status: 0 if all lines were loaded; 1 if lines were skipped, with --rejects too, or the load stopped at a cell
    that exists with another document or is damaged; 2 if the load stopped at a line that cannot be loaded.
    """
    chosen = None if codec is None else codec_named(codec)
    created_at_of = None if created_at is None else functools.partial(created_at_in, path=created_at)
    key_of: loading.KeyOf | None = None
    if from_dump:
        if column is not None or row_key is not None:
            raise InvalidInput("--from-dump takes the key from each line; omit --column and --row-key")
    else:
        if column is None or row_key is None:
            raise InvalidInput("give --column NAME and --row-key EXPR, or --from-dump")
        check_column_name(column)
        check_ref_key_expression(ref_key)
        key_of = _key_of(column, row_key, ref_key)
    total = loading.LoadOutcome()
    skipped: list[dict[str, Any]] = []
    with connect(url) as store, _Rejects(rejects) as rejected:
        for name in files:
            to_cell = _reader(store, key_of, chosen, created_at_of, allow_nan)
            with ExitStack() as stack:
                stream, size, position = _open(name, stack)
                shown = stack.enter_context(progress(f"loading {Path(name).name}", size, "bytes"))
                skip = rejected.add if rejects is not None else _note_skipped
                outcome = loading.load(
                    store,
                    stream,
                    to_cell,
                    source=name,
                    keep_going=keep_going or rejects is not None,
                    keep_text=rejects is not None,
                    listener=_listener(name, shown, position, skip),
                )
            if outcome.bom:
                note(f"ignored the byte order mark at the start of {name}")
            total.created += outcome.created
            total.there += outcome.there
            total.erased += outcome.erased
            total.blank += outcome.blank
            total.body_bytes += outcome.body_bytes
            total.reasons += outcome.reasons
            skipped += [{"file": name, "line": number, "why": message} for number, message in outcome.failures]
    counts = facts(total, "created", "erased", "body_bytes", there_already="there", blank_lines="blank")
    print_result({**counts, "reasons": dict(total.reasons.most_common()), "passed_over": skipped})
    out().print(
        f"{counted(total.created, 'cell')} created, {total.there:,} existed already, "
        f"{f'{total.erased:,} were erased and stay erased, ' if total.erased else ''}"
        f"{f'{total.blank:,} blank, ' if total.blank else ''}"
        f"{counted(total.reasons.total(), 'line')} skipped; {bytes_text(total.body_bytes)} of new bodies"
    )
    for reason, lines in total.reasons.most_common(_REASONS_SHOWN):
        out().print(f"{lines:>8,}  {reason}", soft_wrap=True)
    if len(total.reasons) > _REASONS_SHOWN:
        hint(f"--json lists all {len(total.reasons)} reasons")
    return EXIT_FAILED if total.reasons else 0


class _Rejects:
    """The file of skipped lines. It must be new, so that those of an earlier load are not lost; deleted if empty."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        if self._path is not None:
            try:
                self._file = self._path.open("x", encoding="utf-8", errors="backslashreplace")
            except FileExistsError:
                raise InvalidInput(
                    f"{self._path} exists, perhaps with the lines that another load has skipped; name a new file, or "
                    "delete it: the same load, run again, skips the same lines"
                ) from None
            except OSError as error:
                raise InvalidInput(f"cannot write {self._path}: {error.strerror}") from None
        return self

    def __exit__(self, kind: object, raised: BaseException | None, trace: object) -> None:
        if self._path is None or self._file is None:
            return
        try:
            self._file.close()
        except OSError as error:
            error.filename = str(self._path)
            raise
        if self._path.stat().st_size:
            note(f"the skipped lines are in {self._path}")
        else:
            self._path.unlink()

    def add(self, name: str, skipped: loading.LineSkipped) -> None:
        """Write a line."""
        assert self._file is not None
        try:
            text = {"text": skipped.text.decode()}
        except UnicodeDecodeError:
            text = {"base64": base64.b64encode(skipped.text).decode()}
        rejected = {"file": name, "line": skipped.number, "reason": skipped.message, **text}
        try:
            self._file.write(json.dumps(rejected, ensure_ascii=False) + "\n")
        except OSError as error:
            error.filename = str(self._path)
            raise


def _note_skipped(name: str, skipped: loading.LineSkipped) -> None:
    note(f"skipped {name}, line {skipped.number}: {skipped.message}")


def _listener(
    name: str, shown: Listener, position: Callable[[], int] | None, skip: Callable[[str, loading.LineSkipped], None]
) -> Listener:
    """Return a listener that shows the progress of a file and calls ``skip`` for each skipped line.

    ``position`` returns the file position, which also measures progress through compressed files; without it, the bytes
    of lines are counted.
    """
    done = 0

    def listener(event: Event) -> None:
        nonlocal done
        match event:
            case Advanced() if position is not None:
                now = position()
                shown(Advanced(now - done))
                done = now
            case loading.LineSkipped():
                skip(name, event)
            case _:
                shown(event)

    return listener


def _key_of(column: str, row_key: str, ref_key: str) -> loading.KeyOf:
    def key_of(document: Any, line: bytes, number: int) -> CellKey:
        return CellKey(row_key_in(document, row_key, line), column, ref_key_in(document, ref_key, number))

    return key_of


def _open(name: str, stack: ExitStack) -> tuple[Iterator[bytes], int | None, Callable[[], int] | None]:
    """Open a file or standard input; return its lines and, if it is seekable, its size and a position function."""
    if name == "-":
        return open_lines(sys.stdin.buffer, name, cut=True), None, None
    path = Path(name)
    try:
        raw = stack.enter_context(path.open("rb"))
        if not raw.seekable():
            # A named pipe, or the shell's process substitution, <(...).
            return open_lines(raw, name, cut=True), None, None
        size = path.stat().st_size
    except OSError as error:
        raise InvalidInput(f"cannot read {name}: {error.strerror}") from None
    return open_lines(raw, name, cut=True), size, raw.tell


def _reader(
    store: Datastore,
    key_of: loading.KeyOf | None,
    codec: Codec | None,
    created_at_of: loading.CreatedAtOf | None,
    allow_nan: bool,
) -> Callable[[bytes, int], NewStoredCell | None]:
    """Return the ``to_cell`` function for a file of documents or, without ``key_of``, for a dump."""
    internals = internals_of(store)
    if key_of is not None:
        return loading.document_reader(key_of, codec or store.codec_for, created_at_of, allow_nan=allow_nan)
    dictionaries = loading.DumpDictionaries(internals.dictionaries, internals.dictionary_replicas.bring)
    return loading.dump_reader(
        codec, created_at_of, codec_for=store.codec_for, dictionaries=dictionaries, allow_nan=allow_nan
    )
