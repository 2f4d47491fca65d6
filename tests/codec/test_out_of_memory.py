"""Out of memory: ``MemoryError`` or the right result, on both engines, and never a dead process.

One test fails the first allocation of a call, then the second, and so on, until none is left to fail: with an
allocator that is preloaded, so that the allocations of CPython, of the native extension and of libdeflate count alike.
The other limits the address space, as an operator does, on documents that are large enough to meet the limit.

The fast path's third-party packages are not covered where they write: orjson and ormsgpack end the process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path

import pytest

from schemaless.codec.fast import optional
from tests.cases import each
from tests.skips import NATIVE_NOT_BUILT

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(
        sys.platform != "linux", reason=f"LD_PRELOAD, RLIMIT_AS and /proc are Linux's, and this is {sys.platform}"
    ),
]

ROOT = Path(__file__).parents[2]
SEED = 28
LIMITS = 16
"""Limits of the address space for each operation."""

OPERATIONS = [
    ("rows", "none"),
    *((operation, f"packed+{name}") for operation in ("encode", "decode") for name in ("none", "zlib", "zstd")),
    *((operation, f"msgpack+{name}") for operation in ("decode", "decode many") for name in ("none", "zlib", "zstd")),
]


def run(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"tests.codec.{program}", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def failing_malloc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) or shutil.which("cc")
    if compiler is None:
        pytest.skip("no cc on the PATH to build the allocator that fails on request: install gcc")
    library = tmp_path_factory.mktemp("allocator") / "failing_malloc.so"
    source = Path(__file__).with_name("failing_malloc.c")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


@pytest.mark.long
@pytest.mark.skipif(optional("schemaless_packed") is None, reason=NATIVE_NOT_BUILT)
@each(
    "operation",
    [
        *("pack", "unpack", "unpack_bytearray", "unpack_damaged", "inflate", "deflate", "packets", "rows"),
        *("zlib", "zstd", "unsized_zstd"),
    ],
)
def test_every_allocation_that_fails_is_a_memory_error(failing_malloc: Path, operation: str) -> None:
    """The n-th allocation of a call fails, alone and with those after it, for every n."""
    done = run("failing_allocations", operation, LD_PRELOAD=str(failing_malloc), PYTHONMALLOC="malloc")

    assert (done.returncode, done.stderr) == (0, "")
    failed = [int(line) for line in done.stdout.split()]
    assert len(failed) == 3
    assert min(failed) >= 3


@pytest.mark.long
@each("fast", ["1", "0"])
@each("operation", OPERATIONS)
def test_address_space_limit_gives_a_memory_error_or_the_result(fast: str, operation: tuple[str, str]) -> None:
    """20,000 documents under seeded limits, one process for each limit."""
    done = run("limited_memory", *operation, str(SEED), str(LIMITS), SCHEMALESS_FAST=fast)

    assert (done.returncode, done.stderr) == (0, "")
    outcomes = Counter(json.loads(done.stdout))
    assert set(outcomes) == {"MemoryError", "result"}, outcomes
