"""Build the packages to publish into dist/.

    python tools/dist.py [--out FOLDER] [--pure] [--once]

The sdist and the pure wheel are the same bytes for the same commit: they contain the files that git tracks or would
add, with SOURCE_DATE_EPOCH or the commit's time as their time. They are built twice in different folders and compared,
unless ``--once``.

The native extension gets an sdist, a wheel for each CPython from 3.11 to 3.14 found here (on the PATH or among pyenv's
versions), and one for the stable ABI, which every other CPython uses. ``--pure`` leaves the extension out; building it
needs cargo and maturin, and takes a few minutes.

Every wheel has a software bill of materials (PEP 770), and the native ones have the licences of the crates linked into
them. Exit status: 0 if all was built and the pure packages are reproducible.
"""

from __future__ import annotations

import argparse
import base64
import configparser
import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import uuid
import zipfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NATIVE = ROOT / "rust"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
_LICENCES = ("LICENSE*", "LICENCE*", "COPYING*", "UNLICENSE*", "*/COPYING*")


def main() -> int:
    """Build, compare, and print each file with its SHA-256."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--pure", action="store_true", help="leave out the native extension")
    parser.add_argument("--once", action="store_true", help="build the pure packages once, without comparison")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for old in arguments.out.glob("schemaless_store-*" if arguments.pure else "schemaless_*"):
        old.unlink()
    pure = built(arguments.out)
    for path in [*pure, *([] if arguments.pure else native(arguments.out))]:
        print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}")
    if arguments.once:
        return 0
    with tempfile.TemporaryDirectory(prefix="schemaless-again-") as again:
        different = [
            one.name
            for one, other in zip(pure, built(Path(again)), strict=True)
            if one.read_bytes() != other.read_bytes()
        ]
    names = " and ".join(path.name for path in pure)
    print(f"built twice: {', '.join(different)} differ" if different else f"built twice, the same bytes: {names}")
    return 1 if different else 0


def built(out: Path) -> list[Path]:
    """Build the sdist and the pure wheel into a folder; return both."""
    epoch = epoch_of_build()
    with tempfile.TemporaryDirectory(prefix="schemaless-dist-") as folder:
        source, raw = Path(folder, "source"), Path(folder, "raw")
        source.mkdir()
        copy_sources(ROOT, source)
        for part in ("--sdist", "--wheel"):
            origin = source if part == "--sdist" else unpacked(next(raw.glob("*.tar.gz")), Path(folder))
            call([sys.executable, "-m", "build", part, "--no-isolation", "--outdir", raw, origin], epoch)
        found = []
        for path in sorted(raw.iterdir()):
            content = path.read_bytes()
            finished = normal(content, epoch) if path.name.endswith(".tar.gz") else with_bill(content, epoch)
            (out / path.name).write_bytes(finished)
            found.append(out / path.name)
    return found


def native(out: Path) -> list[Path]:
    """Build the native extension's sdist and wheels into a folder; return them."""
    epoch = epoch_of_build()
    maturin = Path(sys.executable).with_name("maturin")
    manifest = ("--manifest-path", NATIVE / "Cargo.toml")
    interpreters = [path for path in map(interpreter, VERSIONS) if path is not None]
    for version in VERSIONS:
        if not any(path.name == f"python{version}" for path in interpreters):
            print(f"Python {version} is not here: users of it get the wheel for the stable ABI", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="schemaless-native-") as folder:
        call([maturin, "sdist", *manifest, "--out", folder], epoch)
        builds = [(path, "") for path in interpreters] + [
            (interpreters[0] if interpreters else sys.executable, "stable")
        ]
        for python, features in builds:
            print(f"building the native extension for {features or Path(python).name}", file=sys.stderr)
            command = [maturin, "build", "--release", "--locked", *manifest, "--interpreter", python, "--out", folder]
            call([*command, "--features", features] if features else command, epoch)
        found = []
        for path in sorted(Path(folder).iterdir()):
            content = path.read_bytes()
            finished = normal(content, epoch) if path.name.endswith(".tar.gz") else with_licences(content, epoch)
            (out / path.name).write_bytes(finished)
            found.append(out / path.name)
    return found


