"""``schemaless status``: what needs attention, in the terminal, as JSON, or as a page that updates itself."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from typing import Final, NoReturn

import click
from rich.markup import escape

from schemaless.base.events import Advanced
from schemaless.base.numbers import counted
from schemaless.cli.command import QueryCommand
from schemaless.cli.option import option
from schemaless.cli.options import monitor_options
from schemaless.cli.quantities import FiniteRange
from schemaless.errors import InvalidInput
from schemaless.monitoring.status.collector import Collector
from schemaless.monitoring.status.model import DEFAULT_OPTIONS, MonitorOptions, Status, status_json
from schemaless.monitoring.status.tables import tables_of
from schemaless.store.opening import connect
from schemaless.ui.terminal.output import EXIT_FAILED, as_json, note, out, print_result, print_table, progress
from schemaless.ui.terminal.server_names import ServerNames

_TIMEOUT_S: Final = 2.0
_READ_TIMEOUT_S: Final = 10.0


@click.command(cls=QueryCommand)
@option("--watch", "Show the status again every two seconds, until Ctrl-C.", is_flag=True)
@option(
    "--listen HOST:PORT",
    "Serve a self-updating page on this address, such as 127.0.0.1:9465, until Ctrl-C; port 0 picks a free port.",
)
@option(
    "--remote",
    "Permit --listen on an address that other machines can reach. Clients need the token in "
    "SCHEMALESS_STATUS_TOKEN, or, if that is not set, the printed one.",
    is_flag=True,
)
@option("--fast", "Do not forecast when disks will be full; that takes seconds of CPU time.", is_flag=True)
@option(
    "--disk-full-from PERCENT",
    "Report disks that are at least as full.",
    name="full_percent",
    type=FiniteRange(min=0, max=100),
    default=100 * DEFAULT_OPTIONS.disk_full_from,
)
@monitor_options
def status(
    url: str, watch: bool, listen: str | None, remote: bool, fast: bool, full_percent: float, options: MonitorOptions
) -> int:
    """Show what needs attention: servers, jobs, triggers, indexes and disks.

    Each finding comes with the command that fixes it or shows more. The days until disks are full are forecast from
    the measurements that 'schemaless capacity measure' has saved. The account needs the role measure.

    To find a primary that takes no writes, the command writes a row there, at most once a second, in the small database
    NAME_heartbeat.

    With --listen, the command serves the status as a web page, and as /status.json for programs. It needs the extra
    [status]. The page is read-only and shows no documents, keys or passwords.

    \b
    Examples:
      schemaless status
      schemaless status --fast
      schemaless status --watch
      schemaless status --listen 127.0.0.1:9465
      schemaless status --json

    Exit status: 0 if there is no fault, else 1. Notices do not count.
    """
    options = replace(options, disk_full_from=full_percent / 100)
    if listen is not None:
        if watch or as_json():
            raise click.UsageError("--listen serves a page; leave out --watch and --json (the page has /status.json)")
        _serve(url, listen, remote, forecast=not fast, options=options)
    with connect(url, connect_timeout_s=_TIMEOUT_S, read_timeout_s=_READ_TIMEOUT_S) as store:
        collector = Collector(store, forecast=not fast, options=options)
        if watch:
            with collector:
                while True:
                    _show(collector.status(), clear=sys.stdout.isatty() and not as_json())
                    time.sleep(2)
        with progress("reading", len(collector.parts), "parts") as listener:
            found = collector.collect(lambda: listener(Advanced()))
    _show(found)
    return EXIT_FAILED if found.faults else 0


def _serve(url: str, listen: str, remote: bool, *, forecast: bool, options: MonitorOptions) -> NoReturn:
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise InvalidInput("--listen needs Starlette and uvicorn: pip install 'schemaless-store[status]'")
    from schemaless.monitoring.status.serve import address, listening_socket, serve  # with the extra only

    at = address(listen, remote=remote, token=os.environ.get("SCHEMALESS_STATUS_TOKEN"))
    with (
        listening_socket(at) as listener,
        connect(url, connect_timeout_s=_TIMEOUT_S, read_timeout_s=_READ_TIMEOUT_S) as store,
    ):
        host = f"[{at.host}]" if ":" in at.host else at.host
        token = "" if at.token is None else f"?token={at.token}"
        note(f"status of {store.name} on http://{host}:{listener.getsockname()[1]}/{token}, until Ctrl-C")
        with Collector(store, forecast=forecast, options=options) as collector:
            serve(collector, listener, at.token)
    raise KeyboardInterrupt


def _show(found: Status, *, clear: bool = False) -> None:
    print_result(status_json(found))
    if clear:
        click.clear()
    _print(found)


def _print(status: Status) -> None:
    """Print the findings, then a table for each part."""
    console = out()
    names = ServerNames(status.addresses)
    console.print(
        f"[bold]{status.datastore}[/]: {counted(status.shards, 'shard')}, {status.taken_at:%Y-%m-%d %H:%M:%S} UTC",
        markup=True,
    )
    if not status.findings:
        console.print("nothing needs attention")
    for finding in status.findings:
        style = "bold red" if finding.severity == "fault" else "yellow"
        console.print(
            f"[{style}]{finding.severity}[/]: {escape(names.short(f'{finding.where}: {finding.text}'))}", markup=True
        )
        console.print(f"    {finding.command}", soft_wrap=True)
    for table in tables_of(status).values():
        console.print()
        if table.rows:
            rows = [list(map(names.short, row.values)) for row in table.rows]
            print_table(table.title, list(table.columns), rows, text_columns=table.text_columns)
        else:
            console.print(f"[bold]{table.title}[/]: {table.empty}", markup=True)
        if table.note:
            console.print(table.note)
