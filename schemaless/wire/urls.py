"""Parser for server URLs; what a URL lacks is taken from ``SCHEMALESS_PASSWORD`` or an option file.

Account and TLS options apply to every node of a datastore; the addresses of its nodes come from the catalog.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from schemaless.errors import InvalidInput
from schemaless.wire.node import Node
from schemaless.wire.option_file import DEFAULT_FILE, read_option_file
from schemaless.wire.secret import PASSWORD_VARIABLE, Secret, clear_locals
from schemaless.wire.tls import NO_OPTIONS, TLS, tls_of
from schemaless.wire.url_text import URLText, authority_of, read_url, write_url

_OWN_PREFIXES: Final = ("ssl", "read_default_")
"""Prefixes of the options that are handled here; all others are passed to the driver."""
_TLS_MODE_OPTIONS: Final = frozenset({"ssl_mode", "ssl_verify_cert", "ssl_verify_identity"})
"""Any of these options in the URL overrides all of them in the option file."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Account, TLS and driver options for every node of a datastore; they never come from the catalog.

    Attributes:
        query: the URL's options, without secrets.
        password_from: source of the password, for display; None without a password.
    """

    username: str | None = None
    password: Secret | None = field(default=None, repr=False)
    query: tuple[tuple[str, str], ...] = ()
    tls: TLS = NO_OPTIONS
    password_from: str | None = field(default=None, compare=False)

    def without_timeouts(self) -> Credentials:
        """Return the credentials without the URL's timeout options."""
        return replace(self, query=tuple(pair for pair in self.query if not pair[0].endswith("_timeout")))

    @property
    def driver_options(self) -> dict[str, str]:
        """The URL's options that are passed to the driver."""
        return {name: value for name, value in self.query if not name.startswith(_OWN_PREFIXES)}


