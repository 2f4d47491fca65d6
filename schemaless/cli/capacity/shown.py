"""How a measurement is printed, and how a disk is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from schemaless.cli.quantities import size_of
from schemaless.terminal.output import (
    estimate_json,
)

if TYPE_CHECKING:  # 'capacity model' needs no SQLAlchemy
    from schemaless.capacity.disks import GivenDisk
    from schemaless.capacity.measurement import ClusterSpace, DailyGrowth, Group, Measurement


LAST_DAYS = 7


def measurement_json(found: Measurement) -> dict[str, Any]:
    """Return a measurement for ``print_json``, as the catalog keeps it: in whole numbers."""
    plain = found.to_json()
    found = type(found).from_json(plain)
    kinds: dict[str, Sequence[Group | DailyGrowth | ClusterSpace]] = {
        "groups": found.groups,
        "growth": found.growth,
        "clusters": found.clusters,
    }
    for name, items in kinds.items():
        for data, item in zip(plain[name], items, strict=True):
            for part in fields(item):
                value = getattr(item, part.name)
                if hasattr(value, "exact"):
                    data[part.name] = estimate_json(value)
    return plain


def disk_of(text: str) -> tuple[str, GivenDisk]:
    """Return what ``--disk`` names."""
    from schemaless.capacity.disks import GivenDisk

    cluster, equals, sizes = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not CLUSTER=SIZE or CLUSTER=SIZE:FREE, such as cluster-1=4TB:1.5TB")
    total, colon, free = sizes.partition(":")
    disk = GivenDisk(round(size_of(total)), round(size_of(free)) if colon else None)
    if disk.free_bytes is not None and disk.free_bytes > disk.disk_bytes:
        raise click.BadParameter(f"{text!r}: more is free than there is")
    return cluster, disk
