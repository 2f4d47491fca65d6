"""``schemaless codec``: what columns are written in, and the dictionaries for that."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from schemaless.admin.removal import remove as remove_dictionary
from schemaless.cli.advise import advise
from schemaless.cli.options import codec_details, open_store, url_option
from schemaless.codec.lines import open_lines
from schemaless.codec.registry import codec_names
from schemaless.codec.training import Training
from schemaless.errors import InvalidInput
from schemaless.store import dictionaries as keeping
from schemaless.store.columns import REFRESH_S, ColumnSetting, codec_with, set_column, settings, unset_column
from schemaless.store.datastore import Datastore
from schemaless.store.dictionaries import DictionaryEntry
from schemaless.survey.advice import train_column
from schemaless.terminal.files import OutputFile, whole_file
from schemaless.terminal.output import (
    EXIT_FAILED,
    bytes_text,
    data_sink,
    json_option,
    note,
    out,
    print_json,
    print_table,
    progress,
)

_DEFAULT = "default"
_ZSTD_CODECS = [name for name in codec_names() if name.endswith("+zstd")]


@click.group()
def codec() -> None:
    """What columns are written in, and zstd dictionaries.

    \b
    The order of work:
      schemaless codec advise                                           what to use, and why
      schemaless codec train --column LOG                               makes dictionary 32768, say
      schemaless codec set --column LOG msgpack+zstd --dictionary 32768 for new cells
      schemaless migrate run --execute --column LOG --to msgpack+zstd --dictionary 32768
      schemaless codec export --output dictionaries.ndjson              a backup of them

    Readers need no setting: a body says what it is in, and which dictionary it needs.
    """


codec.add_command(advise)


@codec.command("list")
@url_option
@json_option
def list_(url: str, as_json: bool) -> int:
    """List dictionaries, and what columns are written in.

    Each dictionary is read and verified.

    \b
    Example:
      schemaless codec list --json

    Exit status: 0, or 1 where a dictionary is lost or damaged.
    """
    with open_store(url) as store:
        found = keeping.entries(store.catalog, store.name)
        columns = settings(store.catalog, store.name)
    faulty = any(each.fault is not None for each in found)
    if as_json:
        print_json(
            {"dictionaries": [_entry_json(each) for each in found], "columns": list(map(_setting_json, columns))}
        )
        return EXIT_FAILED if faulty else 0
    if found:
        print_table(
            "dictionaries",
            ["id", "of column", "state", "bytes", "rows", "cells", "unseen rows take", "made (UTC)", "SHA-256"],
            [
                [
                    str(each.id),
                    str(each.source.get("column", "")),
                    _state(each),
                    f"{each.size_bytes:,}",
                    _number(each.source.get("rows")),
                    _number(each.source.get("cells")),
                    f"{each.source['judged_share']:.1%}" if "judged_share" in each.source else "",
                    f"{each.created_at:%Y-%m-%d %H:%M}",
                    each.digest.hex()[:16],
                ]
                for each in found
            ],
            text_columns=3,
        )
    for each in found:
        if each.fault is not None:
            note(f"dictionary {each.id}: {each.fault}; restore it with 'schemaless codec import'")
    if columns:
        print_table(
            "columns",
            ["column", "new cells are written in", "set (UTC)"],
            [[each.column_name, _words(each), f"{each.set_at:%Y-%m-%d %H:%M}"] for each in columns],
            text_columns=3,
        )
    out().print(
        "all other columns are written in msgpack+zlib" if columns else "all columns are written in msgpack+zlib"
    )
    return EXIT_FAILED if faulty else 0


@codec.command()
@url_option
@click.option("--column", "column_name", required=True, metavar="NAME", help="The column whose cells it is for.")
@click.option(
    "--to", "codec_name", type=click.Choice(_ZSTD_CODECS), default="msgpack+zstd", show_default=True, help="The codec."
)
@click.option("--level", type=int, metavar="N", help="The level that it is judged at.  [default: zstd's own]")
@click.option("--seed", type=int, metavar="N", help="Of the sample, to draw the same one again.")
@json_option
def train(url: str, column_name: str, codec_name: str, level: int | None, seed: int | None, as_json: bool) -> int:
    """Train a dictionary on sampled cells of a column, and keep it in the catalog.

    Several sizes are tried, and judged on rows that training has not seen; it is kept only if those take at least 2 %
    less with it than without. Nothing is written with it yet: that is what 'codec set' and 'migrate' are for. The
    account has the role admin.

    \b
    Examples:
      schemaless codec train --column LOG
      schemaless codec train --column LOG --level 9 --seed 7

    Exit status: 0 kept; 1 it does not help, and is not kept.
    """
    with open_store(url) as store:
        with progress("sampling", None, "windows") as advance:
            training, source = train_column(
                store,
                column_name,
                codec_with(codec_name, level, None, store.dictionaries),
                seed=seed,
                on_window=advance.to,
            )
        kept = keeping.keep(store.catalog, store.name, training.dictionary, source) if training.helps else None
    if as_json:
        print_json({"dictionary": None if kept is None else kept.id, **_training_json(training), "source": source})
        return 0 if training.helps else EXIT_FAILED
    print_table(
        f"{training.cells:,} cells of {training.rows:,} rows trained on; sizes tried on other rows",
        ["dictionary", "bodies", "of those without"],
        [
            [
                f"{size.dictionary_bytes:,} bytes",
                bytes_text(size.body_bytes),
                f"{size.body_bytes / max(1, training.chosen_without_bytes):.1%}",
            ]
            for size in training.sizes
        ],
    )
    out().print(
        f"{len(training.dictionary.content):,} bytes chosen: {training.judged.encoded:,} cells of "
        f"{training.judged_rows:,} rows that had no part in it take {training.share:.1%} of what they take without"
    )
    if kept is None:
        note("it does not help, so it was not kept; the column is better off without")
        return EXIT_FAILED
    out().print(f"kept as dictionary {kept.id}; next:")
    detail = "" if level is None else f" --level {level}"
    out().print(
        f"  schemaless codec set --column {column_name} {codec_name}{detail} --dictionary {kept.id}", markup=False
    )
    return 0


@codec.command("set")
@url_option
@click.option("--column", "column_name", required=True, metavar="NAME", help="The column.")
@click.argument("codec_name", metavar="CODEC", type=click.Choice([*codec_names()[:-1], _DEFAULT]))
@codec_details[0]
@codec_details[1]
def set_(url: str, column_name: str, codec_name: str, level: int | None, dictionary_id: int | None) -> None:
    """Set what new cells of a column are written in.

    CODEC is a codec's name, or 'default' for the store's own, msgpack+zlib. Processes that write learn of it within a
    minute, and go on meanwhile as before; either way everybody reads what they write. Cells that are there stay as they
    are: 'schemaless migrate' re-encodes them. The account has the role admin.

    \b
    Examples:
      schemaless codec set --column LOG msgpack+zstd --dictionary 32768
      schemaless codec set --column STATUS json+zlib --level 9
      schemaless codec set --column LOG default
    """
    with open_store(url) as store:
        if codec_name == _DEFAULT:
            if level is not None or dictionary_id is not None:
                raise InvalidInput("default has its own level, and no dictionary; name a codec to set these")
            unset_column(store.catalog, store.name, column_name)
            words = "msgpack+zlib, the default"
        else:
            if dictionary_id is not None:
                store.dictionaries.get(dictionary_id)
            setting = ColumnSetting(column_name, codec_name, level, dictionary_id)
            set_column(store.catalog, store.name, setting)
            words = _words(setting)
    out().print(f"new cells of {column_name} are written in {words}, by each process within {REFRESH_S:.0f} s")


@codec.command()
@url_option
@click.argument("dictionary_id", metavar="N", type=int)
@click.option("--execute", is_flag=True, help="Really retire it, or remove it; without it, nothing is changed.")
def remove(url: str, dictionary_id: int, execute: bool) -> int:
    """Remove a dictionary that no cell needs, in two steps.

    First it is retired: nothing begins to write with it any more. An hour later the same command looks through all
    cells, and removes it where none names it, no column is set to it and no job writes with it. Its number is never
    given to another one. Export it first, where an archive or a dump may need it: 'schemaless codec export'. The
    account has the role admin.

    \b
    Example:
      schemaless codec remove 32768 --execute

    Exit status: 0 removed; 1 needed, or retired and not removed yet.
    """
    with open_store(url) as store:
        if not execute:
            entry = _entry_of(store, dictionary_id)
            step = "retire" if entry.retired_at is None else "look through all cells for, and remove,"
            out().print(f"would {step} dictionary {dictionary_id} of {store.name}")
            note("nothing was changed; add --execute to do it")
            return 0
        with progress("looking for cells that need it", None, "cells") as advance:
            done = remove_dictionary(store, dictionary_id, on_rows=advance)
    if done.removed:
        out().print(f"dictionary {dictionary_id} removed: none of {done.cells:,} cells needs it")
        return 0
    out().print(
        f"dictionary {dictionary_id} is retired; run the same command in {done.wait_s / 60:,.0f} minutes, when nothing "
        "can be writing with it any more"
    )
    return EXIT_FAILED


@codec.command("export")
@url_option
@click.argument("dictionary_ids", metavar="[N]...", type=int, nargs=-1)
@click.option("--output", type=OutputFile(Path), help="Write there, not to standard output.")
def export_(url: str, dictionary_ids: tuple[int, ...], output: Path | None) -> None:
    """Write dictionaries to a file, all of them unless named: a backup.

    One JSON object a line; 'schemaless codec import' reads it, and 'load --from-dump' reads it before cells.

    \b
    Example:
      schemaless codec export --output dictionaries.ndjson
    """
    with open_store(url) as store, ExitStack() as stack:
        found = [each for each in keeping.entries(store.catalog, store.name) if each.removed_at is None]
        chosen = [_entry_of(store, number) for number in dictionary_ids] or found
        lines = [keeping.dictionary_line(store.dictionaries.get(each.id), each.source) for each in chosen]
        sink = data_sink() if output is None else stack.enter_context(whole_file(output))
        for line in lines:
            sink.write(line + b"\n")
        sink.flush()


@codec.command("import")
@url_option
@click.argument("file", metavar="FILE")
@json_option
def import_(url: str, file: str, as_json: bool) -> None:
    """Bring dictionaries into the catalog, from an export, a dump or an archive.

    One that is lost or damaged here is restored by this, and cells that need it are read again at once. Where another
    dictionary has its number, it gets a new one; then only 'load --from-dump' can use it, which renumbers bodies too.
    FILE may be gzipped, or - for standard input; lines of cells are passed over. The account has the role admin.

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
            kept = keeping.bring(store.catalog, store.name, dictionary, source)
            taken.append({"dictionary": dictionary.id, "kept_as": kept.id})
    if not taken:
        raise InvalidInput(f"{file}: no line of it is a dictionary's")
    if as_json:
        print_json(taken)
        return
    for each in taken:
        renamed = "" if each["dictionary"] == each["kept_as"] else f" as {each['kept_as']}: its number is taken here"
        out().print(f"dictionary {each['dictionary']} is there{renamed}")


