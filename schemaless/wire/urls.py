"""Where a server is and how to log in: what a URL says, then the environment, then an option file.

The password and TLS serve for every node of a datastore; where the nodes are, only the catalog says.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_plus

from schemaless.errors import InvalidInput
from schemaless.wire.node import Node
from schemaless.wire.option_file import DEFAULT_FILE, read_option_file
from schemaless.wire.secret import PASSWORD_VARIABLE, Secret, clear_locals
from schemaless.wire.tls import NO_OPTIONS, TLS, tls_of
from schemaless.wire.url_text import URLText, read_url, write_url

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

_OURS: Final = ("ssl", "read_default_")
"""Options that begin so are read here; the driver gets the others."""
_DECIDING: Final = frozenset({"ssl_mode", "ssl_verify_cert", "ssl_verify_identity"})
"""One of them in a URL stands for all of them in an option file."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to log in to every node of a datastore: from the client's URL and surroundings, never from the catalog.

    Attributes:
        query: the URL's options, secrets left out.
        password_from: where the password was found; None where there is none.
    """

    drivername: str = "mysql+pymysql"
    username: str | None = None
    password: Secret | None = field(default=None, repr=False)
    query: tuple[tuple[str, str], ...] = ()
    tls: TLS = NO_OPTIONS
    password_from: str | None = field(default=None, compare=False)

    def without_timeouts(self) -> Credentials:
        """Return the same without what the URL says of timeouts."""
        return replace(self, query=tuple(pair for pair in self.query if not pair[0].endswith("_timeout")))

    @property
    def driver_options(self) -> dict[str, str]:
        """The URL's options that are the driver's own."""
        return {name: value for name, value in self.query if not name.startswith(_OURS)}


@dataclass(frozen=True, slots=True)
class ServerURL:
    """A parsed URL: the server, how to log in, and the database it names, if any.

    Attributes:
        others: servers that the catalog may be on as well, in the order in which they are tried.
    """

    node: Node
    credentials: Credentials
    database: str | None
    others: tuple[Node, ...] = ()

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All servers that it names, in their order, each once."""
        return tuple(dict.fromkeys((self.node, *self.others)))

    def __str__(self) -> str:
        # Options that the driver would refuse, such as a misspelt password, are not shown either.
        shown = {name: "***" if "pass" in name else value for name, value in self.credentials.query}
        hidden = self.credentials.password is not None
        return self._with_others(_text(self.node, self.credentials, self.database, shown, hidden_password=hidden))

    def for_database(self, database: str | None) -> str:
        """Return the URL of another database on the same servers, without any password."""
        text = self._with_others(_text(self.node, self.credentials, database, dict(self.credentials.query)))
        # A socket's slashes may stand as they are in a query.
        return text.replace("mysql+pymysql://", "mysql://", 1).replace("%2F", "/")

    def _with_others(self, text: str) -> str:
        """Return a rendered URL of the first server with all of them."""
        if len(self.nodes) == 1:
            return text
        if self.node.socket is not None:
            one, several = self.node.socket, ",".join(str(node.socket) for node in self.nodes)
            return text.replace(f"unix_socket={quote_plus(one)}", f"unix_socket={quote_plus(several)}", 1)
        return text.replace(_authority(self.node), ",".join(map(_authority, self.nodes)), 1)


