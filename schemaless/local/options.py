"""Options of local servers, and the creation of data directories."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from schemaless.base.home import cache_folder
from schemaless.errors import LocalServerError
from schemaless.local import free_space as space
from schemaless.local import group, rocksdb, semi_sync
from schemaless.local.binaries import Binary, cache_lock, environment
from schemaless.local.description import Description
from schemaless.local.processes import processes_on, send
from schemaless.local.sql import BEGIN_MARIADB, END_MARIADB

INITIAL_BYTES: Final = {"mysql": 400 * 1024 * 1024, "mariadb": 250 * 1024 * 1024}
"""Free space required for a new server, in bytes: its data directory, its logs, and some headroom."""

RELAXED: Final[Mapping[str, str]] = {
    "innodb-flush-log-at-trx-commit": "2",
    "sync-binlog": "0",
    "innodb-flush-method": "O_DIRECT_NO_FSYNC",
    # The kernel limits asynchronous requests of all processes together; MySQL does not start beyond that.
    "innodb-use-native-aio": "OFF",
}
"""Options for tests: commits survive ``kill -9`` of the server, but not a power loss.

The log is still written to the operating system at each commit; only waiting for the disk is omitted.
"""

_TEMPLATE: Final = 1
"""Version of the template; raise it when ``_initialise`` creates different data directories."""

_COMMON: Final = (
    "--skip-networking",
    "--skip-name-resolve",
    "--character-set-server=utf8mb4",
    "--max-allowed-packet=64M",
    "--max-connections=200",
    "--innodb-buffer-pool-size=96M",
    "--innodb-log-buffer-size=16M",
    "--innodb-flush-log-at-trx-commit=1",
    "--log-bin=binlog",
    "--binlog-format=ROW",
    "--binlog-expire-logs-seconds=86400",
    "--max-binlog-size=64M",
    "--sync-binlog=1",
    "--performance-schema=ON",
    # Shrink the buffers that the store never reads: a server needs 540 MB otherwise.
    "--performance-schema-digests-size=1000",
    "--performance-schema-events-waits-history-long-size=100",
    "--performance-schema-events-stages-history-long-size=100",
    "--performance-schema-events-statements-history-long-size=100",
)
_OF_FLAVOUR: Final = {
    "mysql": (
        "--mysqlx=OFF",
        "--secure-file-priv=NULL",
        "--gtid-mode=ON",
        "--enforce-gtid-consistency=ON",
        "--loose-innodb-redo-log-capacity=192M",
        # On by default; in 9.7 its thread may spin for ten seconds when the server shuts down.
        "--event-scheduler=OFF",
    ),
    "mariadb": (
        "--innodb-log-file-size=192M",
        # The change feed reads this instrument, which is off by default.
        "--performance-schema-instrument=wait/lock/metadata/sql/mdl=ON",
    ),
}
# Keys are for TCP only; generating them takes a quarter of the time of a start.
_WITHOUT_TCP: Final[Mapping[str, Sequence[str]]] = {
    "mysql": (
        "--loose-auto-generate-certs=OFF",
        "--loose-caching-sha2-password-auto-generate-rsa-keys=OFF",
        "--loose-sha256-password-auto-generate-rsa-keys=OFF",
    ),
    "mariadb": (),
}
_REPLICA: Final = (
    "--relay-log=relay",
    # After a crash, fetch again the transactions that were not applied.
    "--relay-log-recovery=1",
    "--read-only=1",
)
_REPLICA_OF_FLAVOUR: Final = {
    "mysql": ("--super-read-only=1", "--replica-preserve-commit-order=1"),
    # Both are MySQL's defaults; its retry count is a setting of the channel.
    "mariadb": ("--log-slave-updates=1", "--master-retry-count=0"),
}
FEATURES: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "rocksdb": {"mariadb": rocksdb.ARGUMENTS},
    "semi-sync": semi_sync.ARGUMENTS,
    "group": {"mysql": group.ARGUMENTS},
}
"""Options of servers that have a feature, by feature and flavour."""

# Options that a server only accepts if its data directory was created with them.
_FIXED: Final = re.compile(r"--(loose-)?(innodb.page.size|innodb.data.file.path|lower.case.table.names)=")
# In the order of MariaDB's install script, without the help tables.
_MARIADB_TABLES: Final = (
    "system_tables.sql",
    "performance_tables.sql",
    "system_tables_data.sql",
    "maria_add_gis_sp_bootstrap.sql",
    "sys_schema.sql",
)


def option_arguments(options: Mapping[str, object] | Sequence[str]) -> list[str]:
    """Return options as arguments: ``{"port": 1}``, ``["port=1"]`` and ``["--port=1"]`` all become ``--port=1``."""
    if isinstance(options, str):
        raise TypeError("options must be a mapping or a sequence of strings, not a single string")
    given = [f"{name}={value}" for name, value in options.items()] if isinstance(options, Mapping) else list(options)
    return ["--" + option.removeprefix("--") for option in given]


def _identity_arguments() -> list[str]:
    return ["--user=root"] if os.geteuid() == 0 else []


def _tcp_arguments(server: Description) -> Sequence[str]:
    if server.port:
        return ["--skip-networking=0", "--bind-address=127.0.0.1", f"--port={server.port}"]
    listens = any("networking" in option for option in server.options)
    return [] if listens else _WITHOUT_TCP[server.binary.flavour]


def server_command(server: Description) -> list[str]:
    """Return the command that runs a server; its own options come last, so they take precedence."""
    binary = server.binary
    # The default is TMPDIR, which may be deleted while the server runs. A colon would separate several folders.
    temporary = [] if ":" in str(server.data) else [f"--tmpdir={server.folder / 'tmp'}"]
    return [
        *binary.command,
        "--no-defaults",  # must come first, or the server reads the machine's my.cnf
        f"--datadir={server.data}",
        *binary.path_arguments(),
        *_identity_arguments(),
        *temporary,
        f"--socket={server.socket}",
        f"--pid-file={server.pid_file}",
        f"--log-error={server.log}",
        f"--server-id={server.server_id}",
        *_COMMON,
        *_OF_FLAVOUR[binary.flavour],
        *_tcp_arguments(server),
        *([*_REPLICA, *_REPLICA_OF_FLAVOUR[binary.flavour]] if server.replica else []),
        *(argument for feature in server.features for argument in FEATURES[feature][binary.flavour]),
        *server.options,
        # 127.0.0.1 must not resolve to "localhost" on a server that listens: root@localhost has no password.
        *(["--skip-name-resolve=1"] if server.port else []),
        *(["--skip-networking=1"] if server.replica and not server.port else []),
    ]


def make_data_folder(binary: Binary, data: Path, options: Sequence[str], report: Callable[[str], None]) -> None:
    """Create the data directory ``data``, with system tables and a root account that needs no password on the socket.

    It is copied from a template in the cache, created if necessary, that lacks the parts that must differ between
    servers (UUID, keys). If the cache is not writable, or the server's options include one that is fixed when a data
    directory is created, such as the page size, the server initialises ``data`` itself.

    Raises:
        LocalServerError: the server cannot initialise it, or the disk is full.
    """
    space.require(data.parent, INITIAL_BYTES[binary.flavour], "a new server", space.SERVERS_REMEDY)
    with space.full_disk_is_an_error(data.parent, "creating a data directory", space.SERVERS_REMEDY):
        if data.exists():
            shutil.rmtree(data)
        fixed = [option for option in options if _FIXED.match(option)]
        template = None if fixed else _template(binary, report)
        if template is None:
            data.mkdir(mode=0o700)
            _initialise(binary, data, fixed)
        else:
            _copy(template, data)
        data.chmod(0o700)


def _template(binary: Binary, report: Callable[[str], None]) -> Path | None:
    folder = cache_folder() / "templates"
    target = folder / f"{binary.name}-{_TEMPLATE}"
    if target.is_dir():
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if space.free_bytes(folder) < INITIAL_BYTES[binary.flavour] or not os.access(folder, os.W_OK):
            return None
    except OSError:
        return None
    with cache_lock(folder):
        if target.is_dir():
            return target
        for old in folder.glob(".part-*"):
            for pid in processes_on(old / "data"):  # left by a run that was killed
                send(pid, old / "data", signal.SIGKILL)
            shutil.rmtree(old, ignore_errors=True)
        report(f"initialising {binary.flavour} {binary.version} (only once, takes a few seconds)")
        part = Path(tempfile.mkdtemp(prefix=".part-", dir=folder))
        try:
            data = part / "data"
            data.mkdir(mode=0o700)
            _initialise(binary, data, [])
            for path in [*data.glob("*.pem"), data / "auto.cnf", data / "ib_buffer_pool"]:
                path.unlink(missing_ok=True)
            data.rename(target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return target


def _copy(source: Path, target: Path) -> None:
    for options in (["--sparse=always", "--reflink=auto"], []):  # only GNU cp has them
        command = ["cp", "-a", *options, f"{source}/.", str(target)]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode == 0:
            return
        if is_full_disk(result.stderr):
            break
    _raise_for(result.stderr, target, f"copying {source}")


def _initialise(binary: Binary, data: Path, options: Sequence[str]) -> None:
    common = [*binary.command, "--no-defaults", f"--datadir={data}", *binary.path_arguments(), *_identity_arguments()]
    common += options
    if binary.flavour == "mysql":
        command = [*common, "--initialize-insecure", "--secure-file-priv=NULL", "--loose-innodb-redo-log-capacity=32M"]
        script = b""
    else:
        command = [*common, "--bootstrap", "--log-warnings=0", "--enforce-storage-engine=", "--max-allowed-packet=8M"]
        command += ["--net-buffer-length=16K", "--innodb-log-file-size=32M"]
        script = _mariadb_script(binary.share)
    try:
        result = subprocess.run(command, input=script, capture_output=True, env=environment(), timeout=600)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise LocalServerError(f"{binary.program} cannot initialise the data directory {data}: {problem}") from problem
    said = (result.stderr + result.stdout).decode("utf-8", "replace")
    if result.returncode != 0 or not (data / "mysql").is_dir():
        _raise_for(said, data, f"{binary.flavour} {binary.version} ({binary.program}) initialising a data directory")


def _mariadb_script(share: Path) -> bytes:
    parts = [BEGIN_MARIADB]
    for name in _MARIADB_TABLES:
        names = (name,) if name.startswith("maria_") else (f"mysql_{name}", f"mariadb_{name}")
        path = next((share / file_name for file_name in names if (share / file_name).is_file()), None)
        if path is None:
            if name == "sys_schema.sql":
                continue
            raise LocalServerError(f"{share} has no {' or '.join(names)}, which a new MariaDB server needs")
        parts.append(path.read_bytes() + b"\n")
    return b"".join([*parts, END_MARIADB])


def _raise_for(said: str, folder: Path, what: str) -> None:
    """Raise the error that a server's or tool's output indicates."""
    lines = error_lines(said)
    if is_full_disk(said):
        raise space.no_space(folder.parent, "", f"{space.SERVERS_REMEDY}: {lines}")
    raise LocalServerError(f"{what} failed: {lines}")


def is_full_disk(said: str) -> bool:
    """True if the output of a server reports a full disk."""
    return re.search(r"No space left|\b(errno:?|error( number)?) 28\b", said, re.IGNORECASE) is not None


def error_lines(said: str) -> str:
    """Return the last error lines of a server's output or, if there are none, its last lines."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if "[ERROR]" in line or line.startswith("ERROR")]
    return "\n  ".join(["", *(errors or lines)[-6:]]) if lines else "it printed nothing"
