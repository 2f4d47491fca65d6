"""The disks of a datastore: one for each cluster, but where servers of one machine show the same one. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from schemaless.capacity.measurement import ClusterFiles, Measurement

__all__ = ["Disk", "GivenDisk", "disks_of", "with_disks"]

_SAME_DISK_SHARE: Final = 0.02
"""What is free may differ by this part of the disk's size between two looks at the same disk."""


@dataclass(frozen=True, slots=True)
class GivenDisk:
    """A disk as somebody gave it: its size, and what is free of it where that is known."""

    disk_bytes: int
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk and the clusters on it: one, but where servers of one machine show the same disk.

    Attributes:
        clusters: their names.
        disk_bytes: its size; None where it is not known.
        free_bytes: what is free; None likewise.
        free_assumed: whether that is the size less this datastore's files, as nothing else is known.
        file_bytes: of this datastore; None where it is not known.
        copies: how many servers hold the cells.
        problem: why nothing is known, or None.
    """

    clusters: tuple[str, ...]
    disk_bytes: int | None
    free_bytes: int | None
    free_assumed: bool
    file_bytes: int | None
    copies: int
    problem: str | None = None

    @property
    def name(self) -> str:
        """Of its clusters."""
        return " and ".join(self.clusters)


def with_disks(
    spaces: Sequence[ClusterFiles], given: Mapping[str, GivenDisk]
) -> tuple[tuple[ClusterFiles, ...], list[str]]:
    """Return the spaces with the disks that were given in place of what is known, and a note where the two differ.

    What is given counts everywhere: a server may show a file system that is not the disk that it will have. What is
    free stays as it is known where only the size is given, and is the same.
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
            who = "its server shows" if space.disk_from == "server" else "it was measured with"
            notes.append(
                f"{space.cluster}: --disk gives {_size_text(disk.disk_bytes, disk.free_bytes)}, {who} "
                f"{_size_text(known, shown)}; what is given counts"
            )
        disks.append(replace(space, disk_bytes=disk.disk_bytes, free_bytes=free, disk_from="flag"))
    return tuple(disks), notes


def _size_text(size: int, free: int | None) -> str:
    """Return sizes in powers of 1,000, as disks are sold."""
    unit, name = next((scale for scale in ((1e9, "GB"), (1e6, "MB")) if size >= scale[0]), (1.0, "bytes"))
    return f"{size / unit:,.4g} {name}" + ("" if free is None else f" with {free / unit:,.4g} {name} free")


def disks_of(measurement: Measurement) -> list[Disk]:
    """Return the disks. Where this machine's servers show two of the same size and with the same free, it is one."""
    groups: list[list[ClusterFiles]] = []
    for space in measurement.clusters:
        same = next((group for group in groups if _one_disk(group[0], space)), None)
        if same is None:
            groups.append([space])
        else:
            same.append(space)
    return [_disk(group) for group in groups]


def _one_disk(one: ClusterFiles, other: ClusterFiles) -> bool:
    if one.disk_from != "server" or other.disk_from != "server" or one.disk_bytes != other.disk_bytes:
        return False
    free = (one.free_bytes or 0, other.free_bytes or 0)
    return abs(free[0] - free[1]) <= _SAME_DISK_SHARE * (one.disk_bytes or 0)


def _disk(spaces: Sequence[ClusterFiles]) -> Disk:
    files = [space.file_bytes for space in spaces]
    known = None if None in files else sum(size or 0 for size in files)
    size, free = (
        spaces[0].disk_bytes,
        min((space.free_bytes for space in spaces if space.free_bytes is not None), default=None),
    )
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
