"""The configuration file: names for datastores, so that nobody types URLs; what it may hold, and where it is.

It is TOML, written by people: each mistake in it is told with its file, its line and its key. Passwords stay where they
are without it; one that stands in a URL here makes the file its owner's alone.
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

from schemaless.errors import InvalidInput
from schemaless.keys import check_datastore_name
from schemaless.wire.pool import PoolOptions
from schemaless.wire.secret import Secret, clear_locals
from schemaless.wire.urls import ServerURL, parse_url

PATH_VARIABLE: Final = "SCHEMALESS_CONFIG"
SETTINGS: Final = ("connect_timeout_s", "read_timeout_s", "write_timeout_s", "pool_size")
"""A datastore may set these beside its URL: they are keywords of ``connect``."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
_NAME_RULE: Final = "a name in the configuration is 1 to 64 of [A-Za-z0-9_-] and begins with a letter or a digit"
_TABLE: Final = "datastores"
_HIDDEN: Final = re.compile(r"://[^/?@]*:.*@|[?&](password|passwd|ssl_key_password)=")


@dataclass(frozen=True, slots=True)
class Configured:
    """A datastore that the file names.

    Attributes:
        settings: those of ``SETTINGS`` that the file gives.
        lines: where the URL (``url``) and each setting stands; 0 where that was not found.
    """

    name: str
    url: Secret = field(repr=False)
    settings: Mapping[str, Any]
    lines: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Configuration:
    """What the file says; empty where there is none.

    Attributes:
        given: whether ``SCHEMALESS_CONFIG`` names the file.
        default: the datastore that is meant where none is named.
    """

    path: Path
    given: bool
    exists: bool = False
    datastores: Mapping[str, Configured] = field(default_factory=dict)
    default: str | None = None
    default_line: int = 0

    def named(self, name: str) -> Configured:
        """Return the datastore of that name.

        Raises:
            InvalidInput: the file has none; the message says what it has, and how one is added.
        """
        if name in self.datastores:
            return self.datastores[name]
        known = f"it names {', '.join(sorted(self.datastores))}" if self.datastores else "it names none"
        where = f"in {self.path}; {known}" if self.exists else f"as there is no file {self.path}"
        raise InvalidInput(
            f"no datastore is named {name!r}, {where}; add it: schemaless config add {name} mysql://user@host/name"
        )


def is_name(text: str) -> bool:
    """Whether a text can only be a name in the configuration, and no URL."""
    return _NAME.match(text) is not None


def has_password(url: str) -> bool:
    """Whether a password stands in a URL."""
    return _HIDDEN.search(url) is not None


def configuration_path() -> tuple[Path, bool]:
    """Return where the file is, and whether ``SCHEMALESS_CONFIG`` says so."""
    given = os.environ.get(PATH_VARIABLE)
    if given:
        return Path(given).expanduser(), True
    return platformdirs.user_config_path("schemaless") / "config.toml", False


