"""The exceptions of schemaless. Everything the package raises on purpose derives from ``SchemalessError``.

    SchemalessError
    |-- InvalidCell                 a cell key or body is not valid; raised before any I/O
    |   |-- InvalidBody             the body holds a value outside the JSON data model
    |   `-- BodyTooLarge            the body, or the statement that carries it, exceeds a limit
    |-- CellConflict                the cell exists with a different body
    |-- CellErased                  the cell was erased, and its key cannot be written again
    |-- LatestChanged               a conditional append found another latest version than expected
    |-- RowHeld                     the row is under a legal hold and cannot be erased
    |-- BatchError                  some shards of a batch failed; lists written and unwritten cells
    |-- CorruptBody                 stored bytes do not decode; names the cell
    |   |-- TruncatedBody           bytes are missing at the end
    |   |-- ChecksumMismatch        the CRC-32 does not match the bytes
    |   |-- UnknownFormat           this version does not know the serializer or compressor
    |   |-- UnknownDictionary       the compression dictionary is not available
    |   |-- DictionaryDamaged       the compression dictionary is damaged
    |   |-- BaseMissing             the body is a delta against another version, which cannot be read
    |   |-- BaseDiffers             the body is a delta against another document than its base has
    |   |-- ColdBodyMissing         the document is in a cold file, which cannot be found
    |   |-- ColdFileDamaged         the document is in a cold file, which has other bytes there
    |   |-- TrailingBytes           there are bytes after the end of the payload
    |   |-- DecodedSizeExceeded     the decompressed payload exceeds the size limit
    |   |-- NestingTooDeep          the document exceeds the nesting limit
    |   |-- TooManyValues           the document exceeds the limit on the number of values
    |   |-- MalformedPayload        the checksum is right, but the payload cannot be decoded
    |   |-- NotCanonical            the payload decodes, but this library would have encoded it differently
    |   `-- UnreadableLegacy        a body without an envelope is not JSON text
    |-- DocumentMismatch            a stored document does not fit the model of a typed column
    |-- UnknownCodec                no such codec, or not allowed here
    |-- VerificationFailed          a re-encoded body did not decode to the same document
    |-- TopologyError               the catalog is inconsistent, or a topology change was rejected
    |   |-- DatastoreNotFound       the server has no datastore of this name
    |   |-- DatastoreExists         a datastore of this name already exists
    |   |-- CatalogCopied           the catalog is a copy, on a server that it does not name
    |   |-- ShardIdentityMismatch   a shard database is missing or belongs to another shard
    |   |-- ReplicaRefused          a server does not replicate from the cluster's primary
    |   `-- SchemaMismatch          tables are older or newer than this version of the library
    |-- ServerError                 a MySQL server failed or refused a statement; has node, shard and code
    |   |-- ServerUnavailable no connection, or one lost before anything could be written
    |   |   |-- PrimaryNotClaimed   the server does not hold its cluster's current claim
    |   |   |-- ShardMoving         the shard is being moved and did not reappear in time
    |   |   `-- StaleAbsence        the primary is down and the replica does not have the cell
    |   |-- ServerTimeout           the server or a lock did not respond in time; nothing was written
    |   |-- AccessDenied            the account lacks a privilege
    |   |-- ServerRefused           the server returned an error that a retry cannot fix
    |   |-- FeedRefused             the server cannot report which cells of the change feed are settled
    |   |-- WrongReply              a reply belonged to another query and was discarded
    |   `-- OutcomeUnknown          the reply to a write was lost; the write may have succeeded
    |-- ColdStoreUnavailable        the store of cold files cannot be reached, or did not respond in time
    |-- ArchiveFailed               an original could not be archived, so its cell was not updated
    |-- CorruptArchive              an archive file is damaged
    |-- ExportFailed                the target of an export cannot be read or written
    |-- LocationLost                a change feed location is beyond the shard's last cell
    |-- JobConflict                 another job, or the job's own state, is in the way
    |-- MoveRefused                 a shard cannot be moved in its current state
    |-- DictionaryInUse             the dictionary is still needed by a cell, a column or a job
    |-- LeaseLost                   another process took over the shard of a job or follower
    |-- ParkCell                    raise it in a trigger function to park the cell
    |-- RetryLater                  raise it in a trigger function to postpone the cell
    |-- UnknownIndex                no secondary index of this name
    |-- IndexNotReady               the secondary index is being filled or dropped
    |-- NotCaughtUp                 a trigger or an index has not handled all cells
    |-- WorkersDied                 worker processes kept dying
    |-- InvalidInput                an argument, option or input file cannot be used
    |-- WrongEventLoop              an asyncio datastore was used outside of its event loop
    `-- LocalServerError            a private server could not be installed, started or stopped

Exceptions of the drivers and of SQLAlchemy never leave ``schemaless.wire``. A read raises nothing for a cell that is
known to be absent.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from schemaless.cell import Cell, CellKey, Put

_MAX_RETRY_DELAY_S = 86_400


class SchemalessError(Exception):
    """Base class of every exception that this package raises on purpose.

    Attributes:
        retryable: True if repeating the same call is safe and may succeed.
    """

    retryable: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, vars(self))


def _rebuild(kind: type[SchemalessError], args: tuple[Any, ...], state: dict[str, Any]) -> SchemalessError:
    """Copy an exception without calling its constructor, whose parameters differ from ``args``."""
    error = kind.__new__(kind, *args)
    vars(error).update(state)
    return error


class InvalidCell(SchemalessError):
    """Raised before any I/O if a row_key, column_name or ref_key is not valid; nothing was written."""


class InvalidBody(InvalidCell):
    """Raised before any I/O if a body holds a value outside the JSON data model; nothing was written.

    The message gives the path of the value, as in ``body.fare.amount``.
    """


class BodyTooLarge(InvalidCell):
    """Raised if a body exceeds a limit, or its statement exceeds ``max_allowed_packet``; nothing was written.

    The limits apply to the encoded and decoded bytes of a body and to its number of values.
    """


class CellConflict(SchemalessError):
    """Raised by a put if the cell already exists with a different body; the stored cell was not changed.

    Attributes:
        stored: the stored cell.
        shard: the shard that holds it.
        others: the error of each further cell of the same transaction that exists with a different body or was erased.
    """

    def __init__(self, stored: Cell, shard: int) -> None:
        super().__init__(f"cell {stored.key} exists with a different body; write a higher ref_key")
        self.stored = stored
        self.shard = shard
        self.others: Sequence[CellConflict | CellErased] = ()


class RowHeld(SchemalessError):
    """Raised if a row to erase is under a legal hold; nothing was erased.

    Attributes:
        row_key: the row.
        held_by: who set the hold.
        reason: reason code of the hold.
        held_at: when the hold was set.
    """

    def __init__(self, row_key: uuid.UUID, held_by: str, reason: str, held_at: datetime) -> None:
        super().__init__(
            f"row {row_key} has been held by {held_by} since {held_at:%Y-%m-%d} ({reason}) and cannot be erased; "
            "nothing was erased. 'schemaless retention release' ends a hold"
        )
        self.row_key = row_key
        self.held_by = held_by
        self.reason = reason
        self.held_at = held_at


class CellErased(SchemalessError):
    """Raised by a put if a cell with this key existed and was erased; nothing was written.

    Also raised by ``append_cell`` without ``refill`` if the latest version was erased.

    Attributes:
        key: the cell's key.
        erasure: number of the erasure in the ledger.
        shard: the cell's shard.
        others: as in ``CellConflict``.
    """

    def __init__(self, key: CellKey, erasure: int, shard: int) -> None:
        super().__init__(
            f"cell {key} was erased by erasure {erasure} and its key cannot be written again; write a higher ref_key, "
            "unless the document must not come back"
        )
        self.key = key
        self.erasure = erasure
        self.shard = shard
        self.others: Sequence[CellConflict | CellErased] = ()


class LatestChanged(SchemalessError):
    """Raised by ``append_cell`` if the latest version is not ``if_latest``; nothing was written.

    Attributes:
        row_key: the row.
        column_name: the column.
        if_latest: the expected ref_key.
        latest: the latest ref_key, including erased versions; 0 if there is no version.
        shard: the shard of the row.
    """

    def __init__(self, row_key: uuid.UUID, column_name: str, if_latest: int, latest: int, shard: int) -> None:
        super().__init__(
            f"the latest ref_key of row {row_key} in column {column_name} is {latest}, not {if_latest}; nothing was "
            "written. Read the latest version, and append to that one"
        )
        self.row_key = row_key
        self.column_name = column_name
        self.if_latest = if_latest
        self.latest = latest
        self.shard = shard


class BatchError(SchemalessError):
    """Raised by a batch write if at least one of its shards failed; the cells of the other shards were written.

    Each shard's cells are written in one transaction, so a cell is in exactly one of the two lists.

    Attributes:
        written: one ``Put`` for each cell that is stored.
        not_written: the keys of the cells that are not known to be stored.
        causes: the exception of each failed shard, by shard number.
        conflicts: the stored cells that have a different body than those of the batch.
        erased: the keys of the batch whose cells were erased.
    """

    def __init__(
        self, written: Sequence[Put], not_written: Sequence[CellKey], causes: dict[int, SchemalessError]
    ) -> None:
        first_shard = min(causes)
        super().__init__(
            f"{len(not_written)} of {len(written) + len(not_written)} cells were not written "
            f"({len(causes)} of the batch's shards failed); shard {first_shard}: {causes[first_shard]}"
        )
        self.written: list[Put] = list(written)
        self.not_written: list[CellKey] = list(not_written)
        self.causes: dict[int, SchemalessError] = dict(causes)
        refusals = [each for cause in causes.values() for each in (cause, *getattr(cause, "others", ()))]
        self.conflicts: list[Cell] = [each.stored for each in refusals if isinstance(each, CellConflict)]
        self.erased: list[CellKey] = [each.key for each in refusals if isinstance(each, CellErased)]
        self.retryable: bool = all(cause.retryable for cause in causes.values())


class CorruptBody(SchemalessError):
    """Raised on reading if stored bytes do not decode to a document; the stored bytes are left unchanged.

    The codec, which does not know the cell, leaves ``key`` and ``shard`` unset; the reader sets them.

    Attributes:
        key: the cell's key; None if unknown.
        shard: the cell's shard; None if unknown.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.key: CellKey | None = None
        self.shard: int | None = None

    def at(self, key: CellKey, shard: int | None) -> CorruptBody:
        """Set the key and shard of the cell, and return this exception."""
        self.key = key
        self.shard = shard
        return self

    def __str__(self) -> str:
        if self.key is None:
            return self.message
        where = "" if self.shard is None else f" in shard {self.shard}"
        return f"cell {self.key}{where}: {self.message}"


