"""The manifest of an export: the only authority on its files and its progress.

``manifest.json`` describes the export. Each shard has a folder of entries, such as
``manifest/0003/FENCE-WRITER-GENERATION.json``; the entry with the highest name is current, and lists the shard's files.
Entries are written once and never changed.

A writer fences off all earlier ones before it changes anything: it writes an entry with a higher fence, removes their
temporary files, and only then reads the current entry. To add a file, it writes the file under a temporary name,
announces it in an entry, checks that its own fence is still the highest, renames the file, and lists it in a further
entry. So a writer that was suspended and wakes up after another one has taken over,

- finds the higher fence during its check, or its temporary file gone when renaming it, and stops;
- or has announced its file before the other one read the manifest. The other one then completes that same file.

Replaced files are deleted once the entry that no longer lists them is current. A writer that is killed before it
deletes them leaves files that the manifest does not list, as does a writer that is suspended after its check while it
writes to an object store. The next writer of the shard, or a compaction, deletes them (``ShardWriter.sweep``).
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple

from schemaless.errors import ExportFailed, InvalidInput, LeaseLost
from schemaless.store.cold.targets import Target, Vanished

FORMAT: Final = 1
ROOT: Final = "manifest.json"
_ENTRY: Final = re.compile(r"(\d{10})-([0-9a-f]{8})-(\d{10})\.(json|fence)\Z")
_SWEPT: Final = re.compile(r"(\d{20}-\d{20}(-[0-9a-f]{8}-\d{6,})?|latest-[0-9a-f]{8}-\d{6,})\.parquet\Z")
"""Names of files that may be swept, because no later writer uses them for another file."""

_KEPT: Final = 3
"""Number of a shard's latest entries to keep, for readers that have listed them."""


