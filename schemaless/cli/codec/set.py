"""``schemaless codec set``: what new cells of a column are written in."""

from __future__ import annotations

import click

from schemaless.cells.column_codecs import REFRESH_S, ColumnSetting, set_column, unset_column
from schemaless.cli.codec.shown import setting_words
from schemaless.cli.options import codec_details, open_store, url_option
from schemaless.codec.registry import codec_names
from schemaless.errors import InvalidInput
from schemaless.internals import internals_of
from schemaless.terminal.output import out

_DEFAULT = "default"


@click.command("set")
@url_option
@click.option("--column", "column_name", required=True, metavar="NAME", help="The column to set.")
@click.argument("codec_name", metavar="CODEC", type=click.Choice([*codec_names()[:-1], _DEFAULT]))
@codec_details[0]
@codec_details[1]
def set_(url: str, column_name: str, codec_name: str, level: int | None, dictionary_id: int | None) -> None:
    """Set the codec in which new cells of a column are written.

    CODEC is a codec's name, or 'default' for the store's own, msgpack+zlib. Processes that write use the new codec
    within a minute, and the old one until then; every process reads cells in either. Existing cells stay as they are:
    'schemaless migrate' re-encodes them. The account needs the role admin.

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
            unset_column(internals_of(store).catalog, store.name, column_name)
            words = "msgpack+zlib, the default"
        else:
            if dictionary_id is not None:
                internals_of(store).dictionaries.get(dictionary_id)
            setting = ColumnSetting(column_name, codec_name, level, dictionary_id)
            set_column(internals_of(store).dictionary_replicas, setting)
            words = setting_words(setting)
    out().print(f"new cells of {column_name} are written in {words}, by each process within {REFRESH_S:.0f} s")
