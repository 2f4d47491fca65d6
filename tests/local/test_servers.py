"""Private servers on real MySQL and MariaDB: they last, they are found again, they come back after a crash."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from schemaless.errors import LocalServerError
from schemaless.local import binaries, processes, servers, starting
from schemaless.local import free_space as space
from schemaless.local.folder import MARKER, require_ours
from schemaless.local.options import RELAXED
from schemaless.testing.servers import private_servers
from tests.foreign import FLAVOURS

pytestmark = [pytest.mark.mysql]

EACH_FLAVOUR = pytest.mark.parametrize("flavour", FLAVOURS)

TIED_PARENT = """
import os, sys, time
from pathlib import Path
from schemaless.local import processes, servers
from schemaless.local.options import RELAXED
if sys.argv[4] == "macos":
    del os.pidfd_open
    processes.PROC = Path("no proc").absolute()
started = servers.up(Path(sys.argv[1]), 1, "mariadb", tied=True, remove=sys.argv[2] == "remove", options=RELAXED)
if sys.argv[3] == "fork" and os.fork() == 0:
    os.close(1)
    time.sleep(30)
    os._exit(0)
print(started[0].pid, os.getpid(), flush=True)
time.sleep(60)
"""


@pytest.mark.long
@EACH_FLAVOUR
def test_up_servers_outlive_the_command_and_are_found_again(flavour, folder, command_json, query):
    """Servers survive the command that started them, and the next one finds the same processes."""
    printed = command_json("up", "--servers", 1, "--flavour", flavour, "--folder", folder)["servers"]
    found = servers.up(folder, 1, flavour)

    assert [(server["pid"], server["url"]) for server in printed] == [(server.pid, server.url) for server in found]
    assert [state.state for state in servers.status(folder)] == ["running"]
    assert os.getsid(found[0].pid) == found[0].pid
    assert query(found[0].socket, "SELECT @@server_id, @@performance_schema, @@log_bin, @@character_set_server") == (
        (1, 1, 1, "utf8mb4"),
    )
    assert query(found[0].socket, "SELECT user FROM mysql.user WHERE user = ''") == ()
    rows = query(found[0].socket, "SELECT COUNT(*) FROM performance_schema.metadata_locks WHERE object_type = 'TABLE'")
    assert rows[0][0] >= 1


@EACH_FLAVOUR
@pytest.mark.long
def test_up_after_crash_restarts_on_its_own_data(flavour, folder, query):
    """What was committed before kill -9 of a server is there after the next up, with the relaxed options too."""
    first = servers.up(folder, 1, flavour, options=RELAXED)[0]
    query(first.socket, "CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)", "INSERT INTO d.t VALUES (1), (2)")
    servers.kill(first)
    crashed = servers.status(folder)
    again = servers.up(folder, 1, flavour)[0]

    assert [(state.state, state.pid) for state in crashed] == [("crashed", None)]
    assert again.pid != first.pid
    assert query(again.socket, "SELECT id FROM d.t ORDER BY id") == ((1,), (2,))
    assert query(again.socket, "SELECT @@innodb_flush_log_at_trx_commit") == ((2,),)


def test_down_keeps_data_and_delete_removes_it(folder, query, command):
    """After down, up serves the same data; after down --delete there is no folder and no socket."""
    first = servers.up(folder, 2, "mariadb", options=RELAXED)
    query(first[1].socket, "CREATE DATABASE kept")
    assert command("down", "--folder", folder).returncode == 0
    stopped = [state.state for state in servers.status(folder)]
    again = servers.up(folder, 1, "mariadb")

    assert stopped == ["stopped", "stopped"]
    assert len(again) == 2
    assert query(again[1].socket, "SHOW DATABASES LIKE 'kept'") == (("kept",),)

    servers.down(folder, delete=True)

    assert not folder.exists()
    assert not any(server.socket.exists() for server in again)
    assert all(processes.is_gone(server.pid, server.data) for server in again)


@pytest.mark.usefixtures("like_macos")
def test_servers_need_nothing_that_macos_lacks(folder, query):
    """Without /proc and pidfd, servers are found, killed, started on their data and removed; a lock has no owner."""
    (first,) = servers.up(folder, 1, "mariadb", options=RELAXED)
    query(first.socket, "CREATE DATABASE kept")
    found = servers.up(folder, 1, "mariadb")
    holder = processes.lock_holder(first.data / "ibdata1")
    servers.kill(first)
    crashed = servers.status(folder)
    again = servers.up(folder, 1, "mariadb")[0]

    assert ([server.pid for server in found], holder) == ([first.pid], 0)
    assert [(state.state, state.pid) for state in crashed] == [("crashed", None)]
    assert query(again.socket, "SHOW DATABASES LIKE 'kept'") == (("kept",),)

    servers.down(folder, delete=True)

    assert processes.processes_on(again.data) == []
    assert processes.lock_holder(again.data / "ibdata1") is None
    assert not folder.exists()


@pytest.mark.long
def test_start_after_kill_of_one_leaves_the_other_alone(folder, query):
    """Killing and starting act on one server; the other keeps its process, and UUIDs differ."""
    first, second = servers.up(folder, 2, "mysql", options=RELAXED)
    servers.kill(first)
    again = servers.start(first)

    assert again.pid != first.pid
    assert servers.up(folder, 2, "mysql")[1].pid == second.pid
    uuids = [query(server.socket, "SELECT @@server_uuid, @@gtid_mode") for server in (again, second)]
    assert uuids[0] != uuids[1]
    assert uuids[0][0][1] == "ON"


@pytest.mark.long
def test_up_twice_at_once_starts_one_server_per_folder(folder):
    """Two commands at once on one folder end with the same servers."""
    line = [sys.executable, "-m", "schemaless.cli.entry", "local", "up", "--flavour", "mariadb", "--servers", "2"]
    runs = [
        subprocess.Popen([*line, "--folder", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    outputs = [run.communicate(timeout=120) for run in runs]
    states = servers.status(folder)

    assert [run.returncode for run in runs] == [0, 0, 0], outputs
    assert len({out for out, _ in outputs}) == 1
    assert [state.state for state in states] == ["running", "running"]
    assert all(len(processes.processes_on(state.folder / "data")) == 1 for state in states)


def test_a_folder_that_another_command_just_marked_is_ours(folder, monkeypatch):
    """A folder that has no marker yet may get it, and a server, while its contents are listed."""
    folder.mkdir()
    listed = Path.iterdir

    def marked_first(path):
        (path / MARKER).write_text("{}")
        (path / "server-1").mkdir()
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", marked_first)

    require_ours(folder)


def test_stale_pid_file_of_another_process_is_seen_through(folder):
    """A pid file that names some other process neither counts as the server nor gets that process killed."""
    servers.up(folder, 1, "mariadb", options=RELAXED)
    servers.down(folder)
    with subprocess.Popen(["sleep", "600"]) as bystander:
        try:
            (folder / "server-1/mysqld.pid").write_text(f"{bystander.pid}\n")
            state = servers.status(folder)[0]
            started = servers.up(folder, 1, "mariadb")[0]
            (folder / "server-1/mysqld.pid").write_text(f"{bystander.pid}\n")
            found = servers.up(folder, 1, "mariadb")[0]
            servers.down(folder)

            assert (state.state, state.pid) == ("crashed", None)
            assert started.pid == found.pid
            assert bystander.poll() is None
        finally:
            bystander.kill()


def test_a_half_created_server_is_created_again(folder):
    """A data folder that an interrupted up left is not used."""
    folder.mkdir()
    (folder / MARKER).write_text("{}")
    (folder / "server-1/data/mysql").mkdir(parents=True)
    (folder / "server-1/data/ibdata1").write_bytes(b"half")

    assert servers.status(folder) == []
    assert [server.number for server in servers.up(folder, 1, "mariadb", options=RELAXED)] == [1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("remove", "fork", "system"), [("remove", "alone", "linux"), ("keep", "fork", "linux"), ("keep", "fork", "macos")]
)
def test_tied_servers_end_with_kill_of_the_parent(remove, fork, system, folder, eventually):
    """Tied servers end when their starter is killed, a forked child of it or not; asked to, the folder goes too."""
    with subprocess.Popen(
        [sys.executable, "-c", TIED_PARENT, str(folder), remove, fork, system], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        server_pid, parent_pid = map(int, parent.stdout.readline().split())
        data = folder / "server-1/data"
        assert processes.processes_on(data) == [server_pid]
        os.kill(parent_pid, signal.SIGKILL)
        parent.wait()

        eventually(lambda: processes.is_gone(server_pid, data), "the server's end")
        eventually(lambda: folder.exists() == (remove == "keep"), "the folder's end")


def test_private_servers_end_with_the_block():
    """What tests get leaves no process and no folder, also when the block raises."""
    block = contextlib.ExitStack()
    started = block.enter_context(private_servers("mariadb", 1))
    running = servers.status(started[0].folder.parent)
    assert not block.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)

    assert [state.state for state in running] == ["running"]
    assert processes.is_gone(started[0].pid, started[0].data)
    assert not started[0].folder.parent.exists()


@pytest.mark.long
def test_an_unusable_system_server_is_replaced_by_an_unpacked_one(folder, tmp_path, monkeypatch):
    """A system mysqld that is confined to its own paths is left aside for an unpacked one, and it is said."""
    confined = tmp_path / "bin/mysqld"
    confined.parent.mkdir()
    confined.write_text(
        '#!/bin/sh\ncase "$*" in *--version*) echo "mysqld  Ver 8.0.44 for Linux on x86_64 (MySQL)";; '
        "*) echo '[ERROR] mysqld: Can'\\''t create directory (OS errno 13 - Permission denied)' >&2; exit 1;; esac\n"
    )
    confined.chmod(0o755)
    monkeypatch.setenv("PATH", f"{confined.parent}:{os.environ['PATH']}")
    lines: list[str] = []
    server = servers.up(folder, 1, "mysql", options=RELAXED, report=lines.append)[0]

    assert server.version != "8.0.44"
    assert any("errno 13" in line for line in lines)
    assert any(str(confined) in line for line in lines)
    assert not any("\n" in line for line in lines)


def test_a_page_size_is_given_when_the_data_folder_is_created(folder, query):
    """The template in the cache has pages of the default size, so it is not used for a server with another one."""
    (server,) = servers.up(folder, 1, "mariadb", options={**RELAXED, "innodb_page_size": "4k"})

    assert query(server.socket, "SELECT @@innodb_page_size") == ((4096,),)


def test_server_that_ends_at_start_shows_its_log(folder):
    """An option that the server rejects gives an error with the log's last lines; the next up runs without it."""
    with pytest.raises(LocalServerError, match=r"(?s)server 1 \(mariadb .*no-such-option"):
        servers.up(folder, 1, "mariadb", options=["--no-such-option=1"])

    assert servers.status(folder)[0].state == "stopped"
    assert servers.up(folder, 1, "mariadb", options=RELAXED)[0].number == 1


