"""A private server that listens on loopback, with certificates of an authority of its own: for TLS and passwords."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from schemaless.testing.servers import private_servers


@dataclass(frozen=True)
class Loopback:
    """The server.

    Attributes:
        root: its URL for root, over the socket.
        port: on 127.0.0.1.
        folder: has ``ca.pem``, ``other-ca.pem``, ``client.pem`` and ``client.key``.
    """

    root: str
    port: int
    folder: Path

    def url(self, user: str, options: str = "", *, name: str = "", host: str = "localhost") -> str:
        """Return a URL over TCP; the server's certificate is for ``localhost`` only."""
        return f"mysql://{user}@{host}:{self.port}/{name}{'?' if options else ''}{options}"


@contextmanager
def loopback_server(flavour: str, folder: Path) -> Iterator[Loopback]:
    """Yield a new server; ``folder`` gets the certificates."""
    authority(folder, "ca")
    authority(folder, "other-ca")
    certificate(folder, "server", "DNS:localhost")
    certificate(folder, "client", "DNS:client")
    port = _free_port()
    options = {
        "skip-networking": "0",
        "bind-address": "127.0.0.1",
        "port": port,
        "ssl-ca": folder / "ca.pem",
        "ssl-cert": folder / "server.pem",
        "ssl-key": folder / "server.key",
    }
    with private_servers(flavour, 1, options) as (server,):
        yield Loopback(server.url, port, folder)


def _free_port() -> int:
    """Return a port for the server to take a while later; the system gives none of this range to others by itself."""
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port below 32,000 is free")


def authority(folder: Path, name: str) -> None:
    """Make an authority: a key, and a certificate signed by itself."""
    openssl(
        *("req", "-x509", *_new_key(folder, name), "-out", folder / f"{name}.pem", "-days", "2"),
        *("-subj", f"/CN=schemaless test {name}"),
    )


def certificate(folder: Path, name: str, subject: str) -> None:
    """Make a key, and a certificate for ``subject`` signed by ``ca``."""
    request, extensions = folder / f"{name}.csr", folder / f"{name}.ext"
    extensions.write_text(f"subjectAltName={subject}\n")
    openssl("req", *_new_key(folder, name), "-out", request, "-subj", f"/CN={name}")
    openssl(
        *("x509", "-req", "-in", request, "-out", folder / f"{name}.pem", "-days", "2", "-extfile", extensions),
        *("-CA", folder / "ca.pem", "-CAkey", folder / "ca.key", "-CAcreateserial"),
    )


def _new_key(folder: Path, name: str) -> tuple[object, ...]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", folder / f"{name}.key")


def openssl(*arguments: object) -> None:
    """Run openssl."""
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
