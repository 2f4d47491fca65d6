"""The asyncio client: ``connect`` and the datastore that it returns.

    import schemaless.aio

    async with await schemaless.aio.connect("mysql://app@db-1:3306/mezzanine") as store:
        await store.put_cell(row_key, "BASE", 1, {"fare": {"total": 12.5}})

Needs the extra ``[async]``.
"""

from schemaless.aio.datastore import AsyncColumn, AsyncDatastore, AsyncIndex
from schemaless.aio.opening import connect

__all__ = ["AsyncColumn", "AsyncDatastore", "AsyncIndex", "connect"]