class TruncatedBody(CorruptBody):
    """Raised on reading if bytes are missing at the end of a body."""


class ChecksumMismatch(CorruptBody):
    """Raised on reading if the CRC-32 does not match: the bytes are not the ones that were written."""


class UnknownFormat(CorruptBody):
    """Raised on reading if the format byte names a serializer or compressor that this version does not know."""


class UnknownDictionary(CorruptBody):
    """Raised if a body was compressed with a dictionary that is not available; ``codec import`` can restore it."""


class DictionaryDamaged(CorruptBody):
    """Raised if a dictionary is damaged, or is not the one that a body was compressed with; it was not changed."""


class BaseMissing(CorruptBody):
    """Raised if a body is a delta against another version, its base, which cannot be read.

    ``decode`` raises it for every delta, because it gets no other version: read the cell by its key instead. Raised by
    a call that reads by key, it says that the base was removed or damaged by something other than this library.

    Attributes:
        base: ref_key of the base.
    """

    def __init__(self, base: int, problem: str) -> None:
        super().__init__(f"the body is a delta against version {base} of the same row and column, which {problem}")
        self.base = base


class BaseDiffers(CorruptBody):
    """Raised if a body is a delta against another document than its base has now, so it cannot be decoded."""


class ColdBodyMissing(CorruptBody):
    """Raised if a body is a reference to a cold file that cannot be found.

    ``decode`` raises it for every reference, because it cannot read files: read the cell by its key instead. Raised by
    a call that reads by key, it says that the file was removed by something other than this library.

    Attributes:
        file: number of the file in its shard.
    """

    def __init__(self, file: int, problem: str) -> None:
        super().__init__(f"the document is in cold file {file}, which {problem}")
        self.file = file


