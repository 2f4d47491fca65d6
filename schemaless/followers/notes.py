"""How far a worker is, written down while its calls go on: on a thread of its own, one step at a time.

A location is a transaction on each server, so whoever waited for it would be late for what is heard of meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from schemaless.errors import SchemalessError
from schemaless.followers.lease_state import Owned
from schemaless.followers.membership import Pair
from schemaless.followers.rows import FollowerRows, Move


class Noted(NamedTuple):
    """What became of locations that were to be written down.

    Attributes:
        begun: whose they were, and what they were.
        lost: the pairs that are somebody else's by now.
        failed: those whose server failed, with its reason.
    """

    begun: Sequence[tuple[Owned, Move]] = ()
    lost: Collection[Pair] = frozenset()
    failed: Mapping[Pair, SchemalessError] = {}


class Notes:
    """Writes locations down while others work."""

    def __init__(self, rows: FollowerRows) -> None:
        self._rows = rows
        self._thread = ThreadPoolExecutor(1, "write locations down")
        self._step: Future[Noted] | None = None

    @property
    def busy(self) -> bool:
        """Whether something is on its way, or what became of it was not taken yet."""
        return self._step is not None

    def begin(self, behind: Iterable[Owned]) -> None:
        """Begin to write down how far these are; not while it is busy."""
        # Made here: these go on meanwhile.
        begun = [(owned, owned.move) for owned in behind]
        if begun:
            self._step = self._thread.submit(lambda: Noted(begun, *self._rows.move(move for _, move in begun)))

    def take(self, *, wait: bool) -> Noted:
        """Return what became of the last ones, once they have ended; raises what that raised."""
        if self._step is None or not (wait or self._step.done()):
            return Noted()
        ended, self._step = self._step, None
        return ended.result()

    def close(self) -> None:
        """Wait for what is on its way."""
        self._thread.shutdown()