def test_data_folder_in_use_is_refused(folder, monkeypatch):
    """A data folder that another process has locked is not served a second time; the error names the process."""
    servers.up(folder, 1, "mariadb", options=RELAXED)
    servers.down(folder)
    monkeypatch.setattr(starting, "RELEASE_TIMEOUT_S", 0.1)
    code = (
        "import fcntl, sys, time; f = open(sys.argv[1], 'rb+'); fcntl.lockf(f, fcntl.LOCK_EX); print(1, flush=True)\n"
    )
    command = [sys.executable, "-c", code + "time.sleep(60)", str(folder / "server-1/data/ibdata1")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"1\n"
            with pytest.raises(LocalServerError, match=f"in use by process {holder.pid} "):
                servers.up(folder, 1, "mariadb")
        finally:
            holder.kill()


def test_room_does_not_help_on_a_read_only_file_system(tmp_path):
    """The remedy is that of a full disk, without the advice to make room."""
    with (
        pytest.raises(LocalServerError, match=r"Read-only file system\); choose a folder on another disk"),
        space.full_disk_is_an_error(tmp_path, "creating the servers' folder", space.SERVERS_REMEDY),
    ):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_disk_that_fills_up_is_a_clear_error(tmp_path, monkeypatch):
    """A disk without room is found before anything is written, and so is one that fills up during the work."""
    small = tmp_path / "small disk"
    small.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a small disk is mounted, which takes root (id -u is not 0) and the program mount")
    mount = ["mount", "-t", "tmpfs", "-o", "size=30m", "none", small]
    if (done := subprocess.run(mount, stderr=subprocess.PIPE, text=True)).returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    try:
        with pytest.raises(space.NoSpace, match=r"a new server needs .* MB in .*small disk.* are free; .*another disk"):
            servers.up(small / "servers", 1, "mariadb")
        monkeypatch.setattr(space, "require", lambda *_: None)
        with pytest.raises(space.NoSpace, match=r"no space left .*small disk"):
            servers.up(small / "servers", 1, "mariadb")
        servers.down(small / "servers", delete=True)
    finally:
        # A process that has just ended may still be in it for a moment.
        subprocess.run(["umount", "--lazy", small], check=True)


@EACH_FLAVOUR
@pytest.mark.long
def test_up_as_unprivileged_user_in_an_empty_home(flavour, tmp_path, command_json):
    """A user without any rights, with an empty home and a cache that cannot be written, gets servers as well."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("setpriv becomes another user, which takes root (id -u is not 0) and that program")
    base = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip())
    try:
        base.chmod(0o755)
        user = ["setpriv", "--reuid=4321", "--regid=4321", "--clear-groups"]
        home = base / "an empty home"
        home.mkdir()
        temporary = base / "tmp"
        temporary.mkdir()
        for folder in (home, temporary):
            os.chown(folder, 4321, 4321)
        found = binaries.Wanted(flavour).unpacked()
        assert found.root is not None
        cache = base / "cache/servers"
        cache.mkdir(parents=True)
        subprocess.run(["cp", "-a", "--reflink=auto", found.root, cache / found.root.name], check=True)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "TMPDIR": str(temporary),
            "SCHEMALESS_CACHE": str(base / "cache"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        reads = subprocess.run(
            [*user, sys.executable, "-c", "import schemaless"], env=environment, stderr=subprocess.PIPE
        )
        if reads.returncode != 0:
            pytest.skip(f"user 4321 cannot import schemaless: {reads.stderr.decode().strip().splitlines()[-1]}")
        line = [*user, sys.executable, "-m", "schemaless.cli.entry", "local"]
        outcomes = [
            subprocess.run(
                [*line, *arguments.split()], cwd=home, env=environment, capture_output=True, text=True, timeout=120
            )
            for arguments in (f"up --servers 1 --flavour {flavour}", "status", "down --delete")
        ]

        assert [each.returncode for each in outcomes] == [0, 0, 0], [each.stderr for each in outcomes]
        assert list(home.iterdir()) == [home / ".schemaless"]
    finally:
        shutil.rmtree(base, ignore_errors=True)


@pytest.mark.long
def test_up_with_myrocks_keeps_it_for_later_starts(folder, command_json, query):
    """The flavour follows from the engine; later commands need neither, and add options to those of the engine."""
    (first,) = command_json("up", "--servers", 1, "--engine", "rocksdb", "--folder", folder)["servers"]
    command_json("down", "--folder", folder)
    (again,) = servers.up(folder, 1, "mariadb", options={"max-connections": 150})

    assert first["flavour"] == "mariadb"
    assert query(again.socket, "SELECT @@rocksdb_lock_wait_timeout, @@max_connections") == ((50, 150),)
    with pytest.raises(LocalServerError, match="mysql has no MyRocks; it needs MariaDB"):
        servers.up(folder.parent / "other", 1, "mysql", engine="rocksdb")
    with pytest.raises(LocalServerError, match="engine must be one of innodb, rocksdb"):
        servers.up(folder.parent / "other", 1, engine="tokudb")


def test_up_with_myrocks_where_servers_are_without_it_is_refused(folder):
    """Their data would stay where it is."""
    servers.up(folder, 1, "mariadb", options=RELAXED)
    with pytest.raises(LocalServerError, match="have no MyRocks; choose another"):
        servers.up(folder, 1, "mariadb", engine="rocksdb")
