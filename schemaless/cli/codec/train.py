"""``schemaless codec train``: makes a dictionary of sampled cells."""

from __future__ import annotations

from typing import Any

import click

from schemaless.cells import dictionaries as keeping
from schemaless.cells.column_codecs import codec_with
from schemaless.cli.options import open_store, url_option
from schemaless.codec.registry import codec_names
from schemaless.codec.training import Training
from schemaless.internals import internals_of
from schemaless.survey.advice import train_column
from schemaless.terminal.output import (
    EXIT_FAILED,
    bytes_text,
    json_option,
    note,
    out,
    print_json,
    print_table,
    progress,
)

_ZSTD_CODECS = [name for name in codec_names() if name.endswith("+zstd")]


@click.command()
@url_option
@click.option(
    "--column", "column_name", required=True, metavar="NAME", help="The column whose cells the dictionary is for."
)
@click.option(
    "--to",
    "codec_name",
    type=click.Choice(_ZSTD_CODECS),
    default="msgpack+zstd",
    help="The codec that will use the dictionary.",
)
@click.option(
    "--level", type=int, metavar="N", help="The level of zstd at which the dictionary is judged.  [default: zstd's own]"
)
@click.option("--seed", type=int, metavar="N", help="The seed of the sample; the same seed draws the same sample.")
@json_option
def train(url: str, column_name: str, codec_name: str, level: int | None, seed: int | None, as_json: bool) -> int:
    """Train a dictionary on sampled cells of a column.

    The command tries several sizes and judges them on rows that training has not seen. It keeps the best one in the
    catalog if those rows take at least 2 % less space with it than without. No cell is written with it yet: use 'codec
    set' for new cells, and 'migrate run' for existing ones. The account needs the role admin.

    \b
    Examples:
      schemaless codec train --column LOG
      schemaless codec train --column LOG --level 9 --seed 7

    Exit status: 0 kept; 1 not kept, since it does not help.
    """
    with open_store(url) as store:
        with progress("sampling", None, "windows") as listener:
            training, source = train_column(
                store,
                column_name,
                codec_with(codec_name, level, None, internals_of(store).dictionaries),
                seed=seed,
                listener=listener,
            )
        kept = (
            keeping.keep(internals_of(store).dictionary_replicas, training.dictionary, source)
            if training.helps
            else None
        )
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
        f"a dictionary of {len(training.dictionary.content):,} bytes was chosen: {training.judged.encoded:,} cells of "
        f"{training.judged_rows:,} rows that it was not trained on take {training.share:.1%} of their space without it"
    )
    if kept is None:
        note("it does not help, so it was not kept; the column is better off without one")
        return EXIT_FAILED
    out().print(f"kept as dictionary {kept.id}; next:")
    detail = "" if level is None else f" --level {level}"
    out().print(
        f"  schemaless codec set --column {column_name} {codec_name}{detail} --dictionary {kept.id}", markup=False
    )
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