@dataclass(frozen=True, slots=True)
class ServerURL:
    """A parsed URL.

    Attributes:
        node: the server.
        credentials: the account.
        database: the database or datastore that the URL names, if any.
        others: further servers that may hold the catalog, in the order in which they are tried.
    """

    node: Node
    credentials: Credentials
    database: str | None
    others: tuple[Node, ...] = ()

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All servers of the URL, in order, without duplicates."""
        return tuple(dict.fromkeys((self.node, *self.others)))

    def __str__(self) -> str:
        # Hides misspelt password options as well, which the driver would reject.
        shown = {name: "***" if "pass" in name else value for name, value in self.credentials.query}
        hidden = self.credentials.password is not None
        return self._text(self.database, shown, hidden_password=hidden)

    def for_database(self, database: str | None) -> str:
        """Return the URL of another database on the same servers, without passwords."""
        return self._text(database, dict(self.credentials.query))

    def _text(self, database: str | None, query: dict[str, str], *, hidden_password: bool = False) -> str:
        if self.node.socket is not None:
            query["unix_socket"] = ",".join(str(node.socket) for node in self.nodes)
        authority = ",".join(authority_of(node.host, node.port) for node in self.nodes if node.socket is None)
        return write_url(self.credentials.username, authority, database, query, hidden_password=hidden_password)


def parse_url(text: str | Secret, *, several: bool = False) -> ServerURL:
    """Parse ``mysql://user:password@host:port/name?option=value``.

    With ``several``, the URL may name several servers for the catalog, separated by commas: ``host1:3306,host2:3306``,
    or several sockets.

    - The scheme is ``mysql``, ``mariadb`` or ``mysql+pymysql``, which all mean the same.
    - ``?unix_socket=`` names a socket.
    - ``?ssl_mode=`` and the other TLS options (``schemaless.wire.tls``) configure encryption.
    - ``?read_default_file=`` names an option file; its groups ``[client]`` and ``[schemaless]`` fill in what the URL
      lacks. ``?read_default_group=`` replaces ``[schemaless]`` with another group; then ``~/.my.cnf`` is read if no
      file is named.
    - Without a password in the URL, ``SCHEMALESS_PASSWORD`` is used if it is set.

    Raises:
        InvalidInput: the URL is malformed, or the option file cannot be used. Messages never contain a password.
    """
    given = text if isinstance(text, Secret) else Secret(text)
    del text
    try:
        return _parsed(given.reveal(), several)
    except InvalidInput as refusal:
        clear_locals(refusal)
        raise


def _parsed(text: str, several: bool) -> ServerURL:
    text, *more = _each_host(text)
    url, *more_read = map(read_url, (text, *more))
    more_urls = [server for server in more_read if server is not None]
    if url is None or len(more_urls) < len(more):
        scheme = text.split("://", 1)[0] if "://" in text else "no scheme"
        raise InvalidInput(
            f"not a server URL (begins with {scheme[:20]!r}); expected mysql://user@host:3306/name "
            "or mysql://user@/name?unix_socket=/path"
        )
    family, _, driver = url.drivername.partition("+")
    if family not in ("mysql", "mariadb") or driver not in ("", "pymysql"):
        raise InvalidInput(f"URL scheme must be mysql, mariadb or mysql+pymysql, got {url.drivername!r}")
    if "@" in (url.host or ""):
        raise InvalidInput("the URL has two @ before the database name; write @ as %40 in a user name or password")
    query: dict[str, str] = {}
    for name, value in url.query:
        if name in query:
            raise InvalidInput(f"the URL has the option {name!r} twice")
        query[name] = value
    secrets = {name: query.pop(name) for name in ("password", "passwd", "ssl_key_password") if name in query}
    charset = query.pop("charset", "utf8mb4")
    if charset != "utf8mb4":
        raise InvalidInput(f"the URL's charset must be utf8mb4, got {charset!r}; leave it out")
    socket, *sockets = query.pop("unix_socket", "").split(",")
    if (more or sockets) and not several:
        raise InvalidInput("the URL names several servers; only the URL of a datastore may do so, to find its catalog")
    if "" in sockets or not all(server.host for server in (url, *more_urls) if more):
        raise InvalidInput("the URL names several servers separated by commas, and one of them is empty")
    url_tls = {name: value for name, value in (query | secrets).items() if name.startswith("ssl")}
    file, file_tls = _option_file(query)
    if not _TLS_MODE_OPTIONS.isdisjoint(url_tls):
        file_tls = {name: value for name, value in file_tls.items() if name not in _TLS_MODE_OPTIONS}
    candidates = (
        ("the URL", url.password),
        ("the URL", secrets.get("password")),
        ("the URL", secrets.get("passwd")),
        (PASSWORD_VARIABLE, os.environ.get(PASSWORD_VARIABLE)),
        (f"option file {query.get('read_default_file', DEFAULT_FILE)}", file.get("password")),
    )
    source, password = next((candidate for candidate in candidates if candidate[1] is not None), (None, None))
    credentials = Credentials(
        url.username or file.get("user"),
        None if password is None else Secret(password),
        tuple(sorted(query.items())),
        tls_of(file_tls | url_tls, "the URL" if url_tls else "the option file"),
        source,
    )
    others = [Node("primary", socket=path) for path in sockets]
    others += [Node("primary", host=server.host, port=server.port or 3306) for server in more_urls if not socket]
    return ServerURL(_node(url, socket or None, file), credentials, url.database or None, tuple(others))


def _each_host(text: str) -> list[str]:
    scheme, mark, rest = text.partition("://")
    end = next((position for position, character in enumerate(rest) if character in "/?"), len(rest))
    account, at, hosts = rest[:end].rpartition("@")
    return [f"{scheme}{mark}{account}{at}{host}{rest[end:]}" for host in hosts.split(",")]


def _option_file(query: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Read the option file that the URL names; return its login and TLS options."""
    if "read_default_file" not in query and "read_default_group" not in query:
        return {}, {}
    path = query.get("read_default_file", DEFAULT_FILE)
    options = read_option_file(path, ("client", query.get("read_default_group", "schemaless")))
    login = {name: value for name, value in options.items() if value is not None and not name.startswith("ssl")}
    tls = {name: value for name, value in options.items() if value is not None and name.startswith("ssl_")}
    # MariaDB's option names.
    if "ssl_verify_server_cert" in options:
        tls["ssl_verify_identity"] = tls.pop("ssl_verify_server_cert", "true")
    if "skip_ssl" in options or options.get("ssl", "1") in ("0", "false", "off"):
        tls = {"ssl_mode": "disabled"}
    elif "ssl" in options and not tls:
        tls = {"ssl_mode": "required"}
    return login, tls


def _node(url: URLText, socket: str | None, file: Mapping[str, str]) -> Node:
    host, port = url.host or None, url.port
    if socket is None and host is None:
        # Like the mysql client, use the socket for localhost if there is one.
        socket = file.get("socket") if file.get("host", "localhost") == "localhost" else None
        host = file.get("host")
    if socket is not None:
        return Node("primary", socket=socket)
    if host is None:
        raise InvalidInput("the URL names no server; add a host, as in mysql://user@host/name, or ?unix_socket=/path")
    if port is None and "port" in file:
        if not file["port"].isdecimal():
            raise InvalidInput(f"the option file's port must be a number, got {file['port']!r}")
        port = int(file["port"])
    return Node("primary", host=host, port=port or 3306)
