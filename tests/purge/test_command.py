"""``schemaless erase purge``."""

from __future__ import annotations

from schemaless.cli.main import run
from schemaless.internals import internals_of


def test_without_execute_it_names_the_servers(fresh_store, fresh_url, capsys, monkeypatch):
    """Every server of the datastore is named, and nothing is changed."""
    monkeypatch.setenv("SCHEMALESS_URL", fresh_url)
    code = run(["erase", "purge"])
    shown = capsys.readouterr()
    nodes = [str(node) for cluster in internals_of(fresh_store).topology.clusters for node in cluster.nodes]

    assert code == 0
    assert [line.strip() for line in shown.out.splitlines()[1:]] == nodes
    assert "nothing was changed" in shown.err
