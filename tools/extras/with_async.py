"""A cell through the asyncio client."""

import asyncio
import sys
import uuid

import schemaless.aio


async def main() -> None:
    async with await schemaless.aio.connect(sys.argv[1]) as store:
        row = uuid.uuid4()
        await store.put_cell(row, "BASE", 1, {"fare": 12.5})
        assert [cell.body async for cell in store.get_versions(row, "BASE")] == [{"fare": 12.5}]


asyncio.run(main())
