"""``schemaless config show``: each setting, and where it is from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import click
from click.core import ParameterSource

from schemaless.cli.options import datastore_option
from schemaless.terminal.output import json_option, note, print_json, print_table, redacted
from schemaless.topology.configuration import (
    PATH_VARIABLE,
    SETTINGS,
    Configuration,
    configured,
    datastore_url,
    read_configuration,
)
from schemaless.wire.pool import PoolOptions
from schemaless.wire.secret import PASSWORD_VARIABLE, Secret


@dataclass(frozen=True, slots=True)
class _Setting:
    setting: str
    value: Any
    source: str


@click.command()
@datastore_option(required=False)
@json_option
@click.pass_context
def show(ctx: click.Context, url: str | None, as_json: bool) -> None:
    """Show each setting, and where it comes from.

    The command shows the datastore that a command would use now: its URL, whether there is a password, and how
    connections behave. An option on the command line is stronger than SCHEMALESS_URL, which is stronger than the file's
    default. The command connects to no server.

    \b
    Examples:
      schemaless config show
      schemaless config show -d mezzanine --json
    """
    file = read_configuration()
    settings = [_Setting("file", str(file.path), _file_source(file)), *_settings(ctx, file, url)]
    names = sorted(file.datastores)
    if as_json:
        print_json({"datastores": names, "settings": [asdict(entry) for entry in settings]})
        return
    rows = [[entry.setting, "none" if entry.value is None else str(entry.value), entry.source] for entry in settings]
    print_table(None, ["setting", "value", "from"], rows, text_columns=3)
    note(f"the file names {', '.join(names)}" if names else "no datastore has a name; see schemaless config add --help")


def _file_source(file: Configuration) -> str:
    return (PATH_VARIABLE if file.given else "the usual place") + ("" if file.exists else ", not there")


def _settings(ctx: click.Context, file: Configuration, url: str | None) -> Iterator[_Setting]:
    if url is None:
        yield _Setting("datastore", None, "none of -d, --url, SCHEMALESS_URL and the file's default")
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
