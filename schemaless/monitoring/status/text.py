"""Prints a status in the terminal."""

from __future__ import annotations

from rich.markup import escape

from schemaless.monitoring.status.model import Status
from schemaless.monitoring.status.tables import tables_of
from schemaless.ui.terminal.output import counted, out, print_table


def print_status(status: Status) -> None:
    """Print the findings, then a table for each part."""
    console = out()
    console.print(
        f"[bold]{status.datastore}[/]: {counted(status.shards, 'shard')}, {status.taken_at:%Y-%m-%d %H:%M:%S} UTC"
    )
    if not status.findings:
        console.print("nothing needs attention")
    for finding in status.findings:
        style = "bold red" if finding.severity == "fault" else "yellow"
        console.print(f"[{style}]{finding.severity}[/]: {escape(finding.where)}: {escape(finding.text)}")
        console.print(f"    {finding.command}", markup=False, soft_wrap=True)
    for table in tables_of(status).values():
        console.print()
        if table.rows:
            rows = [list(row) for row in table.rows]
            print_table(table.title, list(table.columns), rows, text_columns=table.text_columns)
        else:
            console.print(f"[bold]{table.title}[/]: {table.empty}")
        if table.note:
            console.print(table.note, markup=False)
