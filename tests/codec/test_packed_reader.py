"""The second reader, in JavaScript: written from FORMAT.md, it reads and refuses what the reference does."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from schemaless.codec.documents import identical
from schemaless.codec.engine import REFERENCE
from schemaless.codec.envelope import seal
from schemaless.codec.registry import codec_named
from schemaless.errors import CorruptBody
from tests.codec.mutants import mutated
from tests.codec.test_packed import REFUSED

ROOT = Path(__file__).parents[2]
READER = ROOT / "docs" / "packed-reader" / "reader.mjs"
BODIES = [
    *sorted((ROOT / "tests" / "vectors" / "bodies").glob("packed-of-*.body")),
    *(ROOT / "tests" / "vectors" / "bodies" / f"packed-{name}.body" for name in ("none", "zlib")),
]
NODE = shutil.which("node")

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(
        NODE is None, reason="docs/packed-reader/reader.mjs runs in Node.js, and no node is on the PATH: install nodejs"
    ),
]


def read(names: Sequence[str], folder: Path) -> list[str]:
    """Return what the second reader says of each file."""
    assert NODE is not None
    done = subprocess.run([NODE, READER, *names], cwd=folder, capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().splitlines()


def read_payloads(payloads: Sequence[bytes], folder: Path) -> list[str]:
    """Return what the second reader says of each payload."""
    for number, payload in enumerate(payloads):
        (folder / f"{number}.body").write_bytes(seal(REFERENCE.packed, payload, codec_named("packed+none"), REFERENCE))
    return read([f"{number}.body" for number in range(len(payloads))], folder)


def test_second_reader_is_short() -> None:
    """A reader of the page is a page of code: at most 400 lines."""
    assert len(READER.read_text("utf-8").splitlines()) <= 400


def test_second_reader_reads_every_vector() -> None:
    """Every golden body that needs no zstd is the document that its text says."""
    assert len(BODIES) > 50
    for path, line in zip(BODIES, read([path.name for path in BODIES], BODIES[0].parent), strict=True):
        assert identical(json.loads(line), json.loads(path.with_suffix(".json").read_text("utf-8"))), path.stem


def test_second_reader_rejects_what_the_grammar_forbids(tmp_path: Path) -> None:
    """Each rule of the page, broken alone."""
    payloads = {name: payload for name, payload in REFUSED.items() if payload}
    said = dict(zip(payloads, read_payloads(list(payloads.values()), tmp_path), strict=True))

    assert {name: line for name, line in said.items() if not line.startswith("refused: ")} == {}


def test_second_reader_reads_mutants_as_the_reference_does(tmp_path: Path) -> None:
    """Payloads that are nearly right: the same document, or refused by both."""
    chance = random.Random(23)
    whole = [path.read_bytes()[2:-4] for path in BODIES if "packed-of" in path.stem and path.stat().st_size < 600]
    mutants = [mutant for mutant in (mutated(chance, whole) for _ in range(1_500)) if mutant]
    read_by_both = 0
    for mutant, line in zip(mutants, read_payloads(mutants, tmp_path), strict=True):
        try:
            document = REFERENCE.packed.loads(mutant)
        except CorruptBody:
            assert line.startswith("refused: "), mutant.hex()
        else:
            assert identical(json.loads(line), document), mutant.hex()
            read_by_both += 1

    assert read_by_both > 50
