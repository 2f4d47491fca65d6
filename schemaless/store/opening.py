"""``connect()``, and ``Opening``: everything needed to open a datastore, in this process or in another one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from schemaless.codec.envelope import DEFAULT_LIMITS, Limits
from schemaless.errors import InvalidInput
from schemaless.store.cells.column_codecs import ColumnSetting, settings
from schemaless.store.datastore import Datastore
from schemaless.store.internals import Internals, Opened, internals_of
from schemaless.topology.catalog import find_catalog, read_ready
from schemaless.topology.configuration import URL_VARIABLE, configured, datastore_url
from schemaless.topology.model import Topology
from schemaless.topology.routing import CatalogReader
from schemaless.topology.shards import Shards
from schemaless.wire.pool import PoolOptions
from schemaless.wire.pools import Pools
from schemaless.wire.runtime import THREADS, Runtime
from schemaless.wire.secret import Secret
from schemaless.wire.urls import ServerURL


def connect(
    url: str | None = None,
    *,
    connect_timeout_s: float | None = None,
    read_timeout_s: float | None = None,
    write_timeout_s: float | None = None,
    pool_size: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
    allow_nan: bool = False,
) -> Datastore:
    """Open a datastore.

        store = schemaless.connect("mysql://app@db-1:3306/mezzanine")

    Args:
        url: the catalog's server and the datastore's name, such as ``mysql://app@db-1:3306/mezzanine`` or
            ``mysql://app@/mezzanine?unix_socket=/run/mysqld.sock``; or a name from the configuration file, as shown by
            ``schemaless config``. Several servers may be given (``mysql://app@db-1,db-2/mezzanine``, or sockets
            separated by commas): the first one that has the catalog and accepts writes is used. By default, the URL or
            name is taken from ``SCHEMALESS_URL``. The same account is used for every server of the datastore. The
            password is taken from the URL, from ``SCHEMALESS_PASSWORD``, or from the option file given by
            ``?read_default_file=``. ``?ssl_mode=`` and ``?ssl_ca=`` configure TLS.
        connect_timeout_s: maximum time to establish a connection, in seconds; default 10. For this and the next three
            arguments, None means the configuration file's setting for the name, if there is one, or else the default.
        read_timeout_s: maximum time to wait for a reply, in seconds; default 60. Use a value above the server's
            ``innodb_lock_wait_timeout``; otherwise a write that waits for a lock can fail with ``OutcomeUnknown``.
        write_timeout_s: maximum time to send a statement, in seconds; default 60.
        pool_size: maximum number of connections to each server; default 8.
        limits: limits of a decoded document.
        allow_nan: accept NaN and infinities in new documents. They are not JSON: readers in other languages cannot
            parse them. Those that are already stored are read in any case.

    Returns:
        An open datastore: a context manager, thread-safe and usable after ``fork``.

    Raises:
        InvalidInput: the URL, the name or the configuration is invalid, or neither a URL nor ``SCHEMALESS_URL`` is
            given.
        DatastoreNotFound: the datastore does not exist, or its creation was interrupted.
        TopologyError: the catalog cannot be used by this version.
        ServerError: the catalog's server is unreachable or refuses the connection.
    """
    address = None if url is None else Secret(url)
    del url  # keeps the password out of tracebacks, which may show local variables
    return opening_at(
        address,
        limits,
        allow_nan,
        connect_timeout_s=connect_timeout_s,
        read_timeout_s=read_timeout_s,
        write_timeout_s=write_timeout_s,
        pool_size=pool_size,
    ).open()


def opening_at(address: Secret | None, limits: Limits, allow_nan: bool, **given: float | None) -> Opening:
    """Return what is needed to open the datastore at a URL or configured name; raises as ``connect`` does.

    Args:
        address: the URL, or a name from the configuration file; None for that in ``SCHEMALESS_URL``.
        limits: limits of a decoded document.
        allow_nan: whether new documents may hold NaN and infinities.
        **given: the fields of ``PoolOptions``; None for the configured or default value.
    """
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if address is None:
        address = Secret(os.environ.get(URL_VARIABLE, ""))
        if not address.reveal():
            raise InvalidInput(
                f"no datastore is given: pass a URL to connect(), such as mysql://app@db-1:3306/mezzanine, or set "
                f"{URL_VARIABLE}"
            )
    if (configuration := configured(address)) is not None:
        address = configuration.url
        options = {**configuration.settings, **options}
    parsed, _ = datastore_url(address)
    return Opening(parsed, PoolOptions(**options), limits, allow_nan=allow_nan)


@dataclass(frozen=True, slots=True)
class Opening:
    """Everything needed to open a datastore. Jobs pickle it for their worker processes; the password is encrypted.

    Attributes:
        url: the catalog's server and the datastore's name, as returned by ``datastore_url``.
        options: timeouts and pool size.
        limits: limits of a decoded document.
        topology: the topology, if known; None to read it from the catalog.
        allow_nan: whether new documents may hold NaN and infinities.
        has_new_cold: as ``ColdSettings.is_new``; only with the topology.
    """

    url: ServerURL = field(repr=False)
    options: PoolOptions
    limits: Limits
    topology: Topology | None = None
    allow_nan: bool = False
    has_new_cold: bool = False

    def open(self, runtime: Runtime = THREADS) -> Datastore:
        """Open the datastore.

        Args:
            runtime: how calls wait for servers: by blocking a thread, or in an event loop.

        Raises:
            DatastoreNotFound, TopologyError, ServerError: as for ``connect``.
        """
        pools = Pools(self.url.credentials, self.options, runtime)
        name = self.url.database
        assert name is not None
        if self.topology is not None:
            reader = CatalogReader(pools, self.url.nodes, name)
            shards = Shards(self.topology, pools, catalog=reader)
            internals = Internals(shards, self.url, self.limits, allow_nan=self.allow_nan)
            internals.cold.is_new = self.has_new_cold
            return Datastore(internals)
        try:
            url = find_catalog(self.url, name, pools.pool_for)
            catalog = pools.pool_for(url.node)
            entry = read_ready(catalog, name)
            columns: Sequence[ColumnSetting] | None = settings(catalog, name)
        except BaseException:
            pools.close()
            raise
        reader = CatalogReader(pools, url.nodes, name)
        if not any(cluster.has(catalog.node) for cluster in entry.topology.clusters):
            # The catalog's server has no shards (or another address for them), so these connections would stay unused.
            catalog.close()
        shards = Shards(entry.topology, pools, token=entry.token, catalog=reader)
        own = next((cluster.nodes for cluster in entry.topology.clusters if cluster.has(catalog.node)), ())
        if len(own) > 1 or url.others:
            # This catalog may be that of a former primary which is back; the other servers of its cluster know.
            before = shards.routing
            if shards.router.again(before) is not before:
                columns = None
        return Datastore(Internals(shards, url, self.limits, columns, allow_nan=self.allow_nan))


def opening_of(store: Opened) -> Opening:
    """Return what another process or thread needs to open the datastore without reading the topology again."""
    internals = internals_of(store)
    options = internals.shards.pools.options
    is_new = internals.cold.is_new
    return Opening(internals.url, options, internals.limits, internals.topology, internals.allow_nan, is_new)
