"""Trip service on asyncio: write, change and read trips and their history, and import batches.

    pip install 'schemaless-store[async,typed]' fastapi uvicorn
    SCHEMALESS_URL=mezzanine uvicorn trip_service:app        a URL, or a name in the configuration

A change writes a new version instead of updating in place, and only after the version that the client read. So two
clients that change the same version of a trip cannot overwrite each other, and repeating a request is safe.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Annotated, cast
from uuid import UUID

from fastapi import Depends, FastAPI, HTTPException, Path, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

import schemaless.aio


class Trip(BaseModel):
    """A trip, as clients send it and as it is stored."""

    to: str
    fare: float = Field(ge=0, allow_inf_nan=False)
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
        app.state.trips = store.column("TRIP", Trip)
        yield


app = FastAPI(title="Trips", lifespan=opened)


async def the_trips(request: Request) -> schemaless.aio.AsyncColumn[Trip]:
    """Return the column of the open datastore."""
    return cast("schemaless.aio.AsyncColumn[Trip]", request.app.state.trips)


Trips = Annotated[schemaless.aio.AsyncColumn[Trip], Depends(the_trips)]


@app.exception_handler(schemaless.ServerError)
async def unavailable(request: Request, problem: schemaless.ServerError) -> JSONResponse:
    """Answer 503 if a database server does not answer: every request of this service is safe to repeat."""
    if problem.retryable or isinstance(problem, schemaless.OutcomeUnknown):
        return JSONResponse({"detail": "repeat the request later"}, 503, headers={"Retry-After": "1"})
    raise problem


@app.exception_handler(schemaless.InvalidCell)
async def refused(request: Request, problem: schemaless.InvalidCell) -> JSONResponse:
    """Answer 422 if a trip cannot be stored, for example because it is too large."""
    return JSONResponse({"detail": str(problem)}, 422)


def shown(cell: schemaless.Cell[Trip]) -> Version:
    """Return the response for a cell."""
    return Version(version=cell.ref_key, stored_at=cell.created_at, trip=cell.body)


@app.put("/trips/{trip_id}/versions/{version}")
async def put(
    trip_id: UUID, version: Annotated[int, Path(ge=1, lt=2**63)], trip: Trip, trips: Trips
) -> dict[str, bool]:
    """Write a version of a trip: 1 for a new trip, else the version after the one that the client read."""
    try:
        await trips.append(trip_id, trip, if_latest=version - 1)
    except schemaless.LatestChanged as changed:
        stored = await trips.get(trip_id, version)
        if stored is not None and stored.body == trip:
            return {"created": False}  # the request was repeated
        raise HTTPException(409, {"error": "this is not the next version", "latest": changed.latest}) from None
    return {"created": True}


@app.get("/trips/{trip_id}")
async def latest(trip_id: UUID, trips: Trips) -> Version:
    """Read the latest version of a trip."""
    cell = await trips.latest(trip_id)
    if cell is None:
        raise HTTPException(404, "no such trip")
    return shown(cell)


@app.get("/trips/{trip_id}/history")
async def history(trip_id: UUID, trips: Trips, limit: Annotated[int, Field(ge=1, le=100)] = 20) -> list[Version]:
    """Read the versions of a trip, newest first."""
    return [shown(cell) async for cell in trips.versions(trip_id, limit=limit)]


@app.post("/trips")
async def import_trips(new: dict[UUID, Trip], trips: Trips) -> Imported:
    """Write many new trips; trips that already exist with the same document count as written."""
    try:
        puts = await trips.put_many((trip_id, 1, trip) for trip_id, trip in new.items())
    except schemaless.BatchError as problem:
        # Each shard is one transaction, so what was written is known: the client sends the rest again.
        failed = [str(key.row_key) for key in problem.not_written]
        status = 503 if problem.retryable else 409
        raise HTTPException(status, {"error": "not all of them were written", "not_written": failed}) from None
    written = sum(each.created for each in puts)
    return Imported(written=written, there_before=len(puts) - written)
