"""Choice of the ``mysqld`` to run: the caller's, the system's, or one unpacked from the package archive into a cache.

The cache has one folder for each unpacked server. A server is unpacked into a temporary folder under a lock and then
renamed into place, so that every folder in the cache is complete.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from schemaless.base.home import cache_folder, expanded, locked
from schemaless.errors import LocalServerError
from schemaless.local import free_space as space
from schemaless.local import rocksdb
from schemaless.local.apt import Apt, ArchiveUnreachable, Progress, Source, distribution_sources

FLAVOURS: Final = ("mysql", "mariadb")
MINIMUM: Final = {"mysql": (8, 0, 16), "mariadb": (10, 6, 1)}
"""Oldest versions that support all the options used here and all the features that the store needs."""

_SERVERS: Final = ("usr/sbin/mysqld", "usr/sbin/mariadbd")
_PROGRAMS: Final = {"mysql": ("mysqld",), "mariadb": ("mariadbd", "mysqld")}
SYSTEM_FOLDERS: Final = ("/usr/sbin", "/usr/local/sbin", "/usr/local/bin", "/usr/libexec", "/opt/homebrew/bin")
_INSTALL_HINT: Final = (
    "install a server (MySQL 8.0.16 or later, or MariaDB 10.6.1 or later; it need not be running), "
    "or set SCHEMALESS_MYSQLD to the path of a mysqld or mariadbd"
)
_INDEX_BYTES: Final = 80 * 1024 * 1024
# Excludes Perl, which a server package depends on for scripts that are not run here.
_WANTED: Final = re.compile(r"(lib(?!perl)|zlib|(mysql|mariadb)-(server-core|common))")

Say = Callable[[str], None]


def _say_nothing(line: str) -> None:
    """Ignore a line of progress."""


@dataclass(frozen=True)
class Binary:
    """A server program.

    Attributes:
        flavour: "mysql" or "mariadb".
        version: its version, such as "9.7.4".
        command: its path, preceded by its own dynamic loader if it was unpacked.
        root: the folder it was unpacked into, or None for an installed program.
        name: a unique identifier that is safe as a file name.
    """

    flavour: str
    version: str
    command: tuple[str, ...]
    root: Path | None
    name: str

    @property
    def program(self) -> Path:
        """Path of the server program."""
        return Path(self.command[-1])

    @property
    def share(self) -> Path:
        """Folder of messages, character sets and, for MariaDB, the SQL of the system tables."""
        folders = [self._base / "share" / name for name in ("mysql", "mariadb", "mysql-8.0", "")]
        for folder in folders:
            if (folder / "charsets").is_dir():
                return folder
        return folders[0]

    @property
    def plugins(self) -> Path:
        """The folder with plugins."""
        return self._base / "lib/mysql/plugin"

    @property
    def _base(self) -> Path:
        # The program may be a symbolic link to one in another folder, such as /opt.
        return self.program.resolve().parent.parent

    def has_engine(self, engine: str) -> bool:
        """Return True if the server has a storage engine, "innodb" or "rocksdb"."""
        return engine == "innodb" or (self.plugins / rocksdb.PLUGIN).is_file()

    def path_arguments(self) -> list[str]:
        """Return the options that locate the program's files, which it may expect where its packager compiled it."""
        if not (self.share / "charsets").is_dir():
            return []
        arguments = [
            f"--basedir={self._base}",
            f"--lc-messages-dir={self.share}",
            f"--character-sets-dir={self.share}/charsets",
        ]
        if self.plugins.is_dir():
            arguments.append(f"--plugin-dir={self.plugins}")
        return arguments


def environment() -> dict[str, str]:
    """Return the environment for server programs: no secrets, and no LD_ variables.

    A server may outlive the process that started it by days, and the loader of an unpacked server would obey
    LD_PRELOAD.
    """
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "USER", "TZ", "TMPDIR") if name in os.environ}
    return {**kept, "LC_ALL": "C"}


