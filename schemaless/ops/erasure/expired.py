"""Finds expired cells of a shard, block by block in the order of added_id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Self

from schemaless.ops.erasure import sql
from schemaless.store.datastore import Datastore
from schemaless.store.erasures.holds import Hold
from schemaless.store.erasures.ledger import Erasure
from schemaless.store.erasures.retention import Policy
from schemaless.store.internals import Internals, internals_of

BLOCK_ROWS: Final = 2_000
"""Number of rows examined per statement."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A policy as of a fixed time.

    Attributes:
        column_name: the column.
        before: time in UTC; cells created then or later are kept. None if the policy does not consider age.
        kept_versions: number of latest versions that are kept; None if the policy does not count versions.
    """

    column_name: str
    before: datetime | None
    kept_versions: int | None

    @classmethod
    def of(cls, policy: Policy, now: datetime) -> Self:
        """Return the rule of a policy as of a time, in UTC."""
        before = None if policy.keep_days is None else now - timedelta(policy.keep_days)
        return cls(policy.column_name, before, policy.keep_versions)

    def as_json(self) -> dict[str, Any]:
        """Return the rule as JSON values."""
        return {
            "column": self.column_name,
            "before": None if self.before is None else self.before.isoformat(),
            "versions": self.kept_versions,
        }


def rules_of(entry: Erasure) -> list[Rule]:
    """Return the rules of a retention run from its entry in the ledger."""
    return [
        Rule(rule["column"], rule["before"] and datetime.fromisoformat(rule["before"]), rule["versions"])
        for rule in entry.scope["rules"]
    ]


@dataclass(frozen=True, slots=True)
class Block:
    """The expired cells of a range of added_ids.

    Attributes:
        up_to: last added_id of the range.
        ids: added_ids of expired cells, erased ones included.
        held: expired cells that are kept, by added_id, each with the earliest hold on its row.
    """

    up_to: int
    ids: Sequence[int]
    held: Mapping[int, Hold]


def blocks(
    internals: Internals,
    shard: int,
    rules: Sequence[Rule],
    *,
    after: int = 0,
    up_to: int | None = None,
    during: tuple[datetime, datetime] | None = None,
    at_once: Callable[[], int] = lambda: BLOCK_ROWS,
    recorded: Iterable[Hold] = (),
) -> Iterator[Block]:
    """Yield the expired cells after an added_id, up to another one.

    Holds are read right before a block is yielded.

    Args:
        internals: the datastore.
        shard: number of the shard.
        rules: what expires.
        after: added_id before the first cell.
        up_to: added_id of the last cell; None for all cells.
        during: start and end of an earlier run, to yield what expired then: cells and versions that were created later
            do not count, and rows that were held then are kept as if they were held now.
        at_once: returns the maximum number of expired cells of the next block.
        recorded: holds in a file of the ledger, which count as if they were in the catalog.

    Raises:
        ServerError: a server is unreachable or rejects a statement.
    """
    database = internals.shards.database(shard)
    conditions = [
        sql.expires(database, rule.column_name, rule.before, rule.kept_versions, during and during[1]) for rule in rules
    ]
    for low, high, _ in internals.id_blocks(shard, BLOCK_ROWS, after=after, up_to=up_to):
        found = internals.shards.rows(shard, sql.select_expired(database, low, high, conditions))
        rows = [(int(added_id), bytes(row_key)) for added_id, row_key in found]
        start = 0
        while True:
            part = dict(rows[start : start + at_once()])
            start += len(part)
            of_part = internals.holds.of_rows({*part.values()}, during, recorded)
            holds = {hold.row_key.bytes: hold for hold in sorted(of_part, key=lambda hold: hold.held_at, reverse=True)}
            held = {added_id: holds[row_key] for added_id, row_key in part.items() if row_key in holds}
            yield Block(high if start == len(rows) else max(part), [each for each in part if each not in held], held)
            if start == len(rows):
                break


def server_time(store: Datastore) -> datetime:
    """Return the time by the clock of the catalog's server, UTC."""
    rows = internals_of(store).catalog.rows(sql.SELECT_NOW)
    return datetime.fromisoformat(rows[0][0])
