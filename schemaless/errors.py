"""Every exception that schemaless raises on purpose.

    SchemalessError
    |-- InvalidCell                 a key or a body that no cell may have; raised before any I/O
    |   |-- InvalidBody             a value outside the JSON data model, named by its path
    |   `-- BodyTooLarge            a body, or the statement that carries it, over a limit
    |-- CellConflict                the cell is there already, with another body
    |-- BatchError                  some shards of a batch were not written; says which cells were
    |-- CorruptBody                 stored bytes that do not decode; names the cell
    |   |-- TruncatedBody           bytes are missing at the end
    |   |-- ChecksumMismatch        the bytes are not the ones that were written
    |   |-- UnknownFormat           a serializer or compressor that this version does not know
    |   |-- UnknownDictionary       compressed with a dictionary that is not at hand
    |   |-- DictionaryDamaged       compressed with a dictionary that is not as it was
    |   |-- TrailingBytes           more bytes than the payload needs
    |   |-- DecodedSizeExceeded     larger than the limit once inflated
    |   |-- NestingTooDeep          more levels of lists and objects than the limit
    |   |-- TooManyValues           more lists, objects, keys and scalars than the limit
    |   |-- MalformedPayload        the serializer or the compressor refuses the payload
    |   |-- NotCanonical            decodes, but to something no writer of this store would write (``check`` only)
    |   `-- UnreadableLegacy        no envelope, and not JSON text either
    |-- UnknownCodec                a codec name that does not exist, or may not be used for writing
    |-- VerificationFailed          re-encoded bytes did not decode to the same document; nothing was written
    |-- TopologyError               the datastore's description is wrong, or a change of it could not be proven
    |   |-- DatastoreNotFound       no catalog under that name
    |   |-- DatastoreExists         ``create`` met a datastore of that name
    |   |-- ShardIdentityMismatch   a shard database belongs to another datastore, number, count or placement
    |   |-- ReplicaRefused          a replica that does not replicate from its primary, as far as can be seen
    |   `-- SchemaMismatch          tables are older or newer than this version of the library
    |-- ServerError                 a MySQL server refused or failed; carries node, shard and ``retryable``
    |   |-- ServerUnavailable       no connection, or it was lost before anything could have happened
    |   |   |-- PrimaryNotClaimed   the server has not the claim that the catalog asks for; nothing was sent
    |   |   |-- ShardMoving         the shard's cells are on their way to another cluster; nothing was written
    |   |   `-- StaleAbsence        the primary does not answer, and a replica has not got the cell
    |   |-- ServerTimeout           the server did not answer in time; nothing was written
    |   |-- AccessDenied            the account may not do this
    |   |-- ServerRefused           the server reported an error that repeating does not mend
    |   |-- FeedRefused             the server cannot tell which cells of the change feed are settled
    |   |-- WrongReply              the reply was about another cell; nothing of it was used
    |   `-- OutcomeUnknown          a write whose reply was lost and could not be found out
    |-- ArchiveFailed               originals cannot be written to the archive; nothing that is not in it was updated
    |-- CorruptArchive              a file of an archive is damaged; says where
    |-- LocationLost                a location of the change feed beyond the shard's last cell
    |-- JobConflict                 another job, or another state of it, is in the way
    |-- MoveRefused                 a shard cannot be moved as things are; it is where it was, or the message says where
    |-- DictionaryInUse             a dictionary that a cell, a column or a job may need was to be removed
    |-- LeaseLost                   a job's or follower's shard went to another, since this one gave no sign of life
    |-- ParkCell                    raised by a trigger's function: this cell is to be parked at once
    |-- RetryLater                  raised by a trigger's function: this cell is to be tried again later
    |-- UnknownIndex                no secondary index has this name
    |-- IndexNotReady               a secondary index that is still being filled, or being dropped
    |-- WorkersDied                 worker processes of a job died again and again
    |-- InvalidInput                an argument, option or input file that cannot be used; says where
    `-- LocalServerError            a private server could not be installed, started or stopped

Exceptions of drivers and of SQLAlchemy never leave ``schemaless.wire``. A read never raises for an
absence that it is sure of.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from schemaless.cell import Cell, CellKey, Put

_MOST_LATER_S = 86_400


class SchemalessError(Exception):
    """The base of every exception that this package raises on purpose.

    Attributes:
        retryable: whether the same call may succeed when it is simply made again.
    """

    retryable: bool = False


class InvalidCell(SchemalessError):
    """A row_key, column_name or ref_key that no cell may have."""


class InvalidBody(InvalidCell):
    """A body holds a value outside the JSON data model; the message names its path."""


class BodyTooLarge(InvalidCell):
    """A body over a limit of its bytes or values, or a statement over the server's ``max_allowed_packet``."""


