"""Which server program is taken, and how the cache is filled: with an archive that is made up here."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from schemaless.base.home import cache_folder
from schemaless.errors import LocalServerError
from schemaless.local import apt, binaries, processes, servers
from schemaless.local import free_space as space
from schemaless.local.apt import Source
from schemaless.local.folder import MARKER

pytestmark = pytest.mark.once

# A server program, and a dynamic loader that runs it, as dpkg-deb would unpack them.
PROGRAM = '#!/bin/sh\necho "mysqld  Ver {version} for Linux on x86_64 ({maker})"\n'
LOADER = '#!/bin/sh\nshift 2\nexec sh "$@"\n'
OFFLINE = "E: Failed to fetch http://archive.test/InRelease  Could not resolve host: archive.test"


class Archive:
    """A machine with an empty cache, and what apt and dpkg-deb say there.

    Attributes:
        offered: the server's package by the first suite of the sources.
        failing: output of a step that fails, by the step and the first suite.
        broken: server programs that do not run here.
        commands: the commands so far.
    """

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.cache, self.monkeypatch = path, path / "a cache", monkeypatch
        mariadb = {"bookworm": "mariadb-server-core_1%3a10.11.9-1", "testing": "mariadb-server-core_1%3a11.8.6-1"}
        self.offered = {**mariadb, "sid": "mysql-server-core_1%3a9.7.4-1"}
        self.failing: dict[tuple[str, str], str] = {}
        self.broken: set[str] = set()
        self.commands: list[str] = []
        (path / "bin").mkdir()
        for name in ("apt-get", "apt-cache", "dpkg-deb"):
            self.program(name, "")
        monkeypatch.setenv("PATH", f"{path / 'bin'}:/usr/bin:/bin")
        monkeypatch.setenv("SCHEMALESS_CACHE", str(self.cache))
        monkeypatch.delenv("SCHEMALESS_MYSQLD", raising=False)
        monkeypatch.setattr(binaries, "SYSTEM_FOLDERS", ())
        source = Source("http://archive.test/os", ("bookworm", "bookworm-updates"), ("main",), "/k.gpg")
        monkeypatch.setattr(binaries, "distribution_sources", lambda: [source])
        monkeypatch.setattr(apt.Apt, "run", lambda tool, *words, **options: self.run(tool, *words, **options))

    def run(
        self, tool: apt.Apt, command: Sequence[str], what: str, cwd: Path | None = None, poll: object = None
    ) -> str:
        """Return what a command prints."""
        self.commands.append(" ".join(command))
        suite = tool.sources[0].suites[0]
        package = self.offered.get(suite, "")
        for step in {"update", "download"} & {*command}:
            if (said := self.failing.get((step, suite))) is not None:
                tool._fail(what, said, 100)
        files = [f"{each}_all.deb" for each in ("libfake_1-1", package, "perl-base_1-1")]
        if command[0] == "dpkg-deb":
            self.unpack(Path(command[2]).name, Path(command[3]))
        if "download" in command and cwd is not None:
            for file in files[:2]:
                (cwd / file).write_text("deb\n")
        if "search" in command:
            name = package.partition("_")[0]
            return f"{name} - a server\n" if name and re.search(command[-1], name) else ""
        if "--print-uris" in command:
            return "".join(f"'http://archive.test/pool/{file}' {file} 4 SHA256:00\n" for file in files)
        return "Installed-Size: 10\n" if "show" in command else ""

    def unpack(self, file: str, into: Path) -> None:
        """Write the files of a package."""
        name = {"mysql": "mysqld", "mariadb": "mariadbd"}.get(file.partition("-server")[0])
        written = into / ("usr/sbin" if name else "usr/lib/x86_64-linux-gnu") / (name or "ld-linux-x86-64.so.2")
        written.parent.mkdir(parents=True, exist_ok=True)
        version = "broken" if name in self.broken else apt.Package("", file, 0, "").version
        suffix, maker = ("-MariaDB", "Debian") if name == "mariadbd" else ("", "MySQL")
        written.write_text(PROGRAM.format(version=version + suffix, maker=maker) if name else LOADER)
        written.chmod(0o755)
        if name is None:
            (written.parent / "libc.so.6").touch()

    def program(self, name: str, text: str) -> Path:
        """Write an executable into PATH."""
        path = self.path / "bin" / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def left(self) -> list[str]:
        """Return what the cache holds of unpacked servers."""
        folder = self.cache / "servers"
        return sorted(path.name for path in folder.iterdir() if path.name != ".lock") if folder.exists() else []


@pytest.fixture
def archive(tmp_path, monkeypatch):
    return Archive(tmp_path, monkeypatch)


def test_configured_suite_without_mysql_leads_to_sid(archive):
    """Where the configured suites have no MySQL, it comes from sid of the same archive, and runs by its own loader."""
    lines: list[str] = []
    binary = binaries.Wanted("mysql", say=lines.append).unpacked()

    assert (binary.flavour, binary.version) == ("mysql", "9.7.4")
    assert binary.command[0].endswith("ld-linux-x86-64.so.2")
    assert binary.command[1] == "--library-path"
    assert json.loads((archive.cache / "servers/mysql-9.7.4/manifest.json").read_text())["suites"] == ["sid"]
    assert archive.left() == ["mysql-9.7.4"]
    downloads = [line for line in archive.commands if " download " in line]
    assert len(downloads) == 1
    assert "perl" not in downloads[0].split(" download ")[1]


def test_configured_suite_with_mysql_is_taken(archive):
    """Where a configured suite has MySQL, sid is not asked."""
    archive.offered = {"bookworm": "mysql-server-core-8.4_9.7.4-1"}
    binary = binaries.Wanted("mysql").unpacked()

    assert binary.flavour == "mysql"
    manifest = json.loads((archive.cache / "servers/mysql-9.7.4/manifest.json").read_text())
    assert manifest["suites"] == ["bookworm", "bookworm-updates"]


def test_mysql_that_does_not_run_here_leads_to_mariadb(archive):
    """A MySQL that this machine cannot run is left aside for MariaDB; nothing of it stays in the cache."""
    archive.broken = {"mysqld"}
    lines: list[str] = []
    binary = binaries.Wanted("mysql", say=lines.append).unpacked()

    assert binary.flavour == "mariadb"
    assert any("skipping mysql-server-core: " in line for line in lines)
    assert archive.left() == ["mariadb-10.11.9"]
    assert not (archive.cache / "servers/mariadb-10.11.9/usr/sbin/mysqld").exists()


def test_sid_out_of_reach_does_not_lead_to_mariadb(archive):
    """A broken line in the middle is an error: who asked for MySQL does not get MariaDB for it."""
    archive.failing["update", "sid"] = OFFLINE

    with pytest.raises(LocalServerError, match=r"cannot reach .* while reading the package index of sid"):
        binaries.Wanted("mysql").unpacked()
    assert archive.left() == []


def test_archive_without_sid_leads_to_mariadb(archive):
    """An archive that has no sid, as Ubuntu's, has MariaDB at least."""
    archive.failing["update", "sid"] = "E: The repository x sid Release does not have a Release file. 404"

    assert binaries.Wanted("mysql").unpacked().flavour == "mariadb"


