"""The asyncio client: ``connect`` and the datastore that it returns.

    import schemaless.aio

    async with await schemaless.aio.connect("mysql://app@db-1:3306/mezzanine") as store:
        await store.put_cell(row_key, "BASE", 1, {"fare": {"total": 12.5}})

Needs the extra ``[async]``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from schemaless.aio.datastore import AsyncColumn, AsyncDatastore, AsyncIndex
from schemaless.aio.opening import connect

if TYPE_CHECKING:
    from schemaless.ops.coroutines import catch_up, finish_erasure

__all__ = ["AsyncColumn", "AsyncDatastore", "AsyncIndex", "catch_up", "connect", "finish_erasure"]

if not TYPE_CHECKING:  # with __getattr__, type checkers would accept any name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'schemaless.aio' has no attribute {name!r}")
        # Imported on first use: these names are built on packages above this one.
        return getattr(import_module("schemaless.ops.coroutines"), name)
