"""Runs one operation under limits of the address space, a process for each. Run by ``test_out_of_memory.py``.

Prints how each process ended, as JSON. A process that is killed by a signal, or raises anything but MemoryError, is an
error.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from schemaless.codec.documents import identical
from schemaless.codec.envelope import decode_body, encode_body
from schemaless.codec.registry import codec_named
from schemaless.wire.replies import PARSER

DOCUMENTS = 20_000
PIECE = 200
LEAST_BYTES, MOST_BYTES = 1 << 16, 1 << 25
HANG_S = 120
"""A process that takes longer is killed by SIGALRM: one that panics without memory may wait for itself."""

OUTCOMES = {0: "result", 75: "MemoryError"}


def documents() -> list[Any]:
    """Return one body: a list of many documents."""
    return [
        {
            "id": number,
            "name": f"name {number}",
            "at": f"2024-01-01T00:00:{number % 60:02}Z",
            "fare": [number / 8, None],
        }
        for number in range(DOCUMENTS)
    ]


def prepared(operation: str, codec_name: str) -> Callable[[], bool]:
    """Return a call that tells whether what it made is right."""
    if operation == "rows":
        row = b"\x0242" + b"\x10" + b"k" * 16 + b"\xfb" + b"\x0812345678"
        here = b"".join(struct.pack("<I", len(row) | (number % 256) << 24) + row for number in range(DOCUMENTS))
        expected = (42, b"k" * 16, None, "12345678")

        def read() -> bool:
            found, _, taken, _ = PARSER.rows(here, 0, [int, None, None, bytes.decode])
            return taken == len(here) and len(found) == DOCUMENTS and found[0] == found[-1] == expected

        return read
    codec = codec_named(codec_name)
    given = documents()
    if operation == "decode many":
        pieces = [given[start : start + PIECE] for start in range(0, DOCUMENTS, PIECE)]
        bodies = [encode_body(piece, codec) for piece in pieces]
        return lambda: identical([decode_body(body) for body in bodies], pieces)
    body = encode_body(given, codec)
    if operation == "encode":
        return lambda: encode_body(given, codec) == body
    return lambda: identical(decode_body(body), given)


def outcome(call: Callable[[], bool], more_bytes: int) -> str:
    """Return how a process ends that makes a call with so much more memory than this one has."""
    child = os.fork()
    if child == 0:
        signal.alarm(HANG_S)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + more_bytes
        _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard_limit))
        status = 1
        try:
            status = 0 if call() else 2
        except MemoryError:
            status = 75
        except BaseException:  # noqa: BLE001 - it is printed, and its status makes the test fail
            resource.setrlimit(resource.RLIMIT_AS, (hard_limit, hard_limit))
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    return OUTCOMES.get(os.WEXITSTATUS(status), f"exit {os.WEXITSTATUS(status)}")


def main() -> None:
    """Draw the limits, evenly in their logarithm, and print how each process ended."""
    operation, codec_name, seed, count = sys.argv[1:]
    chance = random.Random(int(seed))
    call = prepared(operation, codec_name)
    ended = [outcome(call, int(LEAST_BYTES * (MOST_BYTES / LEAST_BYTES) ** chance.random())) for _ in range(int(count))]
    print(json.dumps(ended))


if __name__ == "__main__":
    main()
