"""TLS to a server: the options of a URL or an option file, and what a driver is told."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from schemaless.errors import InvalidInput
from schemaless.wire.secret import Secret

MODES: Final = ("disabled", "preferred", "required", "verify_ca", "verify_identity")
"""The mysql client's ``--ssl-mode`` has these words."""

_FILES: Final = ("ca", "capath", "cert", "key")
_OPTIONS: Final = ("ssl_mode", *(f"ssl_{name}" for name in _FILES), "ssl_cipher", "ssl_key_password")
_FLAGS: Final = ("ssl_verify_cert", "ssl_verify_identity")
_BOOLEANS: Final = dict.fromkeys(("1", "true", "on", "yes"), True) | dict.fromkeys(("0", "false", "off", "no"), False)


@dataclass(frozen=True, slots=True)
class TLS:
    """How connections are encrypted, and what a server's certificate has to prove.

    Attributes:
        mode: one of ``MODES``, or None for ``preferred`` over TCP and nothing over a socket of this machine.
        ca: file with the certificates of the authorities that may have signed the server's; the system's unless given.
        capath: a folder of such files.
        cert: file with the client's own certificate, for accounts that require one.
        key: its private key.
        cipher: the ciphers to offer, up to TLS 1.2.
        key_password: of ``key``.
    """

    mode: str | None = None
    ca: str | None = None
    capath: str | None = None
    cert: str | None = None
    key: str | None = None
    cipher: str | None = None
    key_password: Secret | None = field(default=None, repr=False)

    def driver_arguments(self, driver: str, *, socket: bool) -> dict[str, Any]:
        """Return what ``pymysql`` or ``mysqldb`` is to be called with, for a server behind a socket or not.

        Raises:
            InvalidInput: a certificate or a key cannot be read.
        """
        if driver == "mysqldb":
            files = {name: getattr(self, name) for name in (*_FILES, "cipher") if getattr(self, name) is not None}
            return ({} if self.mode is None else {"ssl_mode": self.mode.upper()}) | ({"ssl": files} if files else {})
        # Nobody listens in on a socket, and PyMySQL would take 25 ms for each connection to encrypt it.
        mode = self.mode or ("disabled" if socket else "preferred")
        if mode == "disabled":
            return {"ssl_disabled": True}
        return {} if mode == "preferred" else {"ssl": self.context()}

    def context(self) -> ssl.SSLContext:
        """Return Python's form of it.

        Raises:
            InvalidInput: a certificate or a key cannot be read.
        """
        for name in _FILES:
            path = getattr(self, name)
            if path is not None and not Path(path).exists():
                raise InvalidInput(f"ssl_{name}: there is no {path!r} on this machine; check the path")
        try:
            context = ssl.create_default_context(cafile=self.ca, capath=self.capath)
            # The certificates that MySQL makes for itself do not pass what Python calls strict.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            context.check_hostname = self.mode == "verify_identity"
            context.verify_mode = ssl.CERT_REQUIRED if self.mode in ("verify_ca", "verify_identity") else ssl.CERT_NONE
            if self.cert is not None:
                # Without any password at all OpenSSL would ask for one on the terminal.
                word = self.key_password or Secret("")
                context.load_cert_chain(self.cert, self.key, word.reveal())
        except OSError as problem:
            named = ", ".join(f"ssl_{name} {getattr(self, name)!r}" for name in _FILES if getattr(self, name))
            raise InvalidInput(f"{named} cannot be used for TLS: {problem.strerror or problem}") from None
        if self.cipher is not None:
            try:
                context.set_ciphers(self.cipher)
            except ssl.SSLError:
                raise InvalidInput(f"ssl_cipher {self.cipher!r} names no cipher that is known here") from None
        return context


NO_OPTIONS: Final = TLS()
"""Nothing was said about it."""


def tls_of(options: Mapping[str, str], place: str) -> TLS:
    """Return what TLS options say; those that are given are never passed over.

    Args:
        options: names that begin with ``ssl_``, and their values.
        place: where they stand, for the error.

    Raises:
        InvalidInput: one is unknown, or they contradict each other.
    """
    unknown = sorted(set(options).difference(_OPTIONS, _FLAGS))
    if unknown:
        raise InvalidInput(f"{place}: unknown TLS option {unknown[0]!r}; there are {', '.join((*_OPTIONS, *_FLAGS))}")
    paths = {name: str(Path(options[f"ssl_{name}"]).expanduser()) for name in _FILES if f"ssl_{name}" in options}
    if "key" in paths and "cert" not in paths:
        raise InvalidInput(f"{place}: ssl_key needs ssl_cert, the certificate that it belongs to")
    word = options.get("ssl_key_password")
    return TLS(
        _mode(options, place),
        **paths,
        cipher=options.get("ssl_cipher"),
        key_password=None if word is None else Secret(word),
    )


def _mode(options: Mapping[str, str], place: str) -> str | None:
    """Return the mode: said by ``ssl_mode``, or what the other options come to."""
    given = options.get("ssl_mode")
    mode = None if given is None else given.lower()
    if mode is not None and mode not in MODES:
        raise InvalidInput(f"{place}: ssl_mode is one of {', '.join(MODES)}, got {given!r}")
    flags = {}
    for name in _FLAGS:
        if name in options:
            if options[name].lower() not in _BOOLEANS:
                raise InvalidInput(f"{place}: {name} is true or false, got {options[name]!r}")
            flags[name] = _BOOLEANS[options[name].lower()]
    if mode is not None:
        if flags:
            raise InvalidInput(f"{place}: {next(iter(flags))} beside ssl_mode; ssl_mode alone says it")
        return mode
    certificate = flags.get("ssl_verify_cert")
    identity = flags.get("ssl_verify_identity")
    authority = "ssl_ca" in options or "ssl_capath" in options
    if identity or (identity is None and certificate is None and authority):
        return "verify_identity"
    if certificate or (certificate is None and authority):
        return "verify_ca"
    return "required" if options else None
