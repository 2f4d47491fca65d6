"""The parameters of a migration."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final, Literal

from schemaless.base.keys import check_column_name
from schemaless.codec.dictionaries import NO_DICTIONARIES, Dictionaries
from schemaless.codec.registry import DEFAULT, Codec, codec_named
from schemaless.errors import InvalidInput
from schemaless.ops.jobs.kind import JobSpec
from schemaless.ops.migrate.sql import cold_cells, superseded_bodies, wanted_bodies
from schemaless.store.cells.column_codecs import codec_with, no_deltas, settings
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of

MOST_CHUNK_MS: Final = 60_000
"""Upper limit of ``MigrateSpec.chunk_ms``, in milliseconds."""

_URI: Final = re.compile(r"(?:^|/)\w+:/")
"""Also matches a URI that was resolved as a path."""

VerifyAfter = Literal["primary", "replica"]


@dataclass(frozen=True, slots=True)
class MigrateSpec(JobSpec):
    """The parameters of a migration, stored with its job.

    Attributes:
        to: name of the target codec.
        sources: re-encode only bodies stored in these codecs; empty for every body that is not in ``to``.
        columns: re-encode only these columns; empty for all.
        archive: folder that receives the original bodies, or None to keep no originals.
        verify_after: "primary" or "replica", where each new body's digest is checked after the write; None to skip the
            check.
        follow: repeat passes over a shard until no body is left to re-encode.
        full_row_images: keep the server's setting for row images in the binary log, for consumers that need whole rows.
        chunk_ms: target duration of one statement, in milliseconds.
        level: compression level for re-encoded bodies; None for the compressor's default. A body does not record its
            level, so bodies already in ``to`` are skipped whatever level they were written with.
        dictionary: id of the dictionary that zstd compresses with, or None. A body in ``to`` with another dictionary,
            or without one, is re-encoded.
        history: True to store versions that have a higher one as deltas, False to make deltas whole. By default, they
            are stored so in the columns whose setting says so, and deltas with the serializer of ``to`` stay.
        history_columns: those columns; read from the catalog when a job is created.
    """

    to: str = DEFAULT.name
    sources: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    archive: str | None = None
    verify_after: VerifyAfter | None = None
    follow: bool = False
    full_row_images: bool = False
    chunk_ms: int = 200
    level: int | None = None
    dictionary: int | None = None
    history: bool | None = None
    history_columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        to = codec_with(self.to, self.level, None, NO_DICTIONARIES)
        if self.dictionary is not None:
            to.check_takes_dictionary()
        if self.history and not to.is_binary:
            raise no_deltas(self.to)
        for name in self.sources:
            codec_named(name)
        if self.sources and set(self.sources) == {self.to} and not to.compressor.takes_dictionary:
            raise InvalidInput(f"source and target codec are both {self.to}; name another codec")
        for name in self.columns:
            check_column_name(name)
        if _URI.search(self.archive or ""):
            # Not quoted: the URI may contain credentials.
            raise InvalidInput("the archive must be a folder, such as a mounted file system, not a URI")
        if type(self.chunk_ms) is not int or not 1 <= self.chunk_ms <= MOST_CHUNK_MS:
            raise InvalidInput(f"chunk_ms must be from 1 to {MOST_CHUNK_MS:,} milliseconds, got {self.chunk_ms!r}")

    @property
    def target(self) -> str:
        """Display name of the target codec, with its dictionary."""
        return self.to if self.dictionary is None else f"{self.to} with dictionary {self.dictionary}"

    def codec(self, dictionaries: Dictionaries) -> Codec:
        """Return the target codec.

        Raises:
            CorruptBody: the dictionary is unknown or damaged.
        """
        return codec_with(self.to, self.level, self.dictionary, dictionaries)

    @property
    def wanted(self) -> bytes:
        """SQL condition for rows whose bodies may need re-encoding."""
        sources = [codec_named(name).format_byte for name in self.sources]
        target = codec_named(self.to).format_byte
        deltas = self.history is False
        return wanted_bodies(target, sources, self.columns, dictionary_id=self.dictionary, deltas=deltas)

    @property
    def cold(self) -> bytes:
        """SQL condition for the cold cells of the columns, whose bodies are left as they are."""
        return cold_cells(self.columns)

    @property
    def superseded(self) -> bytes:
        """SQL condition for rows in the target codec that become deltas if they have a higher version."""
        target = codec_named(self.to).format_byte
        assert target is not None
        names = self.history_columns or self.columns
        return superseded_bodies(target, names)

    def stores_deltas(self, column_name: str | None = None) -> bool:
        """Return whether superseded versions of a column, or of any column, become deltas."""
        if column_name is None:
            return bool(self.history or self.history_columns)
        return bool(self.history) or column_name in self.history_columns


def with_settings(store: Datastore, spec: MigrateSpec) -> MigrateSpec:
    """Return a spec with the columns whose setting asks for history, unless the spec itself says what to do."""
    if spec.history is not None or spec.history_columns or not codec_named(spec.to).is_binary:
        return spec
    known = settings(internals_of(store).catalog, store.name)
    names = (each.column_name for each in known if each.history)
    return replace(spec, history_columns=tuple(name for name in names if name in (spec.columns or (name,))))
