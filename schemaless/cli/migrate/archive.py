"""Options and output shared by the commands that read the archive of a migration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from schemaless.cli.jobs import workers_options
from schemaless.cli.quantities import FiniteRange
from schemaless.migrate.originals import Missing, missing_text
from schemaless.migrate.verify import LAG_TIMEOUT_S, VerifyReport
from schemaless.terminal.output import facts, note, out

SHOWN = 20

MOST_LAG_TIMEOUT_S = 86_400


def archive_option(help_text: str) -> Callable[[Any], Any]:
    """Return the ``--archive`` option for existing archives."""
    return click.option(
        "--archive",
        "folders",
        type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
        multiple=True,
        metavar="DIR",
        help=help_text,
    )


def proof_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a verification: replicas, lag timeout, workers."""
    for option in (
        workers_options,
        click.option(
            "--lag-timeout",
            "lag_timeout_s",
            type=FiniteRange(0, MOST_LAG_TIMEOUT_S),
            default=LAG_TIMEOUT_S,
            metavar="SECONDS",
            help="Time for a replica that differs to catch up.",
        ),
        click.option(
            "--replicas/--no-replicas",
            default=True,
            help="Compare each cell with the replicas in the topology.",
        ),
    ):
        command = option(command)
    return command


def note_torn(torn: dict[Path, int]) -> None:
    """Note archive files with an incomplete last frame."""
    for path, size in sorted(torn.items()):
        note(
            f"{path} ends with an incomplete frame of {size:,} bytes; if a runner was killed there, it had "
            "replaced none of the frame's cells, but if the file is a copy, the copy is incomplete"
        )


def show_missing(missing: list[Missing]) -> None:
    """Print the gaps in the archive."""
    text = missing_text(missing)
    if text is not None:
        out().print(text, markup=False)
    for gap in missing[:SHOWN]:
        out().print(f"  {gap}", markup=False)
    if len(missing) > SHOWN:
        note(f"only the first {SHOWN} files are shown; --json lists all")


def show_left(left: Counter[str]) -> None:
    """Print the number of cells that the job left as they are, by reason."""
    for reason, cells in left.most_common():
        out().print(f"{cells:,} left as they are by the job: {reason}")


def verify_json(report: VerifyReport, missing: list[Missing], faults: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the result of a verification for ``--json``."""
    return {
        **facts(report, "shards", "cells", "body_bytes", "by_codec", "left", "blocks", "blocks_of", "seed", "compared"),
        "archived": report.archived,
        "torn": {str(path): size for path, size in report.torn.items()},
        "fault_counts": report.faults,
        "missing_originals": [asdict(gap) for gap in missing],
        "faults": faults,
    }
