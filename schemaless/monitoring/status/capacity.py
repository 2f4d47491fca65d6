"""Reads the newest capacity measurement, and makes a forecast once for each new one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from schemaless.errors import InvalidInput
from schemaless.monitoring.status.model import CapacityView, DiskView, Point, StoredView
from schemaless.planning.capacity import history
from schemaless.planning.capacity.disks import disks_of
from schemaless.planning.capacity.forecast import whole_days
from schemaless.planning.capacity.measurement import Measurement
from schemaless.planning.capacity.report import CapacityReport
from schemaless.store.datastore import Datastore
from schemaless.ui.pages.capacity_words import answer, days_text


class CapacityReader:
    """Reads measurements from the catalog.

    Args:
        store: the datastore.
        forecast: whether to forecast when disks will be full, which takes seconds of CPU time.
    """

    def __init__(self, store: Datastore, *, forecast: bool = True) -> None:
        self._store = store
        self._forecast = forecast
        self._seen: tuple[int, ...] = ()
        self._newest: Measurement | None = None
        self._view: CapacityView | None = None

    def __call__(self) -> CapacityView | None:
        """Return the newest measurement with its forecast; None if there is none."""
        kept = tuple(each.sample_id for each in history.kept(self._store))
        if kept != self._seen:  # a forecast takes seconds of CPU: one for each new measurement
            found, unreadable = history.read(self._store, kept if self._forecast else kept[-1:])
            measurements = [*found.values()]
            if unreadable and not measurements:
                raise InvalidInput(unreadable[-1])
            self._newest = measurements[-1] if measurements else None
            self._view = _view(measurements, unreadable, len(kept), forecast=self._forecast) if measurements else None
            self._seen = kept
        if self._view is None or self._newest is None:
            return None
        return replace(self._view, changes=tuple(history.changes_since(self._store, self._newest)))


def _forecast(measurements: list[Measurement], unreadable: list[str]) -> tuple[CapacityReport | None, str | None]:
    """Return a report, or why there is none."""
    from schemaless.planning.capacity.basis import Collected
    from schemaless.planning.capacity.reporting import assemble_report  # it imports NumPy

    try:
        return assemble_report(Collected(tuple(measurements), unreadable=tuple(unreadable)), datetime.now(UTC)), None
    except InvalidInput as missing:  # the extra [report] is not installed
        return None, str(missing)


def _view(measurements: list[Measurement], unreadable: list[str], count: int, *, forecast: bool) -> CapacityView:
    newest = measurements[-1]
    report, problem = _forecast(measurements, unreadable) if forecast else (None, "There is no forecast with --fast.")
    first = None if report is None else answer(report.now)
    cells, bodies = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    for group in newest.groups:
        place = group.cluster, group.column_name, group.codec
        cells[place] += round(group.cells.mid)
        bodies[place] += round(group.body_bytes.mid)
    return CapacityView(
        measured_at=newest.taken_at,
        measurements=count,
        answer="unknown" if first is None else first.days,
        detail="" if first is None else first.detail,
        disks=tuple(_disks(newest, report, bodies)),
        warnings=tuple(unreadable) if report is None else report.warnings,
        problem=problem,
        stored=tuple(StoredView(*place, cells[place], bodies[place]) for place in cells),
        file_bytes={each.cluster: each.file_bytes for each in newest.clusters if each.file_bytes is not None},
        sizes=tuple(Point(each.taken_at, sum(c.file_bytes or 0 for c in each.clusters)) for each in measurements),
    )


def _disks(
    newest: Measurement, report: CapacityReport | None, bodies: Mapping[tuple[str, str, str], int]
) -> list[DiskView]:
    outlooks = {} if report is None else {outlook.disk: outlook for outlook in report.now.disks}
    views = []
    for disk in disks_of(newest):
        outlook = outlooks.get(disk.name)
        days = None if outlook is None else outlook.days
        views.append(
            DiskView(
                name=disk.name,
                body_bytes=sum(size for (cluster, *_), size in bodies.items() if cluster in disk.clusters),
                file_bytes=disk.file_bytes,
                disk_bytes=disk.disk_bytes,
                free_bytes=disk.free_bytes,
                days_text="unknown" if outlook is None else days_text(outlook),
                days=None if days is None else whole_days(days.mid),
                days_low=None if days is None else whole_days(days.low_80),
                days_high=None if days is None else whole_days(days.high_80),
                clusters=disk.clusters,
                bounds={} if days is None else {bound: whole_days(each) for bound, each in days._asdict().items()},
            )
        )
    return views
