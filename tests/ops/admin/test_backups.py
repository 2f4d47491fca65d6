"""``backup``: the order of its commands, and what a check of dumps finds. ``failover/test_restored.py`` runs them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from schemaless.errors import InvalidInput
from schemaless.ops.admin.backups import faults, plan, read_dump
from schemaless.ops.jobs.kind import JobKind, JobSpec
from schemaless.schema.tables import catalog_metadata, shard_metadata
from schemaless.store.internals import internals_of

END = "-- Dump completed on 2026-03-01 12:00:{:02}\n"
WAITS = JobKind("rebuild", JobSpec, lambda store, shards: dict.fromkeys(shards, 1), lambda store, run: None)


def dump(path: Path, databases: dict[str, list[str]], second: int | None, rows: str = "") -> Path:
    """Write a dump of these tables that ended at a second, or has not ended."""
    text = "-- MySQL dump\n"
    for name, tables in databases.items():
        text += f"USE `{name}`;\n" + "".join(f"CREATE TABLE `{table}` (\n  `x` int\n);\n" for table in tables)
    content = (text + rows + ("" if second is None else END.format(second))).encode()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def complete(folder: Path) -> dict[str, Path]:
    """Write the dumps of a datastore on two clusters, one of them as MariaDB writes it."""
    shard, catalog = list(shard_metadata.tables), list(catalog_metadata.tables)
    first = {"trips_0000": shard, "trips_0001": shard, "trips_heartbeat": ["primary_claim"]}
    ranges = "INSERT INTO `shard_range` VALUES\n(0,1,'cluster-1'),\n(2,2,'cluster-10');\n"
    return {
        "one": dump(folder / "cluster-1.sql", first, 1),
        "ten": dump(folder / "cluster-10.sql.gz", {"trips_0002": shard, "trips_heartbeat": ["primary_claim"]}, 2),
        "catalog": dump(folder / "catalog.sql", {"trips": catalog}, 3, ranges),
    }


def found(files: dict[str, Path]) -> list[str]:
    """Return the faults of some files."""
    return faults([read_dump(path) for path in files.values()])


def test_complete_dumps_have_no_fault(tmp_path):
    """Files may be compressed, and a cluster's name may begin like another's."""
    assert found(complete(tmp_path)) == []


def test_whatever_a_dump_lacks_is_named(tmp_path):
    """A dump that was cut, tables that the account could not read, a shard that moved, files and an order."""
    shard, files = list(shard_metadata.tables), complete(tmp_path)
    heartbeat = {"trips_heartbeat": ["primary_claim"]}
    one, ten = files["one"], files["ten"]
    cases = {
        "is incomplete": {**files, "one": dump(tmp_path / "a" / one.name, {"trips_0000": shard, **heartbeat}, None)},
        "lacks the cells of shards 0-1, which": {**files, "one": dump(tmp_path / "b" / one.name, heartbeat, 1)},
        "lacks tables of trips_0002: cold_file, erased_cell, follower": {
            **files,
            "ten": dump(
                tmp_path / "c" / ten.name, {"trips_0002": ["cell", "parked", "shard_identity"], **heartbeat}, 1
            ),
        },
        "lacks the database trips_heartbeat": {
            **files,
            "ten": dump(tmp_path / "d" / ten.name, {"trips_0002": shard}, 1),
        },
        "is older than": {**files, "ten": dump(tmp_path / "e" / ten.name, {"trips_0002": shard, **heartbeat}, 9)},
        "cluster-1 has 0 files": {name: files[name] for name in ("ten", "catalog")},
        "the files have 0 catalogs": {name: files[name] for name in ("one", "ten")},
    }
    for text, given in cases.items():
        assert [fault for fault in found(given) if text in fault], text


@pytest.mark.mysql
def test_the_catalog_is_last_and_jobs_that_rename_tables_wait(fresh_store, migrate_store, flavour):
    """Shards that move during a backup may be in none; physical copies do not fit every server."""
    job, _ = WAITS.begin_or_join(migrate_store, JobSpec(), [0])
    steps = plan(fresh_store, "dump", "to/b")
    files = plan(fresh_store, "mariadb-backup" if flavour == "mariadb" else "xtrabackup", "/b")
    with pytest.raises(InvalidInput, match="choose another tool"):
        plan(fresh_store, "clone" if flavour == "mariadb" else "mariadb-backup", "/b")
    with pytest.raises(InvalidInput, match="absolute for clone"):
        plan(fresh_store, "clone", "b")

    clusters = internals_of(fresh_store).topology.clusters
    assert steps[0].commands == (
        f"trap 'schemaless job resume {job.job_id}' EXIT",
        f"schemaless job pause {job.job_id}",
    )
    assert sorted(step.what.partition(":")[0] for step in steps[1:-2]) == [cluster.name for cluster in clusters]
    assert steps[-2].commands[0].endswith(f" --databases {fresh_store.name} > to/b/catalog.sql")
    assert steps[-1].commands[0].startswith("schemaless backup check to/b/cluster-")
    assert all("--prepare --target-dir=/b/cluster-" in step.commands[1] for step in files[1:])
    assert str(clusters[0].primary) in files[-1].commands[0], "the catalog is on the first cluster"
