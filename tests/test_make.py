"""What ``make`` does before there is anything to run: the virtual environment, and what it says when there is none.

Each test has a copy of what make needs, in a path with a space. Stub interpreters stand for machines that lack
something.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
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

STUB = """#!/bin/sh
# Stands for Python {version}; says "no" to what the test takes away.
case "$*" in
*"version_info < "*) exit {too_old} ;;
*"version_info[:3]"*) echo {version} ;;
*ensurepip*) exit {no_venv} ;;
*"-m venv"*) {make_venv} ;;
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


def write_stub(folder: Path, name: str, version: str, *, too_old=0, no_venv=0, make_venv="exit 0") -> None:
    stub = folder / name
    stub.write_text(STUB.format(version=version, too_old=too_old, no_venv=no_venv, make_venv=make_venv))
    stub.chmod(0o755)


def complaints(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what make said went wrong, less its own last line, which names the target."""
    assert done.returncode != 0
    return [line for line in done.stderr.splitlines() if not line.startswith("make: ***")]


def test_make_without_a_target_lists_the_targets(make):
    """Without a target it lists them, and installs nothing."""
    done = make()

    assert done.returncode == 0
    assert [f"make {target} " in done.stdout for target in ("demo", "test", "lint", "bench", "clean")] == [True] * 5


def test_without_python_make_says_what_to_install(make):
    """No python3 at all: one line with the version that is needed and how to name one."""
    assert complaints(make("install")) == [
        "make: python3 was not found; install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3"
    ]


def test_an_old_python_is_refused_with_its_version(make, bin_folder):
    """Python 3.9: one line with both versions."""
    write_stub(bin_folder, "python3", "3.9.2", too_old=1)

    (line,) = complaints(make("install"))
    assert line == (
        "make: python3 is Python 3.9.2, and 3.11 or newer is needed; install one, or name it: "
        "make PYTHON=/path/to/python3"
    )


def test_a_newer_python_beside_an_old_one_is_found(make, bin_folder):
    """python3 is too old and python3.13 is there: that one is used."""
    write_stub(bin_folder, "python3", "3.9.2", too_old=1)
    write_stub(bin_folder, "python3.13", "3.13.1", make_venv="echo 'no room'; exit 1")

    assert "make: making .venv with Python 3.13.1" in complaints(make("install"))


def test_a_python_without_venv_names_the_package(make, bin_folder):
    """Debian's python3 without python3-venv: one line with the package of that very version."""
    write_stub(bin_folder, "python3", "3.12.3", no_venv=1)

    (line,) = complaints(make("install"))
    assert line == (
        "make: python3 (3.12.3) cannot make virtual environments, as venv or ensurepip is missing; on Debian and "
        "Ubuntu: apt-get install python3.12-venv (or python3-venv)"
    )


def test_a_named_python_that_is_not_there_is_refused(make):
    """PYTHON= with no such program: one line, and nothing else is tried."""
    assert complaints(make("install", "PYTHON=python9")) == ["make: PYTHON=python9: no such program"]


def test_a_python_that_does_not_run_is_refused(make, bin_folder):
    """A broken interpreter: one line, no shell error."""
    (bin_folder / "python3").write_text("#!/bin/sh\nexit 127\n")
    (bin_folder / "python3").chmod(0o755)

    assert complaints(make("install")) == ["make: python3 does not run; name another: make PYTHON=/path/to/python3"]


def test_a_virtual_environment_that_cannot_be_made_says_why(make, bin_folder):
    """Venv's own last line is passed on."""
    write_stub(bin_folder, "python3", "3.11.4", make_venv="echo 'Error: [Errno 28] No space left on device'; exit 1")

    said = complaints(make("install"))
    assert said[-1].endswith("/.venv: Error: [Errno 28] No space left on device")
    assert "no virtual environment could be made in " in said[-1]


def test_offline_with_nothing_installed_says_to_connect(make, project):
    """No index, an empty environment: one line in place of pip's twenty, which are kept in a file."""
    done = make(
        "install", f"PYTHON={sys.executable}", path=os.environ["PATH"], PIP_NO_INDEX="1", PIP_CONFIG_FILE="/dev/null"
    )

    assert complaints(done)[-1] == (
        "make: pip could not get what is needed from a package index; connect (see 'pip config list') and run it "
        "again; details in .venv/install.log"
    )
    assert "No matching distribution" in (project / ".venv" / "install.log").read_text()


def test_a_second_run_does_nothing(make, project, bin_folder):
    """What was installed from the same files in the same folder is used as it is: no pip, no index."""
    environment = project / ".venv" / "bin"
    environment.mkdir(parents=True)
    log = project / "calls"
    write_stub(environment, "python", "3.11.4")
    (environment / "python").write_text(f"#!/bin/sh\nprintf '%s\\n' \"$*\" >>'{log}'\n")

    assert make("install").returncode != 0  # there is no python3 to begin with, and no stamp yet

    sources = [
        (project / name).read_bytes()
        for name in ("setup.cfg", "pyproject.toml", "constraints.txt", "tools/bootstrap.sh")
    ]
    checksum = (
        subprocess.run(["cksum"], input=b"".join(sources), capture_output=True, check=True).stdout.decode().strip()
    )
    (project / ".venv" / "installed-from").write_text(f"{checksum} {project.resolve()}\n")
    log.write_text("")

    done = make("install")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert log.read_text().split("\n") == ["-c ", ""]

    with (project / "setup.cfg").open("a") as file:
        file.write("# changed\n")
    assert make("install").returncode != 0


def test_an_environment_of_another_folder_is_not_changed(make, project, bin_folder, tmp_path):
    """.venv is a symbolic link, as in a second work tree: installing would change what it leads to."""
    other = tmp_path / "other"
    (other / "bin").mkdir(parents=True)
    (project / ".venv").symlink_to(other)
    write_stub(bin_folder, "python3", "3.11.4")
    done = make("install")

    assert done.returncode != 0
    assert ".venv is a symbolic link" in done.stderr
    assert "(rm .venv)" in done.stderr
    assert [path.name for path in other.iterdir()] == ["bin"]


@pytest.fixture
def installed(project: Path) -> Path:
    """A project in which all but the native extension is installed; its Python writes down its calls."""
    for name in ("Cargo.toml", "Cargo.lock", "pyproject.toml", "src/lib.rs"):
        (project / "rust" / name).parent.mkdir(parents=True, exist_ok=True)
        (project / "rust" / name).write_text(name)
    environment = project / ".venv" / "bin"
    environment.mkdir(parents=True)
    (environment / "python").write_text(
        f"#!/bin/sh\nprintf '%s\\n' \"$*\" >>'{project}/calls'\n"
        f"case \"$*\" in *./rust*) [ ! -e '{project}/broken' ] ;; esac\n"
    )
    (environment / "python").chmod(0o755)
    sources = b"".join(
        (project / name).read_bytes()
        for name in ("setup.cfg", "pyproject.toml", "constraints.txt", "tools/bootstrap.sh")
    )
    checksum = subprocess.run(["cksum"], input=sources, capture_output=True, check=True).stdout.decode().strip()
    (project / ".venv" / "installed-from").write_text(f"{checksum} {project.resolve()}\n")
    return project


def write_cargo(bin_folder: Path, version: str = "1.85.0") -> None:
    if not (bin_folder / "date").exists():
        (bin_folder / "date").symlink_to(str(shutil.which("date")))
    (bin_folder / "cargo").write_text(f"#!/bin/sh\necho cargo {version}\n")
    (bin_folder / "cargo").chmod(0o755)


def said_and_called(make, project: Path) -> tuple[list[str], list[str]]:
    (project / "calls").write_text("")
    done = make("install")
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines(), [call for call in (project / "calls").read_text().splitlines() if "pip" in call]


def test_without_cargo_make_says_so_once_and_goes_on(make, installed):
    """No Rust compiler: one line, no build, and silence from then on."""
    said, called = said_and_called(make, installed)

    assert said == [
        (
            "make: no cargo here: packed works, but slowly, and reads take longer; "
            "install Rust to build the native extension"
        )
    ]
    assert called == ["-m pip uninstall --quiet --yes schemaless-packed"]
    assert said_and_called(make, installed) == ([], [])


def test_with_cargo_make_builds_the_native_part_once(make, installed, bin_folder):
    """Also where Rust was installed later; again when a source has changed; and it stays where cargo is not in PATH."""
    said_and_called(make, installed)
    write_cargo(bin_folder)
    said, called = said_and_called(make, installed)

    assert said[0] == "make: building the native extension (once; a minute or two)"
    assert said[1].startswith("make: built it in ")
    assert len(said) == 2
    assert [call.split()[-1] for call in called] == ["maturin", "./rust"]
    assert said_and_called(make, installed) == ([], [])
    (bin_folder / "cargo").unlink()
    assert said_and_called(make, installed) == ([], [])

    (installed / "rust" / "src" / "lib.rs").write_text("changed")
    write_cargo(bin_folder)
    assert len(said_and_called(make, installed)[1]) == 2


def test_a_native_part_that_cannot_be_built_is_left_out(make, installed, bin_folder):
    """A compiler that is too old, or no network: one line with the log, no second try with the same compiler."""
    write_cargo(bin_folder, "1.63.0")
    (installed / "broken").touch()
    said, called = said_and_called(make, installed)

    assert said[1:] == ["make: could not build it; all works without it, but more slowly; details in .venv/native.log"]
    assert called[-1] == "-m pip uninstall --quiet --yes schemaless-packed"
    assert said_and_called(make, installed) == ([], [])
    write_cargo(bin_folder, "1.95.0")
    (installed / "broken").unlink()
    assert said_and_called(make, installed)[0][1].startswith("make: built it in ")


def test_demo_passes_on_a_file_whose_name_has_a_space(make, project):
    """DATA and ROW_KEY reach the command as they were given."""
    (project / "tools" / "bootstrap.sh").write_text("")
    environment = project / ".venv" / "bin"
    environment.mkdir(parents=True)
    (environment / "python").write_text('#!/bin/sh\nfor argument; do echo "<$argument>"; done\n')
    (environment / "python").chmod(0o755)

    plain = make("demo").stdout.split("\n")[:-1]
    assert plain == ["<-m>", "<schemaless.cli.entry>", "<demo>"]
    own = make("demo", "DATA=my 'own' trips.ndjson", "ROW_KEY=uuid5:trip.id").stdout.split("\n")[:-1]
    assert own == [*plain, "<--data>", "<my 'own' trips.ndjson>", "<--row-key>", "<uuid5:trip.id>"]


def test_test_runs_everything_with_and_without_the_fast_extra(make, project):
    """Both at once, each on its kind of server or, with CROSS, on both; on servers of others one after the other.

    Children keep what they compiled, also where the caller's Python does not.
    """
    (project / "tools" / "bootstrap.sh").write_text("")
    environment = project / ".venv" / "bin"
    environment.mkdir(parents=True)
    (environment / "python").write_text(
        '#!/bin/sh\n[ "$2" = pytest ] && echo "${SCHEMALESS_FAST-}<$*>${PYTHONDONTWRITEBYTECODE}"; :\n'
    )
    (environment / "lint-imports").write_text("#!/bin/sh\n")
    for path in environment.iterdir():
        path.chmod(0o755)

    def runs(*variables: str) -> list[str]:
        return make("-s", "test", *variables, PYTHONDONTWRITEBYTECODE="1").stdout.splitlines()

    (both,) = runs("ARGS=tests/codec -x")
    assert both.startswith("<-m pytest --dist loadfile ")
    assert both.endswith(" tests/codec -x>")
    assert both.count("env:SCHEMALESS_FAST=1//env:SERVER=mysql//env:SCHEMALESS_SIDE=0 ") == 2
    assert both.count("env:SCHEMALESS_FAST=0//env:SERVER=mariadb//env:SCHEMALESS_SIDE=1 ") == 2
    # One process for each has both kinds of server, one after the other; with one kind it is two, as above.
    for variable, distribution, count in (("CROSS=1", "each", 1), ("SERVER=mariadb", "loadfile", 2)):
        (cross,) = runs(variable)
        assert f" --dist {distribution} " in cross
        assert [cross.count(f"env:SCHEMALESS_FAST={value}") for value in "01"] == [count] * 2
        assert "env:SERVER" not in cross
        assert "env:SCHEMALESS_SIDE" not in cross
    assert runs("FAST=0", "ARGS=-x") == ["0<-m pytest -x>"]
    assert runs("FAST=1", "SERVER=docker") == ["1<-m pytest>"]
    assert runs("SERVER=docker") == runs("SERVER=mysql://root@db") == ["1<-m pytest>", "0<-m pytest>"]


def test_bench_lists_the_scripts_and_runs_one(make, project):
    """Helpers (with an underscore) are not listed; a failed script fails the target."""
    (project / "tools" / "bootstrap.sh").write_text("")
    environment = project / ".venv" / "bin"
    environment.mkdir(parents=True)
    (environment / "python").symlink_to(str(shutil.which("sh")))
    assert make("bench").returncode == 0

    (project / "benchmarks").mkdir()
    for name, script in (("_helper", "exit 9"), ("codec", ': """The codec."""\necho codec $1'), ("speed", "exit 3")):
        (project / "benchmarks" / f"{name}.py").write_text(script)
    listed = [line.split()[:1] for line in make("bench").stdout.splitlines()[:2]]

    assert listed == [["codec"], ["speed"]]
    assert make("bench", "SCRIPT=codec", "ARGS=--quick").stdout.splitlines()[-1] == "codec --quick"
    assert make("bench", "SCRIPT=speed").returncode != 0
