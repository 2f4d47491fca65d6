"""Private servers for a test run, stopped when the run ends or is killed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from schemaless.local.description import LocalServer
from schemaless.local.options import RELAXED
from schemaless.local.servers import down, up


@contextmanager
def private_servers(
    flavour: str = "mysql",
    count: int = 2,
    options: Mapping[str, object] | None = None,
    *,
    engine: str = "innodb",
    replicas: int = 0,
    semi_sync: bool = False,
    group: bool = False,
) -> Iterator[list[LocalServer]]:
    """Yield ``count`` new servers in a temporary folder, and delete them at the end.

    They are tied to this process: if it is killed, a watcher kills them and deletes the folder. Commits survive
    ``kill -9`` of a server, but not a power loss (see ``RELAXED``).

    Args:
        flavour: "mysql" or "mariadb".
        count: number of servers.
        options: server options that override the relaxed ones.
        engine: storage engine for cells: "innodb", or "rocksdb" on MariaDB.
        replicas: number of replicas per server; see ``LocalServer.replicas``.
        semi_sync: make commits wait until a replica has received them.
        group: make each server and two replicas a Group Replication group.

    Raises:
        LocalServerError: there is no server program, or it did not start.
    """
    folder = Path(tempfile.mkdtemp(prefix="schemaless-test-"))
    try:
        asked = {**RELAXED, **(options or {})}
        yield up(
            folder,
            count,
            flavour,
            engine=engine,
            replicas=replicas,
            semi_sync=semi_sync,
            group=group,
            tied=True,
            remove=True,
            options=asked,
        )
    finally:
        try:
            down(folder, delete=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
