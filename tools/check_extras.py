"""Install the packages into empty environments, each extra alone, and run what each is for.

    python tools/check_extras.py [CHECK ...]

Takes ten minutes or more and needs a package index, so the suite does not run it. Uses the packages in dist/, and
builds them first if they are not those of this checkout. Each extra is checked on each CPython from 3.11 to 3.14 found
here, with a datastore on a private MySQL server, and with no Rust on the PATH. Besides the extras (``none`` stands for
no extra), there are four more checks:

- ``sdist``: the store's sdist installs and works; so does that of the native extension, if cargo is installed.
- ``types``: mypy and pyright see the same public names and types in the installed wheel, and pyright knows the type of
  every public symbol.
- ``native`` also checks that 'schemaless-store[fast,cli,native]' installs from dist/, without an index, for each
  Python here, and uses the native extension; so does the wheel for the stable ABI.
- ``demo``: 'schemaless demo' runs on the packages that ``native`` installed for the newest Python.

Exit status: 0 if everything works.
"""

from __future__ import annotations

import argparse
import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import schemaless
from schemaless.local.options import RELAXED
from schemaless.local.servers import down, up
from tools import dist
from tools.dist import ROOT, VERSIONS, interpreter

DIST = ROOT / "dist"
RUNS = ROOT / "tools" / "extras"
MODEL = "capacity model --documents-per-day 1M --bytes-per-document 20KB --disk 1TB"
NATIVE = (
    "import schemaless_packed as native; from schemaless.wire import replies; document = {'a': [1, 2.5, None]}; "
    "assert replies._native is native; assert native.unpack(native.pack(document), 32) == document"
)
CHECKS: dict[str, list[str]] = {
    # Extra: commands of its environment. URL is an empty datastore, RUNS the folder tools/extras.
    "": ["python RUNS/without.py URL"],
    "cli": ["schemaless --version", "schemaless " + MODEL, "SCHEMALESS_URL=URL schemaless info", "schemaless man"],
    "fast": ["python RUNS/with_fast.py URL"],
    "async": ["python RUNS/with_async.py URL"],
    "typed": ["python RUNS/with_typed.py URL"],
    "export": ["python RUNS/with_export.py URL"],
    "cold": ["python -c 'from schemaless.store.cold.content import content_of; assert content_of([], 0).sha256'"],
    "native": ["python RUNS/with_native.py URL"],
    "metrics": ["python RUNS/with_metrics.py URL"],
    "status": ["SCHEMALESS_URL=URL schemaless status", "python -c 'import schemaless.monitoring.status.serve'"],
    "telemetry": ["python RUNS/with_telemetry.py URL"],
    "dask": ["python RUNS/with_dask.py"],
    "report": ["python RUNS/with_report.py"],
    "bench": ["python RUNS/with_bench.py"],
    # Its pages are checked against the sources, which mkdocs.yml and tools/site_hook.py name.
    "docs": [f"NO_MKDOCS_2_WARNING=1 python -m mkdocs build -q --strict -f {ROOT}/mkdocs.yml -d $PWD/site"],
    "test": ["cp RUNS/with_test.py test_cell.py", "python -m pytest -q --schemaless-server SERVER test_cell.py"],
}
PROGRAM = """\
import schemaless, schemaless.aio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
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
@dataclass
class Trip:
    fare: float
trips = store.column("BASE", Trip)
assert_type(trips, Column[Trip])
assert_type(trips.latest(UUID(int=0)), Cell[Trip] | None)
assert_type(trips.latest_of([UUID(int=0)]), dict[UUID, Cell[Trip]])
assert_type([cell.body for cell in trips.versions(UUID(int=0))], list[Trip])
trips.put(UUID(int=0), 1, {{"fare": 12.5}})  # wrong
async def main() -> None:
    trips = (await schemaless.aio.connect("mysql://app@db-1/mezzanine")).column("BASE", Trip)
    assert_type(await trips.latest(UUID(int=0)), Cell[Trip] | None)
    assert_type(trips.versions(UUID(int=0)), AsyncIterator[Cell[Trip]])
    await trips.append(UUID(int=0), {{"fare": 12.5}})  # wrong
schemaless.conect  # wrong
"""


