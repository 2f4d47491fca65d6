"""Programs of the version before tombstones refuse an erased cell, and neither show nor overwrite it.

``before_tombstones.whl`` has the modules of that version that a client and a migration import, from the wheel of the
commit below. It is stored here, so that a clone without history tests the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from schemaless.erasures.ledger import target
from schemaless.internals import internals_of

COMMIT = "e4db4b7"
"""The last commit before tombstones."""

ROOT = Path(__file__).parents[2]
WHEEL = Path(__file__).with_name("before_tombstones.whl")
ASKED = """
import json, sys, uuid
sys.path.insert(0, sys.argv[1])
import schemaless
from schemaless.migrate.run import run as migrate
from schemaless.migrate.spec import MigrateSpec
from schemaless.topology import catalog
assert schemaless.__file__.startswith(sys.argv[1]), schemaless.__file__
erased, other = uuid.UUID(sys.argv[3]), uuid.UUID(sys.argv[4])
answers = {}

def answer(name, call):
    try:
        answers[name] = repr(call())
    except schemaless.SchemalessError as error:
        answers[name] = type(error).__name__

answer("connect", lambda: schemaless.connect(sys.argv[2]))
# As if it had connected before the catalog was upgraded.
catalog.version_of = lambda pool, name: catalog.head("catalog")
with schemaless.connect(sys.argv[2]) as store:
    answer("get_cell", lambda: store.get_cell(erased, "BASE", 2))
    answer("get_cell_latest", lambda: store.get_cell_latest(erased, "BASE"))
    answer("get_row", lambda: store.get_row(erased))
    answer("get_versions", lambda: list(store.get_versions(erased, "BASE")))
    answer("iter_shard", lambda: list(store.iter_shard(store.shard_of(erased))))
    answer("put the same", lambda: store.put_cell(erased, "BASE", 2, {"v": 2}))
    answer("put another", lambda: store.put_cell(erased, "BASE", 2, {"v": 3}))
    answer("get another", lambda: store.get_cell(other, "BASE", 2).body)
    answer("migrate", lambda: [failure.reason for failure in migrate(store, MigrateSpec("json+none")).failures])
print(json.dumps(answers))
"""


def test_programs_of_the_version_before_refuse_an_erased_cell(fresh_store, fresh_url, accounts, erase_store, new_row):
    """They do not connect; those that are connected read, overwrite and migrate other cells only."""
    subject, other = new_row(), new_row()
    for row in (subject, other):
        for version in (1, 2):
            fresh_store.put_cell(row, "BASE", version, {"v": version})
    number = internals_of(erase_store).erasures.erase([target(subject, "BASE", 2)], "ticket-1").number
    arguments = [str(WHEEL), str(accounts.root(fresh_url)), str(subject), str(other)]
    asked = subprocess.run([sys.executable, "-I", "-c", ASKED, *arguments], capture_output=True, text=True, check=False)

    assert asked.returncode == 0, asked.stderr
    assert json.loads(asked.stdout) == {
        "connect": "SchemaMismatch",
        **dict.fromkeys(("get_cell", "get_cell_latest", "get_row", "get_versions", "iter_shard"), "UnknownFormat"),
        **dict.fromkeys(("put the same", "put another"), "UnknownFormat"),
        "get another": "{'v': 2}",
        "migrate": "['UnknownFormat']",
    }
    versions = fresh_store.get_versions(subject, "BASE", include_erased=True)
    assert [(cell.ref_key, str(cell.body)) for cell in versions] == [(2, f"Erased(erasure={number})"), (1, "{'v': 1}")]
    assert fresh_store.get_cell(other, "BASE", 2).body == {"v": 2}


@pytest.mark.once
def test_the_wheel_has_the_modules_of_the_commit():
    """Byte by byte, where there is a history to compare with; a release and a shallow clone have none."""
    with zipfile.ZipFile(WHEEL) as wheel:
        modules = {name: wheel.read(name) for name in wheel.namelist() if name.endswith(".py")}
    assert "schemaless/cells/reading.py" in modules
    assert not any(b"tombstone" in content for content in modules.values())
    command = ["git", "-C", str(ROOT), "archive", COMMIT, "schemaless", "migrations"]
    archive = subprocess.run(command, capture_output=True, check=False)
    if archive.returncode == 0:
        with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
            for name, content in modules.items():
                stored = files.extractfile(name.replace("schemaless/migrations/", "migrations/"))
                assert stored is not None
                assert stored.read() == content, name
