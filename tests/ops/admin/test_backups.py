"""``backup``: the order of its commands, and what a check finds. ``failover/test_restored.py`` runs them.

The files of xtrabackup are made up as its documentation describes them; those of mariadb-backup and CLONE, as they are.
"""

from __future__ import annotations

import gzip
from contextlib import suppress
from pathlib import Path

import pytest

import schemaless
from schemaless.errors import InvalidInput
from schemaless.ops.admin.backup_folders import folder_faults, read_folder
from schemaless.ops.admin.backups import faults, plan, read_dump
from schemaless.ops.jobs.kind import JobKind, JobSpec
from schemaless.schema.tables import catalog_metadata, shard_metadata
from schemaless.store.internals import internals_of
from tests.cli.conftest import invoke  # noqa: F401 - the fixture

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


GTID = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5,\n7b2c8a1e-71ca-11e1-9e33-c80aa9429562:1-9"
MARKS = {
    "xtrabackup": {
        "xtrabackup_checkpoints": "backup_type = full-prepared\nfrom_lsn = 0\nto_lsn = 15188961605\n"
        "last_lsn = 15188961605\nflushed_lsn = 15188961605\n",
        "xtrabackup_info": "tool_name = xtrabackup\nend_time = 2026-03-01 12:00:0{0}\npartial = N\n",
        "xtrabackup_binlog_info": f"binlog.000002\t157\t{GTID}\n",
        "backup-my.cnf": "[mysqld]\ninnodb_page_size=16384\n",
    },
    "mariadb-backup": {
        "xtrabackup_checkpoints": "backup_type = log-applied\nfrom_lsn = 0\nto_lsn = 44776\nlast_lsn = 244521\n",
        "xtrabackup_info": "tool_name = mariadb-backup\nend_time = 2026-03-01 12:00:0{0}\n",
        "xtrabackup_binlog_info": "binlog.000001\t64022\t0-1-150\n",
        "backup-my.cnf": "[mysqld]\ninnodb_page_size=16384\n",
    },
    "mariadb-backup 11": {
        "mariadb_backup_checkpoints": "backup_type = log-applied\nto_lsn = 44776\n",
        "mariadb_backup_info": "tool_name = mariadb-backup\nend_time = 2026-03-01 12:00:0{0}\n",
        "backup-my.cnf": "[mysqld]\ninnodb_page_size=16384\n",
    },
    "clone": {
        "#clone/#view_status": "2 1\n1795892397610283 179589239819422{0}\nLOCAL INSTANCE\n0\n\n\n0\n\n",
        "#clone/#status_fix": "",
    },
}


def copy_of(path: Path, tool: str, databases: dict[str, list[str]], second: int) -> Path:
    """Write the files of a copy that a check reads; each table has one page."""
    for name, text in MARKS[tool].items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text.replace("{0}", str(second)))
    for database, tables in databases.items():
        (path / database).mkdir()
        for table in tables:
            (path / database / f"{table}.ibd").write_bytes(bytes(46) + (1).to_bytes(4, "big") + bytes(16334))
    return path


def copies(folder: Path, tool: str) -> list[Path]:
    """Write the copies of a datastore of three shards on two servers; the second has the catalog."""
    shard, catalog, beat = list(shard_metadata.tables), list(catalog_metadata.tables), ["primary_claim"]
    first = {"trips_0000": shard, "trips_heartbeat": beat, "mysql": ["user"]}
    second = {"trips_0001": shard, "trips_0002": shard, "trips": catalog, "trips_heartbeat": beat}
    return [copy_of(folder / "cluster-1", tool, first, 1), copy_of(folder / "cluster-2", tool, second, 2)]


def lacking(folders: list[Path], shards: int = 3) -> list[str]:
    """Return the faults of some folders."""
    return folder_faults([read_folder(path) for path in folders], shards)


@pytest.mark.parametrize("tool", MARKS)
def test_complete_copies_have_no_fault(tmp_path, tool):
    """Of each program's format; the position has the GTIDs of all servers."""
    folders = copies(tmp_path, tool)
    position = read_folder(folders[0]).position
    assert lacking(folders) == []
    assert position == {
        "xtrabackup": ("binlog.000002", "157", "".join(GTID.split())),
        "mariadb-backup": ("binlog.000001", "64022", "0-1-150"),
    }.get(tool, ())


