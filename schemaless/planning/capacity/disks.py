"""The disks of a datastore: one per cluster, unless several servers share a machine and its disk. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from schemaless.base.numbers import bytes_text
from schemaless.planning.capacity.measurement import ClusterFiles, Measurement

_SAME_DISK_SHARE: Final = 0.02
"""Largest difference in free space between two readings of the same disk, as a share of its size."""


@dataclass(frozen=True, slots=True)
class GivenDisk:
    """Size and, if known, free space of a disk as given by the user, and where, for errors."""

    disk_bytes: int
    free_bytes: int | None = None
    source: str = field(default="--disk", compare=False)


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk and the clusters on it, usually one.

    Attributes:
        clusters: Names of the clusters.
        disk_bytes: Size of the disk, or None if unknown.
        free_bytes: Free space, or None if unknown.
        free_assumed: True if ``free_bytes`` is just the size less this datastore's files.
        file_bytes: Length of this datastore's files, or None if unknown.
        copies: Number of servers that hold each cell.
        problem: Why the clusters could not be measured, or None.
        label: Name that the user gave to the disk, or None.
    """

    clusters: tuple[str, ...]
    disk_bytes: int | None
    free_bytes: int | None
    free_assumed: bool
    file_bytes: int | None
    copies: int
    problem: str | None = None
    label: str | None = None

    @property
    def name(self) -> str:
        """The name that the user gave to the disk, or the names of its clusters, joined."""
        return self.label or " and ".join(self.clusters)

    @property
    def used_bytes(self) -> int | None:
        """Used space, or None if unknown."""
        return None if self.disk_bytes is None or self.free_bytes is None else self.disk_bytes - self.free_bytes


def with_disks(
    spaces: Sequence[ClusterFiles], given: Mapping[str, GivenDisk]
) -> tuple[tuple[ClusterFiles, ...], list[str]]:
    """Override the measured disks with the given ones, and return a note for each that differs.

    Given values always win: the file system that a server reports need not be the disk that the cluster will run on. If
    only the size is given and it matches, the measured free space is kept.
    """
    disks, notes = [], []
    for space in spaces:
        disk = given.get(space.cluster)
        if disk is None:
            disks.append(space)
            continue
        known, shown = space.disk_bytes, space.free_bytes
        same = known is not None and abs(known - disk.disk_bytes) <= _SAME_DISK_SHARE * disk.disk_bytes
        free = disk.free_bytes if disk.free_bytes is not None or not same else shown
        same_free = disk.free_bytes is None or (
            shown is not None and abs(shown - disk.free_bytes) <= _SAME_DISK_SHARE * disk.disk_bytes
        )
        if known is not None and not (same and same_free):
            source = "its server reports" if space.disk_from == "server" else "the measured one has"
            notes.append(
                f"{space.cluster}: the given disk has {_size_text(disk.disk_bytes, disk.free_bytes)}, but {source} "
                f"{_size_text(known, shown)}; the report uses the given one"
            )
        disks.append(replace(space, disk_bytes=disk.disk_bytes, free_bytes=free, disk_from="flag"))
    return tuple(disks), notes


def _size_text(size: int, free: int | None) -> str:
    return bytes_text(size) + ("" if free is None else f" with {bytes_text(free)} free")


def disks_of(measurement: Measurement, labels: Mapping[str, str] | None = None) -> list[Disk]:
    """Return the disks; those reported with the same size and about the same free space are taken to be one.

    Args:
        measurement: The newest measurement.
        labels: Disk name for each cluster; clusters given the same name share a disk, whatever their servers report.
    """
    named = labels or {}
    groups: list[list[ClusterFiles]] = []
    for space in measurement.clusters:
        same = next((group for group in groups if _one_disk(group[0], space, named)), None)
        if same is None:
            groups.append([space])
        else:
            same.append(space)
    return [replace(_disk(group), label=named.get(group[0].cluster)) for group in groups]


def _one_disk(one: ClusterFiles, other: ClusterFiles, labels: Mapping[str, str]) -> bool:
    if one.cluster in labels or other.cluster in labels:
        return labels.get(one.cluster) == labels.get(other.cluster)
    if one.disk_from != "server" or other.disk_from != "server" or one.disk_bytes != other.disk_bytes:
        return False
    free = (one.free_bytes or 0, other.free_bytes or 0)
    return abs(free[0] - free[1]) <= _SAME_DISK_SHARE * (one.disk_bytes or 0)


def _disk(spaces: Sequence[ClusterFiles]) -> Disk:
    files = [space.file_bytes for space in spaces]
    known = None if None in files else sum(size or 0 for size in files)
    size = spaces[0].disk_bytes
    free = min((space.free_bytes for space in spaces if space.free_bytes is not None), default=None)
    assumed = size is not None and free is None and known is not None
    if size is not None and free is None and known is not None:
        free = max(0, size - known)
    return Disk(
        clusters=tuple(space.cluster for space in spaces),
        disk_bytes=size,
        free_bytes=free,
        free_assumed=assumed,
        file_bytes=known,
        copies=min(space.copies for space in spaces),
        problem="; ".join(space.problem for space in spaces if space.problem) or None,
    )
