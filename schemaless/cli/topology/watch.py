"""``schemaless topology watch``."""

from __future__ import annotations

import json
import random
import time
from contextlib import closing
from typing import Any

import click

from schemaless.cli.options import url_option
from schemaless.cli.quantities import FiniteRange
from schemaless.cli.topology.shown import adoption_data, say_adoption
from schemaless.errors import TopologyError
from schemaless.failover.watch import Finding, Watch
from schemaless.terminal.output import EXIT_FAILED, data_sink, json_option, note, out


@click.command()
@click.option("--once", is_flag=True, help="Check once and exit.")
@click.option(
    "--interval",
    "interval_s",
    type=FiniteRange(min=0.1, max=3600),
    default=1.0,
    metavar="SECONDS",
    help="Time between two checks, with 25% jitter.",
)
@url_option
@json_option
def watch(once: bool, interval_s: float, url: str, as_json: bool) -> int:
    """Adopt the primaries that Group Replication elects, until Ctrl-C.

    Use it for clusters whose servers form a MySQL Group Replication group in single-primary mode. A group that loses
    its primary elects another one by itself. The command asks the members which one that is, and then does the same as
    'schemaless topology adopt'. A group without a claim gets its first one. The command itself does not elect a server.

    It trusts a member only if that member is ONLINE and sees a majority of its group, because a primary that was cut
    off still considers itself the primary. Before it adopts a server, it commits a transaction there, which the server
    can do only with the majority.

    An adoption removes the old primary from the catalog. When that server rejoins the group, the same watch adds it as
    a replica. A cluster whose servers are not a group is reported once, and ignored.

    The command prints a line for each new finding, or a JSON object with --json. Several watches can run at the same
    time: run them on several hosts, so that one remains when a host fails. You can stop a watch at any moment. The
    account needs the role admin.

    Exit status with --once: 0 if each cluster is a group whose primary is adopted, else 1.

    \b
    Examples:
      schemaless topology watch
      schemaless topology watch --once --json
      schemaless local up --servers 1 --group-replication   # a group to try it with
    """
    with closing(Watch(url)) as watching:
        findings = watching.look()
        _say(findings, as_json=as_json)
        if once:
            return 0 if all(finding.well for finding in findings) else EXIT_FAILED
        if all(finding.kind == "no group" for finding in findings):
            raise TopologyError("no cluster of the datastore is a group, so there is nothing to watch")
        if not as_json:
            note("watching, until Ctrl-C")
        while True:
            time.sleep(interval_s * random.uniform(0.75, 1.25))  # noqa: S311 - jitter
            _say(watching.look(), as_json=as_json)


def _say(findings: list[Finding], *, as_json: bool) -> None:
    if as_json:
        sink = data_sink()
        for finding in findings:
            sink.write(json.dumps(_data(finding)).encode() + b"\n")
        sink.flush()
        return
    console = out()
    for finding in findings:
        cluster = "" if finding.cluster is None else f" {finding.cluster}:"
        console.print(f"{finding.at:%Y-%m-%d %H:%M:%S}{cluster} {finding.message}", markup=False)
        console.file.flush()
        if finding.adoption is not None:
            say_adoption(finding.adoption)


def _data(finding: Finding) -> dict[str, Any]:
    return {
        "at": finding.at.isoformat(),
        "cluster": finding.cluster,
        "finding": finding.kind,
        "message": finding.message,
        "adoption": None if finding.adoption is None else adoption_data(finding.adoption),
    }
