"""``schemaless retention``: policies, holds, plans and runs from the command line."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from schemaless import NewCell
from schemaless.cell import Erased


@pytest.fixture
def filled(fresh_store):
    """Forty cells of LOG, every second one 40 days old."""
    now = datetime.now(UTC)
    cells = [
        NewCell(
            uuid.uuid5(uuid.NAMESPACE_DNS, f"aircraft {number}"),
            "LOG",
            1,
            {"n": number, "pad": "x" * 200},
            created_at=now - timedelta(40 if number % 2 == 0 else 1),
        )
        for number in range(40)
    ]
    fresh_store.put_cells(cells)
    return cells


def erased(store) -> int:
    return sum(isinstance(cell.body, Erased) for shard in range(store.shard_count) for cell in store.iter_shard(shard))


@pytest.mark.guarantee("retention-exact")
def test_a_policy_is_set_planned_and_run(invoke, filled, fresh_store, erase_url, fresh_url):
    """From the policy to the space freed; held rows stay, and nothing is erased without --execute."""
    held = str(filled[0].row_key)
    assert invoke("retention", "set", "LOG", "--days", 30, "--versions", 1, url=erase_url).code == 0
    assert invoke("retention", "set", "LOG", "--days", 30, url=erase_url).out.startswith("LOG: keep 30 days; ")
    assert invoke("retention", "hold", held, "--by", "legal", "--reason", "case-1", url=erase_url).code == 0
    shown = invoke("retention", "show", "--json", url=fresh_url).json
    planned = invoke("retention", "plan", "--json", url=fresh_url)
    dry = invoke("retention", "run", url=erase_url)

    assert [(policy["column_name"], policy["keep_days"], policy["keep_versions"]) for policy in shown["policies"]] == [
        ("LOG", 30, None)
    ]
    assert [(hold["row_key"], hold["held_by"]) for hold in shown["holds"]] == [(held, "legal")]
    assert (planned.json["columns"]["LOG"]["cells"], planned.json["held_cells"]) == (19, 1)
    assert re.search(r"LOG +keep 30 days +19 ", dry.out)
    assert "1 more expired cells are kept" in dry.err
    assert erased(fresh_store) == 0
    done = invoke("-q", "retention", "run", "--execute", "--json", url=erase_url)
    status = invoke("retention", "status", url=erase_url)

    assert (done.code, done.err) == (0, "")
    assert (done.json["cells"], done.json["held"], done.json["state"]) == (19, 1, "done")
    assert done.json["bytes_before"] == planned.json["columns"]["LOG"]["body_bytes"]
    assert done.json["files"]["before"] > 0
    assert erased(fresh_store) == 19
    assert "19 cells erased" in status.out
    assert invoke("retention", "release", held, "--by", "legal", url=erase_url).out == "released for legal: 1 hold\n"
    assert invoke("retention", "run", "--execute", "--json", url=erase_url).json["cells"] == 1


def test_what_cannot_be_done_is_said(invoke, fresh_store, erase_url, fresh_url, new_row):
    """Usage where nothing or too much is asked for; a note where there is nothing to do; a held row by name."""
    row = new_row()
    fresh_store.put_cell(row, "LOG", 1, {})
    assert invoke("retention", "set", "LOG", url=erase_url).code == 2
    assert invoke("retention", "set", "LOG", "--days", 3, "--forever", url=erase_url).code == 2
    assert "no column has a policy" in invoke("retention", "plan", url=fresh_url).err
    assert "no column has a policy" in invoke("retention", "run", "--execute", url=erase_url).err
    assert invoke("retention", "run", "--execute", "-q", url=erase_url).err == ""
    assert "never run" in invoke("retention", "status", url=erase_url).err
    assert invoke("retention", "set", "LOG", "--versions", 1, url=erase_url).code == 0
    assert invoke("retention", "set", "LOG", "--forever", url=erase_url).out == "LOG: keep everything\n"
    assert invoke("retention", "show", url=fresh_url).out == "all columns: keep everything\n"
    assert invoke("retention", "hold", row, "--by", "legal", "--reason", "case-1", url=erase_url).code == 0
    assert str(row) in invoke("retention", "show", url=fresh_url).out
    refused = invoke("erase", "run", row, "--reason", "gdpr-art-17", "--execute", url=erase_url)
    assert refused.code != 0
    assert "has been held by legal" in refused.err
    assert fresh_store.get_cell(row, "LOG", 1) is not None
