"""Fetches and unpacks packages with apt, without root and without installing them; apt checks the signatures.

This module reads the machine's apt sources and runs apt with private folders. ``binaries.py`` decides which packages
to fetch.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from email import message_from_string
from pathlib import Path
from typing import Final

from schemaless.base.events import Advanced, Listener, ignore_events
from schemaless.errors import LocalServerError
from schemaless.local import free_space as space

ETC_APT: Final = Path("/etc/apt")

Progress = Callable[[str, int | None, str], AbstractContextManager[Listener]]
"""``progress(description, total, unit)`` returns a context manager that yields a listener for ``Advanced`` events."""

# The machine's hooks and extra indexes are cleared; its proxies, certificates and date checks stay in effect.
_CLEAR = "".join(
    f"#clear {name};\n"
    for name in (
        "APT::Update::Pre-Invoke",
        "APT::Update::Post-Invoke",
        "APT::Update::Post-Invoke-Success",
        "DPkg::Pre-Invoke",
        "DPkg::Post-Invoke",
        "DPkg::Pre-Install-Pkgs",
        "APT::Default-Release",
        "APT::Install-Recommends",
    )
)
_POLL_S: Final = 0.2
_OFFLINE_SIGNS: Final = (
    "Could not resolve",
    "Temporary failure",
    "Could not connect",
    "Cannot initiate the connection",
    "Connection failed",
    "Connection refused",
    "Connection reset",
    "timed out",
    "Unable to connect",
    "Network is unreachable",
    "No route to host",
    "Undetermined Error",
    "Bad Gateway",
    "Service Unavailable",
)


class ArchiveUnreachable(LocalServerError):
    """A package archive does not answer."""


@dataclass(frozen=True)
class Source:
    """One archive from the machine's apt sources.

    Attributes:
        uri: its address.
        suites: the configured suites.
        components: the configured components, such as ``main``.
        signed_by: key file, fingerprint or inline key (continuation lines included); None for the global keyring.
    """

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str | None

    def deb822(self) -> str:
        """Return the source as a stanza of a ``.sources`` file."""
        lines = [
            "Types: deb",
            f"URIs: {self.uri}",
            f"Suites: {' '.join(self.suites)}",
            f"Components: {' '.join(self.components)}",
            "Targets: Packages",
        ]
        if self.signed_by is not None:
            signed_by = self.signed_by.strip()
            # A key begins below the name of the field; Python before 3.14 keeps the line break there.
            lines.append("Signed-By:" + ("\n " if "\n" in signed_by else " ") + signed_by)
        return "\n".join(lines) + "\n"


def _one_line(text: str) -> Iterator[Source]:
    for raw in text.splitlines():
        line = raw.split("#", 1)[0].strip()
        match = re.fullmatch(r"deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s+(\S.*)", line)
        if match is None:
            continue
        options = dict(option.split("=", 1) for option in (match[1] or "").split() if "=" in option)
        yield Source(match[2], (match[3],), tuple(match[4].split()), options.get("signed-by"))


def _deb822(text: str) -> Iterator[Source]:
    for stanza in re.split(r"\n\s*\n", text):
        # The syntax is that of mail headers, plus comments.
        fields = message_from_string(re.sub(r"(?m)^#.*\n?", "", stanza).strip("\n"))
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in ("no", "false", "0"):
            continue
        signed_by = fields.get("signed-by")
        for uri in fields.get("uris", "").split():
            yield Source(
                uri, tuple(fields.get("suites", "").split()), tuple(fields.get("components", "").split()), signed_by
            )


def configured_sources(etc_apt: Path = ETC_APT) -> list[Source]:
    """Return the binary archives in the machine's apt sources, in apt's order.

    Reads one-line ``.list`` files and deb822 ``.sources`` files; skips flat archives, discs and disabled entries.
    """
    sources: list[Source] = []
    files = [etc_apt / "sources.list"]
    parts = etc_apt / "sources.list.d"
    if parts.is_dir():
        files += sorted(path for path in parts.iterdir() if path.suffix in (".list", ".sources"))
    for path in files:
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        sources += _deb822(text) if path.suffix == ".sources" else _one_line(text)
    return [
        source
        for source in sources
        if source.components
        and source.suites
        and not source.uri.startswith("cdrom:")
        and not any(suite.endswith("/") for suite in source.suites)
    ]


def distribution_sources(etc_apt: Path = ETC_APT, keyrings: Path = Path("/usr/share/keyrings")) -> list[Source]:
    """Return the sources of the distribution itself: component ``main``, suites of the running release.

    A source without ``Signed-By`` gets the distribution's keyring if there is one on disk, so that third-party keys
    that the machine trusts are not accepted here.
    """
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    name = release.get("ID", "debian")
    codename = release.get("VERSION_CODENAME") or release.get("DEBIAN_CODENAME") or ""
    keyring = keyrings / f"{name}-archive-keyring.gpg"
    rolling = ("sid", "unstable", "testing", "stable", "oldstable")
    sources: list[Source] = []
    for source in configured_sources(etc_apt):
        suites = tuple(
            suite
            for suite in source.suites
            if suite in rolling or (codename and (suite == codename or suite.startswith(f"{codename}-")))
        )
        if "main" not in source.components or not suites:
            continue
        signed_by = source.signed_by
        if signed_by is None and keyring.is_file():
            signed_by = str(keyring)
        if signed_by is not None and "/" in signed_by and "-archive-" not in Path(signed_by).name:
            continue  # a third party that uses the distribution's names
        sources.append(replace(source, suites=suites, signed_by=signed_by))
    return sources


@dataclass(frozen=True)
class Package:
    """One package that apt would fetch; ``digest`` is ``algorithm:digest``."""

    name: str
    file_name: str
    file_bytes: int
    digest: str

    @property
    def version(self) -> str:
        """The version of the program, without epoch and Debian's revision."""
        return self.file_name.split("_")[1].rpartition("%3a")[2].partition("-")[0]


