"""The command line for tests: in this process, or in one of its own where signals and streams matter."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from schemaless import CellKey, NewStoredCell
from schemaless.cli.main import run
from tests.remembered import remembered_forecasts

__all__ = ["remembered_forecasts"]

LEGACY_CELLS = 80


@dataclass(frozen=True)
class Result:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be JSON and nothing else."""
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def _of_no_configuration(monkeypatch, tmp_path_factory) -> None:
    """Ignore the configuration of the person who runs the suite."""
    empty = tmp_path_factory.getbasetemp() / "empty.toml"
    empty.touch(mode=0o600)
    monkeypatch.setenv("SCHEMALESS_CONFIG", str(empty))


@pytest.fixture
def invoke(capsys, monkeypatch) -> Iterator[Callable[..., Result]]:
    """Run a command in this process; ``url`` goes to SCHEMALESS_URL, ``stdin`` to standard input."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def call(*arguments: object, url: str | None = None, stdin: bytes = b"") -> Result:
        monkeypatch.delenv("SCHEMALESS_URL", raising=False)
        if url is not None:
            monkeypatch.setenv("SCHEMALESS_URL", url)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    yield call
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _default_signals() -> None:
    # Started from a shell's background job, a process would inherit that SIGINT is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a command as a process of its own, with pipes on all three streams unless ``stdout`` names a file."""
    started: list[subprocess.Popen[bytes]] = []

    def call(*arguments: object, url: str | None = None, stdout: str | None = None) -> subprocess.Popen[bytes]:
        variables = {name: value for name, value in os.environ.items() if name != "SCHEMALESS_URL"}
        if url is not None:
            variables["SCHEMALESS_URL"] = url
        sink = subprocess.PIPE if stdout is None else os.open(stdout, os.O_WRONLY)
        process = subprocess.Popen(
            [sys.executable, "-m", "schemaless.cli.entry", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=sink,
            stderr=subprocess.PIPE,
            env=variables,
            preexec_fn=_default_signals,
        )
        if stdout is not None:
            os.close(sink)
        started.append(process)
        return process

    yield call
    for process in started:
        process.kill()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        process.wait()


@pytest.fixture
def legacy(fresh_store, new_row) -> list[CellKey]:
    """Store 80 legacy cells in two columns, one of them with a duplicate key; return their keys."""
    cells = [
        NewStoredCell(new_row(), "AB"[number % 2], number, json.dumps({"n": number, "text": "text " * 40}).encode())
        for number in range(LEGACY_CELLS - 1)
    ]
    twice = b'{"twice": 1, "twice": 2, "text": "%b"}' % (b"text " * 40)
    cells.append(NewStoredCell(new_row(), "B", LEGACY_CELLS, twice))
    fresh_store.put_stored_cells(cells)
    return [CellKey(cell.row_key, cell.column_name, cell.ref_key) for cell in cells]
