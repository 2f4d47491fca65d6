"""Loads docs/metrics-dashboard.json with Grafana's own model of a dashboard, and reports what Grafana would drop.

    python tools/check_dashboard.py

It installs the package grafana-foundation-sdk, which Grafana generates from its schemas, into a temporary environment,
so it needs a package index, and the suite does not run it. Exit status: 0 if nothing would be lost.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

DASHBOARD = Path(__file__).parents[1] / "docs" / "metrics-dashboard.json"
PROGRAM = """\
import json, sys
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

def lost(given, kept, place=""):
    if isinstance(given, dict):
        for name, value in given.items():
            yield from lost(value, kept[name], f"{place}.{name}") if name in kept else [f"{place}.{name}"]
    elif isinstance(given, list):
        for number, value in enumerate(given):
            yield from lost(value, kept[number], f"{place}[{number}]")
    elif given != kept:
        yield place

given = json.load(open(sys.argv[1], encoding="utf-8"))
kept = json.loads(JSONEncoder().encode(Dashboard.from_json(given)))
# Both belong to the import and the editor, not to the stored dashboard.
known = {".__inputs", ".templating.list[0].definition"}
found = [place for place in lost(given, kept) if place not in known]
sys.exit("Grafana would drop or change: " + ", ".join(found) if found else 0)
"""


def main() -> int:
    """Check the file, and return the exit status."""
    with tempfile.TemporaryDirectory(prefix="schemaless-dashboard-") as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", "grafana-foundation-sdk"], check=True)
        status = subprocess.run([python, "-c", PROGRAM, DASHBOARD], check=False).returncode
    print(f"{DASHBOARD.name}: {'Grafana keeps all of it' if status == 0 else 'see above'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
