"""The demo's summary: the space saved by re-encoding and rebuilding, and commands to try next."""

from __future__ import annotations

import math
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

from schemaless.base.numbers import bytes_text, counted
from schemaless.ops.migrate.tally import MigrateOutcome
from schemaless.planning.capacity.model import GB, TB, Plan, days_until_full
from schemaless.planning.sampling.table_sizes import TableSize
from schemaless.ui.terminal.output import line_break, out, print_table

_DOCUMENTS_PER_DAY = 1_000_000


class Size(NamedTuple):
    """Size of all cell tables: their files, and the bytes of their used pages."""

    files: TableSize
    used_bytes: int


def show_gain(outcome: MigrateOutcome, before: Size, after: Size, last: Size) -> None:
    """Print the space saved; ``before``, ``after`` and ``last`` are the original, re-encoded and rebuilt sizes."""
    total = outcome.total()
    share = total.bytes_after / total.bytes_before if total.bytes_before else 1.0
    print_table(
        None,
        ["", "before", "re-encoded", "rebuilt", "rebuilt / before"],
        [
            [
                "body bytes",
                f"{total.bytes_before:,}",
                f"{total.bytes_after:,}",
                f"{total.bytes_after:,}",
                f"{share:.1%}",
            ],
            [
                "pages in use",
                f"{before.used_bytes:,}",
                f"{after.used_bytes:,}",
                f"{last.used_bytes:,}",
                f"{last.used_bytes / before.used_bytes:.1%}",
            ],
            [
                "files on disk",
                f"{before.files.allocated_bytes:,}",
                f"{after.files.allocated_bytes:,}",
                f"{last.files.allocated_bytes:,}",
                f"{last.files.allocated_bytes / before.files.allocated_bytes:.1%}",
            ],
        ],
    )
    out().print(f"\n{bytes_text(total.reclaimed_bytes)} of body bytes reclaimed ({1 - share:.1%}).", style="bold")
    out().print(
        "Re-encoding alone does not shrink the files: new bodies need pages before the pages of the old ones are free."
        f"{line_break()}New cells fill the free pages, or a rebuild returns them to the disk. InnoDB keeps some 6 "
        f"MB of each{line_break()}file free, which matters for files as small as these."
    )
    for reason, count in total.kept_as_text.most_common():
        out().print(f"{counted(count, 'body', 'bodies')} kept as compressed JSON text: {reason}")
    for reason, count in total.left.most_common():
        out().print(f"{counted(count, 'body', 'bodies')} left unchanged: {reason}")


def show_days(outcome: MigrateOutcome) -> None:
    """Print the number of days until a disk is full, with the original and with the re-encoded bodies."""
    total = outcome.total()
    if not total.cells:
        return

    def days(body_bytes: int, overhead_share: float) -> str:
        plan = Plan(
            documents_per_day=_DOCUMENTS_PER_DAY,
            bytes_per_document=body_bytes / total.cells,
            disk_bytes_per_host=TB,
            overhead_share=overhead_share,
        )
        return counted(math.floor(days_until_full(plan)), "day")

    per_day = [_DOCUMENTS_PER_DAY * size / total.cells / GB for size in (total.bytes_before, total.bytes_after)]
    out().print("\nA disk of 1 TB (1,000 GB) at a million such documents a day, counting only body bytes:")
    print_table(
        None,
        ["", "JSON text", outcome.codec],
        [
            ["bytes a day", f"{per_day[0]:.1f} GB", f"{per_day[1]:.1f} GB"],
            ["full after", days(total.bytes_before, 0), days(total.bytes_after, 0)],
            ["full after, with 40 % kept for the system", days(total.bytes_before, 0.4), days(total.bytes_after, 0.4)],
        ],
    )


def next_steps(url: str, folder: Path, logbooks: bool) -> list[str]:
    """Return shell commands for exploring the datastore."""
    command = command_name()
    first = f"{command} cell history uuid5:N14228" if logbooks else f"{command} dump | head -n 1"
    return [
        f"export SCHEMALESS_URL='{url}'",
        f"{command} info --count",
        first,
        f"{command} migrate plan --to msgpack+zstd",
        f"{command} job show",
        f"{command} index status by_maker",
        f"{command} trigger status flights_by_airline",
        f"{command} capacity report",
        f"{command} local down --delete --folder {shlex.quote(str(folder))}        # when you are done",
    ]


def command_name() -> str:
    """Return how the command is called from here: by its path in the ``.venv`` of a checkout that ``make`` installs."""
    return ".venv/bin/schemaless" if Path(sys.prefix) == Path(".venv").absolute() else "schemaless"
