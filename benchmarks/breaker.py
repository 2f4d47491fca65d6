"""What the flag costs that every call looks at, whether its server is to be looked at first: nanoseconds.

python benchmarks/breaker.py
"""

from __future__ import annotations

import timeit

from schemaless.wire.node import Node
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.urls import Credentials

ROUNDS = 15
LOOPS = 2_000_000


def main() -> None:
    """Measure in turns with a loop that does nothing; the least of each is what nobody disturbed."""
    pool = NodePool(Node("primary", socket="/nowhere"), Credentials(), PoolOptions())
    bare, flag = [], []
    for _ in range(ROUNDS):
        bare.append(timeit.timeit("pass", number=LOOPS))
        flag.append(timeit.timeit("if pool.breaker.alarmed: pass", globals={"pool": pool}, number=LOOPS))
    print(f"{(min(flag) - min(bare)) / LOOPS * 1e9:.1f} ns")


if __name__ == "__main__":
    main()
