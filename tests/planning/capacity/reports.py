"""Synthetic measurements and codec trials for report tests, without a server."""

from __future__ import annotations

import datetime
import functools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC

from schemaless.base.numbers import Interval
from schemaless.codec.registry import codec_names
from schemaless.planning.capacity.basis import Collected
from schemaless.planning.capacity.combined import combine
from schemaless.planning.capacity.disks import GivenDisk
from schemaless.planning.capacity.measurement import (
    NO_CODEC_TRIALS,
    ClusterFiles,
    CodecTrials,
    DayIntake,
    Group,
    Measurement,
    Unit,
)
from schemaless.planning.capacity.options import Asked, PlanningOptions, WhatIf
from schemaless.planning.capacity.rebuilt import unit_in_blocks
from schemaless.planning.capacity.report import CapacityReport
from schemaless.planning.capacity.reporting import assemble_report
from schemaless.planning.sampling.column_trials import CodecTrial
from schemaless.planning.sampling.page_model import MYROCKS, Content

TODAY = datetime.date(2026, 6, 1)
TAKEN_AT = datetime.datetime(2026, 6, 1, 3, 0, tzinfo=UTC)
MIB = 1 << 20
GIB = 1 << 30
WEEK = (1.2, 1.1, 1.0, 1.0, 1.3, 0.8, 0.6)
SHARES = {
    "msgpack+zlib": 0.15,
    "msgpack+none": 0.8,
    "msgpack+zstd": 0.14,
    "packed+zlib": 0.16,
    "packed+none": 0.7,
    "packed+zstd": 0.16,
    "json+none": 1.0,
    "json+zlib": 0.16,
    "json+zstd": 0.16,
    "legacy": 1.0,
}
IN_MYROCKS = 0.5
SHARES_IN_MYROCKS = dict.fromkeys(SHARES, 1.2) | {"packed+none": 0.7}


def within(value: float, share: float = 0.03) -> Interval:
    return Interval(value * (1 - share), value, value * (1 + share))


def growth(cluster: str, column: str, days: int, bytes_a_day: float, last: datetime.date) -> list[DayIntake]:
    """Growth with a weekly pattern and noise, up to and including the incomplete day ``last``."""
    draw = random.Random(f"{cluster} {column}")
    found = []
    for number in range(days + 1):
        day = last - datetime.timedelta(days - number)
        size = bytes_a_day * (1 + number / 365) * WEEK[day.weekday()] * math.exp(draw.gauss(0, 0.06))
        complete = day != last
        found.append(DayIntake(day, cluster, column, within(size / 2000), within(size), "search", complete))
    return found


def space(cluster: str, *, stored: float = GIB, disk: int | None = 4 * GIB, **changes: object) -> ClusterFiles:
    values: dict[str, object] = {
        "node": f"{cluster}.example:3306",
        "read_from": "replica",
        "copies": 2,
        "shards": 4,
        "file_bytes": round(1.1 * stored),
        "file_allocated_bytes": round(1.1 * stored),
        "file_bytes_measured": True,
        "rebuilt_bytes": within(stored),
        "overhead_bytes": within(0.2 * stored),
        "disk_bytes": disk,
        "free_bytes": None if disk is None else round(disk - 1.1 * stored),
        "disk_from": None if disk is None else "server",
    }
    return ClusterFiles(cluster, **{**values, **changes})  # type: ignore[arg-type]


def down(cluster: str) -> ClusterFiles:
    return ClusterFiles(cluster, f"{cluster}.example:3306", "primary", 2, 4, "no connection: refused")


def groups(cluster: str, first_shard: int, stored: float = GIB) -> list[Group]:
    found = []
    for shard in range(first_shard, first_shard + 4):
        for column, share in (("BASE", 0.9), ("STATUS", 0.1)):
            size = stored / 4 * share * (1 + 0.1 * (shard % 3))
            body = within(size / 1.3)
            found.append(Group(cluster, shard, column, "legacy", within(size / 2000), body, within(size), body))
    return found


