"""Ctrl-C while modules are imported: one line and exit 3, wherever it strikes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from schemaless.base.interrupts import starting_processes
from schemaless.cli import main

pytestmark = pytest.mark.once

CHILD = """
import sys
from importlib.abc import MetaPathFinder

place, how, *arguments = sys.argv[1:]

class Owner:
    def __set_name__(self, owner, name):
        raise KeyboardInterrupt

class Interrupts(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == place:
            sys.meta_path.remove(self)
            if how == "named":
                type("Class", (), {"attribute": Owner()})
            if how == "in exec":
                exec("raise KeyboardInterrupt")
            raise KeyboardInterrupt

from schemaless.cli.entry import main
sys.meta_path.insert(0, Interrupts())
sys.argv[1:] = arguments
sys.exit(main())
"""
"""Runs a command, and is interrupted once, when it imports a module: just so, in ``__set_name__`` or in ``exec``."""


def interrupted(module: str) -> ModuleType:
    """Import nothing: Ctrl-C strikes in a ``__set_name__``, which Python before 3.12 reports as a RuntimeError."""

    class Named:
        def __set_name__(self, owner: type, name: str) -> None:
            raise KeyboardInterrupt

    type("Class", (), {"attribute": Named()})
    raise AssertionError(module)


@pytest.mark.parametrize("arguments", [("info",), ("migrate", "run", "--execute"), ("dump",)], ids=" ".join)
def test_an_interrupt_within_an_import_is_one_line(invoke, monkeypatch, arguments):
    """Whatever Python makes of it. What the command would have changed cannot be said, since it was not imported."""
    monkeypatch.setattr(main, "import_module", interrupted)
    result = invoke(*arguments, "--url", "mysql://u@nowhere.invalid/trips")

    assert (result.code, result.out) == (3, "")
    assert result.err.strip().startswith("schemaless: stopped; ")
    assert result.err.strip().count("\n") == 0


def test_a_runtime_error_that_is_no_interrupt_is_shown_as_it_is(invoke, monkeypatch):
    """A fault of the program is not called an interrupt, even if there was one before."""

    def broken(module: str) -> ModuleType:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise RuntimeError("generator raised StopIteration") from ValueError("why")

    monkeypatch.setattr(main, "import_module", broken)
    with pytest.raises(RuntimeError, match="generator raised"):
        invoke("info", "--url", "mysql://u@nowhere.invalid/trips")


@pytest.mark.parametrize("how", ["plain", *(pytest.param(how, marks=pytest.mark.long) for how in ("named", "in exec"))])
@pytest.mark.parametrize(
    "place",
    [
        "click.shell_completion",
        "schemaless.cli.info",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("schemaless.cli.main", "schemaless.errors", "pymysql")
        ),
    ],
)
def test_an_interrupted_start_has_no_traceback(tmp_path, place, how):
    """From the first module of the command line to the last of a command."""
    (tmp_path / "child.py").write_text(CHILD)
    done = subprocess.run(
        [sys.executable, "-m", "child", place, how, "info", "--url", "mysql://u@nowhere.invalid/trips"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert done.stderr.strip().startswith("schemaless: stopped")
    assert done.stderr.strip().count("\n") == 0


STARTING = """
import os, signal
os.kill(os.getpid(), signal.SIGINT)
from schemaless.base.interrupts import ignore_interrupts
ignore_interrupts()
os.kill(os.getpid(), signal.SIGINT)
print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""


def test_a_process_that_is_starting_is_not_interrupted():
    """Neither before it ignores the signal, nor afterwards; what it starts itself is not kept from hearing it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with starting_processes():
        child = subprocess.Popen(
            [sys.executable, "-c", STARTING], cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True
        )
    out, _ = child.communicate(timeout=120)

    assert (child.returncode, out) == (0, "False\n")
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