class ColdFileDamaged(CorruptBody):
    """Raised if a body is a reference to a cold file that does not have the document there; the file is unchanged.

    Attributes:
        file: number of the file in its shard.
    """

    def __init__(self, file: int, problem: str) -> None:
        super().__init__(f"the document is in cold file {file}, which is damaged: {problem}")
        self.file = file


class TrailingBytes(CorruptBody):
    """Raised on reading if a body has bytes after the end of its payload."""


class DecodedSizeExceeded(CorruptBody):
    """Raised on reading if the decompressed payload exceeds the size limit; decompression stops at the limit."""


class NestingTooDeep(CorruptBody):
    """Raised if a document nests lists and objects deeper than the limit."""


class TooManyValues(CorruptBody):
    """Raised if a document has more lists, objects, keys and scalars than the limit; no document is created."""


class MalformedPayload(CorruptBody):
    """Raised on reading if the checksum matches but the compressor or serializer rejects the payload."""


class NotCanonical(CorruptBody):
    """Raised by ``check`` if a payload decodes, but is not what this library would have written."""


class UnreadableLegacy(CorruptBody):
    """Raised on reading if a body without an envelope is not JSON text."""


class DocumentMismatch(SchemalessError):
    """Raised by a typed column if a stored document does not fit its model; the cell itself is valid.

    Attributes:
        key: the cell's key.
    """

    def __init__(self, key: CellKey, model: str, reason: str) -> None:
        super().__init__(
            f"cell {key}: the document is not a {model}: {reason}. An upcast function can convert documents of an "
            "older shape"
        )
        self.key = key


