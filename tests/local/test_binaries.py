"""Which server program is taken, and how the cache is filled: with an archive, apt and dpkg that are made up here."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
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

# apt as far as it is used: which package there is hangs on the suite in the sources that it is pointed to.
FAKE_APT = r"""#!/bin/sh
echo "$0 $*" >> "{log}"
for word; do
  case "$word" in Dir::Etc::sourceparts=*) parts="${{word#*=}}";; esac
done
suites=$(sed -n 's/^Suites: //p' "$parts"/*.sources)
package={stable_package}
case " $suites " in *" sid "*) package={sid_package};; esac
case "$package $suites " in mysql*) number=9.7.4;; *" testing "*) number=11.8.6;; *) number=10.11.9;; esac
case " $* " in
  *" update "*) {update};;
  *" search "*) [ -z "$package" ] || case "$*" in *"^${{package%%-*}}-server"*) echo "$package - a server";; esac;;
  *" --print-uris "*)
    for name in libfake $package perl-base; do echo "'pool/$name' ${{name}}_1%3a$number-1_all.deb 4 SHA256:00"; done;;
  *" show "*) echo "Installed-Size: {installed_kib}";;
  *" download "*) {download}
    for name; do case "$name" in *fake*|*server*) echo deb > "${{name}}_1%3a$number-1_all.deb";; esac; done;;
esac
"""
FAKE_DPKG = r"""#!/bin/sh
case "$2" in
  */mysql-server*) version=9.7.4; maker=MySQL; name=mysqld;;
  */mariadb-server*) version=${{2#*%3a}}; version=${{version%%-*}}-MariaDB; maker=Debian; name=mariadbd;;
  *) mkdir -p "$3/usr/lib/x86_64-linux-gnu"; cp "{here}/loader" "$3/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
     touch "$3/usr/lib/x86_64-linux-gnu/libc.so.6"; exit;;
esac
{unpack}
mkdir -p "$3/usr/sbin"
sed "s/VERSION/$version/; s/MAKER/$maker/" "{here}/program" > "$3/usr/sbin/$name"
chmod 755 "$3/usr/sbin/$name"
"""

OFFLINE = 'echo "E: Failed to fetch http://archive.test/InRelease  Could not resolve host: archive.test" >&2; exit 100'


class Archive:
    """A machine with made-up tools, sources and an empty cache."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.cache = path / "a cache"
        self.log = path / "apt.log"
        self.monkeypatch = monkeypatch
        (path / "bin").mkdir()
        (path / "loader").write_text(LOADER)
        (path / "loader").chmod(0o755)
        (path / "program").write_text(PROGRAM.format(version="VERSION", maker="MAKER"))
        monkeypatch.setenv("PATH", f"{path / 'bin'}:/usr/bin:/bin")
        monkeypatch.setenv("SCHEMALESS_CACHE", str(self.cache))
        monkeypatch.delenv("SCHEMALESS_MYSQLD", raising=False)
        monkeypatch.setattr(binaries, "SYSTEM_FOLDERS", ())
        monkeypatch.setattr(
            binaries,
            "distribution_sources",
            lambda: [Source("http://archive.test/os", ("bookworm", "bookworm-updates"), ("main",), "/k.gpg")],
        )
        self.tools()

    def tools(
        self,
        stable_package: str = "mariadb-server-core",
        sid_package: str = "mysql-server-core",
        update: str = ":",
        download: str = ":",
        unpack: str = ":",
        installed_kib: int = 10,
    ) -> None:
        """Write the tools anew."""
        text = FAKE_APT.format(
            log=self.log,
            stable_package=stable_package,
            sid_package=sid_package,
            update=update,
            download=download,
            installed_kib=installed_kib,
        )
        for name in ("apt-get", "apt-cache"):
            self.program(name, text)
        self.program("dpkg-deb", FAKE_DPKG.format(here=self.path, unpack=unpack))

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
    downloads = [line for line in archive.log.read_text().splitlines() if " download " in line]
    assert len(downloads) == 1
    assert "perl" not in downloads[0].split(" download ")[1]


def test_configured_suite_with_mysql_is_taken(archive):
    """Where a configured suite has MySQL, sid is not asked."""
    archive.tools(stable_package="mysql-server-core-8.4", sid_package="")
    binary = binaries.Wanted("mysql").unpacked()

    assert binary.flavour == "mysql"
    manifest = json.loads((archive.cache / "servers/mysql-9.7.4/manifest.json").read_text())
    assert manifest["suites"] == ["bookworm", "bookworm-updates"]


def test_mysql_that_does_not_run_here_leads_to_mariadb(archive):
    """A MySQL that this machine cannot run is left aside for MariaDB; nothing of it stays in the cache."""
    archive.tools(unpack='[ "$name" = mariadbd ] || version=broken')
    lines: list[str] = []
    binary = binaries.Wanted("mysql", say=lines.append).unpacked()

    assert binary.flavour == "mariadb"
    assert any("skipping mysql-server-core: " in line for line in lines)
    assert archive.left() == ["mariadb-10.11.9"]
    assert not (archive.cache / "servers/mariadb-10.11.9/usr/sbin/mysqld").exists()


def test_sid_out_of_reach_does_not_lead_to_mariadb(archive):
    """A broken line in the middle is an error: who asked for MySQL does not get MariaDB for it."""
    archive.tools(update=f"case $suites in sid) {OFFLINE};; esac")

    with pytest.raises(LocalServerError, match=r"cannot reach .* while reading the package index of sid"):
        binaries.Wanted("mysql").unpacked()
    assert archive.left() == []


def test_archive_without_sid_leads_to_mariadb(archive):
    """An archive that has no sid, as Ubuntu's, has MariaDB at least."""
    missing = "echo 'E: The repository x sid Release does not have a Release file. 404' >&2; exit 100"
    archive.tools(update=f"case $suites in sid) {missing};; esac")

    assert binaries.Wanted("mysql").unpacked().flavour == "mariadb"


def test_no_mysql_anywhere_leads_to_mariadb(archive):
    """Where neither the configured suites nor sid have MySQL, MariaDB comes instead, and it is said."""
    archive.tools(sid_package="")
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
    assert len([line for line in archive.log.read_text().splitlines() if " download " in line]) == 1
    assert "skipping mariadb-server-core: mariadb-server-core is 10.11.9" in lines
    with_myrocks = shutil.copytree(binary.root, binary.root.with_name("mariadb-10.11.9-rocksdb"), symlinks=True)
    os.utime(with_myrocks)
    assert binaries.Wanted("mariadb").cached() == binary
    shutil.rmtree(with_myrocks)
    assert binaries.Wanted("mariadb", version="10.11").unpacked().version == "10.11.9"
    assert binaries.Wanted("mariadb", version="11.8").unpacked() == binary
    with pytest.raises(LocalServerError, match=r"cannot unpack mariadb 11\.4: mariadb-server-core is 10\.11\.9; "):
        binaries.Wanted("mariadb", version="11.4").unpacked()


def test_filled_cache_is_used_offline(archive):
    """Once filled, the cache needs no archive, no apt and no write access."""
    first = binaries.Wanted("mysql").unpacked()
    archive.tools(update=OFFLINE)
    (archive.path / "bin/apt-get").unlink()

    assert binaries.Wanted("mysql").unpacked() == first


def test_unreachable_archive_is_a_clear_error(archive):
    """An archive that cannot be reached is named, with what apt said and what to do."""
    archive.tools(update=OFFLINE)

    with pytest.raises(
        LocalServerError, match=r"cannot reach the package archive http://archive.test/os .*SCHEMALESS_MYSQLD"
    ):
        binaries.Wanted("mysql").unpacked()
    assert archive.left() == []


@pytest.mark.parametrize("step", ["download", "unpack"])
def test_half_filled_cache_is_never_used(archive, step):
    """What an interrupted run left is not taken for a server; the next run completes it."""
    archive.tools(**{step: "echo 'E: the cable was pulled' >&2; exit 100"})
    with pytest.raises(LocalServerError, match="cable"):
        binaries.Wanted("mysql").unpacked()
    (archive.cache / "servers/mysql-9.9.9/usr/sbin").mkdir(parents=True)
    (archive.cache / "servers/mysql-9.9.9/manifest.json").write_text("{}")

    assert binaries.Wanted("mysql").cached() is None

    archive.tools()

    assert binaries.Wanted("mysql").unpacked().version == "9.7.4"


def command_of(pid: int) -> bytes:
    """Return a process's command line; nothing where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def test_interrupt_leaves_the_cache_whole_and_the_next_run_goes_on(archive, monkeypatch, eventually):
    """Ctrl-C while packages are fetched ends apt, and the next run fills the cache."""
    archive.tools(download=f"sleep 60 & echo $! > '{archive.path}/sleeper'; wait")
    children: list[int] = []

    def interrupted(self: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        sleeper = archive.path / "sleeper"
        if timeout is not None and sleeper.exists() and sleeper.read_text():
            children.append(int(sleeper.read_text()))
            monkeypatch.undo()
            raise KeyboardInterrupt
        return original(self, timeout)

    original = subprocess.Popen.wait
    environment = {name: os.environ[name] for name in ("PATH", "SCHEMALESS_CACHE")}
    sources = binaries.distribution_sources
    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        binaries.Wanted("mysql").unpacked()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(binaries, "distribution_sources", sources)
    archive.tools()

    eventually(lambda: not command_of(children[0]), "what apt had begun has ended")
    assert binaries.Wanted("mysql").unpacked().version == "9.7.4"
    assert archive.left() == ["mysql-9.7.4"]


def test_two_runs_at_once_fill_the_cache_once(archive):
    """Of two runs at once, one fills the cache and the other waits for it."""
    code = "from schemaless.local import binaries as b; from schemaless.local.apt import Source as S\n"
    code += "b.distribution_sources = lambda: [S('http://archive.test/d', ('bookworm',), ('main',), None)]\n"
    code += "print(b.Wanted('mysql').unpacked().version)"
    runs = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [run.communicate(timeout=120)[0].strip() for run in runs]

    assert outputs == ["9.7.4"] * 3
    assert archive.log.read_text().count(" download ") == 1
    assert archive.left() == ["mysql-9.7.4"]


def test_no_space_is_found_before_fetching(archive, monkeypatch):
    """Too little room for the packages is said with bytes, place and remedy, and nothing is fetched."""
    archive.tools(installed_kib=300 * 1024)
    monkeypatch.setattr(space, "free_bytes", lambda folder: 200 * 1024 * 1024)

    with pytest.raises(
        space.NoSpace, match=r"needs 315 MB in .*a cache.*, but only 210 MB are free; .*SCHEMALESS_CACHE"
    ):
        binaries.Wanted("mysql").unpacked()
    assert " download " not in archive.log.read_text()


def test_disk_that_fills_up_while_fetching_is_a_clear_error(archive):
    """A disk that fills up is distinguished from an archive that cannot be reached."""
    archive.tools(download="echo 'E: Failed to fetch x  write: No space left on device' >&2; exit 100")

    with pytest.raises(space.NoSpace, match=r"no space left while fetching packages .*SCHEMALESS_CACHE"):
        binaries.Wanted("mysql").unpacked()


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
    archive.tools(update=OFFLINE)
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