def test_no_mysql_anywhere_leads_to_mariadb(archive):
    """Where neither the configured suites nor sid have MySQL, MariaDB comes instead, and it is said."""
    del archive.offered["sid"]
    lines: list[str] = []
    binary = binaries.Wanted("mysql", say=lines.append).unpacked()

    assert binary.flavour == "mariadb"
    assert any("using MariaDB" in line for line in lines)


def test_version_is_looked_for_in_later_suites(archive):
    """A named series comes from the first suite that has it, without fetching others, and is cached beside them."""
    lines: list[str] = []
    binary = binaries.Wanted("mariadb", version="11.8", say=lines.append).unpacked()

    assert binary.version == "11.8.6"
    assert json.loads((archive.cache / "servers/mariadb-11.8.6/manifest.json").read_text())["suites"] == ["testing"]
    assert len([line for line in archive.commands if " download " in line]) == 1
    assert "skipping mariadb-server-core: mariadb-server-core is 10.11.9" in lines
    with_myrocks = shutil.copytree(binary.root, binary.root.with_name("mariadb-10.11.9-rocksdb"), symlinks=True)
    os.utime(with_myrocks)
    assert binaries.Wanted("mariadb").cached() == binary
    shutil.rmtree(with_myrocks)
    assert binaries.Wanted("mariadb", version="10.11").unpacked().version == "10.11.9"
    assert binaries.Wanted("mariadb", version="11.8").unpacked() == binary
    with pytest.raises(LocalServerError, match=r"cannot unpack mariadb 11\.4: mariadb-server-core is 10\.11\.9; "):
        binaries.Wanted("mariadb", version="11.4").unpacked()


