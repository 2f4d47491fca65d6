"""The receipt of an erasure as a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from schemaless.base.parts import grouped
from schemaless.ui.pages.frame import CARDS, answers, html_page, section, table, terms

_STYLE: Final = (
    CARDS
    + """
h1 { overflow-wrap: anywhere; }
th, td { text-align: left; white-space: normal; vertical-align: top; overflow-wrap: anywhere; min-width: 5.5rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; margin: .4rem 0; }
dt { margin: 0; } dd { font-variant-numeric: tabular-nums; }
tr { break-inside: avoid; }
"""
)


def erasure_page(receipt: Mapping[str, Any]) -> str:
    """Return a complete HTML page for a receipt (``ops/erasure/receipt.py``); what remains comes first."""
    gone = receipt["gone"]
    times = [
        (name.removesuffix("_at").replace("_", " "), _time(receipt[name] or "not yet"))
        for name in ("intended_at", "executed_at", "acknowledged_at", "verified_at", "issued_at")
    ]
    followers = [[name, _time(at)] for name, at in gone["acknowledged_by"].items()]
    files = [
        [export["name"], each["name"], f"{each['documents']:,}", each["state"]]
        for export in receipt["exports"]
        for each in export["files"]
    ]
    boxes = [
        (str(receipt["state"]), "state"),
        (f"{gone['cells']:,}", "cells whose documents are gone"),
        (f"{gone['body_bytes']:,}", "bytes of bodies"),
        (f"{len(gone['shards']):,}", "shard" if len(gone["shards"]) == 1 else "shards"),
    ]
    targets = [[each] for each in receipt["scope"].get("targets", [])]
    signature = receipt.get("signature")

    def listed(title: str, header: list[str], rows: list[list[str]]) -> str:
        return section(title, table(header, rows, cards=True, label=title), long=True) if rows else ""

    return html_page(
        f"Erasure {receipt['erasure']} of {receipt['datastore']}",
        f"reason {receipt['reason']}, requested by {receipt['requested_by']}",
        [
            listed("What remains, and until when", ["where", "what", "until"], _remains(receipt)),
            section("What is gone", answers(boxes)),
            section("When", terms(times)),
            listed("What was requested", ["target"], targets),
            listed("Acknowledged by", ["follower", "when"], followers),
            listed("Cold files without the documents", ["file"], [[name] for name in receipt["cold_files"]]),
            listed("Export files", ["export", "file", "documents removed", "state"], files),
            section("Keys", f"<p>{receipt['keys']}.</p>"),
            section("Signature", terms([(name.replace("_", " "), str(value)) for name, value in signature.items()]))
            if signature
            else "",
        ],
        style=_STYLE,
    )


def _remains(receipt: Mapping[str, Any]) -> list[list[str]]:
    """Return a row for each kind of remainder, with all the places that have it."""
    places = grouped(((each["what"], each["until"]), each["where"]) for each in receipt["remains"])
    return [[", ".join(where), what, until] for (what, until), where in places.items()]


def _time(at: str) -> str:
    return at.replace("T", " ").replace("+00:00", " UTC")