class Apt:
    """Runs apt with its state, lists and cache below ``folder``; it writes nowhere else."""

    def __init__(self, folder: Path, sources: Sequence[Source], progress: Progress | None = None) -> None:
        missing = [tool for tool in ("apt-get", "apt-cache", "dpkg-deb") if shutil.which(tool) is None]
        if missing:
            raise LocalServerError(f"cannot find {' and '.join(missing)} on PATH")
        self.folder = folder
        self.sources: list[Source] = list(sources)
        self.progress: Progress = progress or _no_progress
        for name in ("state/lists/partial", "cache/archives/partial", "parts", "debs", "tmp"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "state/status").touch()
        (folder / "apt.conf").write_text(_CLEAR)
        (folder / "parts/schemaless.sources").write_text("\n".join(source.deb822() for source in self.sources))

    @property
    def debs(self) -> Path:
        """Folder of downloaded packages."""
        return self.folder / "debs"

    def _command(self, tool: str, *arguments: str) -> list[str]:
        own: Mapping[str, str | Path] = {
            "Dir::State": self.folder / "state",
            "Dir::State::lists": self.folder / "state/lists",
            "Dir::State::status": self.folder / "state/status",
            "Dir::State::extended_states": self.folder / "state/extended",
            "Dir::Cache": self.folder / "cache",
            "Dir::Cache::archives": self.folder / "cache/archives",
            "Dir::Cache::pkgcache": self.folder / "cache/pkgcache.bin",  # else each run parses the index again
            "Dir::Cache::srcpkgcache": self.folder / "cache/srcpkgcache.bin",
            "Dir::Etc::sourcelist": "/dev/null",
            "Dir::Etc::sourceparts": self.folder / "parts",
            "Dir::Etc::preferences": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null",
            "Dir::Log": self.folder,
            "APT::Sandbox::User": "",  # the _apt user could not write to the caller's folders
            "APT::Update::Error-Mode": "any",
            "APT::Install-Recommends": "false",
            "APT::Get::AllowUnauthenticated": "false",
            "Acquire::AllowInsecureRepositories": "false",
            "Acquire::Languages": "none",
            "Acquire::Retries": "1",
            "Acquire::http::Timeout": "20",
            "Acquire::https::Timeout": "20",
            "Acquire::ForceHash": "sha256",
        }
        options = [part for name, value in own.items() for part in ("-o", f"{name}={value}")]
        return [tool, "-q", "-c", str(self.folder / "apt.conf"), *options, *arguments]

    def run(
        self, command: Sequence[str], what: str, *, cwd: Path | None = None, poll: Callable[[], None] | None = None
    ) -> str:
        """Run ``command`` and return its output, calling ``poll`` periodically; kill its process group on an error."""
        # Where apt cannot write temporary files, it takes signed archives for unsigned ones.
        own = {"LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive", "TMPDIR": str(self.folder / "tmp")}
        environment = {**os.environ, **own}
        output_path = self.folder / "output"
        with output_path.open("w+b") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=environment,
                start_new_session=True,
            )
            try:
                while True:
                    try:
                        process.wait(_POLL_S)
                        break
                    except subprocess.TimeoutExpired:
                        if poll is not None:
                            poll()
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise
            output.seek(0)
            text = output.read().decode("utf-8", "replace")
        if process.returncode != 0:
            self._fail(what, text, process.returncode)
        return text

    def _fail(self, what: str, text: str, status: int) -> None:
        if "No space left on device" in text:
            raise space.no_space(self.folder, f" while {what}", space.CACHE_REMEDY)
        lines = [line.strip() for line in text.splitlines() if "index files" not in line]
        # An error says only that an archive is not signed; why its signature is not accepted is a warning.
        errors = [line for line in lines if line.startswith("W: GPG error")][:1]
        errors += [line for line in lines if line.startswith("E:")]
        said = "; ".join(errors[:2]) or text.strip()[-400:] or f"exit status {status}"
        where = ", ".join(sorted({source.uri for source in self.sources}))
        if any(sign in text for sign in _OFFLINE_SIGNS):
            raise ArchiveUnreachable(
                f"cannot reach the package archive {where} while {what}: {said}; check the network (or apt's proxy "
                "settings) and run the same command again, or set SCHEMALESS_MYSQLD to a local mysqld"
            )
        raise LocalServerError(f"apt failed while {what} from {where}: {said}")

    def update(self) -> None:
        """Fetch the indexes of the sources and verify their signatures."""
        suites = ", ".join(sorted({suite for source in self.sources for suite in source.suites}))
        with self._bytes_progress(f"package index of {suites}", None, self.folder / "state/lists") as poll:
            self.run(self._command("apt-get", "update"), f"reading the package index of {suites}", poll=poll)

    def closure(self, package: str) -> list[Package]:
        """Return ``package`` and all its dependencies, as if nothing were installed; [] if it cannot be installed."""
        command = self._command("apt-get", "install", "-qq", "--print-uris", package)
        try:
            text = self.run(command, f"resolving {package}")
        except LocalServerError as problem:
            if isinstance(problem, space.NoSpace):
                raise
            if any(sign in str(problem) for sign in ("Unable to locate", "no installation candidate", "unmet")):
                return []
            raise
        packages = []
        for line in text.splitlines():
            if line.startswith("'"):
                _, file_name, size, digest = shlex.split(line)
                packages.append(Package(file_name.split("_", 1)[0], file_name, int(size), digest))
        return packages

    def search(self, pattern: str) -> list[str]:
        """Return the names of packages that match a regular expression."""
        text = self.run(self._command("apt-cache", "search", "--names-only", pattern), f"searching for {pattern}")
        return [line.split(" ", 1)[0] for line in text.splitlines() if " - " in line]

    def installed_bytes(self, packages: Sequence[Package]) -> int:
        """Return the unpacked size of ``packages``."""
        command = self._command("apt-cache", "show", "--no-all-versions", *(package.name for package in packages))
        text = self.run(command, "reading package sizes")
        return 1024 * sum(int(match) for match in re.findall(r"^Installed-Size: (\d+)", text, re.MULTILINE))

    def download(self, packages: Sequence[Package]) -> None:
        """Fetch ``packages`` into ``debs``, except those already there with the digest given in the index."""
        missing = [package for package in packages if not _is_package(self.debs / package.file_name, package)]
        total = sum(package.file_bytes for package in missing)
        if not missing:
            return
        names = [package.name for package in missing]
        with self._bytes_progress("packages", total, self.debs) as poll:
            self.run(self._command("apt-get", "download", *names), "fetching packages", cwd=self.debs, poll=poll)
        absent = [package.name for package in packages if not (self.debs / package.file_name).is_file()]
        if absent:
            raise LocalServerError(f"apt reported success, but did not fetch {', '.join(absent)}")

    def unpack(self, packages: Sequence[Package], into: Path) -> None:
        """Unpack ``packages`` below ``into``."""
        into.mkdir(parents=True, exist_ok=True)
        total = sum(package.file_bytes for package in packages)
        with self.progress("unpacking", total, "bytes") as listener:
            for package in packages:
                command = ["dpkg-deb", "-x", str(self.debs / package.file_name), str(into)]
                self.run(command, f"unpacking {package.name}")
                listener(Advanced(package.file_bytes))

    @contextmanager
    def _bytes_progress(self, description: str, total: int | None, folder: Path) -> Iterator[Callable[[], None]]:
        """Show progress in bytes, measured by the growth of a folder."""
        shown = space.used_bytes(folder)
        with self.progress(description, total, "bytes") as listener:

            def poll() -> None:
                nonlocal shown
                before, shown = shown, max(shown, space.used_bytes(folder))
                listener(Advanced(shown - before))

            yield poll
            poll()


def _is_package(path: Path, package: Package) -> bool:
    """True if the file at ``path`` has the size and digest from the signed index."""
    algorithm, _, expected = package.digest.partition(":")
    if algorithm != "SHA256" or not path.is_file() or path.stat().st_size != package.file_bytes:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == expected


@contextmanager
def _no_progress(description: str, total: int | None, unit: str) -> Iterator[Listener]:
    yield ignore_events
