"""What every call pays to check whether its server's circuit breaker is alarmed, in nanoseconds.

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
    """Measure in turns with an empty loop; the minimum of each is the least disturbed."""
    pool = NodePool(Node("primary", socket="/nowhere"), Credentials(), PoolOptions())
    bare, flag = [], []
    for _ in range(ROUNDS):
        bare.append(timeit.timeit("pass", number=LOOPS))
        flag.append(timeit.timeit("if pool.breaker.alarmed: pass", globals={"pool": pool}, number=LOOPS))
    print(f"{(min(flag) - min(bare)) / LOOPS * 1e9:.1f} ns")


if __name__ == "__main__":
    main()
