"""Random documents of the whole data model, from a seeded generator."""

from __future__ import annotations

import random
import struct
from typing import Any


def random_document(chance: random.Random, depth: int = 4) -> Any:
    """Return a document: any JSON type, numbers of any size, text of any characters, nested up to ``depth``."""
    kind = chance.randrange(11 if depth else 8)
    match kind:
        case 0:
            return None
        case 1:
            return chance.random() < 0.5
        case 2:
            return chance.randrange(-(2**63), 2**64)
        case 3:
            return chance.randrange(-(2**200), 2**200)
        case 4:
            return struct.unpack(">d", chance.randbytes(8))[0]
        case 5:
            return chance.choice([0.0, -0.0, 1.0, 1e16, 1e-5, 5e-324, float("nan"), float("inf"), 12.5])
        case 6 | 7:
            return random_text(chance)
        case 8:
            return [random_document(chance, depth - 1) for _ in range(chance.randrange(5))]
        case _:
            return {random_text(chance): random_document(chance, depth - 1) for _ in range(chance.randrange(6))}


def random_text(chance: random.Random) -> str:
    """Return text: ASCII, any character, or a lone surrogate."""
    match chance.randrange(6):
        case 0:
            return (
                "".join(chr(chance.randrange(0x110000)) for _ in range(chance.randrange(6)))
                .encode("utf-16", "surrogatepass")
                .decode("utf-16", "replace")
            )
        case 1:
            return chance.choice(["\ud800", "\udfff", "a\ud83d", "\x00", "\u2028", '"\\', "1e5", "null", "0.00001"])
        case _:
            return "".join(chance.choice("abcdefgh \n\t/") for _ in range(chance.randrange(40)))
