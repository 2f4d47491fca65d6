"""Schema status and upgrades over a whole datastore: the catalog first, then its shards, many at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

from schemaless.cells.dictionary_replicas import DictionaryReplicas, dictionary_replicas_of, level
from schemaless.errors import InvalidInput, SchemalessError, ServerError, ServerUnavailable
from schemaless.events import Advanced, Listener, Total, nobody
from schemaless.keys import check_datastore_name, shard_database
from schemaless.schema.creation import upgrade
from schemaless.schema.databases import Identity, version_of
from schemaless.schema.versions import Branch, head
from schemaless.topology.catalog import find_catalog, read_catalog
from schemaless.wire.errors import ConnectionLost, DatabaseMissing
from schemaless.wire.node import Node
from schemaless.wire.parallel import AT_ONCE, on_servers
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.pools import Pools
from schemaless.wire.urls import ServerURL

R = TypeVar("R")

_STATEMENT_S: Final = 24 * 3600.0
"""A change of a table may take so long, unless the URL's read_timeout says less."""


@dataclass(frozen=True, slots=True)
class DatabaseState:
    """One database's revision.

    Attributes:
        server: where it is, or should be.
        branch: "catalog" or "shard".
        revision: None where it has none, is not there, or could not be asked.
        current: whether it is this version's newest.
        error: why it could not be asked, or None.
    """

    database: str
    server: str
    branch: Branch
    revision: str | None
    current: bool
    error: str | None = None


@dataclass(slots=True)
class UpgradeOutcome:
    """What an upgrade did.

    Attributes:
        upgraded: databases that it changed, in their order.
        current: how many needed nothing.
        failed: database to message, in their order.
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

    @property
    def node(self) -> Node:
        return self.pool.node


def schema_status(url: ServerURL, *, listener: Listener = nobody) -> list[DatabaseState]:
    """Return the revision of the catalog and of every shard, in their order.

    A server that cannot be reached does not keep the others from being asked. ``listener`` is told the total and each
    advance, in databases.

    Raises:
        DatastoreNotFound: there is no such datastore.
        SchemaMismatch: its catalog is older or newer than this version, so its shards are not known.
        ServerError: the catalog cannot be read.
    """

    def ask(database: _Database) -> DatabaseState:
        revision, message = None, None
        try:
            revision = unreachable.ask(database.node, lambda: version_of(database.pool, database.name))
        except DatabaseMissing:
            message = "there is no such database"
        except ServerError as error:
            message = str(error)
        current = revision == head(database.branch)
        return DatabaseState(database.name, str(database.node), database.branch, revision, current, message)

    unreachable = _Unreachable()
    with _databases(url, PoolOptions(pool_size=AT_ONCE)) as (databases, _):
        listener(Total(len(databases)))
        states = {}
        for state in on_servers([(database.node, database) for database in databases], ask):
            states[state.database] = state
            listener(Advanced())
        return [states[database.name] for database in databases]


def upgrade_schema(url: ServerURL, *, at_once: int = AT_ONCE, listener: Listener = nobody) -> UpgradeOutcome:
    """Run the revisions that the catalog and the shards lack; a shard that fails does not stop the others.

    Dictionaries are copied to each cluster that lacks one, and brought back into a catalog that does.

    Interrupted, even by kill -9 of this process or of a server, the same call goes on where it stopped.

    Args:
        at_once: how many databases of each server are worked on at a time.
        listener: told the total and each advance, in databases.

    Raises:
        InvalidInput: ``at_once`` is below 1.
        DatastoreNotFound: there is no such datastore.
        SchemalessError: the catalog cannot be upgraded; no shard was changed.
    """
    if at_once < 1:
        raise InvalidInput(f"at_once must be 1 or more, got {at_once}")

    def change(database: _Database) -> tuple[_Database, bool, str | None]:
        try:
            changed = unreachable.ask(
                database.node, lambda: upgrade(database.pool, database.name, database.branch, database.identity)
            )
        except SchemalessError as error:
            return database, False, str(error)
        return database, changed, None

    unreachable = _Unreachable()
    outcome = UpgradeOutcome()
    options = PoolOptions(pool_size=at_once, read_timeout_s=_STATEMENT_S)
    with _databases(url, options, upgrade_catalog=outcome) as (databases, dictionary_replicas):
        shards = [database for database in databases if database.branch == "shard"]
        outcomes: dict[str, tuple[bool, str | None]] = {}
        listener(Total(len(shards)))
        for database, changed, message in on_servers([(shard.node, shard) for shard in shards], change, at_once):
            outcomes[database.name] = changed, message
            listener(Advanced())
        copied = level(dictionary_replicas)
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


class _Unreachable:
    """The servers that could not be reached, so that each of their shards need not wait out the same timeout."""

    def __init__(self) -> None:
        self._errors: dict[Node, ServerUnavailable] = {}

    def ask(self, node: Node, call: Callable[[], R]) -> R:
        """Return what ``call`` gives.

        Raises:
            ServerUnavailable: the server could not be reached, now or before.
        """
        met = self._errors.get(node)
        if met is not None:
            raise type(met)(met.message, node=met.node, code=met.code)
        try:
            return call()
        except ConnectionLost:
            # It may be there again.
            raise
        except ServerUnavailable as error:
            self._errors[node] = error
            raise


@contextmanager
def _databases(
    url: ServerURL, options: PoolOptions, upgrade_catalog: UpgradeOutcome | None = None
) -> Iterator[tuple[list[_Database], DictionaryReplicas]]:
    """Give the catalog and every shard, and where dictionaries are.

    The catalog is upgraded before it is read where that is asked for.
    """
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
                identity = Identity(name, shard, topology.shard_count, topology.placement)
                shards[shard] = _Database(pool, shard_database(name, shard), "shard", identity)
        yield (
            [_Database(catalog, name, "catalog", None), *(shards[shard] for shard in sorted(shards))],
            dictionary_replicas_of(topology, catalog, pools.pool_for),
        )
    finally:
        pools.close()