def test_unreachable_archive_is_a_clear_error(archive):
    """An archive that cannot be reached is named, with what apt said and what to do."""
    archive.failing = {("update", suite): OFFLINE for suite in archive.offered}

    with pytest.raises(
        LocalServerError, match=r"cannot reach the package archive http://archive.test/os .*SCHEMALESS_MYSQLD"
    ):
        binaries.Wanted("mysql").unpacked()
    assert archive.left() == []


def test_disk_that_fills_up_while_fetching_is_a_clear_error(archive):
    """A disk that fills up is distinguished from an archive that cannot be reached."""
    archive.failing["download", "sid"] = "E: Failed to fetch x  write: No space left on device"

    with pytest.raises(space.NoSpace, match=r"no space left while fetching packages .*SCHEMALESS_CACHE"):
        binaries.Wanted("mysql").unpacked()


def test_an_archive_whose_signature_cannot_be_checked_says_why(archive):
    """Apt's error says only that it is not signed."""
    archive.failing = {
        ("update", suite): "W: GPG error: http://archive.test/os x InRelease: Splitting up x into data and signature "
        "failed\nE: The repository 'http://archive.test/os x InRelease' is not signed."
        for suite in ("bookworm", "sid")
    }
    with pytest.raises(LocalServerError, match=r"signature failed; E: The repository .* is not signed"):
        binaries.Wanted("mysql").unpacked()


def test_apt_needs_no_temporary_folder_of_the_machine(tmp_path, monkeypatch):
    """With an unwritable or full one, it takes every archive for unsigned."""
    monkeypatch.setenv("TMPDIR", "/nowhere")
    tool = apt.Apt(tmp_path, [])
    (written,) = tool.run(["mktemp"], "making a file").split()

    assert Path(written).is_relative_to(tmp_path)


def test_neither_apt_nor_mysqld_says_what_to_install(archive):
    """Without a server and without apt, the error says where was looked, what to install and what to set."""
    for name in ("apt-get", "apt-cache", "dpkg-deb"):
        (archive.path / "bin" / name).unlink()
    archive.monkeypatch.setenv("PATH", str(archive.path / "bin"))

    with pytest.raises(
        LocalServerError, match=r"no mysql server found .*apt-get or dpkg-deb is missing.*install a server .*MYSQLD"
    ):
        next(binaries.Wanted("mysql").candidates())


def test_only_mariadb_and_no_apt_lead_to_the_installed_mariadb(archive):
    """Without apt, an installed MariaDB is used for MySQL, with a notice; a broken line to the archive is an error."""
    path = archive.program("mariadbd", PROGRAM.format(version="11.4.2-MariaDB", maker="mariadb.org"))
    archive.failing = {("update", suite): OFFLINE for suite in archive.offered}
    with pytest.raises(LocalServerError, match="cannot reach"):
        next(binaries.Wanted("mysql").candidates())

    for name in ("apt-get", "apt-cache", "dpkg-deb"):
        (archive.path / "bin" / name).unlink()
    archive.monkeypatch.setenv("PATH", str(archive.path / "bin"))
    for name in ("sh", "true"):
        (archive.path / "bin" / name).symlink_to(f"/bin/{name}")
    lines: list[str] = []

    assert [binary.program for binary in binaries.Wanted("mysql", say=lines.append).candidates()] == [path]
    assert any("using the installed MariaDB" in line for line in lines)


def test_files_of_a_linked_program_are_beside_the_program_itself(tmp_path):
    """A link on PATH to a server in a folder of its own, such as /opt, says nothing about where its files are."""
    (tmp_path / "opt/bin").mkdir(parents=True)
    (tmp_path / "opt/share/charsets").mkdir(parents=True)
    program = tmp_path / "opt/bin/mariadbd"
    program.write_text(PROGRAM.format(version="11.4.2-MariaDB", maker="mariadb.org"))
    program.chmod(0o755)
    (tmp_path / "mariadbd").symlink_to(program)

    binary = binaries.inspect((str(tmp_path / "mariadbd"),))

    assert binary.share == tmp_path / "opt/share"
    assert f"--basedir={tmp_path / 'opt'}" in binary.path_arguments()


def test_sources_of_third_parties_only_say_so(archive, monkeypatch):
    """If apt's sources name no archive of the distribution, there is an error, and no packages of others."""
    monkeypatch.setattr(binaries, "distribution_sources", list)

    with pytest.raises(LocalServerError, match="have no archive of its distribution"):
        binaries.Wanted("mysql").unpacked()


