"""``schemaless codec export`` and ``import``: dictionaries as lines of NDJSON."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from schemaless.cells import dictionaries as keeping
from schemaless.cli.codec.shown import entry_of
from schemaless.cli.options import open_store, url_option
from schemaless.codec.lines import open_lines
from schemaless.errors import InvalidInput
from schemaless.internals import internals_of
from schemaless.terminal.files import OutputFile, whole_file
from schemaless.terminal.output import data_sink, json_option, out, print_json


@click.command("export")
@url_option
@click.argument("dictionary_ids", metavar="[N]...", type=int, nargs=-1)
@click.option("--output", type=OutputFile(Path), help="Write to this file instead of standard output.")
def export_(url: str, dictionary_ids: tuple[int, ...], output: Path | None) -> None:
    """Write dictionaries to a file, as a backup.

    The command writes all of them, or those whose numbers N are given. The file has one JSON object a line. 'schemaless
    codec import' reads it, and so does 'load --from-dump', which needs the dictionaries before the cells.

    \b
    Examples:
      schemaless codec export --output dictionaries.ndjson
      schemaless codec export 32768 > dictionary-32768.ndjson
    """
    with open_store(url) as store, ExitStack() as stack:
        there = [
            entry for entry in keeping.entries(internals_of(store).catalog, store.name) if entry.removed_at is None
        ]
        chosen = [entry_of(store, number) for number in dictionary_ids] or there
        lines = [
            keeping.dictionary_line(internals_of(store).dictionaries.get(entry.id), entry.source) for entry in chosen
        ]
        sink = data_sink() if output is None else stack.enter_context(whole_file(output))
        for line in lines:
            sink.write(line + b"\n")
        sink.flush()


@click.command("import")
@url_option
@click.argument("file", metavar="FILE")
@json_option
def import_(url: str, file: str, as_json: bool) -> None:
    """Copy dictionaries from a file into the catalog.

    FILE is an export, a dump or an archive; it may be gzipped, or - for standard input. Lines that are cells are
    ignored.

    If a dictionary is lost or damaged in this datastore, the import restores it, and the cells that need it can be read
    again at once. If another dictionary has the same number here, the imported one gets a new number; only 'load
    --from-dump' can use it then, since it changes the number in the bodies too. The account needs the role admin.

    \b
    Examples:
      schemaless codec import dictionaries.ndjson
      schemaless codec import /backup/originals/mezzanine/dictionary-32768-1f0c2a9d5b7e4c31.ndjson
    """
    taken: list[dict[str, Any]] = []
    with open_store(url) as store, ExitStack() as stack:
        raw = sys.stdin.buffer if file == "-" else stack.enter_context(_opened(file))
        for number, line in enumerate(open_lines(raw, file), start=1):
            if not line.startswith(b'{"dictionary"'):
                continue
            try:
                dictionary, source = keeping.parse_dictionary_line(json.loads(line))
            except (InvalidInput, ValueError) as error:
                raise InvalidInput(f"{file}, line {number}: {error}") from None
            kept = keeping.bring(internals_of(store).dictionary_replicas, dictionary, source)
            taken.append({"dictionary": dictionary.id, "kept_as": kept.id})
    if not taken:
        raise InvalidInput(f"{file}: none of its lines is a dictionary")
    if as_json:
        print_json(taken)
        return
    for copy in taken:
        renamed = "" if copy["dictionary"] == copy["kept_as"] else f" as {copy['kept_as']}: its number is taken here"
        out().print(f"dictionary {copy['dictionary']} is there{renamed}")


def _opened(file: str) -> Any:
    try:
        return Path(file).open("rb")
    except OSError as error:
        raise InvalidInput(f"cannot read {file}: {error.strerror}") from None
