"""What a migration is to do; stands in its job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from schemaless.cells.column_codecs import codec_with
from schemaless.codec.dictionaries import NO_DICTIONARIES, Dictionaries
from schemaless.codec.registry import DEFAULT, Codec, codec_named
from schemaless.errors import InvalidInput
from schemaless.jobs.kind import JobSpec
from schemaless.keys import check_column_name
from schemaless.migrate.sql import wanted_bodies

MOST_CHUNK_MS: Final = 60_000
"""Upper limit of ``MigrateSpec.chunk_ms``, in milliseconds."""

VerifyAfter = Literal["primary", "replica"]


@dataclass(frozen=True, slots=True)
class MigrateSpec(JobSpec):
    """What a migration is to do; stands in the job.

    Attributes:
        to: the codec to re-encode to.
        sources: only bodies in these codecs, as stored; everything that is not in ``to`` unless given.
        columns: only these columns; all unless given.
        archive: a folder for the originals, or None.
        verify_after: read every new body again from there, and compare digests; None does not.
        follow: go over a shard again until no body is left to re-encode.
        full_row_images: leave the binary log's row images as the server has them, for readers that need whole rows.
        chunk_ms: how long a statement should take, in milliseconds.
        level: the compressor's, for what is re-encoded; None for its own. It does not show in a body, so a body in
            ``to`` at another level is left.
        dictionary: the id of the one that zstd compresses with; None for none. A body in ``to`` with another one, or
            without, is re-encoded.
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

    def __post_init__(self) -> None:
        to = codec_with(self.to, self.level, None, NO_DICTIONARIES)
        if self.dictionary is not None:
            to.check_takes_dictionary()
        for name in self.sources:
            codec_named(name)
        if self.sources and set(self.sources) == {self.to} and not to.compressor.takes_dictionary:
            raise InvalidInput(f"from {self.to} to {self.to} there is nothing to do; name another codec")
        for name in self.columns:
            check_column_name(name)
        if type(self.chunk_ms) is not int or not 1 <= self.chunk_ms <= MOST_CHUNK_MS:
            raise InvalidInput(f"chunk_ms must be milliseconds from 1 to {MOST_CHUNK_MS:,}, got {self.chunk_ms!r}")

    @property
    def target(self) -> str:
        """The codec to re-encode to, with its dictionary, in words."""
        return self.to if self.dictionary is None else f"{self.to} with dictionary {self.dictionary}"

    def codec(self, dictionaries: Dictionaries) -> Codec:
        """Return the codec to re-encode to.

        Raises:
            CorruptBody: the dictionary cannot be had.
        """
        return codec_with(self.to, self.level, self.dictionary, dictionaries)

    @property
    def wanted(self) -> bytes:
        """A test in SQL for bodies that may have to be re-encoded."""
        sources = [codec_named(name).format_byte for name in self.sources]
        target = codec_named(self.to).format_byte
        return wanted_bodies(target, sources, self.columns, dictionary_id=self.dictionary)
