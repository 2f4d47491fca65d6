"""Payloads that are nearly right, and what a document counts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

_EDGES = bytes((0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x08, 0x10, 0x20, 0x40, 0x7F, 0x80, 0x81, 0xFF))


def mutated(chance: random.Random, payloads: Sequence[bytes]) -> bytes:
    """Return one of ``payloads`` with one to three changes: bits, bytes, pieces, lengths, a piece of another one."""
    mutant = bytearray(chance.choice(payloads))
    for _ in range(chance.choice((1, 1, 2, 3))):
        at = chance.randrange(len(mutant) + 1)
        change = chance.randrange(8)
        if change <= 1 and at < len(mutant):
            mutant[at] ^= 1 << chance.randrange(8)
        elif change == 2 and at < len(mutant):
            mutant[at] = chance.choice(_EDGES)
        elif change == 3:
            mutant[at:at] = bytes((chance.choice(_EDGES),)) * chance.choice((1, 1, 2, 9))
            _lengthened(mutant, at, chance)
        elif change == 4:
            del mutant[at : at + chance.choice((1, 1, 2, 5))]
        elif change == 5:
            other = chance.choice(payloads)
            start = chance.randrange(len(other))
            mutant[at : at + 4] = other[start : start + chance.randrange(8)]
        elif change == 6 and len(mutant) > 3:
            mutant[chance.randrange(3)] = chance.choice((chance.randrange(64), chance.randrange(256)))
        else:
            start = chance.randrange(len(mutant) + 1)
            mutant[at:at] = mutant[start : start + chance.randrange(6)]
    return bytes(mutant)


def _lengthened(mutant: bytearray, at: int, chance: random.Random) -> None:
    """Correct a section's length in half of the cases, so that the reader gets as far as the change."""
    if chance.random() < 0.5 and len(mutant) > 2:
        section = 0 if at < 2 + mutant[0] else 1
        mutant[section] = (mutant[section] + 1) % 128


def values_of(document: Any) -> int:
    """Return how many values a document has, arrays and objects among them."""
    count = 0
    left = [document]
    while left:
        value = left.pop()
        count += 1
        if isinstance(value, dict):
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)
    return count
