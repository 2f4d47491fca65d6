"""What ``make`` says on a machine without a suitable Python, in a path with a space."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = ("sh", "make", "cat", "cksum", "sed", "grep", "tail", "dirname", "rm", "echo", "printf")

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(
        any(shutil.which(tool) is None for tool in TOOLS),
        reason=f"not on the PATH: {', '.join(tool for tool in TOOLS if shutil.which(tool) is None)}",
    ),
]

OLD = """#!/bin/sh
# Stands for Python 3.9.2.
case "$*" in
*"version_info < "*) exit 1 ;;
*"version_info[:3]"*) echo 3.9.2 ;;
esac
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "my projects" / "a clone"
    (folder / "tools").mkdir(parents=True)
    for name in ("Makefile", "setup.cfg", "pyproject.toml", "constraints.txt", "tools/bootstrap.sh"):
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    """A PATH with make and its tools, and no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        (folder / tool).symlink_to(str(shutil.which(tool)))
    return folder


@pytest.fixture
def make(project: Path, bin_folder: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: str, path: str = str(bin_folder), **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["make", "--no-print-directory", *arguments],
            cwd=project,
            env={"PATH": path, "HOME": str(project.parent), **environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


def test_make_without_a_target_lists_the_targets(make):
    """Without a target it lists them, and installs nothing."""
    done = make()

    assert done.returncode == 0
    assert [f"make {target} " in done.stdout for target in ("demo", "test", "test-all", "lint", "bench")] == [True] * 5


def test_an_old_python_is_refused_with_its_version(make, bin_folder):
    """Python 3.9: one line with both versions."""
    (bin_folder / "python3").write_text(OLD)
    (bin_folder / "python3").chmod(0o755)
    done = make("install")

    assert done.returncode != 0
    assert done.stderr.splitlines()[0] == (
        "make: python3 is Python 3.9.2, and 3.11 or newer is needed; install one, or name it: "
        "make PYTHON=/path/to/python3"
    )
