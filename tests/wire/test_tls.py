"""TLS: encryption and certificate verification, on a server with certificates of a private CA."""

from __future__ import annotations

from contextlib import closing

import pytest

import schemaless
from schemaless import AccessDenied, InvalidInput, ServerRefused
from schemaless.store.internals import internals_of
from schemaless.testing.servers import private_servers
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.tls import TLS
from schemaless.wire.urls import parse_url
from tests.accounts import accounts_on, connect, run
from tests.loopback import openssl

pytestmark = [pytest.mark.mysql, pytest.mark.twice]


@pytest.fixture(scope="module")
def accounts(loopback):
    """Accounts of the four roles on the server."""
    with accounts_on([loopback.root]) as made:
        yield made


@pytest.fixture
def by_root(loopback):
    """Run a statement as root, through the socket."""
    with closing(connect(loopback.root, None)) as connection:
        yield lambda sql: run(connection, sql)


def cipher(url: str) -> str:
    """Return the cipher of a connection to a URL; empty if it is not encrypted."""
    parsed = parse_url(url)
    with closing(NodePool(parsed.node, parsed.credentials, PoolOptions())) as pool:
        ((_, name),) = pool.run(lambda connection: connection.rows(b"SHOW SESSION STATUS LIKE 'Ssl_cipher'"))
    return str(name)


def test_connections_are_encrypted_unless_disabled(loopback, accounts):
    """TCP connections to a server with a certificate."""
    assert cipher(loopback.url("app")).startswith("TLS")
    assert cipher(loopback.url("app", "ssl_mode=required")).startswith("TLS")
    assert cipher(loopback.url("app", "ssl_mode=disabled")) == ""


def test_certificate_of_the_given_ca_is_accepted(loopback, accounts):
    """The host name must match; another address works only if the name is not verified."""
    options = f"ssl_ca={loopback.folder}/ca.pem"

    assert cipher(loopback.url("app", options)).startswith("TLS")
    assert cipher(loopback.url("app", f"{options}&ssl_mode=verify_ca", host="127.0.0.1")).startswith("TLS")
    with pytest.raises(ServerRefused, match=r"use a host name from the certificate, .* ssl_mode=verify_ca") as caught:
        cipher(loopback.url("app", options, host="127.0.0.1"))
    assert not caught.value.retryable


@pytest.mark.parametrize("mode", ["verify_ca", "verify_identity"])
def test_certificate_of_another_ca_is_refused(loopback, accounts, mode):
    """Also if no CA is given, so that the system's CAs apply; the error names the option."""
    for options in (f"ssl_ca={loopback.folder}/other-ca.pem&ssl_mode={mode}", f"ssl_mode={mode}"):
        with pytest.raises(ServerRefused, match="ssl_ca must contain the CA") as caught:
            cipher(loopback.url("app", options))
        assert not caught.value.retryable


def test_all_connections_of_a_datastore_are_encrypted(loopback, accounts, row):
    """The URL's options apply to every node: the catalog's and the shards' connections."""
    options = f"ssl_ca={loopback.folder}/ca.pem"
    accounts.allow("admin", "encrypted", 2)
    url = schemaless.create("encrypted", 2, [loopback.url("admin", options)])
    accounts.allow("app", "encrypted", 2)

    assert url == loopback.url("admin", options, name="encrypted")
    with schemaless.connect(accounts.url("app", url)) as store:
        assert store.put_cell(row, "BASE", 1, {"fare": 10}).created
        ((_, name),) = internals_of(store).shards.rows(0, b"SHOW SESSION STATUS LIKE 'Ssl_cipher'")
        assert name.startswith("TLS")
    with pytest.raises(ServerRefused, match="ssl_ca must contain the CA"):
        schemaless.connect(accounts.url("app", url.replace("/ca.pem", "/other-ca.pem")))


def test_account_that_requires_a_certificate_gets_it(loopback, by_root):
    """ssl_cert and ssl_key are sent; without them the error mentions TLS."""
    by_root("CREATE USER IF NOT EXISTS certified REQUIRE X509")
    own = f"&ssl_cert={loopback.folder}/client.pem&ssl_key={loopback.folder}/client.key"
    options = f"ssl_ca={loopback.folder}/ca.pem"

    assert cipher(loopback.url("certified", options + own)).startswith("TLS")
    with pytest.raises(AccessDenied, match="TLS may be needed"):
        cipher(loopback.url("certified", options))


def test_error_of_a_server_that_requires_tls_names_the_option(loopback, accounts, by_root):
    """The error suggests ssl_mode=required."""
    by_root("SET GLOBAL require_secure_transport=ON")
    try:
        with pytest.raises(AccessDenied, match="ssl_mode=required"):
            cipher(loopback.url("app", "ssl_mode=disabled"))
        assert cipher(loopback.url("app", "ssl_mode=required")).startswith("TLS")
    finally:
        by_root("SET GLOBAL require_secure_transport=OFF")


@pytest.mark.long
def test_certificates_generated_by_mysql_can_be_verified(flavour):
    """MySQL's self-generated CA does not pass strict verification, and need not."""
    with private_servers(flavour, 1, {"loose-auto-generate-certs": "ON"}) as (server,):
        authority = server.data / "ca.pem"
        if flavour == "mariadb":
            assert not authority.exists()
            return

        assert cipher(f"{server.url}&ssl_ca={authority}&ssl_mode=verify_ca").startswith("TLS")
        with pytest.raises(ServerRefused, match="use a host name from the certificate"):
            cipher(f"{server.url}&ssl_ca={authority}")


def test_an_expired_certificate_is_named(loopback, accounts):
    """Servers start with a valid one, so here that of its CA has expired. No other CA would help, nor a retry."""
    own, late = (loopback.folder / f"{name}.pem" for name in ("ca", "late-ca"))
    openssl("x509", "-in", own, "-signkey", own.with_suffix(".key"), "-days", -1, "-out", late)

    with pytest.raises(ServerRefused, match=r"certificate has expired .*; renew the server's certificate") as caught:
        cipher(loopback.url("app", f"ssl_ca={late}"))
    assert not caught.value.retryable


def test_a_password_too_long_for_a_login_without_tls_is_refused(loopback, by_root, flavour):
    """MySQL's login without TLS encrypts the password with a key that has a limit; a retry would not help."""
    if flavour == "mariadb":
        pytest.skip("MariaDB sends no password in its default login; runs with SERVER=mysql")
    password = "p" * 230
    by_root(f"CREATE USER IF NOT EXISTS wordy IDENTIFIED BY '{password}'")

    with pytest.raises(ServerRefused, match="password is too long to be sent without TLS: add ssl_mode=") as caught:
        cipher(loopback.url(f"wordy:{password}", "ssl_mode=disabled"))
    assert not caught.value.retryable
    assert password not in str(caught.value)
    assert cipher(loopback.url(f"wordy:{password}", "ssl_mode=required")).startswith("TLS")


def test_files_that_do_not_belong_together_are_refused(loopback):
    """The error comes before any connection; db-1 does not exist."""
    key = f"{loopback.folder}/other-ca.key"

    with pytest.raises(InvalidInput, match=r"ssl_cert '.*client.pem', ssl_key '.*' cannot be used for TLS: "):
        cipher(f"mysql://app@db-1/?ssl_cert={loopback.folder}/client.pem&ssl_key={key}")
    with pytest.raises(InvalidInput, match="ssl_cipher 'NONE' names no known cipher"):
        TLS("required", cipher="NONE").context()
