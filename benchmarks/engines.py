"""Storage engines side by side: disk space of documents, and how long writing and reading a cell takes.

    python benchmarks/engines.py disk FOLDER SET...           bytes per document, after a rebuild or compaction
    python benchmarks/engines.py speed FOLDER SET...          one connection, single cells, interleaved rounds
    python benchmarks/engines.py predict FOLDER SET...        'codec advise --engine rocksdb' against a conversion
    python benchmarks/engines.py crash FOLDER                 kill -9 of a server with MyRocks under writers

A set is "logbooks" or a file FOLDER/SET.ndjson.gz of documents, one per line. Documents are repeated under other keys
until there are --documents of them. Bodies with a dictionary have one that was trained on the other half of the rows,
repetitions included. All tables have the columns and keys of a shard's; tables of MyRocks have the settings of
docs/storage-engines.md and a column family each, so that no file is shared by two of them. "disk" also shows, as
references, a JSON column and ROW_FORMAT=COMPRESSED on MySQL, jsonb on PostgreSQL, if its programs are installed, and
RocksDB in this process, if rocksdict is installed. "speed" syncs every commit and every write of the binary log.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import itertools
import json
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pymysql
from pymysql.converters import escape_string

import schemaless
from schemaless.bench import logbooks
from schemaless.cell import JSONDocument, NewStoredCell
from schemaless.codec.dictionaries import FIRST_ID, Dictionary
from schemaless.codec.envelope import decode_body, encode_body
from schemaless.codec.registry import DEFAULT, codec_named
from schemaless.codec.training import train
from schemaless.local.description import LocalServer
from schemaless.local.servers import kill, start
from schemaless.planning.sampling.advice import advise
from schemaless.planning.sampling.lsm_sizes import lsm_sizes
from schemaless.schema.sql import COMPACT
from schemaless.store.internals import internals_of
from schemaless.testing.servers import private_servers
from schemaless.wire.session import MARIADB_SETTINGS

TABLE = """
CREATE TABLE cell (
    added_id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
    row_key BINARY(16) NOT NULL,
    column_name VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    ref_key BIGINT NOT NULL,
    body {body} NOT NULL,
    created_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    PRIMARY KEY (added_id) {family},
    UNIQUE KEY cell_key (row_key, column_name, ref_key) {family}
) ENGINE={engine} {options}
"""
OURS = ("msgpack+zlib", "packed+zstd, dictionary")
UNCOMPRESSED = ("msgpack+none", "packed+none")
"""Codecs that leave compression to the storage engine, which sees a block of documents at once."""

SEED = 20


@dataclass(frozen=True)
class Form:
    """Representation of documents in a column.

    Attributes:
        name: label in the output.
        bodies: stored value of each distinct document.
        decode: returns the document of a stored value.
    """

    name: str
    bodies: list[bytes]
    decode: Callable[[bytes], JSONDocument]


@dataclass(frozen=True)
class Data:
    """A set of documents.

    Attributes:
        name: name of the set.
        rows: row of each distinct document; documents of one row are in the same half.
        forms: forms in which the documents can be stored.
        count: number of documents to store.
    """

    name: str
    rows: list[str]
    forms: dict[str, Form]
    count: int

    def each(self) -> Iterator[tuple[int, bytes]]:
        """Return the number of the distinct document and the row_key of each document to store."""
        for number in range(self.count):
            yield number % len(self.rows), uuid.uuid5(uuid.NAMESPACE_OID, f"{self.name} {number}").bytes


def read_set(folder: Path, name: str, count: int) -> Data:
    """Read a set, and encode it in every form."""
    if name == "logbooks":
        books = list(logbooks.documents(limit=logbooks.SAMPLE_DOCUMENTS * 100))
        documents, rows = [book.body for book in books], [book.tail_number for book in books]
    else:
        with gzip.open(folder / f"{name}.ndjson.gz", "rt", encoding="utf-8") as lines:
            documents = [json.loads(line) for line in lines]
        rows = [str(number) for number in range(len(documents))]
        groups = folder / f"{name}.groups.gz"
        if groups.exists():
            with gzip.open(groups, "rt", encoding="utf-8") as lines:
                rows = [line.strip() for line in lines]
    text = [json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() for document in documents]
    plain = [encode_body(document) for document in documents]
    packed, dictionaries = trained(rows, documents, plain)
    forms = [
        Form("JSON text", text, json.loads),
        Form(DEFAULT.name, plain, decode_body),
        Form(OURS[1], packed, lambda body: decode_body(body, dictionaries=dictionaries)),
        *(
            Form(name, [encode_body(each, codec_named(name)) for each in documents], decode_body)
            for name in UNCOMPRESSED
        ),
    ]
    return Data(name, rows, {form.name: form for form in forms}, max(count, len(rows)))


def half_of(row: str) -> int:
    """Return the half that a row belongs to."""
    return hashlib.sha256(row.encode()).digest()[0] % 2


def trained(
    rows: Sequence[str], documents: Sequence[JSONDocument], plain: Sequence[bytes]
) -> tuple[list[bytes], dict[int, Dictionary]]:
    """Encode each half with a dictionary that was trained on the other one."""
    halves: tuple[list[tuple[bytes, bytes]], ...] = ([], [])
    for row, body in zip(rows, plain, strict=True):
        halves[half_of(row)].append((uuid.uuid5(uuid.NAMESPACE_OID, row).bytes, body))
    codecs = [train(halves[1 - half], codec_named("packed+zstd"), values="real").codec for half in (0, 1)]
    numbered = [codec.own_dictionaries.get(FIRST_ID).renumbered(FIRST_ID + half) for half, codec in enumerate(codecs)]
    codecs = [replace(codec, dictionary=each) for codec, each in zip(codecs, numbered, strict=True)]
    bodies = [encode_body(document, codecs[half_of(row)]) for row, document in zip(rows, documents, strict=True)]
    return bodies, {each.id: each for each in numbered}


class Table:
    """A table of one form in one storage engine, in a database of its own."""

    def __init__(
        self, server: LocalServer, data: Data, form: Form, number: int, engine: str, *, body: str, options: str
    ) -> None:
        self.server, self.data, self.form, self.engine = server, data, form, engine
        self.json = body == "JSON"
        self.database = f"d{number}"
        self.connection = pymysql.connect(
            unix_socket=str(server.socket), user="root", charset="utf8mb4", autocommit=True, ssl_disabled=True
        )
        family = f"COMMENT 'cfname=cf{number}'" if engine == "ROCKSDB" else ""
        settings = [f"SET SESSION {name}='{value}'" for name, value in MARIADB_SETTINGS.items()]
        self.run(f"CREATE DATABASE {self.database}", f"USE {self.database}")
        if server.flavour == "mariadb":
            self.run(*settings)
        self.run(TABLE.format(family=family, body=body, engine=engine, options=options))

    def run(self, *statements: str | bytes) -> Any:
        """Run statements, and return the last one's rows."""
        with self.connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall()

    def insert(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Insert rows of row_key and body."""
        introducer = b"_utf8mb4" if self.json else b"_binary"
        values = [
            b"(0x%b,'BASE',1,%b'%b')"
            % (key.hex().encode(), introducer, escape_string(body.decode("latin-1")).encode("latin-1"))
            for key, body in rows
        ]
        self.run(b"INSERT INTO cell (row_key, column_name, ref_key, body) VALUES " + b",".join(values))

    def load(self) -> None:
        """Insert all documents, about 512 KB a statement."""
        part: list[tuple[bytes, bytes]] = []
        size = 0
        for number, key in self.data.each():
            body = self.form.bodies[number]
            part.append((key, body))
            size += len(body) + 100
            if size > 1 << 19:
                self.insert(part)
                part, size = [], 0
        if part:
            self.insert(part)

    def get(self, number: int, key: bytes) -> None:
        """Read and decode one document, and check that it is the right one."""
        ((body,),) = self.run(
            f"SELECT body FROM cell FORCE INDEX (cell_key) WHERE row_key=0x{key.hex()} "
            "AND column_name='BASE' AND ref_key=1"
        )
        self.form.decode(body)
        assert self.json or body == self.form.bodies[number]

    def scan(self, count: int) -> float:
        """Read and decode documents in the order of added_id; return microseconds per document."""
        began_s, last, read = time.perf_counter(), 0, 0
        while read < count:
            rows = self.run(f"SELECT added_id, body FROM cell WHERE added_id>{last} ORDER BY added_id LIMIT 100")
            for _, body in rows:
                self.form.decode(body)
            read += len(rows)
            last = rows[-1][0]
        return (time.perf_counter() - began_s) / read * 1e6

    def settle(self) -> None:
        """Rebuild or compact."""
        if self.engine == "ROCKSDB":
            self.run(COMPACT[0], f"SET GLOBAL rocksdb_compact_cf='{self.database.replace('d', 'cf', 1)}'")
        else:
            self.run("ALTER TABLE cell FORCE")

    def disk_bytes(self) -> float:
        """Return the allocated bytes of its files per document."""
        if self.engine == "ROCKSDB":
            rows = self.run(
                "SELECT DISTINCT f.SST_NAME FROM information_schema.ROCKSDB_DDL AS d "
                "JOIN information_schema.ROCKSDB_INDEX_FILE_MAP AS f "
                "ON f.COLUMN_FAMILY=d.COLUMN_FAMILY AND f.INDEX_NUMBER=d.INDEX_NUMBER "
                f"WHERE d.TABLE_SCHEMA='{self.database}'"
            )
            files = [self.server.data / "#rocksdb" / str(name) for (name,) in rows]
        else:
            files = [self.server.data / self.database / "cell.ibd"]
        return sum(file.stat().st_blocks * 512 for file in files) / self.data.count


def disk(data: Data) -> None:
    """Print the bytes per document of each engine and form."""
    mean = statistics.fmean(map(len, data.forms["JSON text"].bodies))
    print(f"\n{data.name}: {data.count:,} documents, {len(data.rows):,} of them distinct, of {mean:,.0f} bytes of JSON")
    print(f"{'':44}{'on disk':>9}{'body':>9}{'scan us':>9}")
    found: dict[tuple[str, str], float] = {}
    with private_servers("mariadb", 1, {"skip-log-bin": "1", **_LARGE}, engine="rocksdb") as (server,):
        for number, (engine, form) in enumerate(itertools.product(("InnoDB", "ROCKSDB"), data.forms)):
            if engine == "InnoDB" and form in UNCOMPRESSED:
                continue
            table = Table(server, data, data.forms[form], number, engine, body="MEDIUMBLOB", options="")
            found[engine, form] = shown(table, f"{'MyRocks' if engine == 'ROCKSDB' else engine}, {form}")
    innodb = min(found["InnoDB", form] for form in OURS)
    ours = min((*OURS, *UNCOMPRESSED), key=lambda form: found["ROCKSDB", form])
    size = found["ROCKSDB", ours]
    print(
        f"{'':4}the smallest of ours on MyRocks, {ours}: {size / innodb:.3f} of the smallest on InnoDB, "
        f"{size / found['ROCKSDB', 'JSON text']:.3f} of MyRocks with JSON text"
    )
    for form in OURS:
        print(
            f"{'':4}{form}: {found['ROCKSDB', form] / found['InnoDB', form]:.3f} of the same on InnoDB, "
            f"{found['ROCKSDB', form] / found['ROCKSDB', 'JSON text']:.3f} of MyRocks with JSON text"
        )
    text = data.forms["JSON text"]
    with private_servers("mysql", 1, {"skip-log-bin": "1", **_LARGE}) as (server,):
        shown(Table(server, data, text, 20, "InnoDB", body="JSON", options=""), "reference: InnoDB, JSON column")
        compressed = "ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=8"
        table = Table(server, data, text, 21, "InnoDB", body="MEDIUMBLOB", options=compressed)
        shown(table, "reference: InnoDB, ROW_FORMAT=COMPRESSED 8 KB")
    references(data)


_LARGE = {"innodb-buffer-pool-size": "512M", "innodb-doublewrite": "OFF"}
_CACHED = {**_LARGE, "rocksdb-block-cache-size": "512M"}


def shown(table: Table, name: str) -> float:
    """Load, rebuild, scan and drop a table; print its line and return the bytes per document."""
    table.load()
    table.settle()
    size = table.disk_bytes()
    print(
        f"{name:44}{size:>9,.0f}{statistics.fmean(map(len, table.form.bodies)):>9,.0f}"
        f"{table.scan(min(table.data.count, 5_000)):>9,.0f}",
        flush=True,
    )
    table.run(f"DROP DATABASE {table.database}")
    table.connection.close()
    return size


def references(data: Data) -> None:
    """Print the bytes per document of RocksDB in this process and of PostgreSQL."""
    try:
        import rocksdict
    except ImportError:
        print("reference: RocksDB in process was left out: rocksdict is not installed")
    else:
        for form in ("JSON text", OURS[1]):
            with tempfile.TemporaryDirectory() as folder:
                size = _rocksdict(rocksdict, data, data.forms[form], folder)
                print(f"{f'reference: RocksDB in process, {form}':44}{size:>9,.0f}", flush=True)
    programs = shutil.which("initdb") or next(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")), None)
    if programs is None:
        print("reference: PostgreSQL was left out: initdb is not installed")
        return
    with postgres(Path(programs).resolve().parent) as query:
        query(
            "CREATE TABLE cell (added_id bigserial PRIMARY KEY, row_key uuid NOT NULL, column_name text NOT NULL, "
            "ref_key bigint NOT NULL, body jsonb NOT NULL, created_at timestamptz NOT NULL DEFAULT now(), "
            "UNIQUE (row_key, column_name, ref_key))"
        )
        lines = (
            f"{uuid.UUID(bytes=key)}\tBASE\t1\t"
            + data.forms["JSON text"].bodies[number].decode().replace("\\u0000", "").replace("\\", "\\\\")
            for number, key in data.each()
        )
        query("COPY cell (row_key, column_name, ref_key, body) FROM STDIN", lines)
        query("VACUUM FULL cell")
        size = float(query("SELECT pg_total_relation_size('cell')")) / data.count
        print(f"{'reference: PostgreSQL, jsonb':44}{size:>9,.0f}", flush=True)


def _rocksdict(rocksdict: Any, data: Data, form: Form, folder: str) -> float:
    options = rocksdict.Options(raw_mode=True)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    options.set_bottommost_compression_type(rocksdict.DBCompressionType.zstd())
    options.set_bottommost_compression_options(-14, 3, 0, 16_384, True)
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_block_size(16_384)
    options.set_block_based_table_factory(blocks)
    store = rocksdict.Rdict(folder, options)
    for number, key in data.each():
        store[key + b"BASE" + (1).to_bytes(8, "big")] = form.bodies[number]
    store.flush()
    store.compact_range(None, None)
    size = sum(path.stat().st_blocks * 512 for path in Path(folder).glob("*.sst")) / data.count
    store.close()
    return size


@contextmanager
def postgres(programs: Path) -> Iterator[Callable[..., str]]:
    """Run a private PostgreSQL server; yield a function that runs a statement, with lines for COPY."""
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    account = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    if account:
        os.chown(folder, 65534, 65534)

    def run(program: str, *arguments: str) -> None:
        subprocess.run([*account, str(programs / program), *arguments], check=True, stdout=subprocess.DEVNULL, cwd="/")

    def query(sql: str, lines: Iterator[str] | None = None) -> str:
        command = [str(programs / "psql"), "-h", str(folder), "-U", "bench", "-d", "postgres", "-qAtX", "-c", sql]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/") as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for line in lines or ():
                process.stdin.write(line + "\n")
            process.stdin.close()
            said = process.stdout.read()
        if process.returncode:
            raise RuntimeError(f"psql ended with {process.returncode}: {sql[:80]}")
        return said.strip()

    data = str(folder / "data")
    try:
        run("initdb", "-D", data, "-U", "bench", "--auth=trust", "--no-sync")
        options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off -c max_wal_size=4GB"
        run("pg_ctl", "-D", data, "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield query
        finally:
            run("pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def speed(data: Data, rounds: int) -> None:
    """Print the median microseconds of a put and a get, and those of a scanned document."""
    synced = {"innodb-flush-log-at-trx-commit": "1", "sync-binlog": "1", "innodb-flush-method": "O_DIRECT"}
    with private_servers("mariadb", 1, {**_CACHED, **synced}, engine="rocksdb") as (server,):
        tables = []
        forms = [form for form in data.forms if form not in UNCOMPRESSED]
        for number, (engine, form) in enumerate(itertools.product(("InnoDB", "ROCKSDB"), forms)):
            table = Table(server, data, data.forms[form], number, engine, body="MEDIUMBLOB", options="")
            table.load()
            table.settle()
            tables.append(table)
        chosen = random.Random(SEED)
        keys = list(data.each())
        times: dict[str, list[list[float]]] = {name: [[] for _ in tables] for name in ("put", "get", "scan")}
        for turn in range(rounds):
            for place, table in sorted(enumerate(tables), key=lambda _: chosen.random()):
                began_s = time.perf_counter()
                for n in range(40):
                    key = uuid.uuid5(uuid.NAMESPACE_URL, f"{turn} {n}").bytes
                    table.insert([(key, table.form.bodies[n % len(data.rows)])])
                times["put"][place].append((time.perf_counter() - began_s) / 40 * 1e6)
                some = chosen.sample(keys, 200)
                began_s = time.perf_counter()
                for number, key in some:
                    table.get(number, key)
                times["get"][place].append((time.perf_counter() - began_s) / 200 * 1e6)
                times["scan"][place].append(table.scan(1_000))
    print(f"\n{data.name}: {data.count:,} documents, median of {rounds} rounds, microseconds")
    print(f"{'':40}{'put':>9}{'get':>9}{'scan':>9}")
    medians = {name: [statistics.median(each) for each in columns] for name, columns in times.items()}
    for place, table in enumerate(tables):
        name = f"{'MyRocks' if table.engine == 'ROCKSDB' else table.engine}, {table.form.name}"
        print(f"{name:40}" + "".join(f"{medians[kind][place]:>9,.0f}" for kind in medians))
    half = len(tables) // 2
    for place in range(half):
        ratios = [
            statistics.median(a / b for a, b in zip(times[kind][place], times[kind][place + half], strict=True))
            for kind in times
        ]
        name = f"    MyRocks of InnoDB, {tables[place].form.name}"
        print(f"{name:40}" + "".join(f"{ratio:>9.2f}" for ratio in ratios) + "   operations per second", flush=True)


def predict(data: Data) -> None:
    """Print the predicted and the actual size of a conversion, for legacy text and for the default codec."""
    for form in ("JSON text", DEFAULT.name):
        with private_servers("mariadb", 1, _LARGE, engine="rocksdb") as (server,):
            url = schemaless.create("bench", 1, [server.url])
            with schemaless.connect(url) as store:
                part: list[NewStoredCell] = []
                size = 0
                for number, key in data.each():
                    part.append(NewStoredCell(key, "BASE", 1, data.forms[form].bodies[number]))
                    size += len(part[-1].body)
                    if size > 1 << 20:
                        store.put_stored_cells(part, trusted=True)
                        part, size = [], 0
                if part:
                    store.put_stored_cells(part, trusted=True)
                (advice,) = advise(store, engine="rocksdb", seed=SEED)
                pool = internals_of(store).shards.pool_for(internals_of(store).topology.clusters[0].primary)
                database = internals_of(store).shards.database(0)
                statements = [b"ALTER TABLE `%b`.cell ENGINE=ROCKSDB" % database.encode(), *COMPACT]
                with pool.connection() as connection:
                    for statement in statements:
                        connection.execute(statement)
                    actual = lsm_sizes(connection, [database])[database].stored_bytes
        low, mid, high = (size / data.count for size in advice.allocated_bytes)
        inside = "inside" if low <= actual / data.count <= high else "OUTSIDE"
        print(
            f"{data.name + ', ' + form:34}predicted {mid:>8,.0f} ({low:,.0f} to {high:,.0f}), actual "
            f"{actual / data.count:>8,.0f} bytes a document, {mid * data.count / actual - 1:+.1%}, {inside}",
            flush=True,
        )


def crash(times: int) -> int:
    """Kill a server under eight writers, again and again; return how many acknowledged cells are missing or changed."""
    acknowledged: dict[bytes, tuple[int, JSONDocument]] = {}
    missing = reused = differing = 0
    with private_servers("mariadb", 1, engine="rocksdb", replicas=1) as (server,):
        url = schemaless.create("crashes", 4, [server.url], engine="rocksdb")
        for turn in range(times):
            with schemaless.connect(url) as store:
                threads = [threading.Thread(target=_write, args=(store, turn, n, acknowledged)) for n in range(8)]
                for thread in threads:
                    thread.start()
                time.sleep(0.5 + random.Random(f"{SEED} {turn}").random())
                kill(server)
                for thread in threads:
                    thread.join()
            server = start(server)
            with schemaless.connect(url) as store:
                found = {
                    cell.row_key.bytes: (cell.added_id, cell.body)
                    for shard in range(store.shard_count)
                    for cell in store.iter_shard(shard)
                }
                missing += sum(found.get(key) != cell for key, cell in acknowledged.items())
                for shard in range(store.shard_count):
                    top = max((each.added_id for each in store.iter_shard(shard)), default=0)
                    rows = (uuid.uuid5(uuid.NAMESPACE_OID, f"{turn} {shard} {n}") for n in itertools.count())
                    row = next(each for each in rows if store.shard_of(each) == shard)
                    put = store.put_cell(row, "BASE", 1, 0)
                    reused += put.added_id <= top
                    acknowledged[row.bytes] = (put.added_id, 0)
                    differing += _digest(server, shard, top) != _digest(server.replicas[0], shard, top)
    print(
        f"{times} times kill -9 of a server with MyRocks under 8 writers: {len(acknowledged):,} cells acknowledged, "
        f"{missing} missing or changed, {reused} ids given again; {differing} of {times * 4} comparisons of a shard "
        "with its replica, which has the cells from the binary log, found a difference"
    )
    return missing + reused + differing


def _digest(server: LocalServer, shard: int, top: int) -> Any:
    """Return the number of cells of a shard up to an id, and a digest of them."""
    connection = pymysql.connect(unix_socket=str(server.socket), user="root", autocommit=True, ssl_disabled=True)
    with connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT COUNT(*), BIT_XOR(CRC32(CONCAT_WS('/', added_id, HEX(row_key), ref_key, HEX(body), created_at))) "
            f"FROM crashes_{shard:04}.cell WHERE added_id<={top}"
        )
        return cursor.fetchall()


def _write(
    store: schemaless.Datastore, turn: int, writer: int, acknowledged: dict[bytes, tuple[int, JSONDocument]]
) -> None:
    for count in itertools.count():
        rows = [uuid.uuid5(uuid.NAMESPACE_URL, f"{turn} {writer} {count} {n}") for n in range(1 + count % 5)]
        document = {"n": count, "text": "x" * (count % 900)}
        try:
            puts = store.put_cells([schemaless.NewCell(row, "BASE", 1, document) for row in rows])
        except schemaless.SchemalessError:
            return
        acknowledged.update({put.key.row_key.bytes: (put.added_id, document) for put in puts})


def main() -> int:
    """Run what was asked for, set by set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["disk", "speed", "predict", "crash"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("sets", nargs="*")
    parser.add_argument("--documents", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--kills", type=int, default=20)
    arguments = parser.parse_args()
    if arguments.what == "crash":
        return 1 if crash(arguments.kills) else 0
    for name in arguments.sets:
        data = read_set(arguments.folder, name, arguments.documents)
        if arguments.what == "disk":
            disk(data)
        elif arguments.what == "speed":
            speed(data, arguments.rounds)
        else:
            predict(data)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