def measurement(
    *,
    days: int = 40,
    bytes_a_day: float = 16 * MIB,
    clusters: Sequence[ClusterFiles] | None = None,
    growth_to: datetime.date = TODAY,
    notes: Sequence[str] = (),
    stored: bool = True,
) -> Measurement:
    """Two clusters with four shards and two columns each, all legacy, with ``days`` whole days of history."""
    spaces = (
        [space("cluster-1", disk=4 * GIB), space("cluster-2", disk=5 * GIB)] if clusters is None else list(clusters)
    )
    known = [each for each in spaces if each.problem is None and stored]
    return Measurement(
        taken_at=TAKEN_AT,
        datastore="trips",
        shard_count=4 * len(spaces),
        groups=tuple(group for number, each in enumerate(known) for group in groups(each.cluster, 4 * number)),
        growth=tuple(
            day
            for each in known
            for column, share in (("BASE", 0.9), ("STATUS", 0.1))
            for day in (growth(each.cluster, column, days, share * bytes_a_day, growth_to) if days else [])
        ),
        clusters=tuple(spaces),
        notes=tuple(notes),
        rows_read=8_000,
        pages_read=9_000,
        seconds=1.5,
        seed=7,
        trials=tried(),
    )


def unit_of_share(share: float) -> Unit:
    """The average cell in a codec that leaves a share of 2,000 bytes."""
    return Unit(Content(1, share * 2000 / 16_384, 0, 0.003), 0.5, 0.01)


def tried(
    columns: Sequence[str] = ("BASE", "STATUS"),
    *,
    shares: Mapping[str, float] = SHARES,
    in_engine: bool = False,
    **changes: object,
) -> CodecTrials:
    """Trials of every codec, with ratios typical of JSON documents."""
    found = []
    for name in codec_names():
        for column in columns:
            share = shares.get(name, 1.0)
            values: dict[str, object] = {
                "column_name": column,
                "codec": name,
                "sampled": 200,
                "left_cells": 0,
                "share": within(share),
                "pages_share": within(share),
                "migrated_pages_share": within(share),
                "encode_s": 50e-6,
                "decode_s": 20e-6,
            }
            found.append(CodecTrial(**{**values, **changes}))  # type: ignore[arg-type]
    units = {name: dict.fromkeys(columns, unit_of_share(share)) for name, share in shares.items()}
    per_body = dict.fromkeys(columns, Interval.of(1.3))
    return CodecTrials(tuple(found), units, per_body, engines={} if in_engine else {"rocksdb": in_myrocks(columns)})


def in_myrocks(columns: Sequence[str]) -> CodecTrials:
    """The same trials in MyRocks, whose blocks halve bodies as they are stored, and whatever a codec left of them."""
    trials = tried(columns, shares=SHARES_IN_MYROCKS, in_engine=True)
    units = {
        name: dict.fromkeys(columns, unit_in_blocks([1538], [1538], within(IN_MYROCKS * share)))
        for name, share in {None: 1.0, **SHARES_IN_MYROCKS}.items()
    }
    return replace(trials, units=units, disk_per_body=dict.fromkeys(columns, within(IN_MYROCKS)), layout=MYROCKS)


def report(*measurements: Measurement, trials: CodecTrials | None = None, **options: object) -> CapacityReport:
    """A report of ``measurements``, by default of the common one, with other trials if given."""
    made_at = TAKEN_AT + datetime.timedelta(hours=2)
    *older, newest = measurements or (measurement(),)
    collected = Collected((*older, newest if trials is None else replace(newest, trials=trials)))
    return assemble_report(collected, made_at, Asked(**options))  # type: ignore[arg-type]


@functools.cache
def common() -> CapacityReport:
    """The report of the common measurement, built once."""
    return report()


