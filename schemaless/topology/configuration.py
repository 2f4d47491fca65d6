"""The configuration file, which gives names to datastore URLs.

It is TOML written by hand, so every error gives the file, line and key. Passwords are better kept elsewhere; if a URL
in the file contains one, the file must be readable by its owner only.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import platformdirs

from schemaless.base.home import expanded
from schemaless.base.keys import check_datastore_name
from schemaless.errors import InvalidInput
from schemaless.wire.pool import PoolOptions
from schemaless.wire.secret import Secret, clear_locals
from schemaless.wire.urls import ServerURL, parse_url

PATH_VARIABLE: Final = "SCHEMALESS_CONFIG"
URL_VARIABLE: Final = "SCHEMALESS_URL"
SETTINGS: Final = ("connect_timeout_s", "read_timeout_s", "write_timeout_s", "pool_size")
"""Settings of a datastore besides its URL; they are keyword arguments of ``connect``."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
_NAME_RULE: Final = (
    "a name in the configuration has 1 to 64 characters of [A-Za-z0-9_-] and begins with a letter or a digit"
)
_TABLE: Final = "datastores"
_HIDDEN: Final = re.compile(r"://[^/?@]*:.*@|[?&](password|passwd|ssl_key_password)=")


class NoHomeFolder(InvalidInput):
    """There is no place for the configuration file."""


@dataclass(frozen=True, slots=True)
class Configured:
    """A datastore in the configuration file.

    Attributes:
        name: the name in the file.
        url: the datastore's URL.
        settings: the settings that the file gives, from ``SETTINGS``.
        lines: line numbers of ``url`` and of each setting; 0 if not found.
    """

    name: str
    url: Secret = field(repr=False)
    settings: Mapping[str, Any]
    lines: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Configuration:
    """Contents of the configuration file; empty if there is none.

    Attributes:
        path: the file.
        given: True if ``SCHEMALESS_CONFIG`` names the file.
        exists: True if the file exists.
        datastores: the datastores by name.
        default: name of the default datastore, or None.
        default_line: line number of the default; 0 if not found.
    """

    path: Path
    given: bool
    exists: bool = False
    datastores: Mapping[str, Configured] = field(default_factory=dict)
    default: str | None = None
    default_line: int = 0

    def named(self, name: str) -> Configured:
        """Return the datastore with a name.

        Raises:
            InvalidInput: the file has no such datastore; the message lists the names in it and says how to add one.
        """
        if name in self.datastores:
            return self.datastores[name]
        known = f"the file names {', '.join(sorted(self.datastores))}" if self.datastores else "the file names none"
        where = f"in {self.path}; {known}" if self.exists else f"because there is no file {self.path}"
        if self.given and not self.exists:
            where += f", which {PATH_VARIABLE} names"
        raise InvalidInput(
            f"no datastore is named {name!r} {where}; add it with: schemaless config add {name} mysql://user@host/name"
        )


def is_name(text: str) -> bool:
    """Return True if a text has the form of a name in the configuration, not of a URL."""
    return _NAME.match(text) is not None


def has_password(url: str) -> bool:
    """Return True if a URL contains a password."""
    return _HIDDEN.search(url) is not None


def configuration_path() -> tuple[Path, bool]:
    """Return the path of the file, and whether ``SCHEMALESS_CONFIG`` gives it.

    Raises:
        NoHomeFolder: the user has no home folder, and ``SCHEMALESS_CONFIG`` is not set.
    """
    given = os.environ.get(PATH_VARIABLE)
    if given:
        return expanded(given), True
    try:
        folder = platformdirs.user_config_path("schemaless")
    except RuntimeError:
        folder = Path()
    if not folder.is_absolute():
        raise NoHomeFolder(
            "there is no home folder for the configuration file: HOME is not set, and the user is not in the passwd "
            f"database; use the URL of a datastore, or set {PATH_VARIABLE} to the path of the file"
        )
    return folder / "config.toml", False


