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
    from schemaless.base.keys import new_key
    from schemaless.cell import (
        Cell,
        CellKey,
        Erased,
        ErasedCell,
        JSONDocument,
        NewCell,
        NewStoredCell,
        Page,
        Put,
        RowKey,
        StaleCell,
        StaleStoredCell,
        StoredCell,
    )
    from schemaless.codec.envelope import Limits
    from schemaless.errors import (
        AccessDenied,
        ArchiveFailed,
        BaseDiffers,
        BaseMissing,
        BatchError,
        BodyTooLarge,
        CatalogCopied,
        CellConflict,
        CellErased,
        ChecksumMismatch,
        ColdBodyMissing,
        ColdFileDamaged,
        ColdStoreUnavailable,
        CorruptArchive,
        CorruptBody,
        DatastoreExists,
        DatastoreNotFound,
        DecodedSizeExceeded,
        DictionaryDamaged,
        DictionaryInUse,
        DocumentMismatch,
        ExportFailed,
        FeedRefused,
        IndexNotReady,
        InvalidBody,
        InvalidCell,
        InvalidInput,
        JobConflict,
        LatestChanged,
        LeaseLost,
        LocalServerError,
        LocationLost,
        MalformedPayload,
        MoveRefused,
        NestingTooDeep,
        NotCanonical,
        NotCaughtUp,
        OutcomeUnknown,
        ParkCell,
        PrimaryNotClaimed,
        ReplicaRefused,
        RetryLater,
        RowHeld,
        SchemalessError,
        SchemaMismatch,
        ServerError,
        ServerRefused,
        ServerTimeout,
        ServerUnavailable,
        ShardIdentityMismatch,
        ShardMoving,
        StaleAbsence,
        TooManyValues,
        TopologyError,
        TrailingBytes,
        TruncatedBody,
        UnknownCodec,
        UnknownDictionary,
        UnknownFormat,
        UnknownIndex,
        UnreadableLegacy,
        VerificationFailed,
        WorkersDied,
        WrongEventLoop,
        WrongReply,
    )
    from schemaless.ops.admin.catching_up import catch_up
    from schemaless.ops.admin.create import create
    from schemaless.ops.erasure.job import finish_erasure
    from schemaless.ops.erasure.status import ErasureStatus
    from schemaless.store.datastore import Datastore
    from schemaless.store.erasures.ledger import Erasure
    from schemaless.store.indexes.query import Index, IndexPage, IndexRow
    from schemaless.store.indexes.registry import IndexEntry
    from schemaless.store.opening import connect
    from schemaless.store.triggers.declaration import Call, Trigger, trigger
    from schemaless.store.typed import Column
    from schemaless.topology.pinging import Ping
    from schemaless.topology.shards import FeedFrom, ReadFrom

    __version__: str

__all__ = [
    "AccessDenied",
    "ArchiveFailed",
    "BaseDiffers",
    "BaseMissing",
    "BatchError",
    "BodyTooLarge",
    "Call",
    "CatalogCopied",
    "Cell",
    "CellConflict",
    "CellErased",
    "CellKey",
    "ChecksumMismatch",
    "ColdBodyMissing",
    "ColdFileDamaged",
    "ColdStoreUnavailable",
    "Column",
    "CorruptArchive",
    "CorruptBody",
    "Datastore",
    "DatastoreExists",
    "DatastoreNotFound",
    "DecodedSizeExceeded",
    "DictionaryDamaged",
    "DictionaryInUse",
    "DocumentMismatch",
    "Erased",
    "ErasedCell",
    "Erasure",
    "ErasureStatus",
    "ExportFailed",
    "FeedFrom",
    "FeedRefused",
    "Index",
    "IndexEntry",
    "IndexNotReady",
    "IndexPage",
    "IndexRow",
    "InvalidBody",
    "InvalidCell",
    "InvalidInput",
    "JSONDocument",
    "JobConflict",
    "LatestChanged",
    "LeaseLost",
    "Limits",
    "LocalServerError",
    "LocationLost",
    "MalformedPayload",
    "MoveRefused",
    "NestingTooDeep",
    "NewCell",
    "NewStoredCell",
    "NotCanonical",
    "NotCaughtUp",
    "OutcomeUnknown",
    "Page",
    "ParkCell",
    "Ping",
    "PrimaryNotClaimed",
    "Put",
    "ReadFrom",
    "ReplicaRefused",
    "RetryLater",
    "RowHeld",
    "RowKey",
    "SchemaMismatch",
    "SchemalessError",
    "ServerError",
    "ServerRefused",
    "ServerTimeout",
    "ServerUnavailable",
    "ShardIdentityMismatch",
    "ShardMoving",
    "StaleAbsence",
    "StaleCell",
    "StaleStoredCell",
    "StoredCell",
    "TooManyValues",
    "TopologyError",
    "TrailingBytes",
    "Trigger",
    "TruncatedBody",
    "UnknownCodec",
    "UnknownDictionary",
    "UnknownFormat",
    "UnknownIndex",
    "UnreadableLegacy",
    "VerificationFailed",
    "WorkersDied",
    "WrongEventLoop",
    "WrongReply",
    "catch_up",
    "connect",
    "create",
    "finish_erasure",
    "new_key",
    "trigger",
]

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

if not TYPE_CHECKING:  # type checkers use the imports above; with __getattr__ they would accept any name

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            value = version("schemaless-store")
        elif name not in __all__:
            raise AttributeError(f"module 'schemaless' has no attribute {name!r}")
        else:
            value = getattr(import_module(_HOME_OF.get(name, "schemaless.errors")), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
