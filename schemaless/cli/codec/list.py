"""``schemaless codec list``: the dictionaries, and what columns are written in."""

from __future__ import annotations

import click

from schemaless.cli.codec.shown import entry_json, entry_state, number_text, setting_json, setting_words
from schemaless.cli.options import open_store, url_option
from schemaless.store import dictionaries as keeping
from schemaless.store.columns import settings
from schemaless.store.tools import tools_of
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
        entries = keeping.entries(tools_of(store).catalog, store.name)
        columns = settings(tools_of(store).catalog, store.name)
    faulty = any(each.fault is not None for each in entries)
    if as_json:
        print_json(
            {"dictionaries": [entry_json(each) for each in entries], "columns": list(map(setting_json, columns))}
        )
        return EXIT_FAILED if faulty else 0
    if entries:
        print_table(
            "dictionaries",
            ["id", "of column", "state", "bytes", "rows", "cells", "unseen rows take", "made (UTC)", "SHA-256"],
            [
                [
                    str(each.id),
                    str(each.source.get("column", "")),
                    entry_state(each),
                    f"{each.size_bytes:,}",
                    number_text(each.source.get("rows")),
                    number_text(each.source.get("cells")),
                    f"{each.source['judged_share']:.1%}" if "judged_share" in each.source else "",
                    f"{each.created_at:%Y-%m-%d %H:%M}",
                    each.digest.hex()[:16],
                ]
                for each in entries
            ],
            text_columns=3,
        )
    for each in entries:
        if each.fault is not None:
            note(f"dictionary {each.id}: {each.fault}; restore it with 'schemaless codec import'")
    if columns:
        print_table(
            "columns",
            ["column", "new cells are written in", "set (UTC)"],
            [[each.column_name, setting_words(each), f"{each.set_at:%Y-%m-%d %H:%M}"] for each in columns],
            text_columns=3,
        )
    out().print(
        "all other columns are written in msgpack+zlib" if columns else "all columns are written in msgpack+zlib"
    )
    return EXIT_FAILED if faulty else 0
