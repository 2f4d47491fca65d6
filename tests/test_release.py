"""What a release rests on: the same bytes twice, one version, a changelog that is kept, checks that agree."""

from __future__ import annotations

import base64
import configparser
import csv
import hashlib
import json
import re
import tarfile
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from schemaless.cli.main import _NOUNS
from tools import check_extras, dist

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[1]
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg", encoding="utf-8")
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
UNRELEASED = re.split(r"^## ", CHANGELOG, flags=re.MULTILINE)[1]


@pytest.mark.long
def test_two_builds_are_the_same_bytes(tmp_path):
    """Both of sdist and wheel, in other folders; the sdist has what the wheel is built from, and no tests."""
    first, second = ({path.name: path.read_bytes() for path in dist.built(folder)} for folder in made(tmp_path, 2))

    assert sorted(Path(name).suffix for name in first) == [".gz", ".whl"]
    assert first == second
    (sdist,) = tmp_path.glob("0/*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        assert {(member.uid, member.mtime) for member in archive} == {(0, next(iter(archive)).mtime)}
    assert {"setup.cfg", "CHANGELOG.md", "LICENSE", "schemaless/codec/FORMAT.md", "migrations/__init__.py"} <= names
    assert not [name for name in names if name.startswith("tests/")]
    (wheel,) = tmp_path.glob("0/*.whl")
    check_record(wheel)
    check_bill_of_materials(wheel)
    check_description(sdist, wheel)


def check_record(wheel: Path) -> None:
    """Every file of the wheel is in RECORD with its hash; installers refuse a wheel where one differs."""
    with zipfile.ZipFile(wheel) as archive:
        (record,) = (name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
        listed = {row[0]: row[1] for row in csv.reader(archive.read(record).decode().splitlines())}
        hashes = {
            name: "sha256="
            + base64.urlsafe_b64encode(hashlib.sha256(archive.read(name)).digest()).rstrip(b"=").decode()
            for name in archive.namelist()
        }
    assert listed == {**hashes, record: ""}


def check_description(sdist: Path, wheel: Path) -> None:
    """A package index shows the README without the files that it links to, so no link is relative."""
    with tarfile.open(sdist) as archive:
        (name,) = (name for name in archive.getnames() if name.endswith("/PKG-INFO") and name.count("/") == 1)
        file = archive.extractfile(name)
        assert file is not None
        descriptions = [file.read().decode()]
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        descriptions.append(archive.read(name).decode())
    for description in descriptions:
        assert "An append-only store for JSON documents" in description
        assert re.findall(r"\]\((?!https?://)[^)]*\)", description) == []


def check_bill_of_materials(wheel: Path) -> None:
    """The wheel lists itself and each distribution that it requires, in the folder of PEP 770."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if "/sboms/" in name)
        bill = json.loads(archive.read(name))
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    assert re.fullmatch(r"schemaless_store-[\d.]+\.dist-info/sboms/schemaless-store\.cdx\.json", name)
    assert bill["metadata"]["component"]["version"] == SETUP["metadata"]["version"]
    required = [line for line in lines if line.startswith("Requires-Dist:") and "extra ==" not in line]
    names = {re.split(r"[\s<>=!~\[]", line.removeprefix("Requires-Dist: "), maxsplit=1)[0] for line in required}
    assert {each["name"] for each in bill["components"]} == names


def test_licences_are_named_in_the_metadata_of_a_native_wheel():
    """As PEP 639 asks for, in place of those that were there."""
    before = b"Metadata-Version: 2.4\nName: x\nLicense-File: OLD\n\nText\n"

    assert dist.licensed(before, ["licenses/LICENSE", "licenses/memchr-2/COPYING"]) == (
        b"Metadata-Version: 2.4\nName: x\nLicense-File: LICENSE\nLicense-File: memchr-2/COPYING\n\nText\n"
    )


def made(parent: Path, count: int) -> list[Path]:
    folders = [parent / str(number) for number in range(count)]
    for folder in folders:
        folder.mkdir()
    return folders


def test_the_version_stands_in_one_place():
    """What is installed, the changelog and the README say what setup.cfg says; Rust's part has its own, twice."""
    said = SETUP["metadata"]["version"]

    assert version("schemaless-store") == said
    assert re.match(rf"\[Unreleased\]: {re.escape(said)}\n|\[{re.escape(said)}\]", UNRELEASED)
    assert f"\nVersion {said}" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert not re.search(
        r"^__version__", (ROOT / "schemaless" / "__init__.py").read_text(encoding="utf-8"), re.MULTILINE
    )
    cargo = tomllib.loads((ROOT / "rust" / "Cargo.toml").read_text(encoding="utf-8"))
    native = tomllib.loads((ROOT / "rust" / "pyproject.toml").read_text(encoding="utf-8"))
    assert cargo["package"]["version"] == native["project"]["version"]
    requirement = SETUP["options.extras_require"]["native"].strip()
    numbers = [int(part) for part in cargo["package"]["version"].split(".")]
    assert requirement == f"schemaless-packed >= {numbers[0]}.{numbers[1]}, < {numbers[0]}.{numbers[1] + 1}"


def test_the_changelog_is_kept():
    """Unreleased first, under the known headings, entries that are sentences; every command and extra is named."""
    headings = re.findall(r"^### (.+)$", UNRELEASED, re.MULTILINE)
    assert headings
    assert set(headings) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Stored data"}
    assert len(set(headings)) == len(headings)
    entries = re.findall(r"^- (.+(?:\n  .+)*)", UNRELEASED, re.MULTILINE)
    assert [entry for entry in entries if not re.search(r"[.`]\)?$", entry)] == []

    code = " ".join(re.findall(r"`([^`]+)`", CHANGELOG))
    assert [noun for noun in _NOUNS if not re.search(rf"\b{noun}\b", code)] == []
    offered = set(SETUP["options.extras_require"]) - {"test"}
    assert [extra for extra in sorted(offered) if not re.search(rf"\[{extra}\]|--{extra}\b|`{extra}`", CHANGELOG)] == []


def test_pre_commit_runs_what_make_lint_runs():
    """The same commands, in the same order."""
    recipe = re.search(r"^lint: install\n((?:\t.+\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert recipe is not None
    lint = [line.strip().replace("$(PY)", ".venv/bin/python") for line in recipe[1].splitlines()]
    hooks = re.findall(r"^ +entry: (.+)$", (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"), re.MULTILINE)

    assert hooks == lint


def test_every_extra_has_a_check():
    """``make check-dist``, which takes minutes, leaves none out."""
    assert set(check_extras.CHECKS) == {"", *SETUP["options.extras_require"]}
