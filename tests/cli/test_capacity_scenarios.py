"""Scenario files: what they accept, and how errors name the key."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from schemaless.cli.capacity_scenarios import ScenarioFile, read_scenarios
from schemaless.errors import InvalidInput
from schemaless.planning.capacity.basis import Collected
from schemaless.planning.capacity.combined import combine
from schemaless.planning.capacity.disks import GivenDisk
from schemaless.planning.capacity.options import Asked, PlanningOptions, WhatIf
from schemaless.planning.capacity.reporting import assemble_report
from tests.planning.capacity.reports import TAKEN_AT, measurement, report, tried, users, within

pytestmark = pytest.mark.once

WHOLE = """
price_per_tb = 90
cold_price_per_gb = 0.023
lead_days = 45
thresholds = ["70%", 0.9]

[datastores]
trips = "mysql://app@db-1:3306/trips"
users = "users-prod"

[disks.rack-a]
total = "4TB"
free = "1.5TB"
clusters = ["trips/cluster-1", "users/cluster-1"]

[scenarios."a busy year"]
text = "The new country."
growth = { trips = 2.5 }

[scenarios.cheaper]
codec = "msgpack+zlib"
rebuilt = false
copies = 3
price_per_tb = 60
lead_days = 10

[scenarios."on MyRocks"]
engine = "rocksdb"

