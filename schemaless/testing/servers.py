"""Private servers for a test run: started here, stopped at its end, whatever ends it."""

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
    """Yield ``count`` new servers in a temporary folder; they and the folder go at the end.

    They are tied to this process: when it is killed, a watcher kills them and removes the folder. What was committed
    survives ``kill -9`` of a server, though not a loss of power (see ``RELAXED``).

    Args:
        flavour: "mysql" or "mariadb".
        count: how many.
        options: further options of the servers, over the relaxed ones.
        engine: storage engine for cells: "innodb", or "rocksdb" on MariaDB.
        replicas: of each; see ``LocalServer.replicas``.
        semi_sync: whether a commit is acknowledged only once a replica has it.
        group: whether each is a group of three, itself and two replicas.

    Raises:
        LocalServerError: no server program could be had, or it did not start.
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
