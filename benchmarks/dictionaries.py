"""What a dictionary saves on aircraft that it was not trained on, and whether advice proves right when followed.

    python benchmarks/dictionaries.py codec [--aircraft-seeds 5]
    python benchmarks/dictionaries.py advice [--flavour mysql mariadb] [--seeds 3]
    python benchmarks/dictionaries.py calls [--rounds 30]

``codec``: the logbooks' aircraft are split by seed, a dictionary is trained on three quarters with their values, and
the logbooks of the others are encoded and decoded with and without it; bytes, and CPU microseconds per logbook, the
minimum of five interleaved rounds, without Python's garbage collector. ``advice``: a live datastore of 4 shards with
all logbooks as JSON text (LOG), their summaries (SUMMARY) and lists of short decimals (FIX) gets 'codec advise'; its
advice is carried out by the commands' own functions, and the resulting bytes of bodies are compared with the
prediction. ``calls``: put_cell and get_cell_latest on a private server, in turns for a column without and one with a
dictionary.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from schemaless.bench.logbooks import documents
from schemaless.cell import NewStoredCell
from schemaless.codec.envelope import DEFAULT_LIMITS, decode_body, encode_body
from schemaless.codec.registry import DEFAULT, Codec, codec_named
from schemaless.codec.training import train
from schemaless.local.description import LocalServer
from schemaless.ops.admin.create import create
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.planning.sampling.advice import ColumnAdvice, advise, train_column
from schemaless.store.cells.column_codecs import ColumnSetting, set_column
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.store.opening import connect
from schemaless.testing.servers import private_servers

ROUNDS = 5
SLOW_LEVEL = 15
Logbooks = list[tuple[str, int, Any]]


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("codec", "advice", "calls"))
    parser.add_argument("--aircraft-seeds", type=int, default=5)
    parser.add_argument("--flavour", nargs="*", default=["mysql", "mariadb"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    logbooks = [(each.tail_number, each.month, each.body) for each in documents()]
    if arguments.what == "codec":
        for seed in range(1, arguments.aircraft_seeds + 1):
            unseen_aircraft(logbooks, seed)
        return
    for flavour in arguments.flavour:
        with private_servers(flavour, 1) as (server,):
            print(f"{flavour} {server.version}")
            if arguments.what == "calls":
                calls(server, logbooks, arguments.rounds)
            for seed in range(1, arguments.seeds + 1) if arguments.what == "advice" else ():
                followed(server, logbooks, seed)


# ---- unseen aircraft


def unseen_aircraft(logbooks: Logbooks, seed: int) -> None:
    """Train on three quarters of the aircraft; print the bytes and times of the others."""
    names = sorted({tail_number for tail_number, _, _ in logbooks})
    random.Random(seed).shuffle(names)
    seen = set(names[: len(names) * 3 // 4])
    zstd = codec_named("msgpack+zstd")
    training = train(
        ((uuid.uuid5(uuid.NAMESPACE_OID, name).bytes, encode_body(body)) for name, _, body in logbooks if name in seen),
        zstd,
        values="real",
    )
    unseen = [body for name, _, body in logbooks if name not in seen]
    print(
        f"\nseed {seed}: dictionary of {len(training.dictionary.content):,} bytes from {len(seen):,} aircraft; "
        f"{len(unseen):,} logbooks of {len(names) - len(seen):,} others"
    )
    contenders = {
        "msgpack+zlib, level 6": DEFAULT,
        "json+zlib, level 6": codec_named("json+zlib"),
        "msgpack+zstd, level 3": zstd,
        **{
            f"msgpack+zstd, level {level}, dictionary": replace(training.codec, level=level)
            for level in (1, 3, 6, 12, 19)
        },
    }
    taken: dict[str, tuple[int, float, float]] = {}
    for turn in range(ROUNDS):
        for name, codec in contenders.items():
            if turn == 0 or (codec.level or 0) < SLOW_LEVEL:
                size, *seconds = timed(unseen, codec, compare=turn == 0)
                _, *least = taken.get(name, (0, *seconds))
                taken[name] = (size, min(least[0], seconds[0]), min(least[1], seconds[1]))
    first_bytes, first_encode, first_decode = taken["msgpack+zlib, level 6"]
    print(f"{'codec':<36}{'bytes':>12}{'share':>8}{'encode us':>11}{'decode us':>11}{'both':>7}")
    for name, (size, encode_s, decode_s) in taken.items():
        each = 1e6 / len(unseen)
        both = (encode_s + decode_s) / (first_encode + first_decode)
        print(
            f"{name:<36}{size:>12,}{size / first_bytes:>8.3f}"
            f"{encode_s * each:>11.1f}{decode_s * each:>11.1f}{both:>7.2f}"
        )


def timed(unseen: Sequence[Any], codec: Codec, *, compare: bool) -> tuple[int, float, float]:
    """Return bytes, and CPU seconds to encode and to decode."""
    gc.collect()
    gc.disable()
    started = time.thread_time()
    bodies = [encode_body(body, codec) for body in unseen]
    encoded = time.thread_time()
    for body in bodies:
        decode_body(body, DEFAULT_LIMITS, codec.own_dictionaries)
    decoded = time.thread_time()
    gc.enable()
    if compare and [decode_body(body, DEFAULT_LIMITS, codec.own_dictionaries) for body in bodies] != list(unseen):
        raise SystemExit("a decoded body is not its document")
    return sum(map(len, bodies)), encoded - started, decoded - encoded


# ---- advice


def followed(server: LocalServer, logbooks: Logbooks, seed: int) -> None:
    """Ask for advice, follow it, and compare the result with the prediction."""
    with connect(create(f"a{uuid.uuid4().hex[:8]}", 4, [server.url]), read_timeout_s=600) as store:
        fill(store, logbooks, seed)
        before = body_bytes(store)
        started = time.perf_counter()
        advice = advise(store, seed=seed)
        print(f"\nseed {seed}: advice after {time.perf_counter() - started:.0f} s")
        follow(store, advice)
        after = body_bytes(store)
    print(f"{'column':<10}{'cells':>8}{'before':>13}{'promised':>13}{'came out':>13}{'off':>8}  advised")
    for each in advice:
        promised = each.body_bytes.mid if each.chosen is None else each.chosen.body_bytes.mid
        cells, size = after[each.column_name]
        name = "as it is" if each.chosen is None else each.chosen.name
        print(
            f"{each.column_name:<10}{cells:>8,}{before[each.column_name][1]:>13,}{promised:>13,.0f}{size:>13,}"
            f"{promised / size - 1:>8.1%}  {name}"
        )
        for line in each.notes:
            print(f"          - {line}")


def fill(store: Datastore, logbooks: Logbooks, seed: int) -> None:
    """Write three columns: long documents, short ones, and lists of short decimals."""
    drawn = random.Random(seed)
    cells = []
    for name, month, body in logbooks:
        row = uuid.uuid5(uuid.NAMESPACE_OID, f"{name}/{seed}")
        legs = body["legs"]
        summary = {"tail_number": name, "month": month, "legs": len(legs), "first": legs[0]}
        fixes = [[round(drawn.uniform(40, 41), 4), round(drawn.uniform(-74, -73), 4)] for _ in range(40)]
        for column, document in (("LOG", body), ("SUMMARY", summary), ("FIX", {"fixes": fixes})):
            cells.append(NewStoredCell(row, column, month, encode_body(document, codec_named("legacy"))))
    for start in range(0, len(cells), 1_000):
        store.put_stored_cells(cells[start : start + 1_000], trusted=True)


def follow(store: Datastore, advice: Sequence[ColumnAdvice]) -> None:
    """Do what 'codec train', 'codec set' and 'migrate run' do."""
    for each in advice:
        if each.chosen is None:
            continue
        codec, number = each.chosen.codec, None
        if codec.dictionary is not None:
            training, source = train_column(
                store, each.column_name, replace(codec_named(codec.name), level=3), seed=each.seed
            )
            number = internals_of(store).dictionary_replicas.keep(training.dictionary, source).id
        set_column(
            internals_of(store).dictionary_replicas, ColumnSetting(each.column_name, codec.name, codec.level, number)
        )
        migrate.run(store, MigrateSpec(codec.name, columns=(each.column_name,), level=codec.level, dictionary=number))


def body_bytes(store: Datastore) -> dict[str, tuple[int, int]]:
    """Count cells and body bytes by column."""
    found: dict[str, tuple[int, int]] = {}
    for shard in range(store.shard_count):
        sql = b"SELECT column_name, COUNT(*), SUM(LENGTH(body)) FROM `%b`.cell GROUP BY column_name"
        for column, cells, size in internals_of(store).shards.rows(
            shard, sql % internals_of(store).shards.database(shard).encode()
        ):
            known = found.get(column, (0, 0))
            found[column] = known[0] + int(cells), known[1] + int(size)
    return found


# ---- calls


def calls(server: LocalServer, logbooks: Logbooks, rounds: int) -> None:
    """Time single calls on columns without and with a dictionary, in alternating rounds."""
    url = create(f"c{uuid.uuid4().hex[:8]}", 4, [server.url])
    with connect(url) as store:
        training = train(
            ((uuid.uuid5(uuid.NAMESPACE_OID, name).bytes, encode_body(body)) for name, _, body in logbooks[:2000]),
            codec_named("msgpack+zstd"),
            values="real",
        )
        kept = internals_of(store).dictionary_replicas.keep(training.dictionary, {})
        set_column(internals_of(store).dictionary_replicas, ColumnSetting("WITH", "msgpack+zstd", None, kept.id))
    some = [body for _, _, body in logbooks[2000:2050]]
    took: dict[tuple[str, str], list[float]] = {}
    with connect(url) as store:
        for _ in range(rounds):
            for column in ("PLAIN", "WITH"):
                rows = [uuid.uuid4() for _ in some]
                once(
                    "put_cell",
                    column,
                    took,
                    [_put(store, row, column, body) for row, body in zip(rows, some, strict=True)],
                )
                once("get_cell_latest", column, took, [_get(store, row, column) for row in rows])
    for (call, column), seconds in sorted(took.items()):
        print(
            f"{call:<16} {column:<6} median {statistics.median(seconds) * 1e6:7.1f} us, least {min(seconds) * 1e6:7.1f}"
        )


def _put(store: Datastore, row: uuid.UUID, column: str, body: Any) -> Callable[[], object]:
    return lambda: store.put_cell(row, column, 1, body)


def _get(store: Datastore, row: uuid.UUID, column: str) -> Callable[[], object]:
    return lambda: store.get_cell_latest(row, column)


def once(
    call: str, column: str, took: dict[tuple[str, str], list[float]], work: Sequence[Callable[[], object]]
) -> None:
    """Time some calls; record the mean time of one."""
    started = time.perf_counter()
    for each in work:
        each()
    took.setdefault((call, column), []).append((time.perf_counter() - started) / len(work))


if __name__ == "__main__":
    main()
