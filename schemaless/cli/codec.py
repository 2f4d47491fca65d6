"""``schemaless codec``: codecs of columns, and zstd dictionaries."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

import click

from schemaless.base.interrupts import advising
from schemaless.base.numbers import bytes_text, counted
from schemaless.cli.codec_advise import advise
from schemaless.cli.command import Command, JSONCommand, QueryCommand, ReadOnlyCommand
from schemaless.cli.option import option
from schemaless.cli.options import codec_details, execute_option
from schemaless.codec.lines import open_lines
from schemaless.codec.masking import MIN_SHARE, Values
from schemaless.codec.registry import codec_names
from schemaless.codec.training import Training
from schemaless.errors import InvalidInput
from schemaless.ops.admin.dictionary_removal import remove as remove_dictionary
from schemaless.planning.sampling.advice import train_column
from schemaless.store.cells import dictionaries as keeping
from schemaless.store.cells.column_codecs import (
    REFRESH_S,
    ColumnSetting,
    codec_with,
    set_column,
    settings,
    unset_column,
)
from schemaless.store.cells.dictionary_replicas import Stored
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.ui.terminal.files import OutputFile, data_output
from schemaless.ui.terminal.output import EXIT_FAILED, facts, note, out, print_result, print_rows, print_table, progress


@click.group(commands=[advise])
def codec() -> None:
    """Choose the codec of each column, and manage zstd dictionaries.

    \b
    Workflow:
      schemaless codec advise               recommends codecs, with reasons
      schemaless codec train --column LOG   creates a dictionary, such as 32768
      schemaless codec set --column LOG msgpack+zstd --dictionary 32768
                                            sets the codec of new cells
      schemaless migrate run --execute --column LOG --to msgpack+zstd \\
          --dictionary 32768                re-encodes the stored ones
      schemaless codec export --output dictionaries.ndjson
                                            backs the dictionaries up

    Readers need no setting: each body names the codec and the dictionary that it was written with.
    """


@codec.command("list", cls=QueryCommand)
def list_(store: Datastore) -> int:
    """List dictionaries, and the codec of each column.

    The command reads and verifies each dictionary.

    \b
    Example:
      schemaless codec list --json

    Exit status: 0, or 1 if a dictionary is lost or damaged; 'codec import' restores it from a backup.
    """
    entries = internals_of(store).dictionary_replicas.catalog.rows().values()
    columns = settings(internals_of(store).catalog, store.name)
    faulty = any(entry.fault is not None for entry in entries)
    print_result(
        {"dictionaries": [entry_json(entry) for entry in entries], "columns": list(map(setting_json, columns))}
    )
    if entries:
        rows = [
            {
                "id": entry.id,
                "of column": entry.description.get("column"),
                "state": entry_state(entry),
                "bytes": entry.size_bytes,
                "rows": entry.description.get("rows"),
                "cells": entry.description.get("cells"),
                "unseen rows take": f"{entry.description['judged_share']:.1%}"
                if "judged_share" in entry.description
                else None,
                "made (UTC)": entry.created_at,
                "SHA-256": entry.digest.hex()[:16],
            }
            for entry in entries
        ]
        print_rows("dictionaries", rows, text_columns=3)
    for entry in entries:
        if entry.fault is not None:
            note(f"dictionary {entry.id}: {entry.fault}; restore it with 'schemaless codec import'")
    if columns:
        print_table(
            "columns",
            ["column", "new cells are written in", "set (UTC)"],
            [[column.column_name, setting_words(column), column.set_at] for column in columns],
            text_columns=3,
        )
    out().print(
        "all other columns are written in msgpack+zlib" if columns else "all columns are written in msgpack+zlib"
    )
    return EXIT_FAILED if faulty else 0


_ZSTD_CODECS = [name for name in codec_names() if name.endswith("+zstd")]


@codec.command(cls=JSONCommand)
@option("--column NAME", "The column that the dictionary is for.", name="column_name", required=True)
@option(
    "--to",
    "The codec that will use the dictionary.",
    name="codec_name",
    type=click.Choice(_ZSTD_CODECS),
    default="msgpack+zstd",
)
@option("--level N", "The zstd level at which the dictionary is evaluated.  [default: zstd's own]", type=int)
@option("--seed N", "The seed of the sample; the same seed draws the same sample.", type=int)
@option(
    "--values",
    f"Values the dictionary may hold: none, those found in at least {MIN_SHARE:.0%} of the sampled rows, or any.",
    type=click.Choice(get_args(Values)),
    default="masked",
)
def train(
    store: Datastore, column_name: str, codec_name: str, level: int | None, seed: int | None, values: Values
) -> int:
    """Train a dictionary on sampled cells of a column.

    A dictionary cannot be changed while cells need it, so nothing can be erased from it. By default it therefore holds
    keys, but no values: their letters and digits are replaced by random ones before training. With '--values common' or
    'real' it saves more space; use them only for columns without personal data.

    The command tries several sizes and evaluates them on rows that were not used for training. It saves the best one in
    the catalog if those rows take at least 2 % less space with it than without. It does not put the dictionary to use:
    use 'codec set' for new cells, and 'migrate run' for existing ones. The account needs the role admin.

    \b
    Examples:
      schemaless codec train --column LOG
      schemaless codec train --column LOG --level 9 --seed 7
      schemaless codec train --column FLIGHT --values common

    Exit status: 0, or 1 if the dictionary was not saved because it saves too little space.
    """
    with progress("sampling", None, "windows") as listener:
        training, source = train_column(
            store,
            column_name,
            codec_with(codec_name, level, None, internals_of(store).dictionaries),
            seed=seed,
            values=values,
            listener=listener,
        )
    with advising(lambda: "'schemaless codec list' shows whether the dictionary was saved"):
        kept = internals_of(store).dictionary_replicas.keep(training.dictionary, source) if training.helps else None
    print_result({"dictionary": None if kept is None else kept.id, **_training_json(training), "source": source})
    rows = [
        {
            "dictionary": f"{size.dictionary_bytes:,} bytes",
            "bodies": bytes_text(size.body_bytes),
            "of those without": f"{size.body_bytes / max(1, training.chosen_without_bytes):.1%}",
        }
        for size in training.sizes
    ]
    print_rows(
        f"trained on {counted(training.cells, 'cell')} of {counted(training.rows, 'row')}; the sizes were compared on "
        "other rows",
        rows,
    )
    out().print(
        f"a dictionary of {len(training.dictionary.content):,} bytes was chosen: "
        f"{counted(training.judged.encoded, 'cell')} of {counted(training.judged_rows, 'row')} that it was not trained "
        f"on take {training.share:.1%} of the space they take without it"
    )
    if kept is None:
        note("the dictionary gains too little, so it was not saved; keep compressing this column without one")
        return EXIT_FAILED
    out().print(f"saved as dictionary {kept.id}; next:")
    detail = "" if level is None else f" --level {level}"
    out().print(f"  schemaless codec set --column {column_name} {codec_name}{detail} --dictionary {kept.id}")
    return 0


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


_DEFAULT = "default"


@codec.command("set", cls=Command)
@option("--column NAME", "The column to set.", name="column_name", required=True)
@click.argument("codec_name", metavar="CODEC", type=click.Choice([*codec_names()[:-1], _DEFAULT]))
@codec_details[0]
@codec_details[1]
@option("--history", "Let migrations store versions that have a higher one as differences.", is_flag=True)
def set_(
    store: Datastore, column_name: str, codec_name: str, level: int | None, dictionary_id: int | None, history: bool
) -> None:
    """Set the codec with which new cells of a column are written.

    CODEC is a codec's name, or 'default' for the store's own, msgpack+zlib. Processes that write use the new codec
    within a minute, and the old one until then; every process reads cells in either. Existing cells stay as they are:
    'schemaless migrate' re-encodes them. The account needs the role admin.

    \b
    Examples:
      schemaless codec set --column LOG msgpack+zstd --dictionary 32768
      schemaless codec set --column STATUS json+zlib --level 9
      schemaless codec set --column TRIP msgpack+zlib --history
      schemaless codec set --column LOG default
    """
    if codec_name == _DEFAULT:
        if level is not None or dictionary_id is not None or history:
            raise InvalidInput("'default' has its own level, no dictionary and no history; to set these, name a codec")
        unset_column(internals_of(store).catalog, store.name, column_name)
        words = "msgpack+zlib, the default"
    else:
        if dictionary_id is not None:
            internals_of(store).dictionaries.get(dictionary_id)
        setting = ColumnSetting(column_name, codec_name, level, dictionary_id, history=history)
        set_column(internals_of(store).dictionary_replicas, setting)
        words = setting_words(setting)
    out().print(f"new cells of {column_name} are written in {words}; every process uses it within {REFRESH_S:.0f} s")


@codec.command(cls=Command)
@click.argument("dictionary_id", metavar="N", type=int)
@execute_option("Retire or remove the dictionary. Without this option, nothing is changed.")
def remove(store: Datastore, dictionary_id: int, execute: bool) -> int:
    """Remove a dictionary that no cell needs, in two steps.

    The first run retires the dictionary: from then on, no writer starts using it. An hour later, run the same command
    again: it looks through all cells, and removes the dictionary if no cell needs it, no column is set to it and no job
    writes with it. Its number is never given to another dictionary. If an archive or a dump may still need it, back it
    up first: 'schemaless codec export'. The account needs the role admin.

    \b
    Example:
      schemaless codec remove 32768 --execute

    Exit status: 0, or 1 if the dictionary is still needed, or is retired but not removed yet.
    """
    if not execute:
        entry = entry_of(store, dictionary_id)
        step = "retire" if entry.retired_at is None else "remove (if no cell needs it)"
        out().print(f"would {step} dictionary {dictionary_id} of {store.name}")
        return 0
    with progress("looking for cells that need it", None, "cells") as listener:
        done = remove_dictionary(store, dictionary_id, listener=listener)
    if done.removed:
        out().print(f"dictionary {dictionary_id} removed: {counted(done.cells, 'cell')} searched, and none needs it")
        return 0
    out().print(
        f"dictionary {dictionary_id} is retired; run the same command again in {done.wait_s / 60:,.0f} minutes, when "
        "nothing can be writing with it any more"
    )
    return EXIT_FAILED


@codec.command("export", cls=ReadOnlyCommand)
@click.argument("dictionary_ids", metavar="[N]...", type=int, nargs=-1)
@option("--output", "Write to this file instead of standard output.", type=OutputFile(Path))
def export_(store: Datastore, dictionary_ids: tuple[int, ...], output: Path | None) -> None:
    """Write dictionaries to a file, as a backup.

    The command writes all dictionaries, or those with the given numbers N. The file has one JSON object per line.
    'schemaless codec import' reads it, and so does 'load --from-dump', which needs the dictionaries before the cells.

    \b
    Examples:
      schemaless codec export --output dictionaries.ndjson
      schemaless codec export 32768 > dictionary-32768.ndjson
    """
    there = [
        entry for entry in internals_of(store).dictionary_replicas.catalog.rows().values() if entry.removed_at is None
    ]
    chosen = [entry_of(store, number) for number in dictionary_ids] or there
    lines = [
        keeping.dictionary_line(internals_of(store).dictionaries.get(entry.id), entry.description) for entry in chosen
    ]
    with data_output(output) as sink:
        for line in lines:
            sink.write(line + b"\n")


@codec.command("import", cls=JSONCommand)
@click.argument("file", metavar="FILE")
def import_(store: Datastore, file: str) -> None:
    """Copy dictionaries from a file into the catalog.

    FILE is an export, a dump or an archive; it may be gzipped, or - for standard input. Lines that are cells are
    ignored.

    If a dictionary is lost or damaged in this datastore, the import restores it, and the cells that need it can be read
    again at once. If another dictionary has the same number here, the imported one gets a new number; its cells can
    then be loaded only by 'load --from-dump', which also changes the number in their bodies. The account needs the role
    admin.

    \b
    Examples:
      schemaless codec import dictionaries.ndjson
      schemaless codec import \\
          /backup/originals/mezzanine/dictionary-32768-1f0c2a9d5b7e4c31.ndjson
    """
    taken: list[dict[str, Any]] = []
    with ExitStack() as stack:
        raw = sys.stdin.buffer if file == "-" else stack.enter_context(_opened(file))
        for number, line in enumerate(open_lines(raw, file), start=1):
            if not line.startswith(b'{"dictionary"'):
                continue
            try:
                dictionary, source = keeping.parse_dictionary_line(json.loads(line))
            except (InvalidInput, ValueError) as error:
                raise InvalidInput(f"{file}, line {number}: {error}") from None
            kept = internals_of(store).dictionary_replicas.bring(dictionary, source)
            taken.append({"dictionary": dictionary.id, "kept_as": kept.id})
    if not taken:
        raise InvalidInput(f"{file}: none of its lines is a dictionary")
    print_result(taken)
    for copy in taken:
        renamed = (
            "" if copy["dictionary"] == copy["kept_as"] else f" as {copy['kept_as']}, because its own number is taken"
        )
        out().print(f"dictionary {copy['dictionary']} is in the catalog{renamed}")


def _opened(file: str) -> Any:
    try:
        return Path(file).open("rb")
    except OSError as error:
        raise InvalidInput(f"cannot read {file}: {error.strerror}") from None


def entry_of(store: Datastore, dictionary_id: int) -> Stored:
    """Return the entry of an existing dictionary; InvalidInput if there is none."""
    for entry in internals_of(store).dictionary_replicas.catalog.rows().values():
        if entry.id == dictionary_id and entry.removed_at is None:
            return entry
    raise InvalidInput(
        f"the catalog has no dictionary {dictionary_id}; 'schemaless codec list' shows the existing ones"
    )


def entry_state(entry: Stored) -> str:
    """Return the state of a dictionary as one word."""
    if entry.removed_at is not None:
        return "removed"
    if entry.fault is not None:
        return "damaged"
    return "retired" if entry.retired_at is not None else "intact"


def setting_words(setting: ColumnSetting) -> str:
    """Describe the codec setting of a column as text."""
    level = "" if setting.level is None else f" level {setting.level}"
    return (
        f"{setting.codec}{level}"
        + ("" if setting.dictionary_id is None else f" with dictionary {setting.dictionary_id}")
        + (", superseded versions as differences" if setting.history else "")
    )


def entry_json(entry: Stored) -> dict[str, Any]:
    """Return a dictionary's entry, for ``--json``."""
    return {
        **facts(entry, "fault", "created_at", "retired_at", "removed_at", dictionary="id", bytes="size_bytes"),
        "state": entry_state(entry),
        "sha256": entry.digest.hex(),
        "source": entry.description,
    }


def setting_json(setting: ColumnSetting) -> dict[str, Any]:
    """Return the codec setting of a column, for ``--json``."""
    return facts(setting, "column_name", "codec", "level", "history", "set_at", dictionary="dictionary_id")
