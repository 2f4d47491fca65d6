"""Trip service on asyncio: write, change and read trips and their history, and import batches.

    pip install 'schemaless-store[async]' fastapi uvicorn
    SCHEMALESS_URL=mezzanine uvicorn trip_service:app        a URL, or a name in the configuration

A change writes a new version instead of updating in place, and only after the version that the client read. So two
clients that change the same version of a trip cannot overwrite each other, and repeating a request is safe.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Annotated, Any, cast
from uuid import UUID

from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel, Field

import schemaless.aio

COLUMN = "TRIP"


class Trip(BaseModel):
    """Request body of a trip."""

    to: str
    fare: float = Field(ge=0)
    note: str | None = None


class Version(BaseModel):
    """Stored version of a trip, with its time."""

    version: int
    stored_at: datetime
    trip: Trip


class Imported(BaseModel):
    """Result of a batch import."""

    written: int
    there_before: int


@asynccontextmanager
async def opened(app: FastAPI) -> AsyncIterator[None]:
    """Open one datastore in the server's event loop, for all requests, and close it at the end."""
    async with await schemaless.aio.connect(os.environ["SCHEMALESS_URL"]) as store:
        app.state.store = store
        yield


app = FastAPI(title="Trips", lifespan=opened)


async def the_store(request: Request) -> schemaless.aio.AsyncDatastore:
    """Return the open datastore."""
    return cast("schemaless.aio.AsyncDatastore", request.app.state.store)


Store = Annotated[schemaless.aio.AsyncDatastore, Depends(the_store)]


def shown(cell: schemaless.Cell) -> Version:
    """Return the response for a cell."""
    return Version(version=cell.ref_key, stored_at=cell.created_at, trip=Trip.model_validate(cell.body))


@app.put("/trips/{trip_id}/versions/{version}")
async def put(trip_id: UUID, version: int, trip: Trip, store: Store) -> dict[str, bool]:
    """Write a version of a trip: 1 for a new trip, else the version after the one that the client read."""
    try:
        await store.append_cell(trip_id, COLUMN, trip.model_dump(), if_latest=version - 1)
    except schemaless.LatestChanged as changed:
        stored = await store.get_cell(trip_id, COLUMN, version)
        if stored is not None and stored.body == trip.model_dump():
            return {"created": False}
        raise HTTPException(409, {"error": "this is not the next version", "latest": changed.latest}) from None
    except schemaless.OutcomeUnknown:
        raise HTTPException(503, "repeat the request to find out whether the version was written") from None
    except schemaless.InvalidCell as problem:
        raise HTTPException(422, str(problem)) from None
    return {"created": True}


@app.get("/trips/{trip_id}")
async def latest(trip_id: UUID, store: Store) -> Version:
    """Read the latest version of a trip."""
    cell = await store.get_cell_latest(trip_id, COLUMN)
    if cell is None:
        raise HTTPException(404, "no such trip")
    return shown(cell)


@app.get("/trips/{trip_id}/history")
async def history(trip_id: UUID, store: Store, limit: Annotated[int, Field(ge=1, le=100)] = 20) -> list[Version]:
    """Read the versions of a trip, newest first."""
    return [shown(cell) async for cell in store.get_versions(trip_id, COLUMN, limit=limit)]


@app.post("/trips")
async def import_trips(trips: dict[UUID, Trip], store: Store) -> Imported:
    """Write many new trips; trips that already exist with the same document count as written."""
    cells = [schemaless.NewCell(trip_id, COLUMN, 1, trip.model_dump()) for trip_id, trip in trips.items()]
    try:
        puts = await store.put_cells(cells)
    except schemaless.BatchError as problem:
        # Each shard is one transaction, so what was written is known: the client sends the rest again.
        failed: list[Any] = [str(key.row_key) for key in problem.not_written]
        status = 503 if problem.retryable else 409
        raise HTTPException(status, {"error": "not all of them were written", "not_written": failed}) from None
    written = sum(each.created for each in puts)
    return Imported(written=written, there_before=len(puts) - written)