def call(command: list[Any], epoch: int) -> None:
    """Run a build, or exit with its output."""
    home = os.environ.get("CARGO_HOME", str(Path.home() / ".cargo"))
    environment = {
        **os.environ,
        "SOURCE_DATE_EPOCH": str(epoch),
        # Otherwise, the binaries would contain paths of this machine.
        "RUSTFLAGS": f"--remap-path-prefix={home}=cargo --remap-path-prefix={ROOT}=schemaless",
        "CARGO_TARGET_DIR": str(ROOT / "build" / "native-dist"),
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, umask=0o022, check=False)
    if done.returncode:
        sys.exit(f"the build failed: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def interpreter(version: str) -> Path | None:
    """Return a CPython of a version, on the PATH or among pyenv's versions; None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for candidate in (f"python{version}", *sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"))):
        program = "import sys; print(sys.executable, '%d.%d' % sys.version_info[:2])"
        try:  # A pyenv shim may be on the PATH although its version is not installed.
            done = subprocess.run([candidate, "-c", program], capture_output=True, text=True, check=False)
        except OSError:
            continue
        path, _, found = done.stdout.strip().rpartition(" ")
        if done.returncode == 0 and found == version:
            return (
                Path(path).with_name(f"python{version}")
                if Path(path).with_name(f"python{version}").exists()
                else Path(path)
            )
    return None


def copy_sources(origin: Path, folder: Path) -> None:
    """Copy the files of a checkout that git tracks or would add."""
    for name in run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"):
        if (origin / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((origin / name).read_bytes())
            (folder / name).chmod(0o644)


def epoch_of_build() -> int:
    """Return the timestamp for all files: SOURCE_DATE_EPOCH, or the commit's time."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or run("git", "log", "-1", "--format=%ct"))


def unpacked(sdist: Path, folder: Path) -> Path:
    """Unpack an sdist, and return the folder in it."""
    with tarfile.open(sdist) as archive:
        # The first releases of Python 3.11 do not support extraction filters.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder / "unpacked")  # noqa: S202 - what was built here just now
    (inside,) = (folder / "unpacked").iterdir()
    return inside


def described(metadata: bytes) -> bytes:
    """Return METADATA or PKG-INFO whose description has no relative links, which lead nowhere on a package index.

    They become absolute with the project URL "Source" in setup.cfg, and plain text without one.
    """
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    urls = dict(line.split(" = ") for line in setup["metadata"].get("project_urls", "").strip().splitlines())
    source = urls.get("Source")
    target = rf"[\1]({source}/blob/v{setup['metadata']['version']}/\2)" if source else r"\1"
    return re.sub(r"\[([^\]]+)\]\((?!https?:|#)([^)]+)\)", target, metadata.decode()).encode()


def normal(sdist: bytes, epoch: int) -> bytes:
    """Return an sdist with its files sorted, without owners, and with one timestamp: setuptools uses the build time."""
    result = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(sdist)) as before,
        gzip.GzipFile(filename="", fileobj=result, mode="wb", mtime=epoch) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as after,
    ):
        for member in sorted(before.getmembers(), key=lambda each: each.name):
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime = epoch
            member.pax_headers = {}
            file = before.extractfile(member) if member.isfile() else None
            if file is not None and member.name.endswith("/PKG-INFO"):
                content = described(file.read())
                member.size, file = len(content), io.BytesIO(content)
            after.addfile(member, file)
    return result.getvalue()