def parse_url(text: str | Secret, *, several: bool = False) -> ServerURL:
    """Parse ``mysql://user:password@host:port/name?option=value``.

    With ``several``, it may name more servers for the catalog: ``host1:3306,host2:3306``, or sockets with commas.

    ``mysql://`` and ``mariadb://`` mean PyMySQL, ``mysql+mysqldb://`` mysqlclient; ``?unix_socket=`` names a socket.
    ``?ssl_mode=`` and its companions (``schemaless.wire.tls``) say how connections are encrypted. Without a password
    in it, ``SCHEMALESS_PASSWORD`` is used where it is set. ``?read_default_file=`` names an option file, whose groups
    ``[client]`` and ``[schemaless]`` say what is still missing; ``?read_default_group=`` names another group, of
    ``~/.my.cnf`` unless a file is named.

    Raises:
        InvalidInput: it is no such URL, or the option file cannot be used. The message does not repeat a password.
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
    if family not in ("mysql", "mariadb") or driver not in ("", "pymysql", "mysqldb"):
        raise InvalidInput(f"URL scheme must be mysql, mariadb, mysql+pymysql or mysql+mysqldb, got {url.drivername!r}")
    if "@" in (url.host or ""):
        raise InvalidInput("the URL has two @ before its name; in a user or a password, @ is written %40")
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
        raise InvalidInput("the URL names several servers; only the URL of a datastore may, for its catalog")
    if "" in sockets or not all(server.host for server in (url, *more_urls) if more):
        raise InvalidInput("the URL names several servers with a comma between them, and one of them is empty")
    given = {name: value for name, value in (query | secrets).items() if name.startswith("ssl")}
    file, file_given = _option_file(query)
    if not _DECIDING.isdisjoint(given):
        file_given = {name: value for name, value in file_given.items() if name not in _DECIDING}
    candidates = (
        ("the URL", url.password),
        ("the URL", secrets.get("password")),
        ("the URL", secrets.get("passwd")),
        (PASSWORD_VARIABLE, os.environ.get(PASSWORD_VARIABLE)),
        (f"option file {query.get('read_default_file', DEFAULT_FILE)}", file.get("password")),
    )
    source, password = next((candidate for candidate in candidates if candidate[1] is not None), (None, None))
    credentials = Credentials(
        f"mysql+{driver or 'pymysql'}",
        url.username or file.get("user"),
        None if password is None else Secret(password),
        tuple(sorted(query.items())),
        tls_of(file_given | given, "the URL" if given else "the option file"),
        source,
    )
    others = [Node("primary", socket=path) for path in sockets]
    others += [Node("primary", host=server.host, port=server.port or 3306) for server in more_urls if not socket]
    return ServerURL(_node(url, socket or None, file), credentials, url.database or None, tuple(others))


def _each_host(text: str) -> list[str]:
    """Return a URL for each host that one names, with commas between them."""
    scheme, mark, rest = text.partition("://")
    end = next((place for place, letter in enumerate(rest) if letter in "/?"), len(rest))
    account, at, hosts = rest[:end].rpartition("@")
    return [f"{scheme}{mark}{account}{at}{host}{rest[end:]}" for host in hosts.split(",")]


def _authority(node: Node) -> str:
    """Return host and port as they stand in a URL."""
    host = f"[{node.host}]" if ":" in str(node.host) else node.host
    return f"{host}:{node.port}"


def driver_arguments(node: Node, credentials: Credentials) -> dict[str, Any]:
    """Return what the driver is to be called with to log in: the password, still a ``Secret``, and TLS.

    Raises:
        InvalidInput: a certificate or a key cannot be read.
    """
    driver = credentials.drivername.partition("+")[2]
    arguments = credentials.tls.driver_arguments(driver, socket=node.socket is not None)
    if credentials.password is not None:
        arguments["password"] = credentials.password
    return arguments


def sqlalchemy_url(node: Node, credentials: Credentials, database: str | None) -> URL:
    """Return SQLAlchemy's form of a node's address, without password and TLS (see ``driver_arguments``)."""
    if credentials.drivername == "mysql+mysqldb" and node.host == "localhost":
        # To MySQL's C libraries that is the default socket, whatever server that belongs to.
        node = replace(node, host="127.0.0.1")
    from sqlalchemy.engine import URL

    options = _options(node, credentials.driver_options)
    return URL.create(credentials.drivername, credentials.username, None, node.host, node.port, database, options)


def _text(
    node: Node,
    credentials: Credentials,
    database: str | None,
    query: Mapping[str, str],
    *,
    hidden_password: bool = False,
) -> str:
    return write_url(
        credentials.drivername,
        credentials.username,
        node.host,
        node.port,
        database,
        _options(node, query),
        hidden_password=hidden_password,
    )


def _options(node: Node, query: Mapping[str, str]) -> dict[str, str]:
    return {**query} if node.socket is None else {**query, "unix_socket": node.socket}


def _option_file(query: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return what the option file says that the URL's options name: the login, and TLS options."""
    if "read_default_file" not in query and "read_default_group" not in query:
        return {}, {}
    path = query.get("read_default_file", DEFAULT_FILE)
    read = read_option_file(path, ("client", query.get("read_default_group", "schemaless")))
    login = {name: value for name, value in read.items() if value is not None and not name.startswith("ssl")}
    tls = {name: value for name, value in read.items() if value is not None and name.startswith("ssl_")}
    # MariaDB's names.
    if "ssl_verify_server_cert" in read:
        tls["ssl_verify_identity"] = tls.pop("ssl_verify_server_cert", "true")
    if "skip_ssl" in read or read.get("ssl", "1") in ("0", "false", "off"):
        tls = {"ssl_mode": "disabled"}
    elif "ssl" in read and not tls:
        tls = {"ssl_mode": "required"}
    return login, tls


def _node(url: URLText, socket: str | None, file: Mapping[str, str]) -> Node:
    """Return the server: the URL's, else the option file's, which may also add the port."""
    host, port = url.host or None, url.port
    if socket is None and host is None:
        # To the mysql client, localhost is the socket where there is one.
        socket = file.get("socket") if file.get("host", "localhost") == "localhost" else None
        host = file.get("host")
    if socket is not None:
        return Node("primary", socket=socket)
    if host is None:
        raise InvalidInput("the URL names no server; add a host, as in mysql://user@host/name, or ?unix_socket=/path")
    if port is None and "port" in file:
        if not file["port"].isdecimal():
            raise InvalidInput(f"the option file's port is a number, got {file['port']!r}")
        port = int(file["port"])
    return Node("primary", host=host, port=port or 3306)
