"""Parsing and formatting of URLs, compatible with SQLAlchemy's ``make_url`` and ``URL``.

SQLAlchemy is not used because importing it takes as long as the rest of this package.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, quote_plus, unquote

_FORM: Final = re.compile(
    r"(?P<driver>[\w+]+)://"
    r"(?:(?P<username>[^:/]*)(?::(?P<password>[^@]*))?@)?"
    r"(?:\[(?P<address>[^/?]+)\]|(?P<host>[^/:?]+))?(?::(?P<port>[^/?]*))?"
    r"(?:/(?P<database>[^?]*))?"
    r"(?:\?(?P<query>.*))?"
)


class URLText(NamedTuple):
    """Parts of a URL; None for a missing part.

    Attributes:
        query: names and values in order, with duplicates.
    """

    drivername: str
    username: str | None
    password: str | None
    host: str | None
    port: int | None
    database: str | None
    query: list[tuple[str, str]]


def read_url(text: str) -> URLText | None:
    """Parse a URL; return None if the text is not a URL."""
    parts = _FORM.match(text)
    if parts is None:
        return None
    username, password, database = (part and unquote(part) for part in parts.group("username", "password", "database"))
    try:
        port = None if parts["port"] is None else int(parts["port"])
    except ValueError:
        return None
    query = parse_qsl(parts["query"] or "")
    return URLText(parts["driver"], username, password, parts["host"] or parts["address"], port, database, query)


def write_url(
    username: str | None,
    authority: str,
    database: str | None,
    query: Mapping[str, str],
    *,
    hidden_password: bool = False,
) -> str:
    """Format a URL without a password, or with asterisks in its place if ``hidden_password``."""
    account = "" if username is None else f"{quote(username, safe=' +')}{':***' if hidden_password else ''}@"
    path = "" if database is None else f"/{quote(database, safe=' +/')}"
    # Slashes in a query need no escaping.
    options = "&".join(f"{quote_plus(name, safe='/')}={quote_plus(query[name], safe='/')}" for name in sorted(query))
    return f"mysql://{account}{authority}{path}{'?' if options else ''}{options}"


def authority_of(host: str | None, port: int | None) -> str:
    """Return a host and port as they are written in a URL."""
    address = f"[{host}]" if ":" in (host or "") else host or ""
    return address if port is None else f"{address}:{port}"