def read_configuration() -> Configuration:
    """Read the file; without one at the usual place nothing is configured.

    Raises:
        InvalidInput: it cannot be read or trusted, or something in it is wrong. No password is repeated.
    """
    path, given = configuration_path()
    try:
        text = path.read_text(encoding="utf-8")
        mode = path.stat().st_mode
    except FileNotFoundError:
        if given:
            raise InvalidInput(
                f"{PATH_VARIABLE} names {path}, which is not there; make it with 'schemaless config add', or unset it"
            ) from None
        return Configuration(path, given)
    except OSError as problem:
        raise InvalidInput(f"configuration {path}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"configuration {path} is not UTF-8 text; it is TOML, which is") from None
    if mode & stat.S_IWOTH:
        raise InvalidInput(f"configuration {path} may be written by everybody, so it is not trusted; chmod 600 {path}")
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
    # What Python says may quote a key, never a value.
    return InvalidInput(f'configuration {path}{where}: {problem.partition(" (at")[0]}; it is TOML: name = "value"')


@dataclass(frozen=True, slots=True)
class _File:
    """A file that is TOML, while it is looked at closely."""

    path: Path
    text: str = field(repr=False)
    mode: int

    def read(self, data: Mapping[str, Any], given: bool) -> Configuration:
        self._only(data, ("default", _TABLE), ())
        tables = data.get(_TABLE, {})
        if not isinstance(tables, dict):
            raise self._wrong((_TABLE,), "holds a table for each datastore, as in [datastores.mezzanine]")
        named = {name: self._datastore(name, table) for name, table in tables.items()}
        default = data.get("default")
        if default is not None and (not isinstance(default, str) or default not in named):
            names = ", ".join(sorted(named)) or "none"
            raise self._wrong(("default",), f"must be one of the datastores in the file ({names}), got {default!r}")
        return Configuration(self.path, given, True, named, default, self._line(("default",)))

    def _datastore(self, name: str, table: Any) -> Configured:
        place = (_TABLE, name)
        if not is_name(name):
            raise self._wrong(place, f"is no name: {_NAME_RULE}")
        if not isinstance(table, dict):
            raise self._wrong(place, f'must be a table: [datastores.{name}], and below it url = "mysql://..."')
        self._only(table, ("url", *SETTINGS), place)
        url = table.get("url")
        if not isinstance(url, str) or "://" not in url:
            raise self._wrong((*place, "url"), 'must be a URL: url = "mysql://user@host:3306/name"')
        if has_password(url) and self.mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise self._wrong(
                (*place, "url"),
                f"has a password, and others than the owner may read the file; chmod 600 {self.path}, or keep the "
                "password in SCHEMALESS_PASSWORD or an option file",
            )
        settings = {key: table[key] for key in SETTINGS if key in table}
        for key, value in settings.items():
            try:
                PoolOptions(**{key: value})
            except InvalidInput as problem:
                raise self._wrong((*place, key), str(problem).partition(" ")[2]) from None
        return Configured(name, Secret(url), settings, {key: self._line((*place, key)) for key in ("url", *settings)})

    def _only(self, table: Mapping[str, Any], known: tuple[str, ...], place: tuple[str, ...]) -> None:
        for key in table:
            if key not in known:
                close = difflib.get_close_matches(key, known, 1)
                meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
                raise self._wrong((*place, key), f"is no setting; {meant}")

    def _wrong(self, key: tuple[str, ...], what: str) -> InvalidInput:
        line = self._line(key)
        return InvalidInput(f"configuration {self.path}{f', line {line}' if line else ''}: {'.'.join(key)} {what}")

    def _line(self, key: tuple[str, ...]) -> int:
        """Return the number of the line that sets a key, or that opens the table it is missing in; 0 for neither."""
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
    """Return the datastore that a text names in the configuration; None where the text can only be a URL.

    Raises:
        InvalidInput: no datastore is named so, or the file cannot be used.
    """
    if not is_name(given.reveal()):
        return None
    return read_configuration().named(given.reveal())


def datastore_url(text: str | Secret) -> tuple[ServerURL, str]:
    """Parse the URL of a datastore, or find that of a name in the configuration; return it and the datastore's name.

    Raises:
        InvalidInput: it is no such URL, names no datastore, or is a name that the configuration does not have.
    """
    given = text if isinstance(text, Secret) else Secret(text)
    del text
    known = configured(given)
    parsed = parse_url(given if known is None else known.url, several=True)
    if parsed.database is None:
        raise InvalidInput(f"the URL names no datastore: {parsed}; put its name behind the server, as in .../mezzanine")
    return parsed, check_datastore_name(parsed.database)


def with_datastore(text: str, name: str, url: str, *, default: bool) -> str:
    """Return the file's text with one more datastore at its end, and as the default if so wished.

    Raises:
        InvalidInput: it could not be named so, or the default is another one.
    """
    if not is_name(name):
        raise InvalidInput(f"{_NAME_RULE}, got {name!r}")
    quoted = url.replace("\\", "\\\\").replace('"', '\\"')
    if default:
        if "default" in tomllib.loads(text):
            raise InvalidInput("the configuration has a default already; change that line by hand")
        text = f'default = "{name}"\n{text and chr(10)}{text}'
    gap = "\n" if text else ""
    return f'{text}{"" if not text or text.endswith(chr(10)) else chr(10)}{gap}[{_TABLE}.{name}]\nurl = "{quoted}"\n'
