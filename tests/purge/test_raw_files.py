"""Searches of servers' files; ``tests/erase/test_everywhere.py`` purges them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from schemaless.errors import InvalidInput
from schemaless.opening import connect
from schemaless.purge.datastore import purge_datastore
from schemaless.purge.files import folders_of, kind_of, search_files
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.urls import parse_url


def test_a_search_counts_each_match_once_whatever_the_chunks(tmp_path: Path) -> None:
    """Matches that cross a chunk, overlap or are of several lengths are found as in the whole file."""
    drawn = random.Random(2)
    needles = [b"abab", b"babab", b"aaaaaaa"]
    for number, chunk in enumerate((1, 3, 4, 7, 64, 1_000)):
        content = bytes(drawn.choices(b"ab", k=600))
        path = tmp_path / f"{number}.ibd"
        path.write_bytes(content)
        found = {
            match.needle: (match.occurrences, match.offset)
            for match in search_files([tmp_path], needles, chunk_bytes=chunk)
        }
        positions = {needle: [at for at in range(len(content)) if content.startswith(needle, at)] for needle in needles}
        assert found == {needle: (len(at), at[0]) for needle, at in positions.items() if at}
        path.unlink()
    with pytest.raises(InvalidInput, match="at least 4 bytes"):
        search_files([tmp_path], [b"abc"])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cell.ibd", "data file"),
        ("ibdata1", "system tablespace"),
        ("undo_001", "undo tablespace"),
        ("spare.ibu", "undo tablespace"),
        ("#ib_redo12_tmp", "redo log"),
        ("ib_logfile0", "redo log"),
        ("#ib_16384_0.dblwr", "doublewrite file"),
        ("binlog.000012", "binary log"),
        ("relay.000002", "relay log"),
        ("mysqld-relay-bin.000002", "relay log"),
        ("ibtmp1", "temporary file"),
        ("000012.sst", "data file"),
        ("000013.log", "write-ahead log"),
        ("error.log", "log"),
        ("auto.cnf", "other file"),
    ],
)
def test_files_are_told_apart_by_name(name: str, kind: str) -> None:
    """The receipt says in which kind of file something was found."""
    assert kind_of(Path(name)) == kind


def test_a_server_on_another_machine_is_refused(fresh_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files cannot be read here, so nothing is purged at all."""
    url = parse_url("mysql://root@db-1:3306/trips")
    assert folders_of(NodePool(url.node, url.credentials, PoolOptions())) is None
    monkeypatch.setattr("schemaless.purge.datastore.folders_of", lambda pool: None)
    with connect(fresh_url) as store, pytest.raises(InvalidInput, match="Nothing was purged"):
        purge_datastore(store)
