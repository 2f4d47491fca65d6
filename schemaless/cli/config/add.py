"""``schemaless config add``: one more name."""

from __future__ import annotations

import os

import click

from schemaless.errors import InvalidInput
from schemaless.terminal.files import write_whole
from schemaless.terminal.output import json_option, note, print_json
from schemaless.topology.configuration import (
    PATH_VARIABLE,
    configuration_path,
    datastore_url,
    has_password,
    read_configuration,
    with_datastore,
)


@click.command()
@click.argument("name")
@click.argument("url")
@click.option("--default", is_flag=True, help="Use this datastore when a command names none.")
@json_option
def add(name: str, url: str, default: bool, as_json: bool) -> None:
    """Give a datastore's URL a name, in the configuration file.

    If the file is missing, the command creates it, readable by its owner alone. It connects to no server. Keep a
    password in SCHEMALESS_PASSWORD, or in an option file that the URL names by ?read_default_file=, rather than in the
    URL.

    \b
    Example:
      schemaless config add mezzanine mysql://app@db-1:3306/mezzanine --default
    """
    if "://" not in url:
        raise InvalidInput(f"expected a URL such as mysql://app@db-1:3306/mezzanine behind {name}")
    datastore_url(url)
    path, given = configuration_path()
    text = ""
    if path.exists():
        if name in (known := read_configuration().datastores):
            raise InvalidInput(f"{path}, line {known[name].lines['url']}, names {name} already; change it there")
        text = path.read_text(encoding="utf-8")
    elif given and not path.parent.is_dir():
        raise InvalidInput(f"{PATH_VARIABLE} names {path}, and there is no folder {path.parent}; make it")
    text = with_datastore(text, name, url, default=default)
    if has_password(url) and path.exists() and path.stat().st_mode & 0o077:
        path.chmod(0o600)
        note(f"{path} holds a password now, so only its owner may read it")
    usual = os.umask(0o077)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    finally:
        os.umask(usual)
    if as_json:
        print_json({"name": name, "path": str(path), "default": default})
        return
    note(f"{name} is in {path}; to use it: schemaless -d {name} info")
