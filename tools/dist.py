"""Builds the sdist and the wheel into dist/, byte for byte the same from the same commit.

    python tools/dist.py [--out FOLDER] [--once]

The files are those that git knows or would add, in a folder of their own, and the wheel is built from the sdist. Times
in both are SOURCE_DATE_EPOCH, or the commit's. It is done twice, in different folders, and the results are compared,
unless ``--once``. Exit status: 0 where they are the same.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> int:
    """Build, compare, and print each file with its SHA-256."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--once", action="store_true")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    first = built(arguments.out)
    for path in first:
        print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}")
    if arguments.once:
        return 0
    with tempfile.TemporaryDirectory(prefix="schemaless-again-") as again:
        different = [
            one.name
            for one, other in zip(first, built(Path(again)), strict=True)
            if one.read_bytes() != other.read_bytes()
        ]
    print(f"built twice: {', '.join(different)} differ" if different else "built twice: the same bytes")
    return 1 if different else 0


def built(out: Path) -> list[Path]:
    """Build the sdist and the wheel into a folder; return both."""
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or run("git", "log", "-1", "--format=%ct"))
    with tempfile.TemporaryDirectory(prefix="schemaless-dist-") as folder:
        source, raw = Path(folder, "source"), Path(folder, "raw")
        source.mkdir()
        for name in run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"):
            if (ROOT / name).is_file():
                (source / name).parent.mkdir(parents=True, exist_ok=True)
                (source / name).write_bytes((ROOT / name).read_bytes())
                (source / name).chmod(0o644)
        for part in ("--sdist", "--wheel"):
            origin = source if part == "--sdist" else unpacked(next(raw.glob("*.tar.gz")), Path(folder))
            command = [sys.executable, "-m", "build", part, "--no-isolation", "--outdir", raw, origin]
            done = subprocess.run(
                command,
                env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
                capture_output=True,
                text=True,
                umask=0o022,
                check=False,
            )
            if done.returncode:
                sys.exit(f"the build failed:\n{done.stdout}{done.stderr}")
        found = []
        for path in sorted(raw.iterdir()):
            content = path.read_bytes()
            (out / path.name).write_bytes(normal(content, epoch) if path.name.endswith(".tar.gz") else content)
            found.append(out / path.name)
    return found


def unpacked(sdist: Path, folder: Path) -> Path:
    """Unpack an sdist, and return the folder in it."""
    with tarfile.open(sdist) as archive:
        # The first versions of Python 3.11 know no filters.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder / "unpacked")  # noqa: S202 - what was built here just now
    (inside,) = (folder / "unpacked").iterdir()
    return inside


def normal(sdist: bytes, epoch: int) -> bytes:
    """Return an sdist with its files in order, nobody's, and of one time: setuptools writes the time of the build."""
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
            after.addfile(member, before.extractfile(member) if member.isfile() else None)
    return result.getvalue()


def run(*command: str) -> str:
    """Run git here, and return what it says."""
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
