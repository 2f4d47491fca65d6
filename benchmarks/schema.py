"""Creating and upgrading many shards on two private servers: time, and peak memory of the client and the servers.

    python benchmarks/schema.py [--flavour mysql|mariadb] [--shards N] [--at-once N...] [--relaxed]

Each step is a command in a separate process, startup included, as a person would run it. The revisions are this
script's: each adds a nullable column to every shard's cell table, and there is one for each --at-once. Shards are
empty; a change that InnoDB makes only in its dictionary takes equally long on full ones. One upgrade is killed with -9
halfway and run again. The memory of a server is its peak since it was started.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pymysql
from codec import processor, version_of

from schemaless.local.description import LocalServer
from schemaless.local.options import RELAXED
from schemaless.local.servers import down, up

NAME = "bench"
MIB = 1 << 20
REVISION = '''"""Adds a column, for the benchmark."""

import sqlalchemy as sa

revision = "shard_bench_{number:04}"
down_revision = "{before}"
branch_labels = None
depends_on = None


def upgrade(op):
    op.add_column("cell", sa.Column("shard_bench_{number:04}", sa.Integer(), nullable=True))
'''


@dataclass(frozen=True)
class Step:
    """Measurements of one command.

    Attributes:
        wall_s: from its start to its end.
        cpu_s: of the client.
        peak_bytes: the client's resident memory.
        out: its first line on standard output.
    """

    wall_s: float
    cpu_s: float
    peak_bytes: int
    out: str


def command_line(folder: Path, arguments: list[str]) -> int:
    """Run a command as if the revisions of ``folder`` and the resulting tables were this version's own."""
    from sqlalchemy import Column, Integer

    from schemaless.cli.main import run
    from schemaless.schema import revisions, versions

    for path in sorted(folder.glob("*.py")):
        revisions.METADATA["shard"].tables["cell"].append_column(Column(path.stem, Integer()))
    original = versions.folders
    for module in (versions, revisions):
        module.folders = lambda: [*original(), folder]
    return run(arguments)


def start(folder: Path | None, url: str, *arguments: object, quiet: bool = False) -> subprocess.Popen[str]:
    """Start a command, with the revisions of ``folder`` or with only this version's."""
    command = [sys.executable, __file__, "--run", str(folder)] if folder else ["-m", "schemaless.cli.entry"]
    if folder is None:
        command.insert(0, sys.executable)
    return subprocess.Popen(
        [*command, *map(str, arguments)],
        env={**os.environ, "SCHEMALESS_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if quiet else None,
        text=True,
    )


def measure(folder: Path | None, url: str, *arguments: object, status: int = 0) -> Step:
    """Run a command to its end; it has to end with ``status``."""
    begun = time.monotonic()
    process = start(folder, url, *arguments, quiet=True)
    assert process.stdout is not None
    with process.stdout:
        lines = process.stdout.read().splitlines()
    _, ended, used = os.wait4(process.pid, 0)
    wall_s = time.monotonic() - begun
    process.returncode = os.waitstatus_to_exitcode(ended)
    if process.returncode != status:
        raise SystemExit(f"{' '.join(map(str, arguments))} ended with {process.returncode}: {lines[:1]}")
    first = lines[0] if lines else ""
    return Step(wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, first)


def peak_bytes(server: LocalServer) -> int:
    """Return a server's peak resident memory."""
    status = Path(f"/proc/{server.pid}/status").read_text(encoding="utf-8")
    return int(re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)[1]) * 1024  # type: ignore[index]


def upgraded(servers: Sequence[LocalServer], column: str) -> int:
    """Return how many shards have a column."""
    count = 0
    for server in servers:
        connection = pymysql.connect(unix_socket=str(server.socket), user="root")
        with connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT COUNT(*) FROM information_schema.columns WHERE column_name = %s AND table_schema LIKE %s",
                (column, rf"{NAME}\_%"),
            )
            count += cursor.fetchone()[0]
    return count


@contextmanager
def private(flavour: str, relaxed: bool) -> Iterator[list[LocalServer]]:
    """Start two servers in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="schemaless-bench-") as folder:
        try:
            yield up(Path(folder), 2, flavour, tied=True, options=RELAXED if relaxed else ())
        finally:
            down(Path(folder), delete=True)


def add_revisions(folder: Path, count: int) -> None:
    """Write revisions after this version's newest."""
    from schemaless.schema.versions import head

    before = head("shard")
    for number in range(1, count + 1):
        text = REVISION.format(number=number, before=before)
        before = f"shard_bench_{number:04}"
        (folder / f"{before}.py").write_text(text, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["--run"]:
        return command_line(Path(given[1]), given[2:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flavour", choices=["mysql", "mariadb"], default="mysql")
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--relaxed", action="store_true", help="servers that do not wait for the disk at each commit")
    options = parser.parse_args(given)
    with private(options.flavour, options.relaxed) as servers:
        report(servers, options)
    return 0


def report(servers: Sequence[LocalServer], options: argparse.Namespace) -> None:
    """Run the steps one after the other and print each."""
    print(
        f"{servers[0].flavour} {servers[0].version}, two servers{', relaxed' if options.relaxed else ''}; "
        f"{os.cpu_count()} cores of an {processor()}, shared with the client"
    )
    print(
        f"CPython {platform.python_version()}, SQLAlchemy {version_of('SQLAlchemy')}, alembic {version_of('alembic')}"
    )
    print(f"{options.shards:,} shards\n")
    print(f"{'':34}{'s':>8}{'ms a shard':>12}{'client: cpu s':>15}{'peak MiB':>10}{'servers: peak MiB':>19}")

    def show(name: str, step: Step) -> None:
        peaks = " + ".join(f"{peak_bytes(server) / MIB:,.0f}" for server in servers)
        print(
            f"{name:34}{step.wall_s:8.1f}{step.wall_s / options.shards * 1000:12.1f}{step.cpu_s:15.1f}"
            f"{step.peak_bytes / MIB:10.0f}{peaks:>19}",
            flush=True,
        )

    clusters = [part for server in servers for part in ("--cluster", server.url)]
    created = measure(None, "", "create", NAME, "--shards", options.shards, *clusters)
    url = created.out
    show("(started, no datastore)", measure(None, url, "--version"))
    show("create", created)
    show("schema status", measure(None, url, "schema", "status"))
    for number, at_once in enumerate(options.at_once, start=1):
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            add_revisions(folder, number)
            show(f"schema upgrade --at-once {at_once}", measure(folder, url, "schema", "upgrade", "--at-once", at_once))
            if upgraded(servers, f"shard_bench_{number:04}") != options.shards:
                raise SystemExit("an upgrade left shards behind")
    number = len(options.at_once) + 1
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        add_revisions(folder, number)
        behind = measure(folder, url, "schema", "status", status=1)
        show("schema status, all behind", behind)
        process = start(folder, url, "schema", "upgrade", quiet=True)
        while upgraded(servers, f"shard_bench_{number:04}") < options.shards / 2 and process.poll() is None:
            time.sleep(0.01)
        process.kill()
        process.communicate()
        reached = upgraded(servers, f"shard_bench_{number:04}")
        rest = measure(folder, url, "schema", "upgrade")
        show(f"killed at {reached:,}, run again", rest)
        again = measure(folder, url, "schema", "upgrade")
        show("schema upgrade, nothing to do", again)
    if upgraded(servers, f"shard_bench_{number:04}") != options.shards:
        raise SystemExit("the second run left shards behind")
    print(f"\nrun again, it said: {rest.out}")


if __name__ == "__main__":
    sys.exit(main())
