"""Copies the ledger from one catalog to another, as lines of a file that is kept apart from the backups.

A catalog that is restored from a backup lacks the erasures, legal holds and releases of holds recorded since then.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from schemaless.errors import InvalidInput
from schemaless.store.datastore import Datastore
from schemaless.store.erasures.holds import Hold
from schemaless.store.erasures.ledger import ErasedShard, Erasure, Target
from schemaless.store.internals import internals_of


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a file of the ledger has and the catalog lacks.

    Attributes:
        erasures: erasures that are missing, with their targets.
        holds: holds that are missing, or that have been released since.
        taken: numbers under which the catalog has different erasures.
    """

    erasures: Sequence[tuple[Erasure, Sequence[Target]]] = ()
    holds: Sequence[Hold] = ()
    taken: Sequence[int] = ()


def ledger_lines(store: Datastore) -> Iterator[bytes]:
    """Yield erasures and legal holds as lines of JSON that ``read_ledger`` reads.

    Lines contain keys but no documents.
    """
    ledger = internals_of(store).erasures.ledger
    for summary in ledger.entries():
        entry = ledger.entry(summary.number)
        fields = {
            "erasure": entry.number,
            "kind": entry.kind,
            "scope": dict(entry.scope),
            "reason": entry.reason,
            "requested_by": entry.requested_by,
            "intended_at": entry.intended_at.isoformat(),
            "executed_at": entry.executed_at and entry.executed_at.isoformat(),
            "shards": [
                [shard.shard, shard.cells, shard.body_bytes, shard.executed_at and shard.executed_at.isoformat()]
                for shard in entry.shards
            ],
            "keys": [[str(uuid.UUID(bytes=row)), column, ref] for row, column, ref in ledger.targets(entry.number)],
        }
        yield json.dumps(fields).encode()
    for hold in ledger.holds.all(released=True):
        facts = {name: value for name, value in asdict(hold).items() if name != "number" and value is not None}
        yield json.dumps({"hold": facts}, default=str).encode()


def read_ledger(store: Datastore, lines: Iterable[bytes]) -> Recorded:
    """Return what ``load_ledger`` would add to the catalog. Changes nothing.

    Raises:
        InvalidInput: a line was not written by ``ledger_lines``.
    """
    erasures, holds = list[tuple[Erasure, Sequence[Target]]](), list[Hold]()
    for position, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            fields: dict[str, Any] = json.loads(line)
            if "hold" in fields:
                holds.append(_hold_of(fields["hold"]))
            else:
                erasures.append(_erasure_of(fields))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"line {position} was not written by 'schemaless erase ledger': {error}") from error
    ledger = internals_of(store).erasures.ledger
    existing = {entry.number: entry.intended_at for entry in ledger.entries()}
    return Recorded(
        [each for each in erasures if each[0].number not in existing],
        ledger.holds.unrecorded(holds),
        [entry.number for entry, _ in erasures if existing.get(entry.number, entry.intended_at) != entry.intended_at],
    )


def load_ledger(store: Datastore, lines: Iterable[bytes]) -> Recorded:
    """Add the erasures and holds that the catalog lacks, and release the holds that were released since the backup.

    After an interruption, repeating the call adds what is missing.

    Returns:
        What was added.

    Raises:
        InvalidInput: a line was not written by ``ledger_lines``; nothing was added. Or the catalog has different
            erasures under some of the numbers; everything else was added.
    """
    ledger = internals_of(store).erasures.ledger
    found = read_ledger(store, lines)
    holds = ledger.holds.restore(found.holds)
    added = [(entry, targets) for entry, targets in found.erasures if ledger.restore(entry, targets)]
    if found.taken:
        raise InvalidInput(taken_text(store, found.taken, "all others were added"))
    return Recorded(added, holds)


def taken_text(store: Datastore, taken: Iterable[int], outcome: str) -> str:
    """Return what to do about erasures of a file whose numbers the catalog has given to others."""
    return (
        f"{store.name!r} has different erasures under the numbers {', '.join(map(str, taken))}, recorded after its "
        f"catalog was restored; {outcome}. Erase the keys in the lines with these numbers again, with "
        "'schemaless erase run'"
    )


def _erasure_of(fields: Mapping[str, Any]) -> tuple[Erasure, list[Target]]:
    entry = Erasure(
        int(fields["erasure"]),
        fields["kind"],
        dict(fields["scope"]),
        str(fields["reason"]),
        str(fields["requested_by"]),
        datetime.fromisoformat(fields["intended_at"]),
        _time(fields["executed_at"]),
        None,
        None,
        {},
        [ErasedShard(int(shard), int(cells), int(size), 0, _time(at)) for shard, cells, size, at in fields["shards"]],
    )
    return entry, [Target(uuid.UUID(row).bytes, str(column), int(ref)) for row, column, ref in fields["keys"]]


def _hold_of(fields: Mapping[str, Any]) -> Hold:
    return Hold(
        0,
        uuid.UUID(fields["row_key"]),
        str(fields["held_by"]),
        str(fields["reason"]),
        datetime.fromisoformat(fields["held_at"]),
        _time(fields.get("released_at")),
        fields.get("released_by"),
    )


def _time(value: str | None) -> datetime | None:
    return None if value is None else datetime.fromisoformat(value)
