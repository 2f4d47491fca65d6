"""``schemaless cell tail``: the change feed on standard output."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

import click

from schemaless.cell import Page, StoredCell
from schemaless.cli.options import open_store, shards_of, shards_option, url_option
from schemaless.cli.quantities import FiniteRange
from schemaless.errors import CorruptBody, InvalidInput
from schemaless.ops.admin.ndjson import dump_line
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.ui.terminal.files import OutputFile, write_whole
from schemaless.ui.terminal.output import ReadOnlyCommand, counted, data_sink, error, note

_PAGE_CELLS = 500
_SAVE_EVERY_S = 1.0
_HELD_NOTE_AFTER_S = 2.0
_HELD_POLL_S = 0.02


@click.command(cls=ReadOnlyCommand)
@url_option
@shards_option
@click.option("--location", type=click.IntRange(min=0), help="Begin after this added_id; for one shard only.")
@click.option("--from-end", is_flag=True, help="Begin after all cells stored so far.")
@click.option(
    "--offsets",
    type=OutputFile(Path),
    help="Continue from the locations in this file and keep it up to date; it is created if missing.",
)
@click.option("--column", metavar="NAME", help="Only cells of this column.")
@click.option("--limit", type=click.IntRange(min=1), help="Stop after this many cells.")
@click.option("--follow", "-f", is_flag=True, help="Wait for new cells until Ctrl-C.")
@click.option(
    "--poll",
    type=FiniteRange(0.01, 86_400),
    default=0.5,
    help="Seconds between polls for new cells.",
)
@click.option(
    "--read-from",
    type=click.Choice(["primary", "replica"]),
    default="primary",
    help="Read from primaries or from replicas.",
)
@click.option("--stored", is_flag=True, help="Write stored bytes (base64) instead of documents.")
def tail(
    url: str,
    shards_text: str | None,
    location: int | None,
    from_end: bool,
    offsets: Path | None,
    column: str | None,
    limit: int | None,
    follow: bool,
    poll: float,
    read_from: str,
    stored: bool,
) -> int:
    """Write the change feed as NDJSON.

    Each line is one cell in the format of 'schemaless dump', with its shard number. Cells of a shard are printed in
    added_id order, and none is skipped, however late it is committed: while an open transaction may still add a lower
    added_id, the output of the shard pauses, with a note on standard error. Cells of different shards are in no
    particular order.

    With --offsets, the command prints a line before it saves the location, so lines may be repeated after a crash, but
    none is lost.

    \b
    Examples:
      schemaless cell tail --follow --from-end
      schemaless cell tail --follow --offsets trips.offsets --column BASE \\
          | consumer
      schemaless cell tail --shards 17 --location 250311 --limit 10
    """
    with open_store(url) as store:
        shards = shards_of(shards_text, store.shard_count)
        if sum((location is not None, from_end)) > 1:
            raise InvalidInput("--location and --from-end are mutually exclusive")
        if location is not None and len(shards) != 1:
            raise InvalidInput("--location is for one shard: name it with --shards, or use --offsets for several")
        locations = {} if offsets is None else _read_offsets(offsets, store)
        for shard in shards:
            if shard not in locations:
                locations[shard] = store.end_of_shard(shard) if from_end else location or 0
        feed = _Feed(store, {shard: locations[shard] for shard in shards}, column, read_from)
        kept = _Offsets(offsets, store, locations)
        try:
            return _write(feed, kept, limit, follow, poll, stored)
        finally:
            kept.save()
            if offsets is None and len(shards) == 1:
                note(f"to continue from here: --shards {shards[0]} --location {kept.locations[shards[0]]}")


@dataclass(slots=True)
class _Feed:
    """Feeds of several shards, read in turn, one page at a time."""

    store: Datastore
    locations: dict[int, int]
    column: str | None
    read_from: str
    held_since_s: dict[int, float] = field(default_factory=dict)
    reported: set[int] = field(default_factory=set)

    def round(self, limit: int) -> Iterator[tuple[int, Page[StoredCell]]]:
        """Yield the next page of each shard that has one."""
        for shard, location in self.locations.items():
            page = self.store.get_stored_cells_for_shard(
                shard,
                location,
                limit,
                column_name=self.column,
                read_from=cast("Literal['primary', 'replica']", self.read_from),
            )
            self._report_stall(shard, page if page.next_location == location else None)
            if page.next_location != location:
                yield shard, page
                self.locations[shard] = page.next_location

    def _report_stall(self, shard: int, stalled: Page[StoredCell] | None) -> None:
        """Say on standard error why a shard's feed has been held for more than two seconds."""
        if stalled is None or stalled.held is None:
            if shard in self.reported:
                note(f"shard {shard} continues, after {time.monotonic() - self.held_since_s[shard]:.0f} s")
            self.held_since_s.pop(shard, None)
            self.reported.discard(shard)
            return
        since_s = self.held_since_s.setdefault(shard, time.monotonic())
        if shard not in self.reported and time.monotonic() - since_s > _HELD_NOTE_AFTER_S:
            self.reported.add(shard)
            note(f"shard {shard} waits after added_id {stalled.next_location}: {stalled.held}")


def _write(feed: _Feed, kept: _Offsets, limit: int | None, follow: bool, poll_s: float, stored: bool) -> int:
    sink = data_sink()
    left = limit
    while True:
        moved = False
        for shard, page in feed.round(_PAGE_CELLS if left is None else min(left, _PAGE_CELLS)):
            moved = True
            location = page.next_location
            for cell in page.cells:
                try:
                    line = dump_line(cell, stored=stored, dictionaries=internals_of(feed.store).dictionaries)
                except CorruptBody:
                    error(f"to continue after the damaged cell: --shards {shard} --location {cell.added_id}")
                    raise
                sink.write(b'{"shard": %d, ' % shard + line[1:] + b"\n")
                if left is not None:
                    left -= 1
                    if left == 0:
                        location = cell.added_id
                        break
            # Only cells that were flushed out of this process count as written.
            sink.flush()
            kept.locations[shard] = location
            if left == 0:
                return 0
            kept.save_periodically()
        if not moved:
            if not follow:
                return 0
            kept.save_periodically()
            time.sleep(min(poll_s, _HELD_POLL_S) if feed.held_since_s else poll_s)


class _Offsets:
    """Location up to which each shard's cells have been written, and the offsets file that stores these locations."""

    def __init__(self, path: Path | None, store: Datastore, locations: dict[int, int]) -> None:
        self.locations = dict(locations)
        self._path = path
        self._store = store
        self._saved: dict[int, int] | None = None
        self._saved_at_s = 0.0

    def save_periodically(self) -> None:
        """Save the offsets at most once a second."""
        if time.monotonic() - self._saved_at_s >= _SAVE_EVERY_S:
            self.save()

    def save(self) -> None:
        """Replace the offsets file with the current locations."""
        if self._path is None or self._saved == self.locations:
            return
        data = {
            "datastore": self._store.name,
            "shard_count": self._store.shard_count,
            "locations": {str(shard): location for shard, location in sorted(self.locations.items())},
        }
        write_whole(self._path, json.dumps(data) + "\n")
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