@functools.cache
def of_many_shards() -> CapacityReport:
    """A report of 4,096 shards on six clusters, measured by cluster, with the file length of each shard."""
    draw = random.Random(4096)
    names = [f"cluster-{number}" for number in range(1, 7)]
    files = {
        name: tuple((shard, round(60 * MIB * draw.lognormvariate(0, 0.2))) for shard in range(place, 4096, len(names)))
        for place, name in enumerate(names)
    }
    spaces = [
        space(name, stored=sum(size for _, size in files[name]) / 1.1, shards=len(files[name]), shard_files=files[name])
        for name in names
    ]
    spaces = [
        replace(each, disk_bytes=(80 + place) * GIB, free_bytes=(30 + place) * GIB) for place, each in enumerate(spaces)
    ]
    base = measurement(clusters=spaces, bytes_a_day=100 * MIB)
    groups = tuple(replace(each, shard=None) for each in base.groups)
    planning = PlanningOptions(lead_days=30, price_per_tb=90, fail_below_days=60)
    return report(replace(base, shard_count=4096, groups=groups), planning=planning)


WHAT_IFS = (
    WhatIf(name="twice", growth=2),
    WhatIf(name="trips grows", growth={"trips": 2}, codec="msgpack+zlib"),
    WhatIf(name="three copies", copies=3, price_per_tb=60, lead_days=10),
    WhatIf(name="on MyRocks", engine="rocksdb"),
    WhatIf(name="packed on MyRocks", engine="rocksdb", codec="packed+none"),
)
PLANNING = PlanningOptions(lead_days=45, price_per_tb=90)
RACK = {"trips/cluster-1": "rack-a", "users/cluster-1": "rack-a"}


def users(**changes: object) -> Measurement:
    """A second datastore: 60 days of history, on a server of its own."""
    one = measurement(days=60, bytes_a_day=5 * MIB, clusters=[space("cluster-1", stored=GIB / 2, node="users:3306")])
    return replace(one, datastore="users", **changes)  # type: ignore[arg-type]


def of_two(*, shared: bool = True, **options: object) -> CapacityReport:
    """A report of two datastores, which share a disk if ``shared`` is set."""
    collected = combine({"trips": Collected((measurement(),)), "users": Collected((users(),))})
    if shared:
        options |= {"disks": dict.fromkeys(RACK, GivenDisk(10 * GIB, 5 * GIB)), "disk_names": RACK}
    return assemble_report(collected, TAKEN_AT, Asked(**options))  # type: ignore[arg-type]


_ODD: dict[str, Callable[[], CapacityReport]] = {
    "empty": lambda: report(measurement(days=0, stored=False), trials=NO_CODEC_TRIALS),
    "one cell": lambda: report(measurement(days=0)),
    "one day": lambda: report(measurement(days=1)),
    "a cluster that is down": lambda: report(measurement(days=30, clusters=[space("cluster-1"), down("cluster-2")])),
    "all down": lambda: report(measurement(clusters=[down("cluster-1"), down("cluster-2")]), trials=NO_CODEC_TRIALS),
    "dates of the future": lambda: report(measurement(days=430, growth_to=TODAY + datetime.timedelta(400))),
    "dates long gone": lambda: report(measurement(growth_to=TODAY - datetime.timedelta(2000))),
    "no disk known": lambda: report(measurement(days=30, clusters=[space("cluster-1", disk=None)])),
    "a full disk": lambda: report(measurement(days=30, clusters=[space("cluster-1", free_bytes=0)])),
    "a clock that went back": lambda: report(measurement(days=40), measurement(days=30)),
}


@functools.cache
def odd_report(name: str) -> CapacityReport:
    """An edge case, which must neither fail nor show figures that are unknown."""
    return _ODD[name]()


def odd_reports() -> dict[str, CapacityReport]:
    """All edge cases by name."""
    return {name: odd_report(name) for name in _ODD}
