"""Size of cold files relative to the bodies that they replace, from files written in memory.

Each window of a sample is a range of neighbouring added_ids, as a cold file is, and is written as one. What a file
without rows takes is deducted, because files are much larger than windows.
"""

from __future__ import annotations

from typing import Final

from schemaless.base.numbers import Interval
from schemaless.codec.exact_text import exact_text
from schemaless.errors import CorruptBody
from schemaless.planning.sampling.column_trials import CellSample, SampledCell
from schemaless.planning.sampling.sampling import Bounds
from schemaless.store.cold.content import ColdCell, content_of

FILE_TRIAL_BOUNDS: Final = Bounds(windows=16, window_rows=512, sample_bytes=4 << 20, whole_rows=4_096)
"""A window should fill a row group."""


def try_files(cells: CellSample) -> dict[str, Interval]:
    """Return the size of cold files relative to the stored bodies, by column, with 95 % intervals.

    Cells that do not decode are left out, as in a run. A column without others is absent.

    Raises:
        InvalidInput: the extra [cold] is not installed.
    """
    empty = len(content_of([], 0).data)
    shares = {}
    for column in cells.column_names():
        bodies, files = [], []
        for window in cells.by_window(column):
            documents = [(cell, text) for cell in window if (text := _text(cells, cell)) is not None]
            content = content_of(
                [
                    ColdCell(number, cell.row_key, column, cell.ref_key, text, cell.created_at)
                    for number, (cell, text) in enumerate(documents)
                ],
                0,
            )
            bodies.append(float(sum(len(cell.body) for cell, _ in documents)))
            files.append(float(len(content.data) - empty))
        share = cells.taken.ratio_of(files, bodies)
        if share is not None:
            shares[column] = share
    return shares


def _text(cells: CellSample, cell: SampledCell) -> bytes | None:
    try:
        return bytes(exact_text(cell.body, dictionaries=cells.dictionaries)[0])
    except CorruptBody:
        return None
