"""Install the wheel with each extra alone into an empty environment, and run what that extra is for.

    python tools/check_extras.py [EXTRA ...]

Takes some minutes and a package index, so the suite does not run it. Besides the extras there are three more checks:

- ``types``: mypy and pyright see the same public names and types in the installed wheel, and pyright knows the type of
  every public symbol.
- ``native``: 'schemaless-store[fast,cli,native]' installs from dist/, without an index or Rust, for each Python here,
  and uses the native part; so does the wheel for the stable ABI. Needs the result of 'make dist'.
- ``demo``: 'schemaless demo' runs on the packages that ``native`` installed for the newest Python.

Exit status: 0 if everything works.
"""

from __future__ import annotations

import argparse
import configparser
import json
import os
import shlex
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.dist import ROOT, VERSIONS, built, interpreter

MODEL = "capacity model --documents-per-day 1M --bytes-per-document 20KB --disk 1TB"
NO_CLI = "import sys; from schemaless.cli.entry import main; sys.exit(0 if main() == 2 else 1)"
NATIVE = (
    "import schemaless_packed as native; from schemaless.wire import replies; document = {'a': [1, 2.5, None]}; "
    "assert replies._native is native; assert native.unpack(native.pack(document), 32) == document"
)
CHECKS: dict[str, list[str]] = {
    # Extra: arguments of the interpreter, or of the command where the extra brings it.
    "": [f"-c {NO_CLI!r}", "-c 'import schemaless as s; [getattr(s, name) for name in s.__all__]'"],
    "cli": ["schemaless --version", "schemaless " + MODEL, "schemaless config show", "schemaless man"],
    "fast": ["-c 'from schemaless.codec.engine import ENGINE; print(ENGINE); assert ENGINE'"],
    "async": ["-c 'import greenlet, schemaless.aio; schemaless.aio.connect'"],
    "export": ["-c 'import pyarrow, schemaless.arrow, schemaless.export'"],
    "native": [f"-c {NATIVE!r}"],
    "metrics": ["-c 'import schemaless.metrics.exporter'"],
    "status": ["schemaless status --help", "-c 'import schemaless.status.serve'"],
    "telemetry": ["-c 'from schemaless import telemetry; assert telemetry.available()'"],
    "dask": ["-c 'import distributed, schemaless.jobs.workers'"],
    "report": ["-c 'import schemaless.capacity.reporting, schemaless.pages.charts'"],
    "bench": ["-c 'import schemaless.bench.rounds, schemaless.bench.contenders'"],
    "docs": ["-m mkdocs --version"],
    "test": ["-c 'import schemaless.testing.plugin'", "-m pytest --version", "-m mypy --version"],
}
PROGRAM = """\
import schemaless
from collections.abc import Iterator
from typing import assert_type
from uuid import UUID
from schemaless import {names}
from schemaless import Datastor  # wrong
store = schemaless.connect("mysql://app@db-1/mezzanine")
assert_type(store, Datastore)
assert_type(store.get_cell(UUID(int=0), "BASE", 1), Cell | None)
assert_type(store.put_cell(UUID(int=0), "BASE", 1, {{}}), Put)
assert_type(store.get_row(UUID(int=0)), dict[str, Cell])
assert_type(store.get_versions(UUID(int=0), "BASE"), Iterator[Cell])
assert_type(store.get_cells_for_shard(0), Page[Cell])
assert_type(Limits(values=7).values, int)
assert_type(schemaless.CellConflict.__name__, str)
store.put_cell(UUID(int=0), "BASE", "1", {{}})  # wrong
schemaless.conect  # wrong
"""