def main() -> int:
    """Run the requested checks; print a line for each."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    extras = [extra or "none" for extra in CHECKS]
    unchecked = sorted(setup["options.extras_require"].keys() - CHECKS.keys())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="*", metavar="CHECK", default=[*extras, "sdist", "types", "demo"])
    chosen = parser.parse_args().checks
    for extra in unchecked:
        print(f"[{extra}] has no check; add one to {Path(__file__).name}")
    with tempfile.TemporaryDirectory(prefix="schemaless-extras-") as temporary:
        folder = Path(temporary)
        wheel, sdist = packages(folder)
        pythons = [path for path in map(interpreter, VERSIONS) if path is not None]
        (server,) = up(folder / "server", 1, options=RELAXED)
        try:
            tasks: list[tuple[str, Callable[[], str | None]]] = []
            for name in chosen:
                if name in extras:
                    extra = "" if name == "none" else name
                    tasks += [
                        (f"{name} {each.name[6:]}", partial(of_extra, wheel, extra, each, server.url, folder))
                        for each in pythons
                    ]
                if name == "native":
                    tasks += [(f"wheels {each.name[6:]}", partial(of_native, each, folder)) for each in pythons]
                if name == "sdist":
                    tasks.append(("sdist", partial(of_sdist, sdist, folder)))
                if name == "types":
                    tasks.append(("types", partial(of_types, wheel, pythons[0], folder)))
                if name == "demo":
                    tasks.append(("demo", partial(of_native, pythons[-1], folder, demo=True)))
            failed = len(unchecked)
            with ThreadPoolExecutor(os.cpu_count()) as threads:
                for (name, _), problem in zip(tasks, threads.map(lambda task: task[1](), tasks), strict=True):
                    print(f"{name:<16} {problem or 'works'}", flush=True)
                    failed += problem is not None
        finally:
            down(folder / "server", delete=True)
    print(f"{len(tasks)} checks, {failed} failed")
    return 1 if failed else 0


def packages(folder: Path) -> tuple[Path, Path]:
    """Return wheel and sdist of the store in dist/; build everything first if they are not from this checkout."""
    fresh = {path.name: path.read_bytes() for path in dist.built(folder)}
    kept = {path.name: path.read_bytes() for path in DIST.glob("schemaless_store-*")}
    if kept != fresh or not [*DIST.glob("schemaless_packed-*-abi3-*.whl")]:
        print("dist/ does not have the packages of this checkout; building them", flush=True)
        subprocess.run([sys.executable, ROOT / "tools" / "dist.py"], check=True)
    (wheel,) = DIST.glob("schemaless_store-*.whl")
    (sdist,) = DIST.glob("schemaless_store-*.tar.gz")
    return wheel, sdist


def of_extra(wheel: Path, extra: str, interpreter: Path, server: str, folder: Path) -> str | None:
    """Return what does not work with an extra; None if all does."""
    name = f"{extra or 'none'}_{interpreter.name.replace('.', '_')}"
    own = folder / name
    python = installed(interpreter, f"{wheel}[{extra}]" if extra else str(wheel), folder=own)
    url = schemaless.create(name, 4, [server]) if any("URL" in check for check in CHECKS[extra]) else ""
    for check in CHECKS[extra]:
        command = check.replace("RUNS", str(RUNS)).replace("SERVER", shlex.quote(server))
        command = re.sub(r"\bURL\b", lambda _: shlex.quote(url), command)
        done = run(f"PATH={python.parent}:$PATH; {command}", own)
        if done.returncode:
            return f"{command}: exit {done.returncode}: {(done.stderr + done.stdout).strip()[-800:]}"
    return None


def of_sdist(sdist: Path, folder: Path) -> str | None:
    """Return what does not work with the sdists; None if all does."""
    python = installed(Path(sys.executable), str(sdist), folder=folder / "sdist")
    done = run(f"{python} -c 'import schemaless as s; [getattr(s, name) for name in s.__all__]'", folder)
    if done.returncode:
        return f"the store's: {done.stderr.strip()[-800:]}"
    (native,) = DIST.glob("schemaless_packed-*.tar.gz")
    cargo = shutil.which("cargo")
    if cargo is None:
        print(f"{'':<16} no cargo here: the sdist of the native extension was not tried")
        return None
    step = f"PATH={Path(cargo).parent}:$PATH {sys.executable} -m pip --python {python} install -q {native}"
    for each in (step, f"{python} -c {shlex.quote(NATIVE)}"):
        done = run(each, folder)
        if done.returncode:
            return f"the native extension's: {(done.stderr or done.stdout).strip()[-800:]}"
    return None


def of_types(wheel: Path, interpreter: Path, folder: Path) -> str | None:
    """Return where mypy or pyright finds anything in the installed wheel other than what the program expects."""
    # Public classes derive from classes of these extras; without the extras, their types are unknown.
    extras = ["async", "cli", "export", "metrics", "report", "status", "telemetry"]
    python = installed(interpreter, f"{wheel}[{','.join(extras)}]", "mypy", "pyright", folder=folder / "types")
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
    print(f"{'':<16} pyright: {complete['completenessScore']:.1%} of the public symbols have a known type")
    return None if not unknown else f"pyright: no known type for {', '.join(unknown[:20])} and {len(unknown)} in all"


def of_native(interpreter: Path, folder: Path, *, demo: bool = False) -> str | None:
    """Return what does not work with the wheels in dist/, installed without an index; None if all works."""
    (store,) = DIST.glob("schemaless_store-*.whl")
    stable = next(DIST.glob("schemaless_packed-*-abi3-*.whl"))
    own = folder / f"{'demo' if demo else 'native'}-{interpreter.name}"
    # The demo fetches its data with pip.
    python, others = empty(interpreter, own, with_pip=demo), own / "packages"
    pip = f"{sys.executable} -m pip --python {python}"
    # Only third-party packages come from the index.
    steps = [
        f"{pip} download -q --only-binary :all: -d {others} -c {ROOT / 'constraints.txt'} '{store}[fast,cli]'",
        f"{pip} install -q --no-index --only-binary :all: -f {DIST} -f {others} 'schemaless-store[fast,cli,native]'",
        f"{own}/bin/schemaless --version",
        f"{python} -c {shlex.quote(NATIVE)}",
    ]
    if demo:
        # The demo leaves its servers running, even if it fails.
        command = "bin/schemaless local down --folder .schemaless/demo --delete"
        steps.append(f"cd {own} && export HOME={own}; bin/schemaless demo; code=$?; {command}; exit $code")
    else:
        steps += [
            f"{pip} install -q --no-index --force-reinstall --no-deps {stable}",
            f"{python} -c {shlex.quote(NATIVE)}",
        ]
    for step in steps:
        done = run(step, folder)
        if done.returncode:
            return f"{step}: exit {done.returncode}: {(done.stderr or done.stdout).strip()[-800:]}"
    return None


def empty(interpreter: Path, folder: Path, *, with_pip: bool = False) -> Path:
    """Make an empty environment, and return its interpreter."""
    done = run(f"{interpreter} -m venv {'' if with_pip else '--without-pip'} {folder}", folder.parent)
    if done.returncode:
        sys.exit(f"{interpreter}: {done.stderr or done.stdout}")
    return folder / "bin" / "python"


def installed(interpreter: Path, *requirements: str, folder: Path) -> Path:
    """Make an environment with packages, and return its interpreter."""
    python = empty(interpreter, folder)
    named = " ".join(shlex.quote(each) for each in requirements)
    local = f"--constraint {ROOT / 'constraints.txt'} --find-links {DIST}"
    done = run(f"{sys.executable} -m pip --python {python} install --quiet {local} {named}", folder.parent)
    if done.returncode:
        sys.exit(f"{named} cannot be installed:\n{done.stderr}")
    return python


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command outside this checkout, without a Rust compiler."""
    left_out = ("PYTHON", "VIRTUAL_ENV", "SCHEMALESS_", "CARGO", "RUST")
    outside = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    folders = [each for each in os.environ["PATH"].split(os.pathsep) if not Path(each, "cargo").exists()]
    return subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env={**outside, "PATH": os.pathsep.join(folders), "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main())
