"""Schema upgrades over a whole datastore: the catalog first, then its shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from schemaless.cluster.topology import check_datastore_name, shard_database
from schemaless.errors import SchemalessError
from schemaless.mysql.errors import DatabaseMissing
from schemaless.mysql.pool import NodePool, PoolOptions
from schemaless.mysql.schema import Branch, Identity, has_identity, head, upgrade, verify_identity, version_of
from schemaless.mysql.urls import ServerURL
from schemaless.store.catalog import read_catalog


@dataclass(frozen=True, slots=True)
class DatabaseState:
    """One database's revision.

    Attributes:
        revision: None where it has none, or is not there.
        current: whether it is this version's newest.
    """

    database: str
    revision: str | None
    current: bool


@dataclass(slots=True)
class UpgradeOutcome:
    """What an upgrade did.

    Attributes:
        upgraded: databases that it changed.
        current: how many needed nothing.
        failed: database to message.
    """

    upgraded: list[str] = field(default_factory=list)
    current: int = 0
    failed: dict[str, str] = field(default_factory=dict)


def schema_status(url: ServerURL) -> list[DatabaseState]:
    """Return the revision of the catalog and of every shard.

    Raises:
        DatastoreNotFound: there is no such datastore.
        ServerError: a server cannot be reached.
    """
    states = []
    for pool, database, branch, _ in _databases(url):
        try:
            revision = version_of(pool, database)
        except DatabaseMissing:
            revision = None
        states.append(DatabaseState(database, revision, revision == head(branch)))
    return states


def upgrade_schema(url: ServerURL, *, on_database: Callable[[str], None] = lambda database: None) -> UpgradeOutcome:
    """Run the revisions that the catalog and the shards lack; a shard that fails does not stop the others.

    Raises:
        DatastoreNotFound: there is no such datastore.
        ServerError: the catalog cannot be upgraded.
    """
    outcome = UpgradeOutcome()
    for pool, database, branch, identity in _databases(url, upgrade_catalog=outcome):
        try:
            if identity is not None and has_identity(pool, database):
                verify_identity(pool, database, identity)
            if upgrade(pool, database, branch):
                outcome.upgraded.append(database)
            elif branch == "shard" or database not in outcome.upgraded:
                outcome.current += 1
        except SchemalessError as error:
            outcome.failed[database] = str(error)
        on_database(database)
    return outcome


def _databases(
    url: ServerURL, upgrade_catalog: UpgradeOutcome | None = None
) -> Iterator[tuple[NodePool, str, Branch, Identity | None]]:
    """Yield the catalog and every shard; the catalog is upgraded before it is read where that is asked for."""
    name = check_datastore_name(url.database or "")
    options = PoolOptions(pool_size=2)
    pools = {url.node: NodePool(url.node, url.credentials, options)}
    catalog = pools[url.node]
    try:
        if upgrade_catalog is not None and upgrade(catalog, name, "catalog"):
            upgrade_catalog.upgraded.append(name)
        yield catalog, name, "catalog", None
        topology = read_catalog(catalog, name).topology
        for shard in range(topology.shard_count):
            node = topology.cluster_of(shard).primary
            pool = pools.setdefault(node, NodePool(node, url.credentials, options))
            identity = Identity(name, shard, topology.shard_count, topology.placement)
            yield pool, shard_database(name, shard), "shard", identity
    finally:
        for pool in pools.values():
            pool.close()