def main() -> int:
    """Check all that was asked for; print a line for each."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    extras = ["", *setup["options.extras_require"]]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("extras", nargs="*", metavar="EXTRA", default=[*extras, "types", "demo"])
    chosen = parser.parse_args().extras
    unchecked = [extra for extra in extras if extra not in CHECKS]
    failed = len(unchecked)
    for extra in unchecked:
        print(f"[{extra}] has no check; add one to {Path(__file__).name}")
    with tempfile.TemporaryDirectory(prefix="schemaless-extras-") as folder:
        wheel = next(path for path in built(Path(folder)) if path.suffix == ".whl")
        for extra in chosen:
            if extra == "types":
                problem = of_types(wheel, Path(folder))
            elif extra in ("native", "demo"):
                problem = of_native(Path(folder), demo=extra == "demo")
            else:
                problem = of_extra(wheel, extra, Path(folder))
            print(f"{f'[{extra}]' if extra else 'no extra':<12} {problem or 'works'}", flush=True)
            failed += problem is not None
    return 1 if failed else 0


def of_extra(wheel: Path, extra: str, folder: Path) -> str | None:
    """Return what does not work with an extra; None where all does."""
    python = installed(wheel, [extra] if extra else [], [], folder / f"with-{extra or 'none'}")
    for check in CHECKS[extra]:
        program = str(python) if check.startswith("-") else f"{python.parent}/"
        done = run(f"{program} {check}" if check.startswith("-") else program + check, folder)
        if done.returncode:
            return f"{check}: exit {done.returncode}: {(done.stderr or done.stdout).strip()[-500:]}"
    return None


def of_types(wheel: Path, folder: Path) -> str | None:
    """Return where mypy or pyright sees anything else in the installed wheel than the program says."""
    # Public classes derive from those of these extras, whose types are unknown where they are missing.
    extras = ["async", "cli", "export", "metrics", "report", "status", "telemetry"]
    python = installed(wheel, extras, ["mypy", "pyright"], folder / "types")
    public = run(f"{python} -c 'import schemaless; print(*schemaless.__all__, sep=\", \")'", folder).stdout.strip()
    text = PROGRAM.format(names=public)
    (folder / "application.py").write_text(text)
    wrong = {number for number, line in enumerate(text.splitlines(), start=1) if line.endswith("# wrong")}
    by_mypy = run(f"{python} -m mypy --strict --no-error-summary application.py", folder).stdout
    seen = {int(line.split(":")[1]) for line in by_mypy.splitlines() if ": error:" in line}
    if seen != wrong:
        return f"mypy: errors in lines {sorted(seen)}, expected {sorted(wrong)}:\n{by_mypy}"
    by_pyright = run(f"{python} -m pyright --outputjson --pythonpath {python} application.py", folder).stdout
    diagnostics = json.loads(by_pyright)["generalDiagnostics"]
    seen = {each["range"]["start"]["line"] + 1 for each in diagnostics if each["severity"] == "error"}
    if seen != wrong:
        return f"pyright: errors in lines {sorted(seen)}, expected {sorted(wrong)}: {diagnostics}"
    activated = f"VIRTUAL_ENV={python.parents[1]} PATH={python.parent}:$PATH"
    done = run(f"{activated} pyright --verifytypes schemaless --ignoreexternal --outputjson", folder)
    complete = json.loads(done.stdout)["typeCompleteness"]
    unknown = [each["name"] for each in complete["symbols"] if each["isExported"] and not each["isTypeKnown"]]
    print(f"{'':<12} pyright: {complete['completenessScore']:.1%} of the public symbols have a known type")
    return None if not unknown else f"pyright: no known type for {', '.join(unknown[:20])} and {len(unknown)} in all"


def of_native(folder: Path, *, demo: bool) -> str | None:
    """Return what does not work with the wheels in dist/, installed without an index; None if all works."""
    dist = ROOT / "dist"
    (store,) = dist.glob("schemaless_store-*.whl")
    pythons = [path for path in map(interpreter, VERSIONS) if path is not None]
    for python in pythons[-1:] if demo else pythons:
        # Only packages of others come from the index, and no Rust is on the PATH.
        with_pip = folder / f"native-{python.name}"
        run(f"{python} -m venv {with_pip}", folder)
        pip = f"PATH={with_pip}/bin:/usr/bin:/bin {with_pip}/bin/python -m pip"
        others = f"{with_pip}-packages"
        constraints = ROOT / "constraints.txt"
        download = f"{pip} download -q --only-binary :all: -d {others} -c {constraints} '{store}[fast,cli]'"
        offline = f"{pip} install -q --no-index --only-binary :all: -f {dist} -f {others}"
        stable = next(dist.glob("schemaless_packed-*-abi3-*.whl"))
        steps = [download, f"{offline} 'schemaless-store[fast,cli,native]'", f"{with_pip}/bin/schemaless --version"]
        steps.append(f"{with_pip}/bin/python -c {shlex.quote(NATIVE)}")
        if demo:
            # The demo leaves its servers running, also where it fails.
            down = "bin/schemaless local down --folder .schemaless/demo --delete"
            steps.append(f"cd {with_pip} && export HOME={with_pip}; bin/schemaless demo; code=$?; {down}; exit $code")
        else:
            steps += [
                f"{with_pip}/bin/schemaless {MODEL}",
                f"{offline} --force-reinstall --no-deps {stable}",
                f"{with_pip}/bin/python -c {shlex.quote(NATIVE)}",
            ]
        for step in steps:
            done = run(step, folder)
            if done.returncode:
                return f"{python.name}: {step}: exit {done.returncode}: {(done.stderr or done.stdout).strip()[-800:]}"
        print(f"{'':<12} {python.name}: {'demo' if demo else 'installed without an index'}", flush=True)
    return None


def installed(wheel: Path, extras: list[str], others: list[str], folder: Path) -> Path:
    """Make an environment with the wheel, and return its interpreter."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    named = f"'{wheel}[{','.join(extras)}]'" if extras else str(wheel)
    constraints = ROOT / "constraints.txt"
    done = run(f"{python} -m pip install --quiet --constraint {constraints} {named} {' '.join(others)}", folder.parent)
    if done.returncode:
        sys.exit(f"{extras or 'no extra'} cannot be installed:\n{done.stderr}")
    return python


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command far from this checkout."""
    left_out = ("PYTHON", "VIRTUAL_ENV", "SCHEMALESS_")
    outside = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env={**outside, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main())
