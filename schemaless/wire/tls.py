"""TLS options of URLs and option files, and the driver arguments made from them."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from schemaless.base.home import expanded
from schemaless.errors import InvalidInput
from schemaless.wire.secret import Secret

MODES: Final = ("disabled", "preferred", "required", "verify_ca", "verify_identity")
"""Values of ``ssl_mode``, as in the mysql client's ``--ssl-mode``."""

_FILES: Final = ("ca", "capath", "cert", "key")
_OPTIONS: Final = ("ssl_mode", *(f"ssl_{name}" for name in _FILES), "ssl_cipher", "ssl_key_password")
_FLAGS: Final = ("ssl_verify_cert", "ssl_verify_identity")
_BOOLEANS: Final = dict.fromkeys(("1", "true", "on", "yes"), True) | dict.fromkeys(("0", "false", "off", "no"), False)


@dataclass(frozen=True, slots=True)
class TLS:
    """Encryption of connections, and verification of the server's certificate.

    Attributes:
        mode: one of ``MODES``; None means ``preferred`` over TCP and ``disabled`` over a local socket.
        ca: file with trusted CA certificates; the system's by default.
        capath: directory of such files.
        cert: file with the client certificate, for accounts that require one.
        key: file with the private key of ``cert``.
        cipher: ciphers to offer, for TLS up to 1.2.
        key_password: password of ``key``.
    """

    mode: str | None = None
    ca: str | None = None
    capath: str | None = None
    cert: str | None = None
    key: str | None = None
    cipher: str | None = None
    key_password: Secret | None = field(default=None, repr=False)

    def driver_arguments(self, *, socket: bool) -> dict[str, Any]:
        """Return the driver's arguments for connections through a local ``socket``, or over TCP.

        Raises:
            InvalidInput: a certificate or key cannot be read.
        """
        # A local socket needs no encryption, which costs PyMySQL 25 ms per connection.
        mode = self.mode or ("disabled" if socket else "preferred")
        if mode == "disabled":
            return {"ssl_disabled": True}
        return {} if mode == "preferred" else {"ssl": self.context()}

    def context(self) -> ssl.SSLContext:
        """Return the ``ssl.SSLContext`` for these options.

        Raises:
            InvalidInput: a certificate or key cannot be read, or the cipher is unknown.
        """
        for name in _FILES:
            path = getattr(self, name)
            if path is not None and not Path(path).exists():
                raise InvalidInput(f"ssl_{name}: {path!r} does not exist on this machine; check the path")
        try:
            context = ssl.create_default_context(cafile=self.ca, capath=self.capath)
            # MySQL's self-generated certificates do not pass Python's strict verification.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            context.check_hostname = self.mode == "verify_identity"
            context.verify_mode = ssl.CERT_REQUIRED if self.mode in ("verify_ca", "verify_identity") else ssl.CERT_NONE
            if self.cert is not None:
                # Without a password argument OpenSSL would prompt on the terminal.
                password = self.key_password or Secret("")
                context.load_cert_chain(self.cert, self.key, password.reveal())
        except OSError as problem:
            named = ", ".join(f"ssl_{name} {getattr(self, name)!r}" for name in _FILES if getattr(self, name))
            raise InvalidInput(f"{named} cannot be used for TLS: {problem.strerror or problem}") from None
        if self.cipher is not None:
            try:
                context.set_ciphers(self.cipher)
            except ssl.SSLError:
                raise InvalidInput(f"ssl_cipher {self.cipher!r} names no known cipher; see 'openssl ciphers'") from None
        return context


NO_OPTIONS: Final = TLS()
"""Default TLS options."""


def tls_of(options: Mapping[str, str], source: str) -> TLS:
    """Parse TLS options; unknown ones are errors, never ignored.

    Args:
        options: options whose names begin with ``ssl_``, and their values.
        source: where they come from, for errors.

    Raises:
        InvalidInput: an option is unknown, or the options contradict each other.
    """
    unknown = sorted(set(options).difference(_OPTIONS, _FLAGS))
    if unknown:
        raise InvalidInput(
            f"{source}: unknown TLS option {unknown[0]!r}; choose from {', '.join((*_OPTIONS, *_FLAGS))}"
        )
    paths = {name: str(expanded(options[f"ssl_{name}"])) for name in _FILES if f"ssl_{name}" in options}
    if "key" in paths and "cert" not in paths:
        raise InvalidInput(f"{source}: ssl_key needs ssl_cert, the certificate it belongs to")
    key_password = options.get("ssl_key_password")
    return TLS(
        _mode(options, source),
        **paths,
        cipher=options.get("ssl_cipher"),
        key_password=None if key_password is None else Secret(key_password),
    )


def _mode(options: Mapping[str, str], source: str) -> str | None:
    given = options.get("ssl_mode")
    if given is not None and given.lower() not in MODES:
        raise InvalidInput(f"{source}: ssl_mode must be one of {', '.join(MODES)}, got {given!r}")
    for name in _FLAGS:
        if options.get(name, "true").lower() not in _BOOLEANS:
            raise InvalidInput(f"{source}: {name} must be true or false, got {options[name]!r}")
        if given is not None and name in options:
            raise InvalidInput(f"{source}: {name} cannot be combined with ssl_mode; use ssl_mode alone")
    if given is not None:
        return given.lower()
    certificate, identity = (_BOOLEANS.get(options.get(name, "").lower()) for name in _FLAGS)
    authority = "ssl_ca" in options or "ssl_capath" in options
    if identity or (identity is None and certificate is None and authority):
        return "verify_identity"
    if certificate or (certificate is None and authority):
        return "verify_ca"
    return "required" if options else None
