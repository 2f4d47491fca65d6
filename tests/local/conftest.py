"""What the tests of private servers share: polling with a deadline, and the command line in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from schemaless.errors import LocalServerError
from schemaless.local import servers


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for servers, with a space in its path; whatever runs in it at the end is ended."""
    path = tmp_path / "my servers"
    yield path
    with contextlib.suppress(LocalServerError):
        servers.down(path, delete=True)


@pytest.fixture
def query() -> Callable[..., Any]:
    """Run statements on a server, and return the last one's rows."""

    def run(socket: Path, *statements: str) -> Any:
        connection = pymysql.connect(unix_socket=str(socket), user="root", autocommit=True, ssl_disabled=True)
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
                return cursor.fetchall()
        finally:
            connection.close()

    return run


@pytest.fixture
def command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``schemaless local ...`` in a process of its own."""

    def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "schemaless.cli.entry", "local", *map(str, arguments)],
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
            timeout=300,
        )

    return run


@pytest.fixture
def command_json(command: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., Any]:
    """Run ``schemaless local ... --json``, which must succeed, and return what it printed."""

    def run(*arguments: object, **environment: str) -> Any:
        result = command(*arguments, "--json", **environment)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    return run
