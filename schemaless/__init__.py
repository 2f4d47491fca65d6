"""An append-only cell store on sharded MySQL.

    import schemaless

    store = schemaless.connect("mysql://app@db-1:3306/mezzanine")
    store.put_cell(row_key, "BASE", 1, {"fare": {"total": 12.5}})

These are the public names, besides ``__version__``; everything else may change between versions. Each is imported on
first use, so that commands that need no server start without importing SQLAlchemy.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from schemaless.base.keys import new_key as new_key
    from schemaless.cell import (
        Cell as Cell,
        CellKey as CellKey,
        Erased as Erased,
        ErasedCell as ErasedCell,
        JSONDocument as JSONDocument,
        NewCell as NewCell,
        NewStoredCell as NewStoredCell,
        Page as Page,
        Put as Put,
        RowKey as RowKey,
        StaleCell as StaleCell,
        StaleStoredCell as StaleStoredCell,
        StoredCell as StoredCell,
    )
    from schemaless.codec.envelope import Limits as Limits
    from schemaless.errors import (
        AccessDenied as AccessDenied,
        ArchiveFailed as ArchiveFailed,
        BaseDiffers as BaseDiffers,
        BaseMissing as BaseMissing,
        BatchError as BatchError,
        BodyTooLarge as BodyTooLarge,
        CatalogCopied as CatalogCopied,
        CellConflict as CellConflict,
        CellErased as CellErased,
        ChecksumMismatch as ChecksumMismatch,
        ColdBodyMissing as ColdBodyMissing,
        ColdFileDamaged as ColdFileDamaged,
        ColdStoreUnavailable as ColdStoreUnavailable,
        CorruptArchive as CorruptArchive,
        CorruptBody as CorruptBody,
        DatastoreExists as DatastoreExists,
        DatastoreNotFound as DatastoreNotFound,
        DecodedSizeExceeded as DecodedSizeExceeded,
        DictionaryDamaged as DictionaryDamaged,
        DictionaryInUse as DictionaryInUse,
        DocumentMismatch as DocumentMismatch,
        ExportFailed as ExportFailed,
        FeedRefused as FeedRefused,
        IndexNotReady as IndexNotReady,
        InvalidBody as InvalidBody,
        InvalidCell as InvalidCell,
        InvalidInput as InvalidInput,
        JobConflict as JobConflict,
        LatestChanged as LatestChanged,
        LeaseLost as LeaseLost,
        LocalServerError as LocalServerError,
        LocationLost as LocationLost,
        MalformedPayload as MalformedPayload,
        MoveRefused as MoveRefused,
        NestingTooDeep as NestingTooDeep,
        NotCanonical as NotCanonical,
        NotCaughtUp as NotCaughtUp,
        OutcomeUnknown as OutcomeUnknown,
        ParkCell as ParkCell,
        PrimaryNotClaimed as PrimaryNotClaimed,
        ReplicaRefused as ReplicaRefused,
        RetryLater as RetryLater,
        RowHeld as RowHeld,
        SchemalessError as SchemalessError,
        SchemaMismatch as SchemaMismatch,
        ServerError as ServerError,
        ServerRefused as ServerRefused,
        ServerTimeout as ServerTimeout,
        ServerUnavailable as ServerUnavailable,
        ShardIdentityMismatch as ShardIdentityMismatch,
        ShardMoving as ShardMoving,
        StaleAbsence as StaleAbsence,
        TooManyValues as TooManyValues,
        TopologyError as TopologyError,
        TrailingBytes as TrailingBytes,
        TruncatedBody as TruncatedBody,
        UnknownCodec as UnknownCodec,
        UnknownDictionary as UnknownDictionary,
        UnknownFormat as UnknownFormat,
        UnknownIndex as UnknownIndex,
        UnreadableLegacy as UnreadableLegacy,
        VerificationFailed as VerificationFailed,
        WorkersDied as WorkersDied,
        WrongEventLoop as WrongEventLoop,
        WrongReply as WrongReply,
    )
    from schemaless.ops.admin.catching_up import catch_up as catch_up
    from schemaless.ops.admin.create import create as create
    from schemaless.ops.erasure.job import finish_erasure as finish_erasure
    from schemaless.ops.erasure.status import ErasureStatus as ErasureStatus
    from schemaless.store.datastore import Datastore as Datastore
    from schemaless.store.erasures.ledger import Erasure as Erasure
    from schemaless.store.indexes.query import (
        Index as Index,
        IndexPage as IndexPage,
        IndexRow as IndexRow,
    )
    from schemaless.store.indexes.registry import IndexEntry as IndexEntry
    from schemaless.store.opening import connect as connect
    from schemaless.store.triggers.declaration import (
        Call as Call,
        Trigger as Trigger,
        trigger as trigger,
    )
    from schemaless.store.typed import Column as Column
    from schemaless.topology.pinging import Ping as Ping
    from schemaless.topology.shards import (
        FeedFrom as FeedFrom,
        ReadFrom as ReadFrom,
    )

    __version__: str

_HOMES = {
    "schemaless.base.keys": ("new_key",),
    "schemaless.cell": (
        "Cell",
        "CellKey",
        "Erased",
        "ErasedCell",
        "JSONDocument",
        "NewCell",
        "NewStoredCell",
        "Page",
        "Put",
        "RowKey",
        "StaleCell",
        "StaleStoredCell",
        "StoredCell",
    ),
    "schemaless.codec.envelope": ("Limits",),
    "schemaless.ops.admin.catching_up": ("catch_up",),
    "schemaless.ops.admin.create": ("create",),
    "schemaless.ops.erasure.job": ("finish_erasure",),
    "schemaless.ops.erasure.status": ("ErasureStatus",),
    "schemaless.store.triggers.declaration": ("Call", "Trigger", "trigger"),
    "schemaless.store.datastore": ("Datastore",),
    "schemaless.store.erasures.ledger": ("Erasure",),
    "schemaless.store.indexes.query": ("Index", "IndexPage", "IndexRow"),
    "schemaless.store.indexes.registry": ("IndexEntry",),
    "schemaless.store.opening": ("connect",),
    "schemaless.store.typed": ("Column",),
    "schemaless.topology.pinging": ("Ping",),
    "schemaless.topology.shards": ("FeedFrom", "ReadFrom"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_ERRORS = "schemaless.errors"


def _is_error(name: str) -> bool:
    errors = import_module(_ERRORS)
    kind = getattr(errors, name, None)
    return isinstance(kind, type) and issubclass(kind, errors.SchemalessError)


def __dir__() -> list[str]:
    return sorted([*_HOME_OF, *filter(_is_error, vars(import_module(_ERRORS)))])


if not TYPE_CHECKING:  # type checkers use the imports above; with __getattr__ they would accept any name

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            value = version("schemaless-store")
        elif name == "__all__":
            value = __dir__()
        elif name in _HOME_OF or (not name.startswith("_") and _is_error(name)):
            value = getattr(import_module(_HOME_OF.get(name, _ERRORS)), name)
        else:
            raise AttributeError(f"module 'schemaless' has no attribute {name!r}")
        globals()[name] = value
        return value
