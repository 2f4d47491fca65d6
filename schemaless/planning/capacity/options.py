"""Options of a report: inputs of the planning part, and what-if scenarios."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from schemaless.base.numbers import Interval, added, check_number, counted, number_text, summed
from schemaless.codec.registry import DEFAULT, codec_named, codec_names
from schemaless.errors import InvalidCell, InvalidInput
from schemaless.planning.capacity.disks import GivenDisk
from schemaless.planning.sampling.column_trials import DICTIONARY, HISTORY, WITH_DICTIONARY
from schemaless.planning.sampling.recommendation import LEAST_GAIN, MOST_CPU
from schemaless.schema.engines import ENGINES, engine_named
from schemaless.store.cold.settings import MOST_DAYS
from schemaless.store.erasures.retention import Policy, parse_policy

THRESHOLDS: Final = (0.8, 0.9)
"""Default thresholds, as shares of a disk."""

FULL: Final = 1.0


def _check_amounts(options: object, names: Iterable[str], where: str = "") -> None:
    for name in names:
        value = getattr(options, name)
        if value is not None:
            check_number(f"{where}{name}", value)
            if value < 0:
                raise InvalidInput(f"{where}{name} must be 0 or more, got {number_text(value)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningOptions:
    """Inputs of the planning part of a report.

    Attributes:
        thresholds: Shares of a disk, above 0 and below 1, in increasing order.
        lead_days: Days from ordering a disk until it can be used; None to plan no orders.
        price_per_tb: Price of a TB (1,000 GB) of disk, in any currency; None if unknown.
        cold_price_per_gb: Price of a GB (10^9 bytes) in the cold store for a month; None if unknown.
        fail_below_days: Days that all disks must last for a positive verdict; None for no verdict.
    """

    thresholds: tuple[float, ...] = THRESHOLDS
    lead_days: float | None = None
    price_per_tb: float | None = None
    cold_price_per_gb: float | None = None
    fail_below_days: float | None = None

    def __post_init__(self) -> None:
        for share in self.thresholds:
            check_number("a threshold", share)
            if not 0 < share < FULL:
                raise InvalidInput(f"a threshold must be above 0 % and below 100 % of the disk, got {share:.6g}")
        if list(self.thresholds) != sorted(set(self.thresholds)):
            raise InvalidInput("thresholds must be in increasing order, each once, such as 80%,90%")
        _check_amounts(self, ("lead_days", "price_per_tb", "cold_price_per_gb", "fail_below_days"))


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """A named transformation of the forecast; fields that are not given keep things as they are.

    Attributes:
        name: Name of the scenario, unique in a report.
        text: Description; by default, it is derived from the other fields.
        codec: Codec to re-encode all cells to, and to write new cells in.
        history: True if superseded versions, old and new, are stored as differences; requires a codec that has them.
        dictionary: True if each column that a dictionary helps gets one; requires ``msgpack+zstd``.
        engine: Storage engine to move all cells to, ``innodb`` or ``rocksdb``, on disks like the present ones.
        rebuilt: True if tables are rebuilt where that shortens their files; by default, True if cells are re-encoded,
            are moved to another engine, expire, or become cold.
        growth: Multiple of the forecast growth, for all datastores, or by datastore name.
        retention: Retention periods of columns, such as ``{"LOG": "400 days"}``; older cells expire.
        tier_after: Age in days at which cells become cold, of all columns or by column. Those that become cold before
            retention erases them leave the cold files then.
        copies: Number of servers that hold each cell. Each has its own disk, so this changes the costs, but not
            the days until disks are full.
        price_per_tb: Price of a TB (1,000 GB) of disk, instead of the report's.
        cold_price_per_gb: Price of a GB in the cold store for a month, instead of the report's.
        lead_days: Days from ordering a disk until it can be used, instead of the report's.
        file: Scenario file that it is from, for errors.
    """

    name: str
    text: str | None = None
    codec: str | None = None
    history: bool = False
    dictionary: bool = False
    engine: str | None = None
    rebuilt: bool | None = None
    growth: float | Mapping[str, float] = 1.0
    retention: Mapping[str, str] = field(default_factory=dict)
    tier_after: int | Mapping[str, int] | None = None
    copies: int | None = None
    price_per_tb: float | None = None
    cold_price_per_gb: float | None = None
    lead_days: float | None = None
    file: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        where = self.where
        if not self.name.strip():
            raise InvalidInput("a scenario needs a name")
        if self.codec is not None and self.codec not in codec_names():
            raise InvalidInput(f"{where}: no codec is called {self.codec!r}; use one of {', '.join(codec_names())}")
        if self.history and (self.codec is None or not codec_named(self.codec).is_binary):
            raise InvalidInput(
                f"{where}: history = true needs a codec that has differences, such as codec = {DEFAULT.name!r}"
            )
        if self.dictionary and (self.codec != WITH_DICTIONARY.name or self.history or self.engine is not None):
            raise InvalidInput(
                f"{where}: dictionary = true needs codec = {WITH_DICTIONARY.name!r}, and neither history nor an engine"
            )
        try:
            self.policies  # noqa: B018 - reading them checks them
            if self.engine is not None:
                engine_named(self.engine)
        except (InvalidInput, InvalidCell) as error:
            raise InvalidInput(f"{where}: {error}") from None
        if self.engine is not None and self.rebuilt is False:
            raise InvalidInput(f"{where}: a move to another engine writes new tables, so leave out rebuilt = false")
        for name, factor in self.growth_by_datastore.items():
            check_number(f"{where}: growth" + (f" of {name}" if name else ""), factor)
            if factor <= 0:
                raise InvalidInput(
                    f"{where}: growth must be above 0, got {number_text(factor)}; 2 means twice the forecast"
                )
        self._check_tiers(where)
        if self.copies is not None and (isinstance(self.copies, bool) or self.copies < 1):
            raise InvalidInput(f"{where}: copies must be a whole number of 1 or more, got {self.copies}")
        _check_amounts(self, ("price_per_tb", "cold_price_per_gb", "lead_days"), f"{where}: ")

    def _check_tiers(self, where: str) -> None:
        for column, days in self.tiers.items():
            if type(days) is not int or not 0 <= days <= MOST_DAYS:
                of = f" of {column}" if column else ""
                raise InvalidInput(
                    f"{where}: tier_after{of} must be a whole number of days from 0 to {MOST_DAYS:,}, got {days!r}"
                )

    @property
    def where(self) -> str:
        """The scenario as errors name it."""
        return f"{self.file}: scenario {self.name!r}" if self.file else f"scenario {self.name!r}"

    @property
    def trial(self) -> str | None:
        """The codec as its trial names it; None if cells stay as they are."""
        suffix = HISTORY if self.history else DICTIONARY if self.dictionary else ""
        return None if self.codec is None else f"{self.codec}{suffix}"

    @property
    def growth_by_datastore(self) -> Mapping[str, float]:
        """Growth as a multiple of the forecast, by datastore; the one with an empty name applies to all."""
        return self.growth if isinstance(self.growth, Mapping) else {"": self.growth}

    def growth_of(self, datastore: str) -> float:
        """Return the growth of a datastore as a multiple of its forecast."""
        return self.growth_by_datastore.get("", self.growth_by_datastore.get(datastore, 1.0))

    @property
    def policies(self) -> dict[str, Policy]:
        """Retention policies of the columns, by column name."""
        return {column: parse_policy(column.rpartition("/")[2], text) for column, text in self.retention.items()}

    @property
    def tiers(self) -> Mapping[str, int]:
        """Ages at which cells become cold by column; the one with an empty name applies to all."""
        if self.tier_after is None:
            return {}
        return self.tier_after if isinstance(self.tier_after, Mapping) else {"": self.tier_after}

    def tier_days(self, column: str) -> int | None:
        """Return the age in days at which a column's cells become cold; None if they do not."""
        return self.tiers.get("", self.tiers.get(column))

    @property
    def rebuilds(self) -> bool:
        """True if tables are rebuilt where that shortens their files."""
        if self.rebuilt is not None:
            return self.rebuilt
        return self.codec is not None or self.engine is not None or bool(self.retention or self.tiers)

    def total(self, sizes: Iterable[Interval]) -> Interval:
        """Return the total size of files; errors of sizes in another engine are assumed to be fully correlated."""
        return added(sizes) if self.engine is None else summed(sizes)

    @property
    def changes(self) -> dict[str, str]:
        """The changes in words; empty if there are none."""
        growth = ", ".join(
            f"{name} x{number_text(factor)}" if name else f"x{number_text(factor)}"
            for name, factor in self.growth_by_datastore.items()
            if factor != 1
        )
        changes = {
            "growth": growth,
            "codec": self.trial or "",
            "engine": "" if self.engine is None else ENGINES[self.engine].title,
            "rebuilt": "" if self.rebuilt is None else "yes" if self.rebuilds else "no",
            "retention": "; ".join(f"{column}: {policy}" for column, policy in self.policies.items()),
            "cold after": ", ".join(
                f"{column} {counted(days, 'day')}".strip() for column, days in sorted(self.tiers.items())
            ),
            "copies": "" if self.copies is None else str(self.copies),
            "price per TB": "" if self.price_per_tb is None else f"{number_text(self.price_per_tb)}",
            "cold price per GB": ""
            if self.cold_price_per_gb is None
            else f"{number_text(self.cold_price_per_gb)} a month",
            "lead time": "" if self.lead_days is None else counted(self.lead_days, "day"),
        }
        return {name: value for name, value in changes.items() if value}

    @property
    def description(self) -> str:
        """``text``, or a sentence made from the changes."""
        return self.text or "; ".join(f"{name} {value}" for name, value in self.changes.items()) or "Nothing changes."