class CellConflict(SchemalessError):
    """The cell exists with another body.

    Attributes:
        stored: the cell as the store has it.
    """

    def __init__(self, stored: Cell, shard: int) -> None:
        super().__init__(f"cell {stored.key} exists with a different body; write a higher ref_key")
        self.stored = stored
        self.shard = shard

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.stored, self.shard)


class BatchError(SchemalessError):
    """At least one shard of a batch was not written.

    Each shard is one transaction, so a cell is in exactly one of the two lists.

    Attributes:
        written: one ``Put`` for each cell that is stored now.
        not_written: the keys of the cells that are not known to be stored.
        causes: shard number to the exception that stopped it.
    """

    def __init__(
        self, written: Sequence[Put], not_written: Sequence[CellKey], causes: dict[int, SchemalessError]
    ) -> None:
        first_shard = min(causes)
        super().__init__(
            f"{len(not_written)} of {len(written) + len(not_written)} cells were not written "
            f"({len(causes)} of the batch's shards failed); shard {first_shard}: {causes[first_shard]}"
        )
        self.written = list(written)
        self.not_written = list(not_written)
        self.causes = dict(causes)
        self.retryable = all(cause.retryable for cause in causes.values())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.written, self.not_written, self.causes)


class CorruptBody(SchemalessError):
    """Stored bytes that do not decode to a document.

    The codec raises it without a cell; the store adds which one it was.

    Attributes:
        key: the cell's key, once known.
        shard: its shard, once known.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.key: CellKey | None = None
        self.shard: int | None = None

    def at(self, key: CellKey, shard: int | None) -> CorruptBody:
        """Return this exception with the cell's name added."""
        self.key = key
        self.shard = shard
        return self

    def __str__(self) -> str:
        if self.key is None:
            return self.message
        where = "" if self.shard is None else f" in shard {self.shard}"
        return f"cell {self.key}{where}: {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message,), {"key": self.key, "shard": self.shard}


class TruncatedBody(CorruptBody):
    """Bytes are missing at the end."""


class ChecksumMismatch(CorruptBody):
    """The CRC-32 does not match: these are not the bytes that were written."""


class UnknownFormat(CorruptBody):
    """The format byte names a serializer or compressor that this version does not know."""


class UnknownDictionary(CorruptBody):
    """The payload was compressed with a dictionary that is not at hand."""


class DictionaryDamaged(CorruptBody):
    """The dictionary that the payload was compressed with is there, but is not as it was."""


class TrailingBytes(CorruptBody):
    """The payload goes on after its end."""


class DecodedSizeExceeded(CorruptBody):
    """The payload inflates to more bytes than the limit."""


class NestingTooDeep(CorruptBody):
    """The document has more levels of lists and objects than the limit."""


class TooManyValues(CorruptBody):
    """The document has more lists, objects, keys and scalars than the limit; none of them was made."""


class MalformedPayload(CorruptBody):
    """The checksum holds, but the compressor or the serializer refuses the payload."""


class NotCanonical(CorruptBody):
    """The payload decodes, but no writer of this store would have written it."""


class UnreadableLegacy(CorruptBody):
    """A body without an envelope that is not JSON text."""


