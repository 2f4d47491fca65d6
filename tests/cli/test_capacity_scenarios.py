"""Scenario files: what they accept, and how errors name the key."""

from __future__ import annotations

import pytest

from schemaless.cli.capacity_scenarios import ScenarioFile, read_scenarios
from schemaless.errors import InvalidInput
from schemaless.planning.capacity.disks import GivenDisk
from schemaless.planning.capacity.options import WhatIf

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


def test_a_file_that_cannot_be_read(tmp_path):
    """Missing, a folder, and not text."""
    (tmp_path / "binary").write_bytes(b"\xff")

    for name, error in (("missing", "No such file"), (".", "Is a directory"), ("binary", "is not UTF-8 text")):
        with pytest.raises(InvalidInput, match=error):
            read_scenarios(tmp_path / name)
