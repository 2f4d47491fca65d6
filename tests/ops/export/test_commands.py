"""``schemaless export`` as people run it."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout

import pytest

import schemaless
from schemaless.monitoring.metrics import values
from schemaless.monitoring.status.collector import Collector
from schemaless.ops.export.admin import exports
from schemaless.ops.export.compact import Compacted
from schemaless.store.cold.targets import masked
from schemaless.store.followers.settings import Settings
from schemaless.store.internals import internals_of
from tests.cli.conftest import invoke  # noqa: F401 - the fixture
from tests.ops.export.conftest import rows_of
from tests.store.followers.conftest import put  # noqa: F401 - the fixture
from tests.test_docs import ROOT

pytestmark = [pytest.mark.mysql]


def metrics(store: schemaless.Datastore) -> dict[tuple[object, ...], float | None]:
    """Return what Prometheus scrapes, by name and labels."""
    status = Collector(store, for_metrics=True).collect()
    return {(name, *labels): value for name, value, labels in values(status)}


def test_export_once_status_files_and_remove(put, invoke, follow_url, tmp_path):  # noqa: F811
    """Two processes export 400 cells, a second run exports nothing, and every command agrees on what there is."""
    import duckdb  # here, since each process that runs tests collects all of them

    cells = put(400, body={"fare": {"total": 1.5}})
    lake = tmp_path / "lake"
    arguments = ("export", "parquet", "--to", lake, "--column", "BASE", "--field", "total=fare.total:float")

    proposed = invoke("export", "parquet", "--column", "BASE", "--infer", "--json", url=follow_url)
    first = invoke(*arguments, "--workers", 2, "--json", url=follow_url)
    second = invoke(*arguments, url=follow_url)
    status = invoke("export", "status", "--json", url=follow_url)
    overview = invoke("status", "--json", url=follow_url)
    with schemaless.connect(follow_url) as store:
        scraped = metrics(store)
        (lake / "manifest.json").rename(lake / "away.json")
        unreadable = {name: value for (name, *_), value in metrics(store).items()}
        (lake / "away.json").rename(lake / "manifest.json")
    listed = invoke("export", "files", "--to", lake, "--json")
    removed = invoke("export", "remove", "parquet", "--execute", url=follow_url)
    nothing = invoke("export", "status", url=follow_url)

    assert (first.code, second.code, status.code, removed.code, nothing.code) == (0, 0, 0, 0, 0)
    assert proposed.json == [{"field": "total=BASE.fare.total:float", "present": 1.0}]
    assert (first.json["rows"], first.json["files"], first.json["ids_behind"]) == (400, 4, 0)
    assert status.json[0]["rows"] == 400
    assert [(each["kind"], each["name"]) for each in overview.json["followers"]] == [("export", "parquet")]
    assert scraped["export_ids_behind", "parquet"] == scraped["export_behind_seconds", "parquet"] == 0
    assert (scraped["export_rows", "parquet"], scraped["export_files", "parquet"]) == (400, 4)
    assert scraped["export_bytes", "parquet"] == sum(path.stat().st_size for path in lake.glob("cells/*/*"))
    assert scraped["export_shards", "parquet", "running"] == 4
    assert (scraped["export_target_up", "parquet"], scraped["export_workers", "parquet"]) == (1, 0)
    assert unreadable["export_target_up"] == 0
    assert "export_rows" not in unreadable
    assert "4 files, 400 cells" in second.out
    assert "there is no export yet" in nothing.out
    found = [(row["shard"], row["added_id"]) for row in rows_of(lake / "cells", "shard, added_id")]
    assert sorted(found) == sorted(cells)
    assert duckdb.sql(f"SELECT sum(total) FROM read_parquet({listed.json})").fetchall() == [(600.0,)]


@pytest.mark.long
def test_an_export_to_a_target_that_cannot_be_written_ends(put, invoke, follow_url, tmp_path):  # noqa: F811
    """With --once, shards stop with the reason and the exit status is 1; the next run continues."""
    put(8)
    lake = tmp_path / "lake"
    assert invoke("export", "parquet", "--to", lake, url=follow_url).code == 0
    put(8)
    (lake / "tmp").rmdir()
    (lake / "tmp").write_text("a file in the way")

    failed = invoke("export", "parquet", "--to", lake, url=follow_url)
    (lake / "tmp").unlink()
    again = invoke("export", "parquet", "--to", lake, url=follow_url)

    assert (failed.code, again.code) == (1, 0)
    assert "stopped" in failed.out
    assert "fix the cause and run the same command again" in failed.err
    assert "4 files" not in again.out
    assert len(rows_of(lake / "cells", "added_id")) == 16


@pytest.mark.long
def test_a_damaged_manifest_is_written_again_once_it_is_deleted(put, invoke, follow_url, tmp_path):  # noqa: F811
    """The error says so; the files are kept, and until then the status is not green."""
    put(8)
    arguments = ("export", "parquet", "--to", tmp_path / "lake", "--column", "BASE")
    assert invoke(*arguments, url=follow_url).code == 0
    manifest = tmp_path / "lake/manifest.json"
    content = manifest.read_bytes()
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    manifest.write_bytes(content[:40])

    damaged = invoke(*arguments, url=follow_url)
    status = invoke("export", "status", "--json", url=follow_url)
    manifest.unlink()
    lost = invoke("export", "status", url=follow_url)
    again = invoke(*arguments, "--json", url=follow_url)

    assert (damaged.code, status.code, lost.code, again.code) == (2, 1, 1, 0)
    assert "delete it, and run 'schemaless export parquet' with all options" in damaged.err
    assert "delete it" in status.json[0]["error"]
    assert "is the folder mounted?" in lost.err
    assert (again.json["rows"], manifest.read_bytes()) == (8, content)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")} == files


def test_export_arguments_that_cannot_be_used(invoke, follow_url, tmp_path):  # noqa: F811
    """A usage error says what to give instead, and nothing is created."""
    for arguments, message in (
        (("--field", "total:float"), "a field must be declared as"),
        (("--column", "BASE", "--field", "body=x:int"), "give the typed column another name"),
        (("--column", "no such"), "column_name"),
    ):
        result = invoke("export", "parquet", "--to", tmp_path / "lake", *arguments, url=follow_url)
        assert result.code == 2
        assert message in result.err
    for target, name, message in (
        ((), "parquet", "Missing option '--to'"),
        (("--to", ""), "parquet", "the target is empty"),
        (("--to", tmp_path / "lake"), "a name", "an export's name must be 1 to 64"),
        (("--to", tmp_path / "lake"), "x" * 65, "an export's name must be 1 to 64"),
    ):
        result = invoke("export", "parquet", *target, "--name", name, url=follow_url)
        assert result.code == 2
        assert message in result.err
    assert invoke("export", "files", "--to", tmp_path / "lake").code == 2
    assert invoke("export", "remove", "parquet", url=follow_url).code == 2
    assert not (tmp_path / "lake").exists()


def test_a_path_with_an_at_sign_is_no_account():
    """A port is no password, although the path goes on with an @; encoded or not."""
    for uri in (
        "hdfs://namenode:8020/lake/team@corp/x",
        "hdfs://namenode:8020/lake/team%40corp/x",
        "abfs://cells@account.dfs.core.windows.net/a:b@c",
        "s3://lake/team@corp:x@y",
    ):
        assert masked(uri) == uri
    assert masked("hdfs://anna:secret@namenode:8020/lake/team@corp") == "hdfs://***:***@namenode:8020/lake/team@corp"


def test_credentials_in_a_target_are_refused_and_shown_nowhere(invoke, follow_url, follow_store, tmp_path):  # noqa: F811
    """Neither stored nor printed; those that the catalog already has are masked wherever a target is shown."""
    credentials = (
        "s3://AKIA:sec/ret@lake/cells",
        "s3://sec%2Fret@lake/cells",
        "abfs://cells:secret@account.dfs.core.windows.net/",
        "abfs://account/cells?client_secret=secret&sas_token=secret",
        "s3://lake/cells?endpoint_override=http%3A%2F%2Fuser%3Asecret%40minio",
    )
    with schemaless.connect(follow_url) as store:
        for uri in credentials:
            for command in ("parquet", "files", "compact"):
                url = follow_url if command == "parquet" else None
                result = invoke("export", command, "--to", uri, url=url)
                assert result.code == 2
                assert "AWS_SECRET_ACCESS_KEY" in result.err
                assert "sec" not in (result.out + result.err).replace("client_secret", "").replace("SECRET", "")
        assert exports(store) == {}
        settings = Settings(internals_of(store).follower_access)
        settings.create("export:parquet", {"uri": credentials[0]}, lambda shard: 0)
        scraped = metrics(store)
        assert exports(store) == {"parquet": "s3://***:***@lake/cells"}
    shown = [
        invoke("export", "parquet", "--to", tmp_path / "lake", url=follow_url),
        invoke("export", "status", url=follow_url),
        invoke("status", "--json", url=follow_url),
    ]
    assert "writes to s3://***:***@lake/cells" in shown[0].err
    assert "AKIA" not in f"{scraped}{shown}"
    archived = invoke("migrate", "run", "--to", "json+zlib", "--archive", credentials[0], url=follow_url)
    assert "the archive must be a folder" in archived.err
    assert "AKIA" not in archived.out + archived.err


def test_a_skipped_shard_is_an_error_also_with_q(put, invoke, follow_url, tmp_path, monkeypatch):  # noqa: F811
    """A quiet command prints errors, but no notes."""
    put(4)
    assert invoke("export", "parquet", "--to", tmp_path, url=follow_url).code == 0
    monkeypatch.setattr("schemaless.cli.export.compact_files", lambda *given, **options: Compacted(8, 6, [1, 2]))
    result = invoke("export", "compact", "--to", tmp_path, "-q")

    assert result.code == 1
    assert "shards 1-2 were skipped, because an exporter or another compaction kept writing to them" in result.err


@pytest.mark.long
def test_the_recipe_for_iceberg_registers_the_files(put, invoke, follow_url, tmp_path):  # noqa: F811
    """The page's program runs after each of two exports, the second of which adds a field."""
    put(40, body={"fare": {"total": 1.5}})
    arguments = ("export", "parquet", "--to", tmp_path / "mezzanine", "--column", "BASE", "--min-size", 0)
    assert invoke(*arguments, url=follow_url).code == 0
    (program,) = re.findall(
        r"^```python\n([^`]*pyiceberg[^`]*)```$", (ROOT / "docs/export.md").read_text(), re.MULTILINE
    )
    program = program.replace("/data/", f"{tmp_path}/")

    for rows in (40, 80):
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile(program, "docs/export.md", "exec"), {"__name__": "__main__"})
        assert printed.getvalue() == f"{rows}\n"
        put(40, body={"fare": {"total": 2}})
        assert invoke(*arguments, "--field", "total=fare.total:float", url=follow_url).code == 0