NOTHING: Final = WhatIf(name="now", text="Nothing changes.")


def tiered_after(days: int) -> WhatIf:
    """Return the scenario in which all cells become cold at an age in days."""
    return WhatIf(name=f"cold after {counted(days, 'day')}", tier_after=days)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Options of a report.

    Attributes:
        codec: The codec to re-encode to; by default the recommended one, if any.
        engine: Storage engine to compare with, both with the bodies as they are now and re-encoded to the codec for
            that engine.
        disks: Disks by cluster that override the measured ones. In a report of several datastores, clusters are called
            ``datastore/cluster``.
        disk_names: Name of the disk by cluster; clusters with the same name share a disk.
        least_gain: Share of the pages that a rewrite must save to be recommended, 0 to 1.
        most_cpu: Largest CPU time of a recommended codec, as a multiple of the default codec's.
        planning: Thresholds, lead time, price, and how long the disks must last.
        what_ifs: Scenarios to compare.
        seed: Seed of the samples and simulated futures.
    """

    codec: str | None = None
    engine: str | None = None
    disks: Mapping[str, GivenDisk] = field(default_factory=dict)
    disk_names: Mapping[str, str] = field(default_factory=dict)
    least_gain: float = LEAST_GAIN
    most_cpu: float = MOST_CPU
    planning: PlanningOptions = field(default_factory=PlanningOptions)
    what_ifs: tuple[WhatIf, ...] = ()
    seed: int = 1

    @property
    def engines(self) -> set[str]:
        """Storage engines to compare with."""
        return {engine for engine in (self.engine, *(change.engine for change in self.what_ifs)) if engine is not None}


DEFAULT_OPTIONS: Final = Asked()
