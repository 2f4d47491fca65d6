"""``schemaless create``, ``info`` and ``schema``."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

import click

from schemaless.admin.create import create as create_datastore
from schemaless.admin.upgrades import DatabaseState, schema_status, upgrade_schema
from schemaless.cli.options import open_store, url_option
from schemaless.errors import AccessDenied
from schemaless.mysql.parallel import AT_ONCE
from schemaless.mysql.sizes import TableSize, cell_table_sizes
from schemaless.mysql.urls import datastore_url
from schemaless.store.datastore import Datastore
from schemaless.terminal.output import (
    EXIT_FAILED,
    bytes_text,
    json_option,
    note,
    out,
    print_json,
    print_table,
    progress,
)

_BLOCK_ROWS = 10_000
_MOST_MESSAGES: Final = 20
_MOST_NAMES: Final = 3


@click.command()
@click.argument("name")
@click.option("--shards", type=int, required=True, help="How many shards, 1 to 65,536. Fixed for ever: take many.")
@click.option(
    "--cluster",
    "clusters",
    multiple=True,
    required=True,
    metavar="URL",
    help="The primary of a cluster, such as mysql://root@db-1:3306/. Give it once for each cluster.",
)
@json_option
def create(name: str, shards: int, clusters: tuple[str, ...], as_json: bool) -> None:
    """Create a datastore.

    Makes a catalog on the first cluster, spreads empty shards evenly over all of them, and prints the datastore's URL.
    Interrupted, the same command goes on where it stopped.

    \b
    Examples:
      schemaless create trips --shards 16 --cluster mysql://root@db-1/ --cluster mysql://root@db-2/
      schemaless create trips --shards 4 --cluster 'mysql://root@/?unix_socket=/run/mysqld/mysqld.sock'
    """
    with progress("creating shards", shards, "shards") as advance:
        url = create_datastore(name, shards, clusters, on_shard=lambda shard: advance(1))
    if as_json:
        print_json({"name": name, "shards": shards, "url": url})
        return
    out().print(url, markup=False)
    note(f"created {name!r} with {shards} shards; to use it: export SCHEMALESS_URL='{url}'")


@click.command()
@url_option
@click.option("--count", is_flag=True, help="Count cells exactly; else InnoDB's estimate, which may be far off.")
@json_option
def info(url: str, count: bool, as_json: bool) -> None:
    """Show a datastore's topology and cell counts.

    \b
    Examples:
      schemaless info
      schemaless info --count --json
    """
    with open_store(url) as store:
        clusters = [_cluster_facts(store, cluster.name, count) for cluster in store.topology.clusters]
        facts = {
            "name": store.name,
            "shards": store.shard_count,
            "placement": store.topology.placement,
            "clusters": clusters,
        }
    if as_json:
        print_json(facts)
        return
    out().print(f"datastore {facts['name']}: {facts['shards']} shards, placed by {facts['placement']}")
    print_table(
        None,
        ["cluster", "primary", "server", "shards", "cells" if count else "cells (estimate)", "table files"],
        [
            [
                cluster["name"],
                cluster["primary"],
                cluster["version"],
                str(cluster["shards"]),
                f"{cluster['cells']:,}",
                "needs PROCESS" if cluster["file_bytes"] is None else bytes_text(cluster["file_bytes"]),
            ]
            for cluster in clusters
        ],
        text_columns=3,
    )


def _cluster_facts(store: Datastore, name: str, count: bool) -> dict[str, Any]:
    cluster = next(cluster for cluster in store.topology.clusters if cluster.name == name)
    shards = store.topology.shards_of(name)
    pool = store.shards.pool_for(cluster.primary)
    databases = [store.shards.database(shard) for shard in shards]
    if count:
        with progress(f"counting {name}", len(shards), "shards") as advance:
            cells = 0
            for shard in shards:
                cells += sum(rows for _, _, rows in store.id_blocks(shard, _BLOCK_ROWS))
                advance(1)
    else:
        names = ",".join(f"'{database}'" for database in databases).encode()
        sql = (
            b"SELECT COALESCE(SUM(table_rows), 0) FROM information_schema.tables "
            b"WHERE table_name = 'cell' AND table_schema IN (%b)" % names
        )
        cells = int(pool.run(lambda connection: connection.rows(sql))[0][0])
    try:
        size = sum(cell_table_sizes(pool, databases).values(), TableSize(0, 0))
    except AccessDenied:
        size = None
    return {
        "name": name,
        "primary": str(cluster.primary),
        "replicas": [str(replica) for replica in cluster.replicas],
        "version": pool.run(lambda connection: connection.version),
        "shards": len(shards),
        "cells": cells,
        "cells_exact": count,
        "file_bytes": None if size is None else size.file_bytes,
        "allocated_bytes": None if size is None else size.allocated_bytes,
    }


@click.group()
def schema() -> None:
    """Upgrade tables, or show their versions."""


@schema.command()
@url_option
@json_option
def status(url: str, as_json: bool) -> int:
    """Show the revisions of the catalog and of the shards.

    How many databases are at which revision, and the names of those that are not at this version's; --json lists all.
    A server that cannot be reached does not keep the others from being asked.

    Exit status: 0 when all are at this version's, else 1.
    """
    states = schema_status(datastore_url(url)[0], progress=lambda total: progress("asking", total, "databases"))
    current = all(state.current for state in states)
    if as_json:
        print_json([asdict(state) for state in states])
        return 0 if current else EXIT_FAILED
    behind = [state for state in states if not state.current]
    out().print(f"{len(states) - len(behind):,} of {len(states):,} databases are at this version's revision")
    if behind:
        _print_revisions(states)
        for message, names in _by_message({state.database: state.error for state in behind if state.error}):
            note(f"not asked: {names}: {message}")
        if any(state.error is None for state in behind):
            note("next: schemaless schema upgrade")
    return 0 if current else EXIT_FAILED


@schema.command()
@url_option
@click.option(
    "--at-once",
    type=click.IntRange(min=1),
    default=AT_ONCE,
    show_default=True,
    help="How many databases of each server at a time.",
)
@json_option
def upgrade(url: str, at_once: int, as_json: bool) -> int:
    """Run the revisions that the catalog and the shards lack.

    The catalog first, then the shards, several at a time on each server. One that fails leaves the others done and is
    named; interrupted or run again, it goes on with what is left.

    Exit status: 0 when all are at this version's revision, 1 when one failed.
    """
    outcome = upgrade_schema(
        datastore_url(url)[0], at_once=at_once, progress=lambda total: progress("upgrading", total, "databases")
    )
    if as_json:
        print_json({"upgraded": outcome.upgraded, "current": outcome.current, "failed": outcome.failed})
    else:
        out().print(
            f"upgraded {len(outcome.upgraded):,} databases; {outcome.current:,} were at this version's revision already"
        )
        for message, names in _by_message(outcome.failed):
            note(f"failed: {names}: {message}")
    if outcome.failed:
        note(
            f"{len(outcome.failed):,} failed, all others are done; mend what is named and run the same command again: "
            "it goes on with those"
        )
    return EXIT_FAILED if outcome.failed else 0


def _print_revisions(states: list[DatabaseState]) -> None:
    """Print how many databases are at which revision, with the names of those that are behind."""
    groups: dict[tuple[str, str, bool], list[str]] = {}
    for state in states:
        revision = "not asked" if state.error else state.revision or "none"
        groups.setdefault((state.branch, revision, state.current), []).append(state.database)
    print_table(
        None,
        ["branch", "revision", "which", "databases"],
        [
            [branch, revision, "this version's" if current else _names(databases), f"{len(databases):,}"]
            for (branch, revision, current), databases in sorted(groups.items())
        ],
        text_columns=3,
    )


def _by_message(messages: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each message once, with the names that it is about; after some, how many more there are."""
    by_message: dict[str, list[str]] = {}
    for name, message in messages.items():
        by_message.setdefault(message, []).append(name)
    for message, names in itertools.islice(by_message.items(), _MOST_MESSAGES):
        yield message, _names(names)
    if len(by_message) > _MOST_MESSAGES:
        yield "with other reasons; --json has all", f"{len(by_message) - _MOST_MESSAGES:,} more"


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMES])
    return shown if len(names) <= _MOST_NAMES else f"{shown} and {len(names) - _MOST_NAMES:,} more"
