"""``connect()`` of the asyncio client."""

from __future__ import annotations

from schemaless.aio.datastore import AsyncDatastore
from schemaless.aio.runtime import EventLoop
from schemaless.codec.envelope import DEFAULT_LIMITS, Limits
from schemaless.store.opening import opening_at
from schemaless.wire.secret import Secret


async def connect(
    url: str | None = None,
    *,
    connect_timeout_s: float | None = None,
    read_timeout_s: float | None = None,
    write_timeout_s: float | None = None,
    pool_size: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
    allow_nan: bool = False,
) -> AsyncDatastore:
    """Open a datastore.

        store = await schemaless.aio.connect("mysql://app@db-1:3306/mezzanine")

    The datastore belongs to the event loop that opens it. Arguments and errors are those of ``schemaless.connect``.

    Returns:
        An open datastore: an asynchronous context manager.
    """
    address = None if url is None else Secret(url)
    del url  # keeps the password out of tracebacks, which may show local variables
    opening = opening_at(
        address,
        limits,
        allow_nan,
        connect_timeout_s=connect_timeout_s,
        read_timeout_s=read_timeout_s,
        write_timeout_s=write_timeout_s,
        pool_size=pool_size,
    )
    runtime = EventLoop()
    return AsyncDatastore(runtime, await runtime.run(opening.open, runtime))