[scenarios.cold]
tier_after = { "trips/LOG" = 90 }
cold_price_per_gb = 0.01
"""


def test_every_key_is_read(tmp_path):
    """Scenarios keep the order of the file, and a disk applies to each of its clusters."""
    file = tmp_path / "plan.toml"
    file.write_text(WHOLE)

    assert read_scenarios(file) == ScenarioFile(
        what_ifs=(
            WhatIf(name="a busy year", text="The new country.", growth={"trips": 2.5}),
            WhatIf(name="cheaper", codec="msgpack+zlib", rebuilt=False, copies=3, price_per_tb=60, lead_days=10),
            WhatIf(name="on MyRocks", engine="rocksdb"),
            WhatIf(name="cold", tier_after={"trips/LOG": 90}, cold_price_per_gb=0.01),
        ),
        datastores={"trips": "mysql://app@db-1:3306/trips", "users": "users-prod"},
        disks=dict.fromkeys(("trips/cluster-1", "users/cluster-1"), GivenDisk(4 * 10**12, 1500 * 10**9)),
        disk_names=dict.fromkeys(("trips/cluster-1", "users/cluster-1"), "rack-a"),
        planning={"price_per_tb": 90, "cold_price_per_gb": 0.023, "lead_days": 45, "thresholds": (0.7, 0.9)},
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("growth = 2", r"unknown key growth; the known keys are price_per_tb"),
        ("[scenarios.x]\ngrowth_factor = 2", r"unknown key scenarios.x.growth_factor; the known keys are text, codec"),
        ("[scenarios.x]\ngrowth = '50%'", r"scenarios.x.growth must be a number, got '50%'"),
        ("[scenarios.x]\ngrowth = -1", r"scenario 'x': growth must be above 0"),
        ("[scenarios.x]\ncopies = 1.5", r"scenarios.x.copies must be a whole number, got 1.5"),
        ("[scenarios.x]\nengine = 1", r"scenarios.x.engine must be the name of a storage engine, got 1"),
        ("[scenarios.x]\nengine = 'myrocks'", r"scenario 'x': engine must be one of innodb, rocksdb, got 'myrocks'"),
        ("[scenarios.x]\ntier_after = '90 days'", r"scenario 'x': tier_after must be a whole number of days"),
        ("[scenarios.x]\ncodec = 'gzip'", r"scenario 'x': no codec is called 'gzip'"),
        ("[scenarios.x]\nrebuilt = 'yes'", r"scenarios.x.rebuilt must be true or false"),
        ("scenarios = 1", r"scenarios must be a table, as in \[scenarios.NAME\]"),
        ("[disks.a]\ntotal = '4TB'", r"disks.a: clusters is missing"),
        (
            "[disks.a]\ntotal = '4TB'\nclusters = [['c']]",
            r"disks.a.clusters must be a list of cluster names, got \['c'\]",
        ),
        ("[disks.a]\ntotal = '4T'\nclusters = ['c']", r"disks.a.total: '4T' can be read two ways"),
        ("[disks.a]\ntotal = '4TB'\nfree = '5TB'\nclusters = ['c']", r"disks.a: the free space is larger"),
        (
            "[disks.a]\ntotal = '4TB'\nclusters = ['c']\n[disks.b]\ntotal = '4TB'\nclusters = ['c']",
            r"disks.b: cluster 'c' is already on disk 'a'",
        ),
        ("[datastores]\n'a/b' = 'x'", r"a datastore name must be"),
        ("[datastores]\na = 1", r"datastores.a must be a URL, or a name in the configuration"),
        (
            "[scenarios.x]\nretention = { LOG = '0 days' }",
            r"scenario 'x': retention of LOG: the number of days must be",
        ),
        ("lead_days = -1", r"lead_days must be 0 or more"),
        ("price_per_tb = '90'", r"price_per_tb must be a number, got '90'"),
        ("thresholds = 0.8", r"thresholds must be a list"),
        ("x =", r"is not valid TOML: Invalid value"),
    ],
)
def test_errors_name_the_file_and_the_key(tmp_path, text, error):
    """One line, so that it can be printed."""
    file = tmp_path / "plan.toml"
    file.write_text(text)

    with pytest.raises(InvalidInput, match=rf"plan.toml.*{error}") as caught:
        read_scenarios(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[disks.a]\ntotal = '4TB'\nclusters = ['c']", r"disks.a.clusters names the cluster 'c', which does not exist"),
        ("[scenarios.x]\nretention = { LOGG = '9 days' }", r"scenario 'x': retention names the column 'LOGG'"),
        ("[scenarios.x]\ntier_after = { LOGG = 9 }", r"scenario 'x': tier_after names the column 'LOGG'"),
        ("[scenarios.now]\ngrowth = 2", r"scenario 'now': two scenarios have this name"),
    ],
)
def test_errors_that_need_a_measurement_name_the_file(tmp_path, text, error):
    """What the datastore has is not known when the file is read."""
    file = tmp_path / "plan.toml"
    file.write_text(text)
    found = read_scenarios(file)

    with pytest.raises(InvalidInput, match=rf"plan.toml: {error}"):
        report(what_ifs=found.what_ifs, disks=found.disks, disk_names=found.disk_names)


def test_the_documented_file_fits_its_datastores(tmp_path):
    """The example of docs/capacity.md makes a report of the datastores, clusters and columns that it names."""
    example = Path("docs/capacity.md").read_text(encoding="utf-8").partition("```toml\n")[2].partition("```")[0]
    file = tmp_path / "plan.toml"
    file.write_text(example.replace("LOG", "BASE"))
    by_column = tmp_path / "by_column.toml"
    tiers = re.search(r"tier_after = 90 .*by column: (.*)\n", file.read_text())
    assert tiers is not None
    by_column.write_text(f"[scenarios.x]\ntier_after = {tiers[1]}")
    found = read_scenarios(file)
    what_ifs = (*found.what_ifs, *read_scenarios(by_column).what_ifs)
    planning = PlanningOptions(**found.planning)
    asked = Asked(what_ifs=what_ifs, disks=found.disks, disk_names=found.disk_names, planning=planning)
    trials = replace(tried(), file_share={"BASE": within(0.2)})
    parts = {"trips": Collected((replace(measurement(), trials=trials),)), "users": Collected((users(),))}
    made = assemble_report(combine(parts), TAKEN_AT, asked)

    assert len(found.what_ifs) == 4
    assert {change.name for change in what_ifs} <= {scenario.name for scenario in made.scenarios}


def test_a_file_that_cannot_be_read(tmp_path):
    """Missing, a folder, and not text."""
    (tmp_path / "binary").write_bytes(b"\xff")

    for name, error in (("missing", "No such file"), (".", "Is a directory"), ("binary", "is not UTF-8 text")):
        with pytest.raises(InvalidInput, match=error):
            read_scenarios(tmp_path / name)
