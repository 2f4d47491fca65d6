"""URL parsing and formatting agree with SQLAlchemy."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError

from schemaless.wire.session import sqlalchemy_url, url_arguments
from schemaless.wire.url_text import authority_of, read_url, write_url
from schemaless.wire.urls import parse_url

pytestmark = pytest.mark.once

PARTS = st.text(st.sampled_from("abZ09:/?#@[]%&=+,. é\\\n\u200d'"), max_size=8)
URLS = st.one_of(
    st.builds(
        "{}://{}:{}@{}:{}/{}?{}={}&{}".format, st.just("mysql+pymysql"), *[PARTS] * 3, st.integers(), *[PARTS] * 4
    ),
    st.lists(
        st.sampled_from(["mysql", "://", ":", "@", "[", "]", "::1", "h", "3306", "/", "?", "a=1", "&", "%40"])
    ).map("".join),
    PARTS,
)


@given(URLS)
@example("mysql://ann:p%40ss@[::1]:3307/trips?unix_socket=/tmp/a.sock&a=1&a=2")
@example("mysql://h:port/name")
@example("mysql://h:/name")
def test_read_url_agrees_with_sqlalchemy(text: str) -> None:
    """All parts are equal, or both reject the URL."""
    found = read_url(text)
    try:
        expected = make_url(text)
    except (ArgumentError, ValueError):
        assert found is None
        return

    assert found is not None
    assert found[:-1] == expected[:-1]
    query: dict[str, list[str]] = {}
    for name, value in found.query:
        query.setdefault(name, []).append(value)
    assert query == {name: list(values) for name, values in expected.normalized_query.items()}


@given(
    st.none() | PARTS,
    st.none() | PARTS,
    st.none() | st.integers(0, 65535),
    st.none() | PARTS,
    st.dictionaries(PARTS, PARTS, max_size=3),
    st.booleans(),
)
def test_write_url_agrees_with_sqlalchemy(username, host, port, database, query, hidden) -> None:
    """A hidden password is shown as asterisks."""
    url = URL.create("mysql", username, "secret" if hidden else None, host, port, database, query)
    text = write_url(username, authority_of(host, port), database, query, hidden_password=hidden)

    expected = url.render_as_string(hide_password=True)
    if query:
        place, _, options = expected.rpartition("?")
        expected = f"{place}?{options.replace('%2F', '/')}"
    assert text == expected


@pytest.mark.parametrize("database", [None, "trips_0001"])
@pytest.mark.parametrize(
    "text",
    [
        "mysql://db-1",
        "mysql://app@db-1/trips",
        "mariadb://a%40b:secret@[::1]:3307/trips?ssl_mode=required",
        "mysql://app@/trips?unix_socket=/run/my.sock",
        "mysql://app@db-1/trips?connect_timeout=3&local_infile=0",
    ],
)
def test_url_arguments_are_those_of_sqlalchemy(text: str, database: str | None) -> None:
    """Most URLs are handled without SQLAlchemy, with the same result."""
    parsed = parse_url(text)
    url = sqlalchemy_url(parsed.node, parsed.credentials, database)
    dialect = url.get_dialect()
    _, expected = dialect(dbapi=dialect.import_dbapi()).create_connect_args(url)

    assert url_arguments(parsed.node, parsed.credentials, database) == expected
