"""Documents that a dictionary helps, and one in a catalog: for tests of whatever uses dictionaries."""

from __future__ import annotations

import functools
import random
import uuid
from typing import Any

from schemaless import Datastore, NewCell
from schemaless.codec.dictionaries import Dictionary
from schemaless.codec.envelope import encode_body
from schemaless.codec.registry import codec_named
from schemaless.codec.training import Training, train
from schemaless.store.cells.column_codecs import ColumnSetting, set_column
from schemaless.store.internals import internals_of

COLUMN = "TRIP"
ZSTD = codec_named("msgpack+zstd")
_CITIES = ("Amsterdam", "Bogota", "Chicago", "Delhi", "Entebbe", "Fukuoka")


def document(number: int) -> dict[str, Any]:
    """Return a document of about 300 bytes that is like the others."""
    drawn = random.Random(number)
    return {
        "trip_number": number,
        "status": drawn.choice(("requested", "accepted", "completed", "cancelled_by_rider")),
        "fare": {"currency": "USD", "total": drawn.randrange(400, 9000), "surge_multiplier": drawn.randrange(10, 30)},
        "pickup": {"city": drawn.choice(_CITIES), "zone": drawn.randrange(90), "driver_rating": drawn.randrange(50)},
        "dropoff": {"city": drawn.choice(_CITIES), "zone": drawn.randrange(90), "rider_rating": drawn.randrange(50)},
    }


@functools.cache
def training(seed: int = 0) -> Training:
    """Return a dictionary for such documents."""
    cells = ((uuid.uuid5(uuid.NAMESPACE_OID, str(n)).bytes, encode_body(document(n))) for n in range(seed, seed + 300))
    return train(cells, ZSTD, sizes=(2_048,))


def kept(admin: Datastore, seed: int = 0) -> Dictionary:
    """Keep one in a catalog."""
    return internals_of(admin).dictionary_replicas.keep(training(seed).dictionary, {"column": COLUMN})


def everywhere(admin: Datastore, sql: str) -> None:
    """Run SQL on the catalog's table of dictionaries, and on each cluster's copy; ``{table}`` is its name."""
    dictionary_replicas = internals_of(admin).dictionary_replicas
    for replica in (dictionary_replicas.catalog, *dictionary_replicas.copies):
        text = sql.format(table=f"`{replica.database}`.dictionary").encode()
        replica.pool.run(lambda connection, text=text: connection.execute(text))  # type: ignore[misc]


def set_to(admin: Datastore, dictionary_id: int | None, codec: str = "msgpack+zstd") -> None:
    """Set the column to it."""
    set_column(internals_of(admin).dictionary_replicas, ColumnSetting(COLUMN, codec, None, dictionary_id))


def cells(count: int, column: str = COLUMN) -> list[NewCell]:
    """Return such cells, each of a row of its own."""
    return [
        NewCell(uuid.uuid5(uuid.NAMESPACE_OID, f"dictionary {number}"), column, 1, document(number))
        for number in range(1000, 1000 + count)
    ]
