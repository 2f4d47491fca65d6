"""``schemaless cell tail``: the change feed on standard output."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import click

from schemaless.base.numbers import counted
from schemaless.cell import StoredCell
from schemaless.cli.command import ReadOnlyCommand
from schemaless.cli.option import option
from schemaless.cli.quantities import FiniteRange
from schemaless.errors import CorruptBody, InvalidInput, SchemalessError
from schemaless.ops.admin.ndjson import dump_line
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.topology.shards import FeedFrom
from schemaless.ui.terminal.files import OutputFile, write_whole
from schemaless.ui.terminal.output import data_sink, error, note

_PAGE_CELLS = 500
_SAVE_EVERY_S = 1.0
_HELD_NOTE_AFTER_S = 2.0
_HELD_POLL_S = 0.02


@click.command(cls=ReadOnlyCommand)
@option("--location", "Begin after this added_id; for one shard only.", type=click.IntRange(min=0))
@option("--from-end", "Begin after all cells stored so far.", is_flag=True)
@option(
    "--offsets",
    "Continue from the locations in this file and keep it up to date; it is created if missing.",
    type=OutputFile(Path),
)
@option("--column NAME", "Only cells of this column.")
@option("--limit", "Stop after this many cells.", type=click.IntRange(min=1))
@option("--follow -f", "Wait for new cells until Ctrl-C.", is_flag=True)
@option("--poll", "Seconds between polls for new cells.", type=FiniteRange(0.01, 86_400), default=0.5)
@option(
    "--read-from", "Read from primaries or from replicas.", type=click.Choice(["primary", "replica"]), default="primary"
)
@option("--stored", "Write stored bytes (base64) instead of documents.", is_flag=True)
def tail(
    store: Datastore,
    shards: list[int],
    location: int | None,
    from_end: bool,
    offsets: Path | None,
    column: str | None,
    limit: int | None,
    follow: bool,
    poll: float,
    read_from: str,
    stored: bool,
) -> None:
    """Write the change feed as NDJSON.

    Each line is one cell in the format of 'schemaless dump', with its shard number. Cells of a shard are printed in
    added_id order, and none is skipped, however late it is committed: while an open transaction may still add a lower
    added_id, the output of the shard pauses, with a note on standard error. With --follow, it also pauses while a
    server is unavailable. Cells of different shards are in no particular order.

    With --offsets, the command prints a line before it saves the location, so lines may be repeated after a crash, but
    none is lost.

    \b
    Examples:
      schemaless cell tail --follow --from-end
      schemaless cell tail --follow --offsets trips.offsets --column BASE \\
          | consumer
      schemaless cell tail --shards 17 --location 250311 --limit 10
    """
    if sum((location is not None, from_end)) > 1:
        raise InvalidInput("--location and --from-end are mutually exclusive")
    if location is not None and len(shards) != 1:
        raise InvalidInput("--location is for one shard: name it with --shards, or use --offsets for several")
    locations = {} if offsets is None else _read_offsets(offsets, store)
    for shard in shards:
        if shard not in locations:
            locations[shard] = store.end_of_shard(shard) if from_end else location or 0
    writer = _Tail(store, shards, locations, column, cast("FeedFrom", read_from), stored, offsets)
    try:
        writer.write(limit, poll if follow else None)
    finally:
        writer.save()
        if offsets is None and len(shards) == 1:
            note(f"to continue from here: --shards {shards[0]} --location {locations[shards[0]]}")


@dataclass(slots=True)
class _Tail:
    """Writes the feeds of several shards, read in turn, one page at a time.

    Attributes:
        store: the datastore.
        shards: the shards.
        locations: location up to which each shard's cells have been written; also of other shards in the offsets file.
        column: the only column; None for all.
        read_from: where to read.
        stored: whether to write stored bytes.
        offsets: the file that stores the locations; None if there is none.
    """

    store: Datastore
    shards: Sequence[int]
    locations: dict[int, int]
    column: str | None
    read_from: FeedFrom
    stored: bool
    offsets: Path | None
    _held_since_s: dict[int, float] = field(default_factory=dict)
    _reported: set[int] = field(default_factory=set)
    _retry_at_s: dict[int, float] = field(default_factory=dict)
    _saved: dict[int, int] = field(default_factory=dict)
    _saved_at_s: float = 0.0

    def write(self, limit: int | None, poll_s: float | None) -> None:
        """Write cells.

        Args:
            limit: maximum number of cells; None for no limit.
            poll_s: interval at which to check for new cells, in seconds; None to return at the end of all feeds.
        """
        sink, left = data_sink(), limit
        while True:
            moved = held = False
            for shard in self.shards:
                if time.monotonic() < self._retry_at_s.get(shard, 0.0):
                    continue
                try:
                    page = self.store.get_stored_cells_for_shard(
                        shard,
                        self.locations[shard],
                        _PAGE_CELLS if left is None else min(left, _PAGE_CELLS),
                        column_name=self.column,
                        read_from=self.read_from,
                    )
                    # A dictionary may have to be read; no line is written twice if that fails.
                    lines, damage = self._lines(page.cells)
                except SchemalessError as problem:
                    if poll_s is None or not problem.retryable:
                        raise
                    self._retry_at_s[shard] = time.monotonic() + poll_s
                    self._report_stall(shard, str(problem), note_after_s=0.0)
                    continue
                if page.next_location == self.locations[shard]:
                    held = held or page.held is not None
                    self._report_stall(shard, page.held)
                    continue
                self._report_stall(shard, None)
                moved = True
                for line in lines:
                    sink.write(b'{"shard": %d, ' % shard + line[1:] + b"\n")
                if damage is not None:
                    after = page.cells[len(lines)].added_id
                    error(f"to continue after the damaged cell: --shards {shard} --location {after}")
                    raise damage
                # Only cells that were flushed out of this process count as written.
                sink.flush()
                self.locations[shard] = page.next_location
                left = None if left is None else left - len(page.cells)
                if left == 0:
                    self.locations[shard] = page.cells[-1].added_id
                    return
                self._save_periodically()
            if not moved:
                if poll_s is None:
                    return
                self._save_periodically()
                time.sleep(min(poll_s, _HELD_POLL_S) if held else poll_s)

    def _lines(self, cells: Sequence[StoredCell]) -> tuple[list[bytes], CorruptBody | None]:
        """Return cells as lines, up to the first damaged one, and the error of that."""
        lines: list[bytes] = []
        try:
            for cell in cells:
                line = dump_line(cell, stored=self.stored, dictionaries=internals_of(self.store).dictionaries)
                lines.append(line)
        except CorruptBody as damage:
            return lines, damage
        return lines, None

    def _report_stall(self, shard: int, reason: str | None, note_after_s: float = _HELD_NOTE_AFTER_S) -> None:
        """Say on standard error why a shard has waited for longer than ``note_after_s``; None if it does not wait."""
        now_s = time.monotonic()
        if reason is None:
            since_s = self._held_since_s.pop(shard, now_s)
            if shard in self._reported:
                note(f"shard {shard} continues, after {now_s - since_s:.0f} s")
            self._reported.discard(shard)
            return
        since_s = self._held_since_s.setdefault(shard, now_s)
        if shard not in self._reported and now_s - since_s >= note_after_s:
            self._reported.add(shard)
            note(f"shard {shard} waits after added_id {self.locations[shard]}: {reason}")

    def _save_periodically(self) -> None:
        if time.monotonic() - self._saved_at_s >= _SAVE_EVERY_S:
            self.save()

    def save(self) -> None:
        """Replace the offsets file, if there is one, with the current locations."""
        if self.offsets is None or self._saved == self.locations:
            return
        data = {
            "datastore": self.store.name,
            "shard_count": self.store.shard_count,
            "locations": {str(shard): location for shard, location in sorted(self.locations.items())},
        }
        write_whole(self.offsets, json.dumps(data) + "\n")
        self._saved = dict(self.locations)
        self._saved_at_s = time.monotonic()


def _read_offsets(path: Path, store: Datastore) -> dict[int, int]:
    """Return the locations in an offsets file; an empty dict if the file does not exist yet.

    Raises:
        InvalidInput: the file is not an offsets file, or belongs to another datastore.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        locations = {int(shard): location for shard, location in data["locations"].items()}
        of = (data["datastore"], data["shard_count"])
    except FileNotFoundError:
        return {}
    except OSError as problem:
        raise InvalidInput(f"cannot read {path}: {problem.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidInput(
            f"{path} is not an offsets file; name another file, or remove it to start from the beginning"
        ) from None
    if of != (store.name, store.shard_count):
        raise InvalidInput(
            f"{path} belongs to datastore {of[0]!r} with {counted(of[1], 'shard')}, not to {store.name!r} with "
            f"{store.shard_count}; name another file"
        )
    return locations