def test_candidates_system_program_comes_first(archive):
    """A recent server on PATH is tried before the archive is asked; an old one and the other flavour are left aside."""
    path = archive.program("mysqld", PROGRAM.format(version="8.4.3", maker="MySQL Community Server - GPL"))

    assert next(binaries.Wanted("mysql").candidates()).program == path
    assert next(binaries.Wanted("mariadb").candidates()).root is not None

    archive.program("mysqld", PROGRAM.format(version="5.7.44", maker="MySQL"))

    assert next(binaries.Wanted("mysql").candidates()).root is not None


def test_explicit_program_is_the_only_candidate(archive):
    """SCHEMALESS_MYSQLD is taken or refused, never passed over in silence."""
    path = archive.program("my own mysqld", PROGRAM.format(version="8.4.3", maker="MySQL"))
    archive.monkeypatch.setenv("SCHEMALESS_MYSQLD", str(path))

    assert [binary.program for binary in binaries.Wanted("mysql").candidates()] == [path]
    with pytest.raises(LocalServerError, match=r"mysql 8.4.3, not mariadb"):
        next(binaries.Wanted("mariadb").candidates())

    archive.monkeypatch.setenv("SCHEMALESS_MYSQLD", str(path) + "x")

    with pytest.raises(LocalServerError, match="which is not a program"):
        next(binaries.Wanted("mysql").candidates())


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    """SCHEMALESS_CACHE, else XDG_CACHE_HOME, else ~/.cache."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SCHEMALESS_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache/schemaless"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/schemaless")
    monkeypatch.setenv("SCHEMALESS_CACHE", "/y")
    assert cache_folder() == Path("/y")


def test_cache_with_a_colon_in_its_path_is_refused(archive):
    """A library path cannot hold a colon, so such a cache is refused before anything is fetched."""
    archive.monkeypatch.setenv("SCHEMALESS_CACHE", str(archive.path / "a:b"))

    with pytest.raises(LocalServerError, match="colon"):
        binaries.Wanted("mysql").unpacked()


def write_sources(etc: Path, **files: str) -> Path:
    (etc / "sources.list.d").mkdir(parents=True)
    for name, text in files.items():
        target = etc / "sources.list" if name == "main" else etc / "sources.list.d" / name.replace("_", ".")
        target.write_text(text)
    return etc


def test_configured_sources_reads_both_formats(tmp_path):
    """One-line and deb822 sources are read; sources of source code, discs, flat and disabled ones are not."""
    etc = write_sources(
        tmp_path,
        main="deb [arch=amd64 signed-by=/k/debian-archive-keyring.gpg] http://a.test/os bookworm main contrib # x\n"
        "deb-src http://a.test/os bookworm main\n#deb http://b.test x main\ndeb cdrom:[x]/ bookworm main\n"
        "deb http://flat.test/ ./\n",
        a_sources="Types: deb deb-src\nURIs: http://c.test/os http://d.test/os\nSuites: bookworm\n bookworm-x\n"
        "Components: main\nSigned-By:\n -----BEGIN PGP\n .\n abc\n\nTypes: deb\nEnabled: no\nURIs: http://e.test\n"
        "Suites: x\nComponents: main\n",
        b_ignored="deb http://f.test x main\n",
    )
    found = apt.configured_sources(etc)

    assert [source.uri for source in found] == ["http://a.test/os", "http://c.test/os", "http://d.test/os"]
    assert found[0].signed_by == "/k/debian-archive-keyring.gpg"
    assert found[1].suites == ("bookworm", "bookworm-x")
    assert "Signed-By:\n -----BEGIN PGP\n .\n abc\n" in found[1].deb822()


def test_distribution_sources_ignores_third_parties(tmp_path, monkeypatch):
    """Only the distribution's suites, with a key of an archive, count; its keyring is named where no key is."""
    release = {"ID": "debian", "VERSION_CODENAME": "bookworm"}
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: release)
    (tmp_path / "debian-archive-keyring.gpg").touch()
    etc = write_sources(
        tmp_path / "etc",
        main="deb http://a.test/os bookworm main\ndeb http://a.test/security bookworm-security main\n"
        "deb https://docker.test/linux/os bookworm stable\ndeb https://cloud.test/apt cloud-sdk-bookworm main\n"
        "deb [signed-by=/usr/share/keyrings/hashi.gpg] https://hashi.test bookworm main\n"
        "deb http://old.test/os bullseye main\n",
    )
    found = apt.distribution_sources(etc, tmp_path)

    assert [source.uri for source in found] == ["http://a.test/os", "http://a.test/security"]
    assert {source.signed_by for source in found} == {str(tmp_path / "debian-archive-keyring.gpg")}


