"""Schema status and upgrades of a whole datastore: the catalog first, then its shards in parallel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from schemaless.base.events import Advanced, Listener, Total, ignore_events
from schemaless.base.keys import check_datastore_name, shard_database
from schemaless.errors import InvalidInput, SchemalessError, ServerError
from schemaless.schema.creation import upgrade
from schemaless.schema.databases import version_of
from schemaless.schema.versions import Branch, Identity, head
from schemaless.store.cells.dictionary_replicas import DictionaryReplicas
from schemaless.topology.catalog import find_catalog, identities, read_catalog, record_identities
from schemaless.wire.errors import DatabaseMissing
from schemaless.wire.parallel import AT_ONCE, on_servers
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.pools import Pools
from schemaless.wire.urls import ServerURL

_STATEMENT_S: Final = 24 * 3600.0
"""Read timeout for ALTER TABLE, in seconds; the URL's read_timeout can lower it."""


@dataclass(frozen=True, slots=True)
class DatabaseState:
    """Schema revision of one database.

    Attributes:
        database: name of the database.
        server: address of its server.
        branch: "catalog" or "shard".
        revision: its revision; None if it has none, does not exist, or could not be read.
        current: whether that is the newest revision known to this version of schemaless.
        error: why the revision could not be read, or None.
    """

    database: str
    server: str
    branch: Branch
    revision: str | None
    current: bool
    error: str | None = None


@dataclass(slots=True)
class UpgradeOutcome:
    """Result of an upgrade.

    Attributes:
        upgraded: names of the upgraded databases, in order.
        current: number of databases that were already current.
        failed: error messages by database name, in order.
    """

    upgraded: list[str] = field(default_factory=list)
    current: int = 0
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Database:
    pool: NodePool
    name: str
    branch: Branch
    identity: Identity | None


def schema_status(url: ServerURL, *, listener: Listener = ignore_events) -> list[DatabaseState]:
    """Return the schema revisions of the catalog and of every shard, in order.

    A server that cannot be reached is reported in the result; the others are still read.

    Args:
        url: the datastore's URL.
        listener: receives the total and each advance, in databases.

    Raises:
        DatastoreNotFound: the datastore does not exist.
        SchemaMismatch: its catalog is older or newer than this version, so its shards are unknown.
        ServerError: the catalog cannot be read.
    """

    def ask(database: _Database) -> DatabaseState:
        revision, message = None, None
        try:
            # Once a server has not answered, its circuit breaker spares the other shards the timeout.
            revision = version_of(database.pool, database.name)
        except DatabaseMissing:
            message = "the database does not exist"
        except ServerError as error:
            message = str(error)
        current = revision == head(database.branch)
        return DatabaseState(database.name, str(database.pool.node), database.branch, revision, current, message)

    with _databases(url, PoolOptions(pool_size=AT_ONCE)) as (databases, _):
        listener(Total(len(databases)))
        states = {}
        for state in on_servers([(database.pool.node, database) for database in databases], ask):
            states[state.database] = state
            listener(Advanced())
        return [states[database.name] for database in databases]


def upgrade_schema(url: ServerURL, *, at_once: int = AT_ONCE, listener: Listener = ignore_events) -> UpgradeOutcome:
    """Run the schema revisions that the catalog and the shards lack; a failing shard does not stop the others.

    Dictionaries that are missing from a cluster or from the catalog are copied there, too. The identities of
    servers are recorded in the catalog if it lacks them, except those of servers that do not answer.

    After an interruption, even by kill -9 of this process or a server, repeating the call continues the upgrade.

    Args:
        url: the datastore's URL.
        at_once: number of databases to upgrade at a time on each server.
        listener: receives the total and each advance, in databases.

    Raises:
        InvalidInput: ``at_once`` is below 1.
        DatastoreNotFound: the datastore does not exist.
        SchemalessError: the catalog cannot be upgraded; no shard was changed.
    """
    if at_once < 1:
        raise InvalidInput(f"at_once must be 1 or more, got {at_once}")

    def change(database: _Database) -> tuple[_Database, bool, str | None]:
        try:
            changed = upgrade(database.pool, database.name, database.branch, database.identity)
        except SchemalessError as error:
            return database, False, str(error)
        return database, changed, None

    outcome = UpgradeOutcome()
    options = PoolOptions(pool_size=at_once, read_timeout_s=_STATEMENT_S)
    with _databases(url, options, upgrade_catalog=outcome) as (databases, dictionary_replicas):
        shards = [database for database in databases if database.branch == "shard"]
        outcomes: dict[str, tuple[bool, str | None]] = {}
        listener(Total(len(shards)))
        for database, changed, message in on_servers([(shard.pool.node, shard) for shard in shards], change, at_once):
            outcomes[database.name] = changed, message
            listener(Advanced())
        copied = dictionary_replicas.level()
        outcome.failed.update({f"{replica.database} of {replica.cluster}": why for replica, why in copied.items()})
        for shard in shards:
            changed, message = outcomes[shard.name]
            if message is not None:
                outcome.failed[shard.name] = message
            elif changed:
                outcome.upgraded.append(shard.name)
            else:
                outcome.current += 1
    return outcome


@contextmanager
def _databases(
    url: ServerURL, options: PoolOptions, upgrade_catalog: UpgradeOutcome | None = None
) -> Iterator[tuple[list[_Database], DictionaryReplicas]]:
    """Open the catalog, the shards and the dictionary replicas; with ``upgrade_catalog``, upgrade the catalog first."""
    name = check_datastore_name(url.database or "")
    pools = Pools(url.credentials, options)
    try:
        catalog = pools.pool_for(find_catalog(url, name, pools.pool_for).node)
        if upgrade_catalog is not None:
            if upgrade(catalog, name, "catalog"):
                upgrade_catalog.upgraded.append(name)
            else:
                upgrade_catalog.current += 1
        topology = read_catalog(catalog, name).topology
        shards: dict[int, _Database] = {}
        for cluster in topology.clusters:
            pool = pools.pool_for(cluster.primary)
            for shard in topology.shards_of(cluster.name):
                shards[shard] = _Database(pool, shard_database(name, shard), "shard", topology.identity(shard))
        yield (
            [_Database(catalog, name, "catalog", None), *(shards[shard] for shard in sorted(shards))],
            DictionaryReplicas.of(topology, catalog, pools.pool_for),
        )
        if upgrade_catalog is not None:
            try:
                record_identities(catalog, name, identities(topology.clusters, pools.pool_for))
            except ServerError as error:
                upgrade_catalog.failed[name] = str(error)
    finally:
        pools.close()
