"""Scenario files of ``schemaless capacity report``: datastores, disks, prices and named what-ifs, as TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

import click

from schemaless.base.keys import check_datastore_name
from schemaless.cli.quantities import share_of, size_of
from schemaless.errors import InvalidInput
from schemaless.planning.capacity.disks import GivenDisk
from schemaless.planning.capacity.options import PlanningOptions, WhatIf

_AMOUNTS: Final = ("price_per_tb", "cold_price_per_gb", "lead_days")
_KEYS: Final = (*_AMOUNTS, "thresholds", "datastores", "disks", "scenarios")
_DISK_KEYS: Final = ("total", "free", "clusters")
_SCENARIO_KEYS: Final = tuple(part.name for part in fields(WhatIf) if part.name not in ("name", "file"))


@dataclass(frozen=True, slots=True)
class ScenarioFile:
    """Contents of a scenario file; empty if none is given.

    Attributes:
        what_ifs: The scenarios in the order of the file.
        datastores: URLs, or names in the configuration, by the name used in the report.
        disks: Disks by cluster.
        disk_names: Name of the disk by cluster.
        planning: ``PlanningOptions`` for scenarios without their own, as far as the file gives them.
    """

    what_ifs: tuple[WhatIf, ...] = ()
    datastores: Mapping[str, str] = field(default_factory=dict)
    disks: Mapping[str, GivenDisk] = field(default_factory=dict)
    disk_names: Mapping[str, str] = field(default_factory=dict)
    planning: Mapping[str, Any] = field(default_factory=dict)


def read_scenarios(path: Path) -> ScenarioFile:
    """Read a scenario file.

    Raises:
        InvalidInput: The file cannot be read or has an error; the message names the file and the key.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InvalidInput(f"cannot read the scenario file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"the scenario file {path} is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"the scenario file {path} is not valid TOML: {error}") from None
    try:
        found = _contents(data)
    except click.BadParameter as error:
        raise InvalidInput(f"{path}: {error.message}") from None
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None
    return replace(
        found,
        what_ifs=tuple(replace(change, file=str(path)) for change in found.what_ifs),
        disks={
            cluster: replace(disk, source=f"{path}: disks.{found.disk_names[cluster]}.clusters")
            for cluster, disk in found.disks.items()
        },
    )


def _contents(data: Mapping[str, Any]) -> ScenarioFile:
    _check_keys("", data, _KEYS)
    disks: dict[str, GivenDisk] = {}
    disk_names: dict[str, str] = {}
    for name, table in _table(data, "disks").items():
        where = f"disks.{name}"
        disk = _disk(where, table)
        for cluster in _typed(f"{where}.clusters", table["clusters"], list, "a list of cluster names"):
            _typed(f"{where}.clusters", cluster, str, "a list of cluster names")
            if cluster in disks:
                raise InvalidInput(f"{where}: cluster {cluster!r} is already on disk {disk_names[cluster]!r}")
            disks[cluster] = disk
            disk_names[cluster] = name
    datastores = _table(data, "datastores")
    for name, url in datastores.items():
        check_datastore_name(name)
        _typed(f"datastores.{name}", url, str, "a URL, or a name in the configuration")
    planning: dict[str, Any] = {name: _number(name, data[name]) for name in _AMOUNTS if name in data}
    texts = _typed("thresholds", data.get("thresholds", []), list, 'a list such as ["80%", "90%"]')
    if texts:
        planning["thresholds"] = tuple(_parsed("thresholds", share_of, text) for text in texts)
    PlanningOptions(**planning)  # checks the values
    return ScenarioFile(
        what_ifs=tuple(_what_if(name, table) for name, table in _table(data, "scenarios").items()),
        datastores=datastores,
        disks=disks,
        disk_names=disk_names,
        planning=planning,
    )


def _disk(where: str, table: Any) -> GivenDisk:
    _typed(where, table, dict, "a table")
    _check_keys(f"{where}.", table, _DISK_KEYS)
    for key in ("total", "clusters"):
        if not table.get(key):
            raise InvalidInput(f"{where}: {key} is missing; a disk needs total and clusters")
    total = _parsed(f"{where}.total", size_of, table["total"])
    free = None if table.get("free") is None else _parsed(f"{where}.free", size_of, table["free"])
    if free is not None and free > total:
        raise InvalidInput(f"{where}: the free space is larger than the disk")
    return GivenDisk(round(total), None if free is None else round(free))


def _what_if(name: str, table: Any) -> WhatIf:
    where = f"scenarios.{name}"
    _typed(where, table, dict, "a table")
    _check_keys(f"{where}.", table, _SCENARIO_KEYS)
    for key, kind, what in (
        ("text", str, "text"),
        ("codec", str, "the name of a codec"),
        ("history", bool, "true or false"),
        ("dictionary", bool, "true or false"),
        ("engine", str, "the name of a storage engine"),
        ("rebuilt", bool, "true or false"),
        ("retention", dict, 'a table such as { LOG = "400 days" }'),
        ("copies", int, "a whole number"),
    ):
        if key in table:
            _typed(f"{where}.{key}", table[key], kind, what)
    for column, policy in table.get("retention", {}).items():
        _typed(f"{where}.retention.{column}", policy, str, 'text such as "400 days"')
    growth = table.get("growth", 1.0)
    if not isinstance(growth, dict):
        _number(f"{where}.growth", growth)
    return WhatIf(name=name, **table)


def _table(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    table: dict[str, Any] = _typed(name, data.get(name, {}), dict, f"a table, as in [{name}.NAME]")
    return table


def _check_keys(where: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            raise InvalidInput(f"unknown key {where}{key}; the known keys are {', '.join(known)}")


def _typed(where: str, value: Any, kind: type, what: str) -> Any:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InvalidInput(f"{where} must be {what}, got {value!r}")
    return value


def _number(where: str, value: Any) -> float | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise InvalidInput(f"{where} must be a number, got {value!r}")
    return value


def _parsed(where: str, parse: Callable[[str], float], value: Any) -> float:
    try:
        return parse(str(value))
    except click.BadParameter as error:
        raise InvalidInput(f"{where}: {error.message}") from None
