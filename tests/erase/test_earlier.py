"""Programs of the version before tombstones refuse an erased cell, and neither show nor overwrite it."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from schemaless.codec.envelope import tombstone

COMMIT = "e4db4b7"
"""The last commit before tombstones."""

ROOT = Path(__file__).parents[2]
ASKED = """
import sys
sys.path.insert(0, sys.argv[1])
from schemaless.codec.envelope import counts_as, decode_body
from schemaless.codec.recode import recode
from schemaless.codec.registry import DEFAULT, LEGACY
from schemaless.errors import UnknownFormat
body = bytes.fromhex(sys.argv[2])
for attempt in (decode_body, recode, lambda body: counts_as(body, DEFAULT), lambda body: recode(body, LEGACY)):
    try:
        attempt(body)
    except UnknownFormat as error:
        assert "serializer 15" in str(error), error
    else:
        raise SystemExit("it was not refused")
print("refused")
"""


@pytest.mark.once
def test_the_version_before_refuses_a_tombstone_as_an_unknown_format(tmp_path):
    """It neither decodes, re-encodes nor names the codec of a tombstone, so its migration does not change the cell."""
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", COMMIT, "schemaless"], capture_output=True, check=False
    )
    if archive.returncode:
        pytest.skip("there is no history to take the earlier version from")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(tmp_path, filter="data")
    command = [sys.executable, "-c", ASKED, str(tmp_path), tombstone(12).hex()]
    refused = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    assert (refused.stdout, refused.returncode) == ("refused\n", 0), refused.stderr