@dataclass(frozen=True, slots=True)
class Definition:
    """Definition of an export.

    Attributes:
        name: name of the export, and of its follower.
        datastore: name of the datastore.
        shard_count: its number of shards.
        columns: the exported columns of the datastore; None for all.
        fields: declarations of the typed columns.
        latest: also keep a file of the latest versions for each shard.
    """

    name: str
    datastore: str
    shard_count: int
    columns: tuple[str, ...] | None
    fields: tuple[str, ...]
    latest: bool = False

    @property
    def only_column(self) -> str | None:
        """The only exported column; None if several or all are exported."""
        return self.columns[0] if self.columns is not None and len(self.columns) == 1 else None

    def written(self) -> bytes:
        """Return the definition in the form stored in ``manifest.json``."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1).encode() + b"\n"

    @classmethod
    def parse(cls, content: bytes, uri: str) -> Definition:
        """Parse the definition in a ``manifest.json``.

        Raises:
            InvalidInput: it is damaged, or was written by another version of this library or by another program.
        """
        try:
            found = json.loads(content)
            if (number := found.pop("format")) != FORMAT:
                raise InvalidInput(
                    f"{uri}/{ROOT} has format {number!r}, and this version reads format {FORMAT}; use the version that "
                    "wrote it, or export to an empty target"
                )
            found["columns"] = None if found["columns"] is None else tuple(found["columns"])
            return cls(**{**found, "fields": tuple(found["fields"])})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidInput(
                f"{uri}/{ROOT} is damaged ({error}); delete it, and run 'schemaless export parquet' with all options "
                "of the export, which writes it again and keeps the files"
            ) from error


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file.

    Attributes:
        name: its name in the shard's folder.
        after: the cells have higher added_ids than this one.
        up_to: end of the range of added_ids, inclusive.
        rows: number of cells.
        bytes: size of the file.
        body_bytes: size of the bodies as JSON text.
        sha256: checksum of the file, in hexadecimal.
        fields: declarations of its typed columns.
        nulls: number of nulls in each typed column, by reason.
        skipped: error of each cell whose body does not decode, by added_id.
        erased: number of documents that were removed from the file, by number of the erasure.
    """

    name: str
    after: int
    up_to: int
    rows: int
    bytes: int
    body_bytes: int
    sha256: str
    fields: tuple[str, ...] = ()
    nulls: dict[str, dict[str, int]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    erased: dict[str, int] = field(default_factory=dict)


class Pending(NamedTuple):
    """A change that a writer has announced.

    Attributes:
        file: the file that it is writing.
        replaced: names of the files that it replaces; empty for new cells.
    """

    file: DataFile
    replaced: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """A shard's entry in the manifest.

    Attributes:
        location: every cell up to this added_id is in the files.
        files: the files in the order of their cells.
        latest: the file of the latest versions; None if there is none.
        pending: the change that has been announced but not completed; None if there is none.
    """

    location: int = 0
    files: tuple[DataFile, ...] = ()
    latest: DataFile | None = None
    pending: Pending | None = None

    def written(self) -> bytes:
        """Return the entry in the form stored in its file."""
        return json.dumps({"format": FORMAT, **asdict(self)}).encode()

    @classmethod
    def parse(cls, content: bytes) -> ShardEntry:
        """Parse the entry in a file."""
        found = json.loads(content)
        pending = found["pending"]
        return cls(
            found["location"],
            tuple(_file(each) for each in found["files"]),
            None if found["latest"] is None else _file(found["latest"]),
            None if pending is None else Pending(_file(pending[0]), tuple(pending[1])),
        )

    def listed(self, shard: int) -> dict[str, DataFile]:
        """Return the shard's files, with that of the latest versions, by their names below the target."""
        listed = {f"{cells_folder(shard)}/{file.name}": file for file in self.files}
        return listed if self.latest is None else {**listed, f"{latest_folder(shard)}/{self.latest.name}": self.latest}

    def completed(self) -> ShardEntry:
        """Return the entry as it will be after the announced change."""
        assert self.pending is not None
        file, replaced = self.pending
        kept = [each for each in self.files if each.name not in (*replaced, file.name)]
        files = tuple(sorted([*kept, file], key=lambda each: each.after))
        return replace(self, location=max(self.location, file.up_to), files=files, pending=None)


def _file(found: dict[str, Any]) -> DataFile:
    return DataFile(**{**found, "fields": tuple(found["fields"])})


def cells_folder(shard: int) -> str:
    """Return the folder of a shard's files."""
    return f"cells/{shard:04d}"


def latest_folder(shard: int) -> str:
    """Return the folder of a shard's file of the latest versions."""
    return f"latest/{shard:04d}"


def file_name(after: int, up_to: int) -> str:
    """Return the name of the file with the cells of a range of added_ids."""
    return f"{after:020d}-{up_to:020d}.parquet"


def read_definition(target: Target) -> Definition | None:
    """Return a target's export definition; None if the target is empty."""
    try:
        return Definition.parse(target.read(ROOT), target.uri)
    except FileNotFoundError:
        return None


def read_shard(target: Target, shard: int) -> ShardEntry:
    """Return the current entry of a shard; an empty one if there is none."""
    for _ in range(_KEPT):
        places = [place for place in _entries(target, shard) if place.has_content]
        if not places:
            return ShardEntry()
        name = f"{_folder(shard)}/{max(places).name}"
        try:
            return ShardEntry.parse(target.read(name))
        except FileNotFoundError:
            # A writer has written several entries since they were listed.
            continue
        except (ValueError, KeyError, TypeError) as error:
            message = f"{target.uri}/{name} is damaged ({error}); delete it to continue from the entry before it"
            raise ExportFailed(message) from error
    raise ExportFailed(f"{target.uri}: the manifest of shard {shard} changes faster than it can be read; try again")


def present_files(target: Target, shard: int) -> tuple[DataFile, ...]:
    """Return the files of a shard that exist, even while files are being merged or after a merge was killed."""
    entry = read_shard(target, shard)
    if entry.pending is not None and entry.pending.replaced:
        names = set(target.names(cells_folder(shard)))
        if entry.pending.file.name in names and not names.issuperset(entry.pending.replaced):
            return entry.completed().files
    return entry.files


def names_of(target: Target, shard: int) -> set[str]:
    """Return the names, below the target, of the files in a shard's folders."""
    return {
        f"{folder}/{name}" for folder in (cells_folder(shard), latest_folder(shard)) for name in target.names(folder)
    }


def missing_files(target: Target, shard: int) -> dict[str, DataFile]:
    """Return the files that a shard's entry lists and that do not exist, by their names below the target."""

    def missing() -> dict[str, DataFile]:
        files = present_files(target, shard)
        listed = replace(read_shard(target, shard), files=files).listed(shard)
        found = names_of(target, shard)
        return {name: file for name, file in listed.items() if name not in found}

    # A file that is being replaced between two reads is missing only once.
    first = missing()
    return {name: file for name, file in missing().items() if name in first} if first else first


def unlisted_files(target: Target, shard: int, read_entry: Callable[[], ShardEntry]) -> list[str]:
    """Return the names of a shard's files that its entry does not list.

    Returns nothing if a listed file is missing, because the entry cannot be trusted then.

    Args:
        target: where the export is.
        shard: the shard.
        read_entry: returns the entry. It is called once the folders have been listed: a file is announced before it
            exists, so an entry that was read earlier may lack a file that is being written.
    """
    found = {name for name in names_of(target, shard) if _SWEPT.match(name.rpartition("/")[2])}
    entry = read_entry()
    listed = entry.listed(shard).keys()
    if not listed <= found:
        return []
    announced = set() if entry.pending is None else {f"{cells_folder(shard)}/{entry.pending.file.name}"}
    return sorted(found - listed - announced)


class _Place(NamedTuple):
    """The name of an entry; the order of places is the order of entries."""

    fence: int
    writer: str
    generation: int
    has_content: bool

    @property
    def name(self) -> str:
        """Name of the entry's file."""
        kind = "json" if self.has_content else "fence"
        return f"{self.fence:010d}-{self.writer}-{self.generation:010d}.{kind}"


def _folder(shard: int) -> str:
    return f"manifest/{shard:04d}"


def _entries(target: Target, shard: int) -> list[_Place]:
    found = (_ENTRY.match(name) for name in target.names(_folder(shard)))
    return [_Place(int(each[1]), each[2], int(each[3]), each[4] == "json") for each in found if each is not None]


class ShardWriter:
    """The one writer of a shard's part of an export, until another one fences it off.

    Attributes:
        entry: the shard's current entry.
        token: random name of the writer, which is part of its temporary files' names.

    Args:
        target: where the export is.
        shard: the shard.

    Raises:
        LeaseLost: another writer has begun at the same time.
        ExportFailed: the target cannot be read or written.
    """

    def __init__(self, target: Target, shard: int) -> None:
        self.token: str = secrets.token_hex(4)
        self._target = target
        self._shard = shard
        self._generation = 0
        self._fence = 1 + max((place.fence for place in _entries(target, shard)), default=0)
        self._put(None)
        target.remove_temporary(f"{shard:04d}-", but=self.token)
        self.check()
        self.entry: ShardEntry = read_shard(target, shard)

    def check(self) -> None:
        """Check that no other writer has taken over.

        Raises:
            LeaseLost: another writer has.
            ExportFailed: the manifest is gone.
        """
        mine = (self._fence, self.token)
        writers = {(place.fence, place.writer) for place in _entries(self._target, self._shard)}
        if any(writer > mine for writer in writers):
            raise self._lost()
        if mine not in writers:
            raise ExportFailed(
                f"{self._target.uri}: the manifest of shard {self._shard} has vanished; is the folder mounted?"
            )

    def announce(self, file: DataFile, replaced: Sequence[str] = ()) -> DataFile:
        """Record a file that is about to be written, and return it with its final name."""
        file = self._named(file)
        self._write(replace(self.entry, pending=Pending(file, tuple(replaced))))
        return file

    def complete(self) -> None:
        """List the announced file, which must be in place, and delete the files that it replaces.

        Raises:
            LeaseLost: another writer has taken over; nothing was deleted.
        """
        assert self.entry.pending is not None
        file, replaced = self.entry.pending
        self._write(self.entry.completed())
        self._discard([f"{cells_folder(self._shard)}/{each}" for each in replaced if each != file.name])

    def abandon(self) -> None:
        """Withdraw the announcement of a file that was to replace others, which still exist."""
        self._write(replace(self.entry, pending=None))

    def write_latest(self, file: DataFile, content: Any) -> None:
        """Write and list the file of the latest versions; raises what ``put`` does."""
        old, file = self.entry.latest, self._named(file)
        self.put(f"{latest_folder(self._shard)}/{file.name}", content)
        self._write(replace(self.entry, latest=file))
        if old is not None and old.name != file.name:
            self._discard([f"{latest_folder(self._shard)}/{old.name}"])

    def sweep(self) -> None:
        """Delete files of the shard that the manifest does not list.

        Raises:
            LeaseLost: another writer has taken over; nothing was deleted.
        """
        self._discard(unlisted_files(self._target, self._shard, lambda: self.entry))

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn a failure to read files that another writer has replaced into ``LeaseLost``."""
        try:
            yield
        except ExportFailed:
            self.check()
            raise

    def put(self, name: str, content: Any) -> None:
        """Write a file of the shard, unless another writer has taken over.

        Raises:
            LeaseLost: another writer has taken over; nothing became visible.
        """
        with self._unless_lost():
            self._target.put(name, content, self.token, self.check)

    def replace(self, folder: str, file: DataFile, content: Any, replaced: Sequence[str]) -> None:
        """Replace files with a new one; raises what ``put`` does."""
        with self._unless_lost():
            self._target.replace(folder, file.name, content, replaced, self.token, self.check)

    @contextmanager
    def _unless_lost(self, *, has_fence: bool = True) -> Iterator[None]:
        """Turn the removal of this writer's temporary file into ``LeaseLost``."""
        try:
            yield
        except (Vanished, FileNotFoundError) as error:
            if has_fence:
                self.check()
            raise self._lost() from error

    def _named(self, file: DataFile) -> DataFile:
        return replace(file, name=self._target.own_name(file.name, f"{self.token}-{self._generation:06d}"))

    def _discard(self, names: Sequence[str]) -> None:
        """Delete files that this writer's entry does not list, after checking that the entry is current."""
        if names:
            self.check()
            self._target.delete(names)

    def _write(self, entry: ShardEntry) -> None:
        # Before folders are created: the target may not be mounted any more.
        self.check()
        self._generation += 1
        self._put(entry)
        self.entry = entry
        self._prune()

    def _put(self, entry: ShardEntry | None) -> None:
        place = _Place(self._fence, self.token, self._generation, entry is not None)
        content = b"" if entry is None else entry.written()
        with self._unless_lost(has_fence=entry is not None):
            self._target.put(f"{_folder(self._shard)}/{place.name}", content, self.token)

    def _prune(self) -> None:
        """Delete entries that no reader needs. The highest fence is kept, so fences only increase."""
        places = _entries(self._target, self._shard)
        content = sorted(place for place in places if place.has_content)
        fences = sorted(place for place in places if not place.has_content)
        old = [*content[:-_KEPT], *(place for place in fences if place.fence < self._fence)]
        self._target.delete([f"{_folder(self._shard)}/{place.name}" for place in old])

    def _lost(self) -> LeaseLost:
        return LeaseLost(f"another process has taken over shard {self._shard} of the export in {self._target.uri}")