class UnknownCodec(SchemalessError):
    """A codec name that does not exist, or may not be used here."""


class VerificationFailed(SchemalessError):
    """Re-encoded bytes do not decode to the same document: a fault of this library, or of one that it uses."""


class TopologyError(SchemalessError):
    """The datastore's description is missing or contradicts itself, or a change of it could not be proven."""


class DatastoreNotFound(TopologyError):
    """No catalog is there under that name."""


class DatastoreExists(TopologyError):
    """A datastore, or a part of one, is there under that name already."""


class ShardIdentityMismatch(TopologyError):
    """A shard database belongs to another datastore, number, shard count or placement rule, or is not there.

    Attributes:
        absent: whether there is no such database, or no tables in it.
    """

    absent: bool = False


class ReplicaRefused(TopologyError):
    """A replica shows nothing of what is written on its primary, or is the primary itself."""


class SchemaMismatch(TopologyError):
    """The tables are older, or newer, than this version of the library."""


class ServerError(SchemalessError):
    """A MySQL server refused or failed.

    Attributes:
        node: the server, as ``host:port`` or its socket; never a password.
        shard: the shard concerned, or None.
        code: MySQL's error number, or None.
    """

    def __init__(self, message: str, *, node: str, shard: int | None = None, code: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.node = node
        self.shard = shard
        self.code = code

    def __str__(self) -> str:
        where = self.node if self.shard is None else f"{self.node}, shard {self.shard}"
        return f"{where}: {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        state = {"message": self.message, "node": self.node, "shard": self.shard, "code": self.code}
        return _rebuild_server_error, (type(self), state)


def _rebuild_server_error(kind: type[ServerError], state: dict[str, Any]) -> ServerError:
    return kind(state["message"], node=state["node"], shard=state["shard"], code=state["code"])


class ServerUnavailable(ServerError):
    """No connection could be had, or it was lost before anything could have happened.

    Attributes:
        retry_after_s: when to try again, in seconds, where calls to the server are refused at once because it does not
            answer; None otherwise.
    """

    retryable = True
    retry_after_s: float | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (*super().__reduce__(), vars(self))


class PrimaryNotClaimed(ServerUnavailable):
    """The server has not the claim on its cluster that the catalog asks for; nothing was read or written there.

    It was replaced and is back, or something has made it the primary and ``topology adopt`` has not come to its end.
    """


class ShardMoving(ServerUnavailable):
    """The shard's cells are not where the catalog says, and it named no other place in time; nothing was written.

    They are on their way to another cluster, and whoever moves them has not come to the end; or the table is gone.
    """


class ServerTimeout(ServerError):
    """The server, or a lock, did not answer in time; nothing was written."""

    retryable = True


class StaleAbsence(ServerUnavailable):
    """The primary does not answer, and the replica that was read has no such cell: it may have been written, or not.

    Raised by reads with ``read_from="available"``. Whoever is the primary next knows: it is retryable.

    Attributes:
        found: of a read of many cells, those that were found, by row_key and column_name; empty for others.
    """

    found: Mapping[tuple[uuid.UUID, str], Cell] = MappingProxyType({})


class AccessDenied(ServerError):
    """The account may not do this."""


class ServerRefused(ServerError):
    """The server reported an error that repeating does not mend, or cannot prove what TLS options ask of it."""


class FeedRefused(ServerError):
    """The server cannot tell which cells of the change feed are settled, so none is given that might not be.

    The message says what to grant or to set. Cells before the first gap are not concerned: they are still given.
    """


class WrongReply(ServerError):
    """A reply was about another cell than was asked for; nothing of it was used, and its connection is closed.

    A second lock on the door: a reply that is not the statement's own should never get so far.
    """

    retryable = True


class OutcomeUnknown(ServerError):
    """A write lost its reply, and whether it happened could not be found out.

    Writing the same cell again settles it: a cell is written once. For ``append_cell`` that is ``put_cell`` with
    ``key``, and ``retryable`` is False, since appending again could write the body twice.

    Attributes:
        key: the cell that ``append_cell`` may have written; None for puts, whose caller knows the keys.
        retry_after_s: as for ``ServerUnavailable``.
    """

    retryable = True
    retry_after_s: float | None = None

    def __init__(
        self, message: str, *, node: str, shard: int | None = None, code: int | None = None, key: CellKey | None = None
    ) -> None:
        super().__init__(message, node=node, shard=shard, code=code)
        self.key = key
        self.retryable = key is None

    def __reduce__(self) -> tuple[Any, ...]:
        return (*super().__reduce__(), vars(self))


class ArchiveFailed(SchemalessError):
    """An original cannot be written to the archive, so its cell, and those after it, were not updated."""


class CorruptArchive(SchemalessError):
    """A file of an archive is damaged, other than by ending in the middle of a frame.

    Attributes:
        offset: where the frame begins, in bytes.
        frame: its number; the header is frame 0.
    """

    def __init__(self, message: str, *, path: Path, offset: int = 0, frame: int = 0) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset
        self.frame = frame

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_corrupt_archive, (str(self), self.path, self.offset, self.frame)


def _rebuild_corrupt_archive(message: str, path: Path, offset: int, frame: int) -> CorruptArchive:
    return CorruptArchive(message, path=path, offset=offset, frame=frame)


class LocationLost(SchemalessError):
    """A change feed is asked to go on behind the shard's last cell: cells that were read before are gone.

    A failover lost its last cells, or the location is another shard's. Read the shard again from one that is there.

    Attributes:
        location: what was asked for.
        last: the shard's highest added_id; 0 for an empty shard.
    """

    def __init__(self, shard: int, location: int, last: int) -> None:
        super().__init__(
            f"shard {shard}: location {location} lies behind its last cell, added_id {last}; is it this shard's, and "
            "did a failover lose cells? Go on from a location that is there, such as 0"
        )
        self.shard = shard
        self.location = location
        self.last = last

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.shard, self.location, self.last)


