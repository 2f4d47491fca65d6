"""The alerts and the dashboard in docs/ ask for what is exported and for nothing else.

Prometheus's own ``promtool`` parses each query. Debian has it in the package ``prometheus``, which .ci/run unpacks
where it can; SCHEMALESS_PROMTOOL names it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

from schemaless.monitoring import metrics

pytestmark = pytest.mark.once

PROMTOOL = os.environ.get("SCHEMALESS_PROMTOOL") or shutil.which("promtool")
DOCS = Path(__file__).parents[3] / "docs"
ALERTS = (DOCS / "metrics-alerts.yml").read_text(encoding="utf-8")
DASHBOARD = json.loads((DOCS / "metrics-dashboard.json").read_text(encoding="utf-8"))
METRICS = {metrics.PREFIX + name: metric for name, metric in metrics.METRICS.items()}


def dashboard_queries() -> list[str]:
    """Return every query of the dashboard, of a datastore that is called one."""
    targets = [target for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return [target["expr"].replace("$datastore", "one") for target in targets]


def test_queries_ask_for_what_is_exported():
    """Each name and label is one of a metric's; each metric that has an alert has a panel."""
    queries = [*dashboard_queries(), *re.findall(r"^ +expr: (.*)$", ALERTS, re.MULTILINE)]

    for query in queries:
        for name, labels in re.findall(r"(schemaless_\w+)(?:\{([^}]*)\})?", query):
            known = {"datastore", *METRICS[name].labels}
            assert {label.partition("=")[0].rstrip("!~") for label in labels.split(",") if label} <= known, query
    shown = set(re.findall(r"schemaless_\w+", "".join(dashboard_queries())))
    alarming = set(re.findall(r"schemaless_\w+", ALERTS))
    assert len(alarming) > 20
    assert alarming - shown == set()
    assert {name for name in METRICS if name.startswith("schemaless_export_")} - shown == set()


def test_panels_have_places_of_their_own():
    """No id twice, no two panels over each other, and nothing beyond Grafana's 24 columns."""
    places = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]

    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert len(set(places)) == len(places)
    assert {x for x, _ in places} == set(range(24))


@pytest.mark.skipif(
    PROMTOOL is None, reason="SCHEMALESS_PROMTOOL is not set, and no promtool is on the PATH: install prometheus"
)
def test_prometheus_parses_every_query(tmp_path):
    """The alerts as rules, and the dashboard's queries as rules that record them."""
    rules = "".join(
        f"- record: query_{number}\n  expr: >-\n    {query}\n" for number, query in enumerate(dashboard_queries())
    )
    (tmp_path / "alerts.yml").write_text(ALERTS)
    (tmp_path / "queries.yml").write_text("groups:\n- name: dashboard\n  rules:\n" + textwrap.indent(rules, "  "))

    done = subprocess.run(
        [str(PROMTOOL), "check", "rules", "alerts.yml", "queries.yml"], cwd=tmp_path, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(dashboard_queries())} rules found" in done.stdout