def test_whatever_a_copy_lacks_is_named(tmp_path):
    """Copies that were not completed or prepared, cut files, tables and shards that are missing or there twice."""

    def with_text(name: str, text: str):
        return lambda folder: (folder / name).write_text(text)

    def without(name: str):
        return lambda folder: (folder / name).unlink()

    def cut(folder: Path) -> None:
        (folder / "trips_0001/cell.ibd").write_bytes((folder / "trips_0001/cell.ibd").read_bytes()[:-1])

    def moved(folder: Path) -> None:
        (folder / "trips_0001/cell.ibd").rename(folder / "trips_0001/cell_moved_0123456789abcdef.ibd")

    checkpoints, clone = "xtrabackup_checkpoints", "#clone/#view_status"
    cases = [
        ("xtrabackup", "its state is full-backuped", with_text(checkpoints, "backup_type = full-backuped\n")),
        ("xtrabackup", "run 'xtrabackup --prepare", with_text(checkpoints, "backup_type = log-applied\n")),
        ("mariadb-backup", "its state is incremental", with_text(checkpoints, "backup_type = incremental\n")),
        ("mariadb-backup", "so no copy by", without(checkpoints)),
        ("xtrabackup", "it has no xtrabackup_info", without("xtrabackup_info")),
        ("xtrabackup", "it has no backup-my.cnf", without("backup-my.cnf")),
        ("clone", "CLONE did not complete: disk is full", with_text(clone, "3 1\n1 2\nLOCAL\n28\ndisk is full\n")),
        ("clone", "CLONE did not complete; make", with_text("#clone/#status_in_progress", "")),
        ("xtrabackup", "cell.ibd is cut off", cut),
        ("xtrabackup", "no folder has the cells of shards 1;", moved),
        (
            "clone",
            "lacks tables of trips_0001: follower, parked",
            lambda folder: [(folder / f"trips_0001/{table}.ibd").unlink() for table in ("follower", "parked")],
        ),
        ("clone", "lacks tables of trips: datastore", without("trips/datastore.ibd")),
        ("clone", "the folders have 0 catalogs", without("trips/shard_range.ibd")),
        (
            "xtrabackup",
            "is older than",
            with_text("xtrabackup_info", "tool_name = xtrabackup\nend_time = 2026-02-28\n"),
        ),
        ("clone", "shard 0 is in", lambda folder: copy_of(folder, "clone", {"trips_0000": ["cell"]}, 2)),
    ]
    for number, (tool, text, damage) in enumerate(cases):
        folders = copies(tmp_path / str(number), tool)
        damage(folders[1])
        assert [fault for fault in lacking(folders) if text in fault], text
    whole = copies(tmp_path / "whole", "clone")
    assert lacking(whole, 4) == [
        "no folder has the cells of shards 3; if they were moved during the backup, make another one"
    ]
    assert [fault for fault in lacking(whole, 2) if "has trips_0002, but" in fault]
    assert lacking(whole[:1]) == ["the folders have 0 catalogs; give those of one backup, catalog included"]


def test_a_check_of_folders_needs_the_number_of_shards(tmp_path, invoke):  # noqa: F811
    """A copy does not say it; dumps and folders are not checked together; several datastores need a name."""
    folders = copies(tmp_path, "mariadb-backup")
    done = invoke("backup", "check", "--shards", "3", "--json", *folders)
    assert (done.code, done.json["faults"]) == (0, [])
    assert done.json["positions"][str(folders[0])] == "binlog.000001 64022 0-1-150"
    assert invoke("backup", "check", *folders).code == 2
    assert invoke("backup", "check", "--shards", "3", complete(tmp_path)["one"]).code == 2
    copy_of(folders[0], "mariadb-backup", {"other": ["shard_range"]}, 1)
    assert "choose one with --datastore" in invoke("backup", "check", "--shards", "3", *folders).err
    assert invoke("backup", "check", "--shards", "3", "--datastore", "trips", *folders).code == 0


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
    assert all("--prepare --target-dir=/b/cluster-" in step.commands[1] for step in files[1:-1])
    assert str(clusters[0].primary) in files[-2].commands[0], "the catalog is on the first cluster"
    assert f" --datastore {fresh_store.name} --shards {fresh_store.shard_count}" in files[-1].commands[0]


@pytest.mark.mysql
def test_a_plan_names_the_cold_files_that_it_does_not_copy(fresh_store, admin_url, tmp_path):
    """Otherwise a complete backup lacks the documents of cold cells."""
    with schemaless.connect(admin_url) as admin:
        internals_of(admin).cold.set_store(str(tmp_path), 1)
    for tool, folder in (("dump", "b"), *((tool, "/b") for tool in ("clone", "mariadb-backup"))):
        with suppress(InvalidInput):  # one of the tools does not fit the server
            step = plan(fresh_store, tool, folder)[-2]
            assert f"needs those in '{tmp_path}', where unused ones are deleted after 1 day." in step.what
            assert step.commands == ()
