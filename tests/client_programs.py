"""MySQL's and MariaDB's own client programs, for what the documentation tells operators to run."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from schemaless.base.home import cache_folder
from schemaless.errors import LocalServerError
from schemaless.local.apt import Apt, Source, distribution_sources
from schemaless.local.binaries import cache_lock, unpacked_command

_WANTED = re.compile(r"(lib(?!perl)|zlib|(mysql|mariadb)-(client|common|backup))")
PROGRAMS = {"mysql": ("mysql", "mysqldump"), "mariadb": ("mariadb", "mariadb-dump")}


def client_programs(flavour: str, folder: Path, hosts: Mapping[str, Path]) -> None:
    """Put a flavour's client programs into a folder, as scripts that reach some host names by sockets, as root.

    The programs are the installed ones, or unpacked from the package archive into the cache; skips if there are none.
    """
    cases = " ".join(f"{host}) set -- --socket={socket} ;;" for host, socket in hosts.items())
    for program in PROGRAMS[flavour]:
        script = folder / program
        command = " ".join(program_command(flavour, program, f"{flavour}-client"))
        script.write_text(
            "#!/bin/bash\nbefore=()\n"
            'while [ $# -gt 0 ] && [ "$1" != -h ]; do before+=("$1"); shift; done\n'
            f'if [ $# = 0 ]; then exec {command} --no-defaults --user=root "${{before[@]}}"; fi\n'
            f'host=$2; shift 2; after=("$@")\ncase $host in {cases} *) exit 9 ;; esac\n'
            f'exec {command} --no-defaults --user=root "$@" "${{before[@]}}" "${{after[@]}}"\n'
        )
        script.chmod(0o755)


def program_command(flavour: str, program: str, package: str) -> tuple[str, ...]:
    """Return how to run a program: the installed one, or unpacked from the package archive; skips if there is none."""
    installed = shutil.which(program)
    if installed is not None:
        said = subprocess.run([installed, "--version"], capture_output=True, text=True, check=False).stdout
        if ("mariadb" in said.lower()) == (flavour == "mariadb"):
            return (installed,)
    root = cache_folder() / "clients" / (flavour if package.endswith("-client") else package)
    with cache_lock(root.parent):
        if not root.exists():
            _unpack(flavour, package, root)
    command = unpacked_command(root, f"usr/bin/{program}")
    assert command is not None
    return command


def _unpack(flavour: str, package: str, root: Path) -> None:
    """Unpack a package of programs, from the suites that servers come from."""
    try:
        sources = distribution_sources()
        if flavour == "mysql":
            sources += [
                Source(source.uri, ("sid",), ("main",), source.signed_by)
                for source in sources
                if "security" not in source.uri
            ]
        with tempfile.TemporaryDirectory(dir=root.parent) as part:
            apt = Apt(Path(part), sources)
            apt.update()
            packages = [each for each in apt.closure(package) if _WANTED.match(each.name)]
            if not packages:
                raise LocalServerError(f"the package archive has no {package}")
            apt.download(packages)
            apt.unpack(packages, Path(part) / "root")
            (Path(part) / "root").rename(root)
    except LocalServerError as problem:
        pytest.skip(f"the programs of {package} are not installed and cannot be unpacked: {problem}")
