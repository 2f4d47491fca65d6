"""``schemaless codec list``: the dictionaries, and what columns are written in."""

from __future__ import annotations

import click

from schemaless.cells import dictionaries as keeping
from schemaless.cells.column_codecs import settings
from schemaless.cli.codec.shown import entry_json, entry_state, number_text, setting_json, setting_words
from schemaless.cli.options import open_store, url_option
from schemaless.internals import internals_of
from schemaless.terminal.output import EXIT_FAILED, json_option, note, out, print_json, print_table


@click.command("list")
@url_option
@json_option
def list_(url: str, as_json: bool) -> int:
    """List dictionaries, and the codec of each column.

    The command reads and verifies each dictionary.

    \b
    Example:
      schemaless codec list --json

    Exit status: 0, or 1 if a dictionary is lost or damaged; 'codec import' restores it from a backup.
    """
    with open_store(url) as store:
        entries = keeping.entries(internals_of(store).catalog, store.name)
        columns = settings(internals_of(store).catalog, store.name)
    faulty = any(entry.fault is not None for entry in entries)
    if as_json:
        print_json(
            {"dictionaries": [entry_json(entry) for entry in entries], "columns": list(map(setting_json, columns))}
        )
        return EXIT_FAILED if faulty else 0
    if entries:
        print_table(
            "dictionaries",
            ["id", "of column", "state", "bytes", "rows", "cells", "unseen rows take", "made (UTC)", "SHA-256"],
            [
                [
                    str(entry.id),
                    str(entry.source.get("column", "")),
                    entry_state(entry),
                    f"{entry.size_bytes:,}",
                    number_text(entry.source.get("rows")),
                    number_text(entry.source.get("cells")),
                    f"{entry.source['judged_share']:.1%}" if "judged_share" in entry.source else "",
                    f"{entry.created_at:%Y-%m-%d %H:%M}",
                    entry.digest.hex()[:16],
                ]
                for entry in entries
            ],
            text_columns=3,
        )
    for entry in entries:
        if entry.fault is not None:
            note(f"dictionary {entry.id}: {entry.fault}; restore it with 'schemaless codec import'")
    if columns:
        print_table(
            "columns",
            ["column", "new cells are written in", "set (UTC)"],
            [[column.column_name, setting_words(column), f"{column.set_at:%Y-%m-%d %H:%M}"] for column in columns],
            text_columns=3,
        )
    out().print(
        "all other columns are written in msgpack+zlib" if columns else "all columns are written in msgpack+zlib"
    )
    return EXIT_FAILED if faulty else 0
