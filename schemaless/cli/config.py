"""``schemaless config``: names for datastores, in the configuration file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from schemaless.cli.command import JSONCommand, QueryCommand, ReadOnlyCommand, optional_datastore
from schemaless.cli.option import option
from schemaless.errors import InvalidInput
from schemaless.topology.configuration import (
    PATH_VARIABLE,
    SETTINGS,
    Configuration,
    NoHomeFolder,
    configuration_path,
    configured,
    datastore_url,
    has_password,
    is_name,
    read_configuration,
    with_datastore,
)
from schemaless.ui.terminal.files import write_whole
from schemaless.ui.terminal.output import note, out, print_result, print_table, redacted
from schemaless.wire.pool import PoolOptions
from schemaless.wire.secret import PASSWORD_VARIABLE, Secret


@click.group()
def config() -> None:
    """Name datastores, and show the settings in effect.

    A TOML file gives names to the URLs of datastores. Every command, and connect(), takes the name in place of the URL:

    \b
      default = "mezzanine"

    \b
      [datastores.mezzanine]
      url = "mysql://app@db-1:3306/mezzanine"
      pool_size = 16

    Besides its url, a datastore may have connect_timeout_s, read_timeout_s, write_timeout_s and pool_size.
    """


@dataclass(frozen=True, slots=True)
class _Setting:
    setting: str
    value: Any
    source: str


@config.command(cls=QueryCommand)
@optional_datastore
@click.pass_context
def show(ctx: click.Context, url: str | None) -> None:
    """Show each setting and its source.

    The command shows the datastore that other commands would use now: its URL, whether there is a password, and the
    connection settings. An option on the command line overrides SCHEMALESS_URL, which overrides the file's default. The
    command connects to no server.

    \b
    Examples:
      schemaless config show
      schemaless config show -d mezzanine --json
    """
    file = _configuration(url)
    path = str(file.path) if file.path.name else None
    settings = [_Setting("file", path, _file_source(file)), *_settings(ctx, file, url)]
    names = sorted(file.datastores)
    print_result({"datastores": names, "settings": [asdict(entry) for entry in settings]})
    rows = [[entry.setting, "none" if entry.value is None else str(entry.value), entry.source] for entry in settings]
    print_table(None, ["setting", "value", "from"], rows, text_columns=3)
    note(
        f"the file names {', '.join(names)}"
        if names
        else "no datastores are configured; see 'schemaless config add --help'"
    )


def _configuration(url: str | None) -> Configuration:
    """Return the configuration; an empty one without a path if there is no home folder, and the URL needs no file."""
    try:
        return read_configuration()
    except NoHomeFolder:
        if url is None or is_name(url):
            raise
        return Configuration(Path(), given=False)


def _file_source(file: Configuration) -> str:
    if not file.path.name:
        return f"no home folder, and {PATH_VARIABLE} is not set"
    return (PATH_VARIABLE if file.given else "the usual place") + ("" if file.exists else ", not there")


def _settings(ctx: click.Context, file: Configuration, url: str | None) -> Iterator[_Setting]:
    if url is None:
        yield _Setting("datastore", None, "not given by -d, --url, SCHEMALESS_URL or the file's default")
        return
    where = {
        ParameterSource.COMMANDLINE: "the command line",
        ParameterSource.ENVIRONMENT: "SCHEMALESS_URL",
        ParameterSource.DEFAULT_MAP: _line(file, file.default_line),
    }
    source = where[ctx.get_parameter_source("url") or ParameterSource.COMMANDLINE]
    datastore = configured(Secret(url))
    parsed, name = datastore_url(url)
    yield _Setting("datastore", name if datastore is None else datastore.name, source)
    yield _Setting(
        "url", redacted(parsed.for_database(name)), source if datastore is None else _line(file, datastore.lines["url"])
    )
    password = parsed.credentials.password_from
    nowhere = f"none in the URL, in {PASSWORD_VARIABLE} or in an option file"
    yield _Setting("password", None if password is None else "given", password or nowhere)
    usual = PoolOptions()
    for key in SETTINGS:
        if datastore is not None and key in datastore.settings:
            yield _Setting(key, datastore.settings[key], _line(file, datastore.lines[key]))
        else:
            yield _Setting(key, getattr(usual, key), "default")


def _line(file: Configuration, line: int) -> str:
    return f"{file.path}, line {line}"


@config.command(cls=ReadOnlyCommand)
def path() -> None:
    """Print the path of the configuration file, which need not exist.

    The path is the value of SCHEMALESS_CONFIG, or else config.toml in the user's configuration folder.

    \b
    Example:
      $EDITOR "$(schemaless config path)"
    """
    out().print(str(configuration_path()[0]))


@config.command(cls=JSONCommand)
@click.argument("name")
@click.argument("url")
@option("--default", "Use this datastore when a command names none.", is_flag=True)
def add(name: str, url: str, default: bool) -> None:
    """Give a datastore's URL a name in the configuration file.

    If the file does not exist, the command creates it, readable only by its owner. It connects to no server. Keep the
    password in SCHEMALESS_PASSWORD, or in an option file given by ?read_default_file= in the URL, rather than in the
    URL itself.

    \b
    Example:
      schemaless config add mezzanine mysql://app@db-1:3306/mezzanine --default
    """
    if "://" not in url:
        raise InvalidInput(f"expected a URL such as mysql://app@db-1:3306/mezzanine after {name}")
    datastore_url(url)
    path, given = configuration_path()
    text = ""
    if path.exists():
        if name in (known := read_configuration().datastores):
            raise InvalidInput(f"{name} is already defined in {path}, line {known[name].lines['url']}; change it there")
        text = path.read_text(encoding="utf-8-sig")
    elif given and not path.parent.is_dir():
        raise InvalidInput(f"{PATH_VARIABLE} names {path}, but the folder {path.parent} does not exist; create it")
    text = with_datastore(text, name, url, default=default)
    if has_password(url) and path.exists() and path.stat().st_mode & 0o077:
        path.chmod(0o600)
        note(f"{path} now contains a password, so it is readable only by its owner")
    usual = os.umask(0o077)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    finally:
        os.umask(usual)
    print_result({"name": name, "path": str(path), "default": default})
    note(f"added {name} to {path}; to use it: schemaless -d {name} info")
