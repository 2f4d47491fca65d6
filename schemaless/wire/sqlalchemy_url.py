"""SQLAlchemy URLs of servers, in a separate module because importing SQLAlchemy is slow and rarely needed."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy.engine import URL

from schemaless.wire.node import Node
from schemaless.wire.urls import Credentials


def sqlalchemy_url(node: Node, credentials: Credentials, database: str | None) -> URL:
    """Return a node's SQLAlchemy URL, without the password and TLS options (see ``urls.driver_arguments``)."""
    if credentials.drivername == "mysql+mysqldb" and node.host == "localhost":
        # MySQL's C library would connect to the default socket, whichever server that belongs to.
        node = replace(node, host="127.0.0.1")
    options = dict(credentials.driver_options)
    if node.socket is not None:
        options["unix_socket"] = node.socket
    return URL.create(credentials.drivername, credentials.username, None, node.host, node.port, database, options)