def test_apt_keeps_what_was_fetched_only_when_it_is_what_the_index_names(tmp_path):
    """A package of an interrupted run is used again by its digest, never by its name alone."""
    path = tmp_path / "x_1_all.deb"
    path.write_bytes(b"deb\n")
    digest = "SHA256:" + subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True).stdout[:64]

    assert apt._is_package(path, apt.Package("x", path.name, 4, digest))
    assert not apt._is_package(path, apt.Package("x", path.name, 4, "SHA256:" + "0" * 64))
    assert not apt._is_package(path, apt.Package("x", path.name, 4, "MD5Sum:" + "0" * 32))


def test_up_refuses_a_folder_with_other_content(tmp_path):
    """A folder with something else in it is left exactly as it is."""
    (tmp_path / "thesis.txt").write_text("x")

    for call in (servers.up, servers.status, servers.down):
        with pytest.raises(LocalServerError, match=r"contains other files \(thesis.txt\); choose a --folder"):
            call(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(LocalServerError, match="is a file"):
        servers.up(tmp_path / "thesis.txt")


def test_up_refuses_the_other_flavour(tmp_path):
    """A folder of MySQL servers never gets a MariaDB one, which could not read their data."""
    (tmp_path / "server-1").mkdir()
    (tmp_path / MARKER).write_text("{}")
    binary = {"flavour": "mysql", "version": "9.7.4", "command": ["x"], "root": None, "name": "x"}
    state = {
        "number": 1,
        "binary": binary,
        "asked": "mysql",
        "socket": "/s",
        "port": None,
        "options": [],
        "features": [],
    }
    (tmp_path / "server-1/server.json").write_text(json.dumps(state))

    with pytest.raises(LocalServerError, match=r"contains mysql servers, not mariadb"):
        servers.up(tmp_path, 1, "mariadb")

    for damaged in ("{", '{"number": 1, "flavour": "mysql"}'):
        (tmp_path / "server-1/server.json").write_text(damaged)

        with pytest.raises(LocalServerError, match=r"damaged, or of another version .*down --delete"):
            servers.up(tmp_path, 1, "mysql")
    servers.down(tmp_path, delete=True)
    assert not tmp_path.exists()


def test_up_refuses_a_socket_path_that_is_too_long(tmp_path, monkeypatch):
    """A socket path over 107 characters is refused with its length, before anything is started."""
    runtime = tmp_path / ("r" * 100)
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    program = binaries.Binary("mysql", "9", ("x",), None, "x")
    monkeypatch.setattr(binaries.Wanted, "candidates", lambda _: iter([program]))

    with pytest.raises(LocalServerError, match=r"bytes, but the limit is 107; set XDG_RUNTIME_DIR"):
        servers.up(tmp_path / "f", 1, tied=True)


def test_runtime_folder_of_others_is_refused(tmp_path, monkeypatch):
    """A folder for sockets that others may enter is not used."""
    (tmp_path / "schemaless").mkdir(mode=0o755)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    with pytest.raises(LocalServerError, match="is accessible to others"):
        processes.socket_path(tmp_path)


def test_up_refuses_other_systems_and_senseless_arguments(tmp_path, monkeypatch):
    """Arguments and the system are checked before anything is created."""
    with pytest.raises(LocalServerError, match="flavour must be one of mysql, mariadb, got 'oracle'"):
        servers.up(tmp_path / "f", 1, "oracle")
    with pytest.raises(LocalServerError, match="servers must be 1 to 100, got 0"):
        servers.up(tmp_path / "f", 0)
    monkeypatch.setattr(sys, "platform", "freebsd14")
    with pytest.raises(LocalServerError, match="need Linux or macOS, not freebsd14"):
        servers.up(tmp_path / "f")
    assert not (tmp_path / "f").exists()


def test_commands_on_a_folder_without_servers(tmp_path, command, command_json):
    """Status of nothing exits 1 and prints an empty list; down of nothing is done; errors are one line."""
    nothing = tmp_path / "nothing"
    status = command("status", "--folder", nothing, "--json")
    (tmp_path / "x").touch()
    refused = command("up", SCHEMALESS_LOCAL=str(tmp_path))

    assert (status.returncode, json.loads(status.stdout)["servers"]) == (1, [])
    assert command_json("down", "--folder", nothing)["servers"] == []
    assert refused.returncode == 1
    assert refused.stdout == ""
    assert len(refused.stderr.splitlines()) == 1
    assert "contains other files" in refused.stderr
    assert not nothing.exists()