def read_configuration() -> Configuration:
    """Read the configuration file; a missing file is an empty configuration.

    Raises:
        InvalidInput: the file cannot be read, is world-writable, or has an error, or there is no home folder for it.
            Messages never contain a password.
    """
    path, given = configuration_path()
    try:
        text = path.read_text(encoding="utf-8-sig")
        mode = path.stat().st_mode
    except FileNotFoundError:
        return Configuration(path, given)
    except OSError as problem:
        raise InvalidInput(f"configuration {path}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"configuration {path} is not UTF-8 text, as TOML must be") from None
    if mode & stat.S_IWOTH:
        raise InvalidInput(f"configuration {path} is world-writable, so it is not trusted; run chmod 600 {path}")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise _bad_toml(path, str(problem)) from None
    try:
        return _File(path, text, mode).read(data, given)
    except InvalidInput as refusal:
        clear_locals(refusal)
        raise


def _bad_toml(path: Path, problem: str) -> InvalidInput:
    at = re.search(r"\(at line (\d+), column (\d+)\)", problem)
    where = f", line {at[1]}, column {at[2]}" if at else ", at its end"
    # tomllib's message may quote a key, but never a value.
    return InvalidInput(
        f'configuration {path}{where}: {problem.partition(" (at")[0]}; the file must be TOML: name = "value"'
    )


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    text: str = field(repr=False)
    mode: int

    def read(self, data: Mapping[str, Any], given: bool) -> Configuration:
        self._check_keys(data, ("default", _TABLE), ())
        tables = data.get(_TABLE, {})
        if not isinstance(tables, dict):
            raise self._error((_TABLE,), "must have a table per datastore, as in [datastores.mezzanine]")
        named = {name: self._datastore(name, table) for name, table in tables.items()}
        default = data.get("default")
        if default is not None and (not isinstance(default, str) or default not in named):
            names = ", ".join(sorted(named)) or "none"
            raise self._error(("default",), f"must be one of the datastores in the file ({names}), got {default!r}")
        return Configuration(self.path, given, True, named, default, self._line(("default",)))

    def _datastore(self, name: str, table: Any) -> Configured:
        place = (_TABLE, name)
        if not is_name(name):
            raise self._error(place, f"is not a valid name: {_NAME_RULE}")
        if not isinstance(table, dict):
            raise self._error(place, f'must be a table: [datastores.{name}], and below it url = "mysql://..."')
        self._check_keys(table, ("url", *SETTINGS), place)
        url = table.get("url")
        if not isinstance(url, str) or "://" not in url:
            raise self._error((*place, "url"), 'must be a URL: url = "mysql://user@host:3306/name"')
        if has_password(url) and self.mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise self._error(
                (*place, "url"),
                f"contains a password, and other users can read the file; run chmod 600 {self.path}, or keep the "
                "password in SCHEMALESS_PASSWORD or an option file",
            )
        settings = {key: table[key] for key in SETTINGS if key in table}
        for key, value in settings.items():
            try:
                PoolOptions(**{key: value})
            except InvalidInput as problem:
                raise self._error((*place, key), str(problem).partition(" ")[2]) from None
        return Configured(name, Secret(url), settings, {key: self._line((*place, key)) for key in ("url", *settings)})

    def _check_keys(self, table: Mapping[str, Any], known: tuple[str, ...], place: tuple[str, ...]) -> None:
        for key in table:
            if key not in known:
                close = difflib.get_close_matches(key, known, 1)
                meant = f"did you mean {close[0]}?" if close else f"choose from {', '.join(known)}"
                raise self._error((*place, key), f"is not a setting; {meant}")

    def _error(self, key: tuple[str, ...], problem: str) -> InvalidInput:
        line = self._line(key)
        return InvalidInput(f"configuration {self.path}{f', line {line}' if line else ''}: {'.'.join(key)} {problem}")

    def _line(self, key: tuple[str, ...]) -> int:
        """Return the line that sets a key, or else the line that opens its table; 0 if there is neither."""
        table: tuple[str, ...] = ()
        opened = 0
        for number, line in enumerate(self.text.splitlines(), start=1):
            if heading := re.match(r"\s*\[+([^\[\]]+)\]", line):
                table = _parts(heading[1])
                path = table
            elif assignment := re.match(r"\s*([\w\"'. -]+?)\s*=", line):
                path = (*table, *_parts(assignment[1]))
            else:
                continue
            if path[: len(key)] == key:
                return number
            if path == key[:-1]:
                opened = number
        return opened


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def configured(given: Secret) -> Configured | None:
    """Return the datastore that a text names in the configuration; None if the text is a URL.

    Raises:
        InvalidInput: the configuration has no such name, or cannot be used.
    """
    if not is_name(given.reveal()):
        return None
    return read_configuration().named(given.reveal())


def datastore_url(text: str | Secret) -> tuple[ServerURL, str]:
    """Parse a datastore URL, or look up a name in the configuration; return the URL and the datastore's name.

    Raises:
        InvalidInput: the URL is malformed or names no datastore, or the configuration has no such name.
    """
    given = text if isinstance(text, Secret) else Secret(text)
    del text
    known = configured(given)
    parsed = parse_url(given if known is None else known.url, several=True)
    if parsed.database is None:
        raise InvalidInput(f"the URL names no datastore: {parsed}; append its name, as in .../mezzanine")
    return parsed, check_datastore_name(parsed.database)


def with_datastore(text: str, name: str, url: str, *, default: bool) -> str:
    """Append a datastore to the text of a configuration file, and optionally make it the default.

    Raises:
        InvalidInput: the name is not valid, or the file already has a default.
    """
    if not is_name(name):
        raise InvalidInput(f"{_NAME_RULE}, got {name!r}")
    quoted = url.replace("\\", "\\\\").replace('"', '\\"')
    if default:
        if "default" in tomllib.loads(text):
            raise InvalidInput("the configuration already has a default; edit that line by hand")
        text = f'default = "{name}"\n{text and chr(10)}{text}'
    gap = "\n" if text else ""
    return f'{text}{"" if not text or text.endswith(chr(10)) else chr(10)}{gap}[{_TABLE}.{name}]\nurl = "{quoted}"\n'