@dataclass(frozen=True)
class Wanted:
    """What a server program must be, and how its search is shown.

    Attributes:
        flavour: "mysql" or "mariadb".
        engine: a storage engine that it must have, "innodb" or "rocksdb".
        version: a version such as "11.8.3", or the beginning of one, such as "11.8"; "" for any.
        say: callback for lines of progress.
        progress: shows the progress of long steps.
    """

    flavour: str
    engine: str = "innodb"
    version: str = ""
    say: Say = _say_nothing
    progress: Progress | None = None

    def __str__(self) -> str:
        return f"{self.flavour} {self.version}" if self.version else f"a {self.flavour} server"

    def candidates(self) -> Iterator[Binary]:
        """Yield server programs to try, best first.

        If ``SCHEMALESS_MYSQLD`` is set, it is the only candidate. Otherwise programs on ``PATH`` and in the system's
        folders come first, then one unpacked from the package archive, which is contacted only if the caller gets that
        far. For ``mysql``, MariaDB follows if no MySQL can be had: an installed one, else one from the archive.

        Raises:
            LocalServerError: no server is installed and none can be fetched; the message says what to install.
        """
        explicit = os.environ.get("SCHEMALESS_MYSQLD")
        if explicit:
            binary = _explicit(explicit, self.flavour)
            if not fits(binary.version, self.version):
                raise LocalServerError(
                    f"SCHEMALESS_MYSQLD is {binary.program}, which is {self.flavour} {binary.version}, not "
                    f"{self.version}; set it to another program, or unset it"
                )
            if not binary.has_engine(self.engine):
                raise LocalServerError(
                    f"SCHEMALESS_MYSQLD is {binary.program}, and {binary.plugins} has no {rocksdb.PLUGIN}; install "
                    f"{rocksdb.PACKAGES[0]}, or unset the variable"
                )
            yield binary
            return
        yield from self.installed()
        try:
            found = self.unpacked()
        except (ArchiveUnreachable, space.NoSpace):
            raise  # A failure that may pass must not change the flavour.
        except LocalServerError:
            is_any = self.flavour == "mysql" and not self.version
            others = list(replace(self, flavour="mariadb").installed()) if is_any else []
            if not others:
                raise
            self.say("no MySQL is installed that runs here, and none can be unpacked: using the installed MariaDB")
            yield from others
        else:
            yield found

    def _suits(self, binary: Binary) -> bool:
        return fits(binary.version, self.version) and binary.has_engine(self.engine)

    def installed(self) -> Iterator[Binary]:
        """Yield the programs on ``PATH`` and in the system's folders."""
        for path in _system_programs(self.flavour):
            try:
                binary = inspect((str(path),))
            except LocalServerError as problem:
                self.say(f"skipping {path}: {problem}")
                continue
            if binary.flavour == self.flavour and is_recent(binary) and self._suits(binary):
                yield binary

    def cached(self) -> Binary | None:
        """Return the server in the cache that was unpacked last, or None.

        One that was unpacked with MyRocks is used for InnoDB only if there is no other.
        """
        roots = servers_folder().glob(f"{self.flavour}-*")
        newest_first = sorted(roots, key=lambda root: root.stat().st_mtime_ns, reverse=True)
        for root in sorted(newest_first, key=lambda root: root.name.endswith("-rocksdb")):
            command = unpacked_command(root, *_SERVERS)
            if command is not None:
                binary = Binary(self.flavour, root.name.split("-")[1], command, root, root.name)
                if self._suits(binary):
                    return binary
        return None

    def unpacked(self) -> Binary:
        """Return an unpacked server from the cache, or fetch one from the package archive.

        Raises:
            LocalServerError: apt, a usable source or free space is missing, or the archive is unreachable.
        """
        binary = self.cached()
        if binary is not None:
            return binary
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise LocalServerError(
                f"no {self.flavour} server found (SCHEMALESS_MYSQLD, PATH, {', '.join(SYSTEM_FOLDERS)}), and apt-get "
                f"or dpkg-deb is missing, so none can be unpacked; {_INSTALL_HINT}. Fedora: dnf install mysql-server "
                "or mariadb-server; Arch: pacman -S mariadb; Alpine: apk add mariadb; Homebrew: brew install mariadb. "
                "docs/servers.md unpacks one without any of them"
            )
        folder = servers_folder()
        if re.search(r"[:;]", str(folder)):
            raise LocalServerError(
                f"the path of the cache folder {folder} contains a colon or semicolon, which library paths "
                "cannot contain; set SCHEMALESS_CACHE to another folder"
            )
        with cache_lock(folder, self.say):
            binary = self.cached()  # another process may have filled it before this one got the lock
            if binary is not None:
                return binary
            with space.full_disk_is_an_error(folder, "writing the cache", space.CACHE_REMEDY):
                return self._fill(folder)

    def _fill(self, folder: Path) -> Binary:
        sources = distribution_sources()
        if not sources:
            raise LocalServerError(
                f"no {self.flavour} server found (SCHEMALESS_MYSQLD, PATH, {', '.join(SYSTEM_FOLDERS)}), and this "
                f"machine's apt sources have no archive of its distribution to unpack one from; {_INSTALL_HINT}"
            )
        space.require(folder, _INDEX_BYTES, "the package index", space.CACHE_REMEDY)
        part = Path(tempfile.mkdtemp(prefix=".part-", dir=folder))
        # Keep the packages that an interrupted run has fetched; download() checks them against the signed index.
        (part / "debs").mkdir()
        for old in folder.glob(".part-*"):
            if old != part:
                for deb in old.glob("**/*.deb"):
                    deb.replace(part / "debs" / deb.name)
                shutil.rmtree(old, ignore_errors=True)
        self.say(
            f"{self} is not installed: unpacking one from the package archive into {folder} (without installing it)"
        )
        problems: list[LocalServerError] = []
        try:
            for wanted, apt, package in self._offers(part, sources, problems):
                try:
                    return wanted.unpack(folder, apt, package)
                except _Unfit as problem:
                    self.say(f"skipping {package}: {problem}")
                    problems.append(problem)
        except LocalServerError:
            shutil.rmtree(part, ignore_errors=True)
            raise
        shutil.rmtree(part, ignore_errors=True)
        for met in problems:
            if isinstance(met, ArchiveUnreachable):
                raise met
        reasons = "; ".join(dict.fromkeys(map(str, problems))) or "no suite of the package archive has one"
        raise LocalServerError(f"cannot unpack {self}: {reasons}; {_INSTALL_HINT}")

    def _offers(
        self, part: Path, sources: list[Source], problems: list[LocalServerError]
    ) -> Iterator[tuple[Wanted, Apt, str]]:
        """Yield what is wanted, apt and a package, from the configured suites.

        If MySQL or a version is wanted, packages of later suites follow, and for MySQL of any version, finally
        MariaDB's from the configured suites.
        """
        places = [(self, sources)]
        # Only Debian's sid has MySQL.
        later = ("stable", "testing", "sid") if self.version else ("sid",) if self.flavour == "mysql" else ()
        # They must be signed by a key of the keyring that verifies this machine's suites.
        archives: dict[str, Source] = {}
        for source in sources:
            if "security" not in source.uri and "sid" not in source.suites:
                archives.setdefault(source.uri, source)
        for suite in later:
            places += [(self, [Source(uri, (suite,), ("main",), of.signed_by)]) for uri, of in archives.items()]
        if self.flavour == "mysql" and not self.version:
            places.append((replace(self, flavour="mariadb"), sources))
        for wanted, from_sources in places:
            if wanted is not self and any(isinstance(problem, ArchiveUnreachable) for problem in problems):
                return  # A network failure must not change the flavour: MySQL may exist in the archive.
            apt = Apt(part, from_sources, self.progress)
            try:
                apt.update()
            except space.NoSpace:
                raise
            except LocalServerError as problem:
                problems.append(problem)
                continue
            for package in _server_packages(apt, wanted.flavour):
                if wanted is not self:
                    self.say("no suite of the package archive has MySQL for this machine: using MariaDB")
                yield wanted, apt, package

    def unpack(self, folder: Path, apt: Apt, package: str) -> Binary:
        """Fetch and unpack a package of the server into the cache, which is locked."""
        packages = [member for member in apt.closure(package) if _WANTED.match(member.name)]
        if not packages:
            raise _Unfit(f"apt cannot resolve the dependencies of {package}; {_INSTALL_HINT}")
        of_server = next((member.version for member in packages if member.name == package), "")
        if not fits(of_server, self.version):
            raise _Unfit(f"{package} is {of_server}")
        if self.engine == "rocksdb":
            plugin = [member for member in apt.closure(rocksdb.PACKAGES[0]) if member.name in rocksdb.PACKAGES]
            if not plugin:
                raise _Unfit(f"the package archive has no {rocksdb.PACKAGES[0]}; {_INSTALL_HINT}")
            packages += plugin
        fetched = sum(member.file_bytes for member in packages)
        installed = apt.installed_bytes(packages)
        sizes = f"{fetched / 1e6:.0f} MB to fetch, {installed / 1e6:.0f} MB unpacked"
        self.say(f"{package}: {len(packages)} packages, {sizes}")
        space.require(folder, fetched + installed, f"unpacking {package}", space.CACHE_REMEDY)
        apt.download(packages)
        root = apt.folder / "root"
        shutil.rmtree(root, ignore_errors=True)
        apt.unpack(packages, root)
        for unneeded in ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/lintian"):
            shutil.rmtree(root / unneeded, ignore_errors=True)
        command = unpacked_command(root, *_SERVERS)
        if command is None:
            raise _Unfit(f"{package} lacks the server program or the dynamic loader")
        try:
            binary = inspect(command)
        except LocalServerError as problem:
            raise _Unfit(str(problem)) from problem
        if not is_recent(binary):
            raise _Unfit(f"{package} is {binary.version}; {_oldest(self.flavour)} is needed; {_INSTALL_HINT}")
        # Another name than without the plugin: servers may be running from that folder.
        target = folder / "-".join([self.flavour, binary.version, *([self.engine] if self.engine == "rocksdb" else [])])
        manifest = {
            "flavour": binary.flavour,
            "version": binary.version,
            "packages": {member.file_name: member.digest for member in packages},
            "suites": sorted({suite for source in apt.sources for suite in source.suites}),
        }
        (root / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        if target.exists():  # incomplete, or cached() would have found it
            shutil.rmtree(target)
        if self.version:
            os.utime(root, (0, 0))  # cached() then prefers it only to nothing
        root.rename(target)
        shutil.rmtree(apt.folder, ignore_errors=True)
        moved = self.cached()
        assert moved is not None
        self.say(f"{moved.flavour} {moved.version} is in {target}")
        return moved


def fits(version: str, wanted: str) -> bool:
    """Return True if a version is the wanted one or of the wanted series: "11.8.3" of "11.8"; "" stands for any."""
    return not wanted or f"{version}.".startswith(f"{wanted}.")


def _explicit(path_text: str, flavour: str) -> Binary:
    path = expanded(path_text).absolute()
    if not path.is_file() or not os.access(path, os.X_OK):
        raise LocalServerError(f"SCHEMALESS_MYSQLD is {path}, which is not a program; set it to a mysqld, or unset it")
    binary = inspect((str(path),))
    if binary.flavour != flavour:
        raise LocalServerError(
            f"SCHEMALESS_MYSQLD is {path}, which is {binary.flavour} {binary.version}, not {flavour}; use --flavour "
            f"{binary.flavour}, or unset the variable"
        )
    if not is_recent(binary):
        raise LocalServerError(f"SCHEMALESS_MYSQLD is {flavour} {binary.version}; {_oldest(flavour)} is needed")
    return binary


def _system_programs(flavour: str) -> Iterator[Path]:
    seen: set[str] = set()
    for folder in [*os.environ.get("PATH", "").split(os.pathsep), *SYSTEM_FOLDERS]:
        for program in _PROGRAMS[flavour]:
            # which() skips folders without search permission.
            file = shutil.which(program, path=folder) if folder else None
            if file is not None and os.path.realpath(file) not in seen:
                seen.add(os.path.realpath(file))
                yield Path(file).absolute()


def inspect(command: tuple[str, ...]) -> Binary:
    """Ask a server program for its version.

    Raises:
        LocalServerError: it does not run, or is neither MySQL nor MariaDB.
    """
    try:
        result = subprocess.run(
            [*command, "--no-defaults", "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            env=environment(),
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise LocalServerError(f"{command[-1]} does not run: {problem}") from problem
    match = re.search(r"Ver (\d+\.\d+\.\d+)", result.stdout)
    if result.returncode != 0 or match is None:
        said = (result.stderr or result.stdout).strip().splitlines()
        raise LocalServerError(
            f"{command[-1]} --version prints no version: {said[-1] if said else f'exit status {result.returncode}'}"
        )
    flavour = "mariadb" if "mariadb" in result.stdout.lower() else "mysql"
    status = Path(command[-1]).stat()
    name = f"{flavour}-{match[1]}-system-{status.st_size:x}{status.st_mtime_ns:x}"
    return Binary(flavour, match[1], command, None, name)


def _oldest(flavour: str) -> str:
    return f"{'.'.join(map(str, MINIMUM[flavour]))} or later"


def is_recent(binary: Binary) -> bool:
    """True if the server is at least ``MINIMUM``."""
    return tuple(int(part) for part in binary.version.split(".")) >= MINIMUM[binary.flavour]


@contextmanager
def cache_lock(folder: Path, say: Say = _say_nothing) -> Iterator[None]:
    """Hold the cache's lock, waiting for any other process that is filling the cache."""
    with ExitStack() as stack:
        with space.full_disk_is_an_error(folder, "writing the cache", space.CACHE_REMEDY):
            folder.mkdir(parents=True, exist_ok=True)
            say_so = partial(say, f"another process is adding files to {folder}; waiting for it to finish")
            stack.enter_context(locked(folder / ".lock", say_so))
        yield


def servers_folder() -> Path:
    """Return the folder of unpacked servers in the cache."""
    return cache_folder() / "servers"


class _Unfit(LocalServerError):
    """A server package cannot be used on this machine."""


def _server_packages(apt: Apt, flavour: str) -> list[str]:
    """Return server packages, newest first: those such as ``mysql-server-core-8.4``, then those without a number."""
    names = apt.search(f"^{flavour}-server-core(-[0-9.]+)?$")

    def version(name: str) -> tuple[bool, list[int]]:
        number = name.removeprefix(f"{flavour}-server-core").lstrip("-")
        return bool(number), [int(part) for part in number.split(".") if part]

    return sorted(names, key=version, reverse=True)


def unpacked_command(root: Path, *programs: str) -> tuple[str, ...] | None:
    """Return the command for a program below ``root``, with its own loader and libraries; None if one is missing.

    Args:
        root: folder that packages were unpacked into.
        programs: relative paths, of which the first that exists is used.
    """
    program = next(
        (root / path for path in programs if (root / path).is_file() and not (root / path).is_symlink()), None
    )
    folders = [*sorted(root.glob("usr/lib*")), *sorted(root.glob("lib*"))]
    nested = [inner for folder in folders for inner in sorted(folder.glob("*-linux-*")) if inner.is_dir()]
    libraries = [folder for folder in [*nested, *folders] if folder.is_dir() and any(folder.glob("lib*.so*"))]
    private = root / "usr/lib/mysql/private"
    if private.is_dir():
        libraries.insert(0, private)
    loaders = [path for folder in [*nested, *folders] for path in sorted(folder.glob("ld-linux*.so.*"))]
    if program is None or not loaders or not libraries:
        return None
    return str(loaders[0]), "--library-path", ":".join(map(str, libraries)), str(program)
