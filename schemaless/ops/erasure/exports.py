"""Export files that contained erased documents: those that the exporter has rewritten, and those still pending."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from schemaless.errors import ExportFailed, InvalidInput
from schemaless.ops.export.admin import exports
from schemaless.ops.export.exporter import follower_name
from schemaless.ops.export.manifest import names_of, read_definition, read_shard
from schemaless.store.cold.targets import Target, open_target
from schemaless.store.datastore import Datastore
from schemaless.store.erasures.ledger import Erasure
from schemaless.store.internals import internals_of

State = Literal["rewritten", "pending", "missing"]


@dataclass(frozen=True, slots=True)
class ExportFile:
    """A file of an export.

    Attributes:
        name: path of the file below the target.
        documents: number of documents of the erasure that have been removed from it.
        state: "rewritten", "pending" (its range has cells whose erasure the exporter has not acknowledged), or
            "missing" (rewritten, but no longer in the target).
    """

    name: str
    documents: int
    state: State


@dataclass(slots=True)
class ErasedExport:
    """Effects of an erasure on an export.

    Attributes:
        name: name of the export.
        uri: its target.
        files: the files that the erasure affects.
        problem: why the files cannot be listed here, or None.
    """

    name: str
    uri: str
    files: list[ExportFile] = field(default_factory=list)
    problem: str | None = None


def erased_exports(store: Datastore, entry: Erasure, waiting: Mapping[str, Sequence[int]]) -> list[ErasedExport]:
    """Return the files of each export that an erasure affects, according to the manifests.

    Args:
        store: the datastore.
        entry: the erasure, with its shards.
        waiting: shards in which a follower has not acknowledged the erasure, by follower name.

    Raises:
        ServerError: a server cannot be reached.
    """
    found = []
    for name, uri in sorted(exports(store).items()):
        export = ErasedExport(name, uri)
        found.append(export)
        follower = follower_name(name)
        try:
            target = open_target(uri)
            if read_definition(target) is None:
                export.problem = "there is no manifest; run the command where the exporter runs"
                continue
            for shard in entry.shards:
                pending = _pending(store, entry.number, shard.shard, follower) if waiting.get(follower) else []
                export.files += _files(target, shard.shard, entry.number, pending)
        except (InvalidInput, ExportFailed) as error:
            export.problem = str(error)
    return found


def _pending(store: Datastore, erasure: int, shard: int, follower: str) -> list[int]:
    """Return the added_ids of the cells whose erasure a follower has not acknowledged, in order."""
    erasures = internals_of(store).erasures
    after = erasures.log.acknowledged(shard).get(follower)
    if after is None:
        return []
    return sorted(each for ids in erasures.eraser(shard, erasure).erased_ids(after_event=after) for each in ids)


def _files(target: Target, shard: int, erasure: int, pending: Sequence[int]) -> Iterator[ExportFile]:
    listed, found = read_shard(target, shard).listed(shard), names_of(target, shard)
    for name, file in listed.items():
        documents = file.erased.get(str(erasure), 0)
        covers = bisect_right(pending, file.up_to) > bisect_right(pending, file.after)
        if documents or covers:
            state: State = "pending" if covers else "rewritten" if name in found else "missing"
            yield ExportFile(name, documents, state)
