"""JSON of a measurement, and parsing of option values, for the commands of ``schemaless capacity``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import click

from schemaless.capacity.disks import GivenDisk
from schemaless.capacity.measurement import ClusterFiles, DayIntake, Group, Measurement
from schemaless.cli.quantities import share_of, size_of
from schemaless.terminal.output import estimate_json

LAST_DAYS = 7


def measurement_json(measurement: Measurement) -> dict[str, Any]:
    """Return a measurement for ``print_json``, rounded to whole numbers as in the catalog."""
    plain = measurement.to_json()
    measurement = type(measurement).from_json(plain)
    kinds: dict[str, Sequence[Group | DayIntake | ClusterFiles]] = {
        "groups": measurement.groups,
        "growth": measurement.growth,
        "clusters": measurement.clusters,
    }
    for name, items in kinds.items():
        for data, item in zip(plain[name], items, strict=True):
            for part in fields(item):
                value = getattr(item, part.name)
                if hasattr(value, "exact"):
                    data[part.name] = estimate_json(value)
    return plain


def disk_of(text: str) -> tuple[str, GivenDisk]:
    """Parse a value of ``--disk``."""
    cluster, equals, sizes = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not of the form CLUSTER=SIZE[:FREE], such as cluster-1=4TB:1.5TB")
    total, colon, free = sizes.partition(":")
    disk = GivenDisk(round(size_of(total)), round(size_of(free)) if colon else None)
    if disk.free_bytes is not None and disk.free_bytes > disk.disk_bytes:
        raise click.BadParameter(f"{text!r}: the free space is larger than the disk")
    return cluster, disk


def shares_of(text: str) -> tuple[float, ...]:
    """Parse the value of ``--thresholds``."""
    return tuple(share_of(part.strip()) for part in text.split(","))
