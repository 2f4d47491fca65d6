"""Cost of an archive of originals: bytes, time and memory.

    python benchmarks/archive.py [--flavour mysql|mariadb]

The demo's logbooks are loaded as JSON text into a private server, re-encoded once without and once with an archive,
verified, and restored. Then an archive of ten times as many is written and read; the memory is that of a process that
does nothing else.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import schemaless
from schemaless.bench.logbooks import documents
from schemaless.cell import NewStoredCell
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.archive import ArchivedCell, ArchiveWriter
from schemaless.ops.migrate.archive_files import archive_files, read_archive
from schemaless.ops.migrate.finalise import archive_of
from schemaless.ops.migrate.restore import RestoreSpec
from schemaless.ops.migrate.restore import run as restore
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.migrate.verify import VerifyOptions, verify
from schemaless.testing.servers import private_servers

DURABLE = {"innodb-flush-log-at-trx-commit": "1", "sync-binlog": "1", "innodb-flush-method": "O_DIRECT"}
SHARDS = 4
CHUNK_BYTES = 1 << 20


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flavour", choices=("mysql", "mariadb"), default="mysql")
    parser.add_argument("--read", metavar="DIR", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        cells = sum(1 for file in archive_files(Path(arguments.read)) for _ in read_archive(file))
        # Of this program alone; ru_maxrss would start from the peak of the process that started it.
        (peak,) = re.findall(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
        print(cells, peak)
        return
    logbooks = list(documents(limit=2219))
    texts = [logbook.json_text() for logbook in logbooks]
    size = sum(map(len, texts))
    print(f"{len(texts):,} documents, {size / 1e6:.1f} MB of JSON text")
    with tempfile.TemporaryDirectory() as folder, private_servers(arguments.flavour, 1, DURABLE) as (server,):
        print(f"{server.flavour} {server.version}")
        for name in ("without", "with_archive"):
            url = schemaless.create(name, SHARDS, [server.url])
            with schemaless.connect(url) as store:
                cells = [
                    NewStoredCell(each.row_key, "LOG", each.ref_key, text)
                    for each, text in zip(logbooks, texts, strict=True)
                ]
                store.put_stored_cells(cells, trusted=True)
                archive = None if name == "without" else folder
                report = said(f"migrate, {name}", size, lambda: migrate.run(store, MigrateSpec(archive=archive)))  # noqa: B023
        with schemaless.connect(url) as store:
            job = JobStore(store).job(report.job_id)
            files = archive_files(Path(folder))
            kept = sum(file.size_bytes for file in files)
            print(f"archive: {len(files)} files, {kept / 1e6:.2f} MB, {kept / size:.3f} of the originals")
            print(f"new bodies: {report.total().bytes_after / 1e6:.2f} MB")
            spec = MigrateSpec.of(job)
            verified = said(
                "verify", size, lambda: verify(store, options=VerifyOptions(spec, archive=archive_of(store, job)))
            )
            assert not verified.faults
            restored = said("restore", size, lambda: restore(store, RestoreSpec((folder,))))
            assert restored.total.restored == len(texts)
    with tempfile.TemporaryDirectory() as folder:
        for times in (1, 10):
            measure_file(Path(folder) / str(times), texts * times)


def measure_file(folder: Path, texts: list[bytes]) -> None:
    """Write and read an archive, without a server."""
    size = sum(map(len, texts))
    said(f"write {size / 1e6:.0f} MB", size, lambda: write(folder, texts))
    (file,) = archive_files(folder)
    said(f"read {size / 1e6:.0f} MB", size, lambda: [0 for _ in read_archive(file)])
    done = subprocess.run([sys.executable, __file__, "--read", str(folder)], capture_output=True, text=True, check=True)
    print(f"a process that reads it takes {int(done.stdout.split()[1]) / 1024:.1f} MiB at most")


def write(folder: Path, texts: list[bytes]) -> None:
    """Archive texts in chunks, as a migration does."""
    with ArchiveWriter.create(folder, datastore="written", shard=0, shard_count=1, job_id=1, epoch=1) as writer:
        chunk: list[ArchivedCell] = []
        size = 0
        for number, text in enumerate(texts):
            digest = hashlib.sha256(text).digest()
            chunk.append(
                ArchivedCell(number, os.urandom(16), "BASE", 1, "2026-01-31 00:00:00.000000+00:00", text, digest)
            )
            size += len(text)
            if size >= CHUNK_BYTES:
                writer.append(chunk)
                chunk, size = [], 0
        writer.append(chunk)


def said(what: str, size: int, call: Callable[[], Any]) -> Any:
    """Call, and print how long it took and how much CPU time this process used."""
    began_s, worked_s = time.perf_counter(), time.process_time()
    result = call()
    took_s, worked_s = time.perf_counter() - began_s, time.process_time() - worked_s
    print(f"{what}: {took_s:.2f} s, {size / took_s / 1e6:.0f} MB/s; {worked_s:.2f} s of CPU here")
    return result


if __name__ == "__main__":
    main()
