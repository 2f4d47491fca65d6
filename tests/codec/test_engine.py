"""Which engine a process has: with the ``[fast]`` extra, without it, or with it switched off.

``make test`` runs the whole suite with both: ``SCHEMALESS_FAST=1`` in one process, ``SCHEMALESS_FAST=0`` in the other.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import schemaless
from schemaless.codec.engine import ENGINE, REFERENCE
from schemaless.codec.envelope import decode_body, dictionary_of, encode_body, same_document
from schemaless.codec.recode import recode
from schemaless.codec.registry import codec_named, codec_names

pytestmark = pytest.mark.twice

PACKAGES = ("msgspec", "orjson", "ormsgpack")
GOLDEN = [
    path
    for path in sorted((Path(__file__).parents[1] / "vectors" / "bodies").glob("*.body"))
    # Those need their dictionary, and have tests of their own.
    if dictionary_of(path.read_bytes()) is None
]
CODEC_PROGRAM = """
bodies = [bytes.fromhex(line) for line in sys.stdin.read().split()]
for body in bodies:
    document = decode_body(body)
    print(*(encode_body(document, codec_named(name)).hex() for name in names), recode(body).body.hex())
print(*sorted(set(packages) & {name for name, module in sys.modules.items() if module}))
"""
STORE_PROGRAM = """
url, theirs, ours = sys.argv[1:]
with schemaless.connect(url) as store:
    document = store.get_cell_latest(uuid.UUID(theirs), "BASE").body
    assert not store.put_cell(uuid.UUID(theirs), "BASE", 1, document).created
    store.put_cells([schemaless.NewCell(uuid.UUID(ours), "BASE", 1, document)])
print(json.dumps(document))
"""


def run_without(missing: tuple[str, ...], program: str, *arguments: str, given: str = "") -> list[str]:
    """Run a program in a process that cannot import ``missing``, and return the lines that it printed."""
    setting = {"packages": PACKAGES, "names": codec_names()}
    head = (
        f"import sys\nsys.modules.update(dict.fromkeys({missing!r}))\nimport json, uuid\nimport schemaless\n"
        "from schemaless.codec.envelope import decode_body, encode_body\nfrom schemaless.codec.recode import recode\n"
        "from schemaless.codec.registry import codec_named\n"
        + "".join(f"{name} = {value!r}\n" for name, value in setting.items())
    )
    done = subprocess.run(
        [sys.executable, "-c", head + program, *arguments],
        env={**os.environ, "SCHEMALESS_FAST": "1"},
        input=given,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.skipif(
    "SCHEMALESS_FAST" not in os.environ,
    reason="SCHEMALESS_FAST is not set, so no engine was asked for; 'make test' sets it to 1 and to 0",
)
def test_this_run_has_the_engine_that_was_asked_for() -> None:
    """What ``make test`` calls fast is fast, with every package of the extra; what it calls plain is plain."""
    fast = os.environ["SCHEMALESS_FAST"] != "0"

    assert ENGINE.fast is fast
    assert (ENGINE is REFERENCE) is not fast
    assert not fast or [name for name in PACKAGES if importlib.util.find_spec(name) is None] == []


def test_fast_extra_is_switched_off_by_the_environment() -> None:
    """``SCHEMALESS_FAST=0`` leaves the stock libraries alone in the process."""
    program = (
        "import sys; from schemaless.codec.engine import ENGINE; from schemaless.codec.recode import recode; "
        "recode(b'{\"a\": 1}'); "
        "print(ENGINE.fast, sorted({'ormsgpack', 'orjson', 'msgspec', 'schemaless_packed'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={"SCHEMALESS_FAST": "0"}, capture_output=True, text=True, check=True
    )

    assert done.stdout == "False []\n"


@pytest.mark.parametrize(
    "missing",
    [
        PACKAGES,
        (*PACKAGES, "schemaless_packed"),
        *(pytest.param((name,), marks=pytest.mark.long) for name in (*PACKAGES, "schemaless_packed")),
    ],
    ids=" ".join,
)
def test_without_packages_of_the_fast_extra_bodies_are_the_same_documents(missing: tuple[str, ...]) -> None:
    """Every golden body is read, written in every codec and recoded; what was written reads here as the same."""
    *lines, imported = run_without(missing, CODEC_PROGRAM, given=" ".join(path.read_bytes().hex() for path in GOLDEN))

    assert imported.split() == sorted(set(PACKAGES) - set(missing))
    assert len(lines) == len(GOLDEN) > 0
    for path, line in zip(GOLDEN, lines, strict=True):
        document = decode_body(path.read_bytes())
        *written, recoded = (bytes.fromhex(word) for word in line.split())
        for name, body in zip(codec_names(), written, strict=True):
            assert same_document(decode_body(body), document), (path.name, name)
            assert body[:2] == encode_body(document, codec_named(name))[:2]
        assert same_document(decode_body(recoded), document), path.name
        assert recoded[:2] == recode(path.read_bytes()).body[:2]


@pytest.mark.mysql
def test_without_the_fast_extra_the_store_reads_and_writes_the_same(
    datastore_url: str, store: schemaless.Datastore, new_row: Callable[[], uuid.UUID]
) -> None:
    """A process that has none of the packages reads what this one wrote, and takes its own for the same document."""
    document: dict[str, Any] = {"fare": {"total": 12.5}, "name": "é\u2028", "big": 2**70, "list": [1, 1.0, True, None]}
    theirs, ours = new_row(), new_row()
    store.put_cell(theirs, "BASE", 1, document)

    (line,) = run_without(PACKAGES, STORE_PROGRAM, datastore_url, str(theirs), str(ours))

    assert same_document(json.loads(line), document)
    written = store.get_cell_latest(ours, "BASE")
    assert written is not None
    assert same_document(written.body, document)
    assert not store.put_cell(ours, "BASE", 1, document).created
