"""The receipt of an erasure as a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schemaless.ui.pages.frame import answers, html_page, section, table, terms


def erasure_page(receipt: Mapping[str, Any]) -> str:
    """Return a complete HTML page for a receipt (``ops/erasure/receipt.py``)."""
    gone = receipt["gone"]
    times = [
        (name.removesuffix("_at").replace("_", " "), str(receipt[name] or "not yet"))
        for name in ("intended_at", "executed_at", "acknowledged_at", "verified_at", "issued_at")
    ]
    followers = [[name, at] for name, at in gone["acknowledged_by"].items()]
    remains = [[each["where"], each["what"], each["until"]] for each in receipt["remains"]]
    files = [
        [export["name"], each["name"], f"{each['documents']:,}", each["state"]]
        for export in receipt["exports"]
        for each in export["files"]
    ]
    targets = receipt["scope"].get("targets", [])
    signature = receipt.get("signature")
    return html_page(
        f"Erasure {receipt['erasure']} of {receipt['datastore']}",
        f"reason {receipt['reason']}, requested by {receipt['requested_by']}",
        [
            answers(
                [
                    (str(receipt["state"]), "state"),
                    (f"{gone['cells']:,}", "cells whose documents are gone"),
                    (f"{gone['body_bytes']:,}", "bytes of bodies"),
                    (str(len(gone["shards"])), "shards"),
                ]
            ),
            section("When", terms(times)),
            section("What was requested", table(["target"], [[each] for each in targets])) if targets else "",
            section("Acknowledged by", table(["follower", "when"], followers)) if followers else "",
            section("Export files", table(["export", "file", "documents removed", "state"], files)) if files else "",
            section("What remains, and until when", table(["where", "what", "until"], remains), long=True),
            section("Keys", f"<p>{receipt['keys']}.</p>"),
            section("Signature", terms([(name, str(value)) for name, value in signature.items()])) if signature else "",
        ],
    )