class UnknownCodec(SchemalessError):
    """Raised if there is no codec of that name, or the codec cannot be used here; nothing was written."""


class VerificationFailed(SchemalessError):
    """Raised if a re-encoded body does not decode to the same document, or reads back differently after an update.

    The cause is a bug in this library or one of its codecs, or another program that writes bodies. Nothing more was
    written.
    """


class TopologyError(SchemalessError):
    """Raised if the catalog is inconsistent, or a topology change cannot be proven safe; the catalog is unchanged."""


class DatastoreNotFound(TopologyError):
    """Raised on opening a datastore if the server has no catalog of this name, or its creation was interrupted."""


class DatastoreExists(TopologyError):
    """Raised by ``create`` if a datastore, or a part of one, already has this name; nothing was changed."""


class CatalogCopied(TopologyError):
    """Raised on opening a datastore if its catalog was copied from another server, for instance by restoring a backup.

    The catalog still names the servers of the original, so nothing else was read, and nothing was written.
    """


class ShardIdentityMismatch(TopologyError):
    """Raised on a shard's first use if its database is missing or belongs to another shard.

    Nothing was read or written.

    The check compares datastore, shard number, shard count and placement rule.

    Attributes:
        absent: True if the database, or its tables, do not exist.
    """

    absent: bool = False


class ReplicaRefused(TopologyError):
    """Raised if a server does not replicate from the cluster's primary, or is the primary itself.

    Nothing was written but a test token, which should have appeared on the replica.
    """


class SchemaMismatch(TopologyError):
    """Raised if a database's tables are older or newer than this version of the library; nothing was changed."""


