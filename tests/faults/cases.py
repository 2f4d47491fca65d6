"""Operations for faults to strike, and faults for operations: both from a seeded ``random.Random``."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import schemaless
from schemaless.cell import CellKey
from tests.faults.proxy import ANSWERING, SENDING, Fault

CONNECTING: Final = ("accept", "greeting", "login", "setup")


@dataclass(frozen=True)
class Case:
    """One operation to come.

    Attributes:
        call: does it.
        shard_of: the shard that a key belongs to.
        wanted: the documents by key that it writes; for an append, the one document at the key that is next.
        there: what is there before.
        statements: how the statements that it sends begin; some twice, to be struck oftener.
        append: whether it is an append.
    """

    call: Callable[[], list[schemaless.Put]]
    shard_of: Callable[[CellKey], int]
    wanted: Mapping[CellKey, Any]
    there: Mapping[CellKey, Any]
    statements: tuple[str, ...]
    append: bool = False

    def row_sets(self) -> dict[int, set[uuid.UUID]]:
        """Return the case's rows by shard."""
        rows: dict[int, set[uuid.UUID]] = {}
        for key in self.wanted:
            rows.setdefault(self.shard_of(key), set()).add(key.row_key)
        return rows


class Cases:
    """Makes cases on a datastore whose batches need a transaction from a few cells with ``big`` bodies on."""

    def __init__(self, store: schemaless.Datastore) -> None:
        self.store = store
        self._makers: dict[str, Callable[[random.Random], Case]] = {
            "put_cell": lambda chance: self._batch(chance, 1, 1),
            "put_cells, one statement": lambda chance: self._batch(chance, 1, chance.randint(2, 5)),
            "put_cells, several statements": lambda chance: self._batch(chance, 1, chance.randint(4, 9), big=True),
            "put_cells, several shards": lambda chance: self._batch(
                chance, chance.randint(2, 4), chance.randint(4, 9), big=chance.random() < 0.4
            ),
            "put_cell, there already": lambda chance: self._batch(chance, 1, 1, there="same"),
            "put_cells, some there already": lambda chance: self._batch(
                chance, chance.randint(1, 2), chance.randint(3, 9), big=chance.random() < 0.6, there="same"
            ),
            "put_cell, another there": lambda chance: self._batch(chance, 1, 1, there="other"),
            "put_cells, another there": lambda chance: self._batch(
                chance, chance.randint(1, 2), chance.randint(3, 9), big=chance.random() < 0.6, there="other"
            ),
            "append_cell": self._append,
        }

    def make(self, chance: random.Random) -> tuple[str, Case]:
        """Choose an operation, write what is to be there before it, and return its name and itself."""
        name = chance.choice([*self._makers, "append_cell"])
        return name, self._makers[name](chance)

    def row(self, chance: random.Random, shard: int) -> uuid.UUID:
        """Return a new row of a shard."""
        while True:
            row = uuid.UUID(int=chance.getrandbits(128))
            if self.store.shard_of(row) == shard:
                return row

    def _shard_of(self, key: CellKey) -> int:
        return self.store.shard_of(key.row_key)

    def _put(self, documents: Mapping[CellKey, Any]) -> None:
        if documents:
            self.store.put_cells([schemaless.NewCell(*key, body) for key, body in documents.items()])

    def _append(self, chance: random.Random) -> Case:
        row = self.row(chance, chance.randrange(self.store.shard_count))
        there = {CellKey(row, "STATUS", ref_key): {"version": ref_key} for ref_key in range(1, chance.randint(1, 4))}
        self._put(there)
        body = {"appended": chance.getrandbits(40)}
        wanted = {CellKey(row, "STATUS", len(there) + 1): body}
        if_latest = chance.choice([None, len(there)])
        statements = ("SELECT", "START TRANSACTION", "INSERT", *("COMMIT",) * 3)
        return Case(
            lambda: [self.store.append_cell(row, "STATUS", body, if_latest=if_latest)],
            self._shard_of,
            wanted,
            there,
            statements,
            append=True,
        )

    def _batch(self, chance: random.Random, shards: int, cells: int, *, big: bool = False, there: str = "") -> Case:
        chosen = chance.sample(range(self.store.shard_count), shards)
        wanted: dict[CellKey, Any] = {}
        for position in range(cells):
            text = chance.randbytes(700).hex() if big else ""
            row = self.row(chance, chosen[position % shards])
            wanted[CellKey(row, "BASE", chance.randint(0, 9))] = {"n": position, "text": text}
        present: dict[CellKey, Any] = {}
        if there:
            keys = chance.sample(list(wanted), chance.randint(1, max(1, cells - 1)))
            present = {key: wanted[key] for key in keys}
            if there == "other":
                present[keys[0]] = {"n": "another"}
        self._put(present)
        inserts = ("START TRANSACTION", "INSERT", "INSERT") if big else ("INSERT",)
        ends = ("COMMIT", "COMMIT", "ROLLBACK" if there else "COMMIT") if big else ()
        looks = ("SELECT",) if there else ()
        if cells == 1:
            ((key, body),) = wanted.items()
            return Case(lambda: [self.store.put_cell(*key, body)], self._shard_of, wanted, present, (*inserts, *looks))
        batch = [schemaless.NewCell(*key, body) for key, body in wanted.items()]
        look_first = chance.random() < 0.2
        first = ("SELECT",) if look_first else ()
        return Case(
            lambda: self.store.put_cells(batch, look_first=look_first),
            self._shard_of,
            wanted,
            present,
            (*first, *inserts, *ends, *looks),
        )


def choose_faults(chance: random.Random, case: Case, stalls: float) -> list[Fault]:
    """Choose one fault, several, or one that strikes at every attempt.

    Args:
        chance: where they come from.
        case: what they are to strike.
        stalls: the share of those that the client finds out only by its timeout.
    """
    kind = chance.choices(["one", "several", "all"], [5, 4, 2])[0]
    blocked = any(key not in case.there for key in case.wanted)
    first = _choose(chance, (*case.statements * 4, *CONNECTING), stalls, blocked=blocked)
    if kind == "one":
        return [first]
    if kind == "all":
        return [first] * 60
    later = (*case.statements, *CONNECTING, "SELECT", "INSERT")
    return [first, *(_choose(chance, later, stalls, blocked=False) for _ in range(chance.randint(1, 4)))]


def _choose(chance: random.Random, places: Sequence[str], stalls: float, *, blocked: bool) -> Fault:
    where = chance.choice(places)
    at = chance.choice({"accept": ("before",), "greeting": ANSWERING}.get(where, SENDING + ANSWERING))
    skip = chance.choice([0, 0, 0, 1]) if where in ("INSERT", "SELECT", "COMMIT") else 0
    how = chance.choice(("rst", "fin", "half", "delay", *(("late",) * (at in SENDING and where != "accept"))))
    # What stalls after the last reply would be met by the next call only.
    if chance.random() < stalls and at != "whole reply":
        how = "stall"
    if where not in CONNECTING and chance.random() < 0.12:
        at, how = "before", "refuse"
    elif where == "INSERT" and blocked and chance.random() < 0.15:
        at, how, skip = "blocked", chance.choice(["rst", "fin", "half"]), 0
    return Fault(where, at, how, skip, chance.choice([0, 0, 0.002, 0.02, 0.08]), chance.getrandbits(32))