def _opened(file: str) -> Any:
    try:
        return Path(file).open("rb")
    except OSError as error:
        raise InvalidInput(f"cannot read {file}: {error.strerror}") from None


def _entry_of(store: Datastore, dictionary_id: int) -> DictionaryEntry:
    for each in keeping.entries(store.catalog, store.name):
        if each.id == dictionary_id and each.removed_at is None:
            return each
    raise InvalidInput(f"the catalog has no dictionary {dictionary_id}; 'schemaless codec list' shows them")


def _state(entry: DictionaryEntry) -> str:
    if entry.removed_at is not None:
        return "removed"
    if entry.fault is not None:
        return "damaged"
    return "retired" if entry.retired_at is not None else "intact"


def _words(setting: ColumnSetting) -> str:
    level = "" if setting.level is None else f" level {setting.level}"
    return f"{setting.codec}{level}" + (
        "" if setting.dictionary_id is None else f" with dictionary {setting.dictionary_id}"
    )


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else ""


def _entry_json(entry: DictionaryEntry) -> dict[str, Any]:
    return {
        "dictionary": entry.id,
        "state": _state(entry),
        "fault": entry.fault,
        "sha256": entry.digest.hex(),
        "bytes": entry.size_bytes,
        "source": entry.source,
        "created_at": entry.created_at.isoformat(),
        "retired_at": None if entry.retired_at is None else entry.retired_at.isoformat(),
        "removed_at": None if entry.removed_at is None else entry.removed_at.isoformat(),
    }


def _setting_json(setting: ColumnSetting) -> dict[str, Any]:
    return {
        "column_name": setting.column_name,
        "codec": setting.codec,
        "level": setting.level,
        "dictionary": setting.dictionary_id,
        "set_at": None if setting.set_at is None else setting.set_at.isoformat(),
    }


def _training_json(training: Training) -> dict[str, Any]:
    return {
        "helps": training.helps,
        "share": round(training.share, 4),
        "bytes": len(training.dictionary.content),
        "without_bytes": training.chosen_without_bytes,
        "sizes": [
            {"dictionary_bytes": size.dictionary_bytes, "body_bytes": size.body_bytes} for size in training.sizes
        ],
    }
