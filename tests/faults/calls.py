"""Every call of a datastore, and of its tools, to a server, with arguments that do for a datastore of one shard."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import schemaless
from schemaless.errors import BatchError, SchemalessError, ServerError
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of

ROW: Final = uuid.UUID(int=1)

READS: Final[dict[str, Callable[[Datastore], object]]] = {
    "get_cell": lambda store: store.get_cell(ROW, "BASE", 1),
    "get_cell_latest": lambda store: store.get_cell_latest(ROW, "BASE"),
    "get_cells_latest": lambda store: store.get_cells_latest([(ROW, "BASE")]),
    "get_row": lambda store: store.get_row(ROW),
    "get_rows": lambda store: store.get_rows([ROW]),
    "get_versions": lambda store: list(store.get_versions(ROW, "BASE")),
    "get_stored_versions": lambda store: list(store.get_stored_versions(ROW, "BASE")),
    "column_names": lambda store: store.column_names(ROW),
    "get_cells_for_shard": lambda store: store.get_cells_for_shard(0),
    "get_stored_cells_for_shard": lambda store: store.get_stored_cells_for_shard(0),
    "iter_shard": lambda store: list(store.iter_shard(0)),
    "end_of_shard": lambda store: store.end_of_shard(0),
    "get_erased_for_shard": lambda store: store.get_erased_for_shard(0),
    "scan_shard": lambda store: list(store.scan_shard(0)),
    "iter_cells": lambda store: list(store.iter_cells()),
    "count": lambda store: store.count("BASE", exact=True),
    "latest_cells": lambda store: list(internals_of(store).latest_cells(0, None)),
    "scan": lambda store: list(internals_of(store).scan(0)),
    "location_since": lambda store: internals_of(store).location_since(0, datetime.now(UTC)),
    "id_span": lambda store: internals_of(store).id_span(0),
    "id_blocks": lambda store: list(internals_of(store).id_blocks(0, 10)),
    "arrow": lambda store: store.arrow().read_all(),
    "read_stored": lambda store: list(internals_of(store).read_stored(0, [1])),
}

WRITES: Final[dict[str, Callable[[Datastore], object]]] = {
    "put_cell": lambda store: store.put_cell(uuid.uuid4(), "BASE", 1, {"new": True}),
    "put_cells": lambda store: store.put_cells([schemaless.NewCell(uuid.uuid4(), "BASE", 1, {"new": True})]),
    "put_row": lambda store: store.put_row(uuid.uuid4(), {"BASE": {"new": True}, "STATUS": "new"}, 1),
    "put_stored_cells": lambda store: store.put_stored_cells([schemaless.NewStoredCell(uuid.uuid4(), "BASE", 1, b"1")]),
    "append_cell": lambda store: store.append_cell(uuid.uuid4(), "STATUS", {"new": True}),
}

WITHOUT_A_SERVER: Final = {
    "arrow",  # reads the change feed: tests/store/arrow
    "catalog",
    "chosen_shards",
    "close",
    "column",  # calls the others: tests/store/test_typed.py
    "codec_for",  # asks the catalog once a minute, and does without where it is silent
    "databases_by_node",
    "decode",
    "create_index",  # takes an account with more privileges: tests/store/indexes
    "drop_index",
    "erase",  # takes an account with more privileges: tests/ops/erasure
    "erase_many",
    "index",  # asks the catalog alone, and there is none here: tests/store/indexes
    "indexes",
    "name",
    "ping",  # reports errors instead of raising them: tests/topology/test_pinging.py
    "servers",
    "shard_count",
    "topology",
    "shard_of",
    "dictionary_replicas",
    "follower_access",
}


def error_of(call: Callable[[], object]) -> SchemalessError | None:
    """Return what a call raises, of a batch its one shard's; None where it succeeds.

    Raises:
        AssertionError: it raised something that is not the library's.
    """
    raised: SchemalessError | None = None
    try:
        call()
    except SchemalessError as error:
        raised = error
    except Exception as error:
        raise AssertionError(f"left the library: {error!r}") from error
    if isinstance(raised, BatchError):
        (cause,) = raised.causes.values()
        assert raised.retryable == cause.retryable
        return cause
    return raised


def expect_refusal(
    error: BaseException | None, kind: type[ServerError], *, codes: set[int | None], retryable: bool, **where: Any
) -> None:
    """Expect one of the library's errors, complete, and in one line."""
    assert isinstance(error, kind), repr(error)
    assert type(error).__module__.startswith("schemaless."), repr(error)
    assert error.code in codes, repr(error)
    assert error.retryable is retryable, repr(error)
    for name, value in where.items():
        assert getattr(error, name) == value, repr(error)
    assert error.node in str(error)
    assert "\n" not in str(error)