class ServerError(SchemalessError):
    """Raised if a MySQL server failed or refused a statement; subclasses tell whether anything was written.

    Attributes:
        node: the server, as ``host:port`` or socket path; never a password.
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


class ServerUnavailable(ServerError):
    """Raised if no connection could be made, or one was lost before anything could be written.

    Attributes:
        retry_after_s: seconds until another attempt is worthwhile, if the call failed at once because the server is
            known to be down; None otherwise.
    """

    retryable = True
    retry_after_s: float | None = None


class PrimaryNotClaimed(ServerUnavailable):
    """Raised if a server does not hold the cluster's current claim; nothing was read or written there.

    Either the server was replaced and has come back, or it was promoted by another tool and ``topology adopt`` has not
    finished yet.
    """


class ShardMoving(ServerUnavailable):
    """Raised if a shard is being moved and did not become available in time; nothing was written.

    The shard's table is gone from the server that the catalog names: a move is in progress, its mover died, or the
    table was dropped.
    """


class ServerTimeout(ServerError):
    """Raised if the server, a lock or the connection pool did not respond in time; nothing was written."""

    retryable = True


class StaleAbsence(ServerUnavailable):
    """Raised by reads with ``read_from="available"`` if the primary is down and the replica lacks the cell.

    The cell may exist on the primary, so the read cannot report it as absent. Retry once a primary is available again.

    Attributes:
        found: the cells found by a read of several cells, by row_key and column_name; empty for other reads.
    """

    found: Mapping[tuple[uuid.UUID, str], Cell] = MappingProxyType({})


class AccessDenied(ServerError):
    """Raised if the account cannot log in or lacks a privilege; the refused statement wrote nothing."""


class ServerRefused(ServerError):
    """Raised if a server returned an error that a retry cannot fix, or failed the TLS checks; nothing was written."""


class FeedRefused(ServerError):
    """Raised if the server cannot report which cells of the change feed are settled; nothing was written.

    The message names the privilege to grant or the variable to set. Pages without a gap are still returned.
    """


class WrongReply(ServerError):
    """Raised if a read received the reply to another query; the reply was discarded and the connection closed.

    This is a second line of defence: earlier checks should detect most mixed-up replies.
    """

    retryable = True


class OutcomeUnknown(ServerError):
    """Raised if the reply to a write was lost and retries could not determine whether the write succeeded.

    Writing the same cell again settles the outcome, because a cell is written only once. After ``append_cell``, call
    ``put_cell`` with ``key`` instead: ``retryable`` is then False, since another append could store the body twice.

    Attributes:
        key: the cell that ``append_cell`` may have written; None for puts, whose caller knows the keys.
        retry_after_s: as in ``ServerUnavailable``.
    """

    retryable: bool = True
    retry_after_s: float | None = None

    def __init__(
        self, message: str, *, node: str, shard: int | None = None, code: int | None = None, key: CellKey | None = None
    ) -> None:
        super().__init__(message, node=node, shard=shard, code=code)
        self.key = key
        self.retryable = key is None


class ColdStoreUnavailable(SchemalessError):
    """Raised if the store of cold files cannot be reached or did not respond in time; nothing was written.

    The database servers are not affected: cells whose documents are in the database can be read.

    Attributes:
        uri: the store.
    """

    retryable = True

    def __init__(self, uri: str, problem: str) -> None:
        super().__init__(f"the cold store {uri} cannot be used: {problem}. Hot documents can be; retry")
        self.uri = uri


class ArchiveFailed(SchemalessError):
    """Raised by a migration if an original cannot be archived; its cell and those after it were not updated."""


class ExportFailed(SchemalessError):
    """Raised if the target of an export cannot be read or written; the files that its manifest lists are unchanged."""

    retryable = True


class CorruptArchive(SchemalessError):
    """Raised on reading an archive file that is damaged; an incomplete last frame alone is not damage.

    Attributes:
        path: the file.
        offset: where the damaged frame begins, in bytes.
        frame: the frame's number; the header is frame 0.
    """

    def __init__(self, message: str, *, path: Path, offset: int = 0, frame: int = 0) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset
        self.frame = frame


class LocationLost(SchemalessError):
    """Raised by the change feed if a location is beyond the shard's last cell; nothing was written.

    A failover lost the shard's last cells, or the location belongs to another shard. Read the shard again from a
    location that exists.

    Attributes:
        shard: the shard's number.
        location: the requested location.
        last: the shard's highest added_id; 0 for an empty shard.
    """

    def __init__(self, shard: int, location: int, last: int) -> None:
        super().__init__(
            f"shard {shard}: location {location} is beyond the shard's last cell, added_id {last}. Either a failover "
            "lost cells, or the location belongs to another shard. Continue from a location that exists, such as 0"
        )
        self.shard = shard
        self.location = location
        self.last = last


class JobConflict(SchemalessError):
    """Raised if another job, or the job's own state, prevents the request; committed work is kept.

    Attributes:
        job_id: the conflicting job, or None.
    """

    def __init__(self, message: str, job_id: int | None = None) -> None:
        super().__init__(message)
        self.job_id = job_id


class MoveRefused(SchemalessError):
    """Raised if a move cannot start or continue; the shard stays where it is unless the message says otherwise."""


class DictionaryInUse(SchemalessError):
    """Raised if a dictionary is still needed by a cell, a column or a job; it was not removed."""


class LeaseLost(SchemalessError):
    """Raised in a job or follower if another process took over its shard after its lease expired.

    This process writes nothing more to the shard. The other one continues from the last checkpoint.
    """


class ParkCell(SchemalessError):
    """Raise this in a trigger function to park the cell and continue with the next one.

    Use it if another attempt cannot succeed.
    """


class RetryLater(SchemalessError):
    """Raise this in a trigger function to postpone the cell, without counting the attempt.

    Attributes:
        seconds: minimum delay before the next attempt.
    """

    def __init__(self, seconds: float, reason: str = "the function asked for a retry") -> None:
        if not 0 <= seconds <= _MAX_RETRY_DELAY_S:
            raise InvalidInput(f"RetryLater: seconds must be from 0 to {_MAX_RETRY_DELAY_S:,}, got {seconds!r}")
        super().__init__(f"{reason}; in {seconds:g} s")
        self.seconds = seconds


class UnknownIndex(SchemalessError):
    """Raised if no secondary index has this name, or the index has been dropped."""


class IndexNotReady(SchemalessError):
    """Raised if a secondary index is still being filled, or is being dropped, so a query would miss rows."""


class NotCaughtUp(SchemalessError):
    """Raised by ``catch_up`` if a trigger or an index has not handled all cells; the message says where, and why.

    What has been handled remains so, and the next call continues.
    """


class WorkersDied(SchemalessError):
    """Raised if workers of a job, ``check`` or ``migrate verify`` died repeatedly without completing a shard.

    A job keeps its work up to the last checkpoint of each shard.
    """


class InvalidInput(SchemalessError):
    """Raised if an argument, option or input file cannot be used; the message says which one, and where."""


class WrongEventLoop(SchemalessError):
    """Raised if an asyncio datastore is used in a different event loop from the one that opened it.

    Nothing was sent.
    """


class LocalServerError(SchemalessError):
    """Raised if a private MySQL server could not be installed, started or stopped."""