def with_bill(wheel: bytes, epoch: int) -> bytes:
    """Add the bill of materials of the pure wheel: itself and its requirements, as it bundles no other software."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    metadata = setup["metadata"]
    name, version = metadata["name"], metadata["version"]
    own = f"pkg:pypi/{name}@{version}"
    lines = (line.partition("#")[0].strip() for line in setup["options"]["install_requires"].splitlines())
    required = [re.split(r"[\s<>=!~\[]", line, maxsplit=1)[0] for line in lines if line]
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": name,
                "version": version,
                "description": metadata["description"],
                "licenses": [{"license": {"id": metadata["license"]}}],
                "purl": own,
            }
        },
        "components": [
            {"type": "library", "bom-ref": purl, "name": each, "purl": purl, "scope": "required"}
            for each, purl in ((each, f"pkg:pypi/{each.lower()}") for each in required)
        ],
        "dependencies": [{"ref": own, "dependsOn": [f"pkg:pypi/{each.lower()}" for each in required]}],
    }
    return changed(wheel, epoch, {"METADATA": described, f"sboms/{name}.cdx.json": lambda _: dated(bill, epoch)})


def with_licences(wheel: bytes, epoch: int) -> bytes:
    """Make the native extension's bill of materials reproducible, and add the licences of the crates in it."""
    (name,) = (each for each in zipfile.ZipFile(io.BytesIO(wheel)).namelist() if "/sboms/" in each)
    bill = json.loads(zipfile.ZipFile(io.BytesIO(wheel)).read(name))
    licences = {"licenses/LICENSE": (ROOT / "LICENSE").read_bytes()}
    folders = {
        (each["name"], each["version"]): Path(each["manifest_path"]).parent
        for each in json.loads(
            run("cargo", "metadata", "--locked", "--format-version", "1", "--manifest-path", str(NATIVE / "Cargo.toml"))
        )["packages"]
    }
    for crate in bill["components"]:
        folder = folders.get((crate["name"], crate["version"]))
        if crate.get("scope") == "excluded" or folder is None:
            continue  # Only used to build, so it is not in the wheel.
        for path in sorted({path for pattern in _LICENCES for path in folder.glob(pattern) if path.is_file()}):
            licences[f"licenses/{crate['name']}-{crate['version']}/{path.name}"] = path.read_bytes()
    text = json.dumps(bill).replace(f"path+file://{NATIVE}", "path+file:///rust")
    files: dict[str, Callable[[bytes], bytes]] = {
        name.partition(".dist-info/")[2]: lambda _: dated(json.loads(text), epoch),
        "METADATA": lambda before: licensed(before, list(licences)),
    }
    return changed(
        wheel, epoch, files | {each: lambda _, content=content: content for each, content in licences.items()}
    )


def licensed(metadata: bytes, names: list[str]) -> bytes:
    """Name the licence files in a wheel's METADATA, as PEP 639 requires."""
    head, blank, body = metadata.decode().partition("\n\n")
    lines = [line for line in head.splitlines() if not line.startswith("License-File:")]
    lines += [f"License-File: {name.removeprefix('licenses/')}" for name in names]
    return ("\n".join(lines) + (blank or "\n") + body).encode()


def dated(bill: Mapping[str, Any], epoch: int) -> bytes:
    """Return a bill of materials with the time of the build and a serial number derived from its content."""
    metadata = {**bill["metadata"], "timestamp": datetime.fromtimestamp(epoch, UTC).isoformat()}
    plain = {**{key: value for key, value in bill.items() if key != "serialNumber"}, "metadata": metadata}
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(plain, sort_keys=True))
    return json.dumps({"serialNumber": f"urn:uuid:{serial}", **plain}, indent=2).encode() + b"\n"


def changed(wheel: bytes, epoch: int, files: Mapping[str, Callable[[bytes], bytes]]) -> bytes:
    """Replace or add files in a wheel's .dist-info folder, and rewrite RECORD.

    Args:
        wheel: Content of the wheel.
        epoch: Time of the files.
        files: Function from the old content (empty for a new file) to the new one, by path in .dist-info.
    """
    with zipfile.ZipFile(io.BytesIO(wheel)) as before:
        contents = {each.filename: (before.read(each), each.external_attr >> 16) for each in before.infolist()}
    (record,) = (name for name in contents if name.endswith(".dist-info/RECORD"))
    folder = record.removesuffix("RECORD")
    for name, function in files.items():
        content, mode = contents.get(folder + name, (b"", 0o100644))
        contents[folder + name] = function(content), mode
    del contents[record]
    lines = []
    for name, (content, _) in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        quoted = f'"{name}"' if "," in name else name
        lines.append(f"{quoted},sha256={digest},{len(content)}\n")
    contents[record] = "".join([*lines, f"{record},,\n"]).encode(), 0o100644
    result = io.BytesIO()
    at = datetime.fromtimestamp(max(epoch, 315_532_800), UTC).timetuple()[:6]  # Zip timestamps begin in 1980.
    with zipfile.ZipFile(result, "w", zipfile.ZIP_DEFLATED) as after:
        for name, (content, mode) in contents.items():
            info = zipfile.ZipInfo(name, at)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (mode or 0o100644) << 16
            after.writestr(info, content)
    return result.getvalue()


def run(*command: str) -> str:
    """Run a command here, and return what it prints."""
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