class JobConflict(SchemalessError):
    """A job cannot be created or changed, because of another one or of the state that it is in.

    Attributes:
        job_id: the other job, where there is one.
    """

    def __init__(self, message: str, job_id: int | None = None) -> None:
        super().__init__(message)
        self.job_id = job_id


class MoveRefused(SchemalessError):
    """A shard cannot be moved as things are on its servers; the message says why, and what to do."""


class DictionaryInUse(SchemalessError):
    """A dictionary is not removed, since a cell, a column or a job needs it."""


class LeaseLost(SchemalessError):
    """A shard of a job or follower was taken over by another, since this one gave no sign of life for too long."""


class ParkCell(SchemalessError):
    """Raised by a trigger's function: trying again does not help this cell, park it and go on with the next."""


class RetryLater(SchemalessError):
    """Raised by a trigger's function: try this cell again after a while, without counting the attempt.

    Attributes:
        seconds: how long to wait, at least.
    """

    def __init__(self, seconds: float, reason: str = "asked to be tried again later") -> None:
        if not 0 <= seconds <= _MOST_LATER_S:
            raise InvalidInput(f"RetryLater takes seconds from 0 to {_MOST_LATER_S:,}, got {seconds!r}")
        super().__init__(f"{reason}; in {seconds:g} s")
        self.seconds = seconds

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_retry_later, (str(self), self.seconds)


def _rebuild_retry_later(message: str, seconds: float) -> RetryLater:
    made = RetryLater(seconds)
    made.args = (message,)
    return made


class UnknownIndex(SchemalessError):
    """No secondary index has this name, or not any more."""


class IndexNotReady(SchemalessError):
    """A secondary index is still being filled, or is being dropped: a query of it would miss rows."""


class WorkersDied(SchemalessError):
    """Worker processes of a job died again and again, without a shard getting through."""


class InvalidInput(SchemalessError):
    """An argument, an option or an input file that cannot be used; the message says where."""


class LocalServerError(SchemalessError):
    """A private MySQL server could not be installed, started or stopped."""
