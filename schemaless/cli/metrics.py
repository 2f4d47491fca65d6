"""``schemaless metrics``: serves metrics for Prometheus."""

from __future__ import annotations

import threading
from importlib.util import find_spec

import click

from schemaless.cli.command import ReadOnlyCommand
from schemaless.cli.option import option
from schemaless.cli.options import monitor_options
from schemaless.errors import InvalidInput
from schemaless.monitoring.status.model import MonitorOptions
from schemaless.store.opening import connect
from schemaless.ui.terminal.output import note


@click.command(cls=ReadOnlyCommand)
@option(
    "--listen HOST:PORT",
    "The address to listen on; port 0 picks a free port. There is no password, so use a private network.",
    default="127.0.0.1:9464",
)
@monitor_options
def metrics(url: str, listen: str, options: MonitorOptions) -> None:
    """Serve metrics for Prometheus, until Ctrl-C.

    The metrics cover jobs and their leases, servers, circuit breakers, test writes, old transactions, replica lag, the
    ends of change feeds, the lag of triggers, indexes and exports, stored cells and bytes, and the days until disks are
    full. The account needs the role measure. The command needs the extra [metrics]; the days until disks are full also
    need [report].

    \b
    Example:
      schemaless metrics --listen 127.0.0.1:9464
    """
    if find_spec("prometheus_client") is None:
        raise InvalidInput("metrics need prometheus-client: pip install 'schemaless-store[metrics]'")
    from schemaless.monitoring.metrics import Exporter

    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise InvalidInput(f"--listen takes HOST:PORT such as 127.0.0.1:9464, got {listen!r}")
    with (
        connect(url) as store,
        Exporter(store, options) as exporter,
        exporter.serve(host.strip("[]"), int(port)) as taken,
    ):
        note(f"metrics of {store.name} on http://{host}:{taken}/metrics, until Ctrl-C")
        threading.Event().wait()
