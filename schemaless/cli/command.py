"""Classes of commands, and the options that they add by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from inspect import signature
from typing import Any, Final

import click
from click.core import ParameterSource

from schemaless.cli.quantities import shards_of
from schemaless.errors import InvalidInput
from schemaless.topology.configuration import PATH_VARIABLE, read_configuration
from schemaless.ui.terminal.output import set_json


class DatastoreOption(click.Option):
    """The option that names the datastore, by its URL or by its name in the configuration.

    It is ``--url`` of a command, else ``-d`` before the command, else ``SCHEMALESS_URL``, else the configured default.
    """

    def __init__(self, flags: Iterable[str] = (), *, required: bool = True) -> None:
        super().__init__(
            ["--url", "-d", "--datastore", "url", *flags],
            metavar="NAME|URL",
            help="The datastore: its name in the configuration, or a URL such as mysql://app@db-1:3306/mezzanine.",
            envvar="SCHEMALESS_URL",
            required=required,
            show_envvar=True,
            shell_complete=complete_name,
        )

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        """Return the URL or name in effect, and its source."""
        value, source = super().consume_value(ctx, opts)
        if source is ParameterSource.COMMANDLINE:
            return value, source
        if (named := ctx.find_root().params.get("datastore")) is not None:
            return named, ParameterSource.COMMANDLINE
        if source is ParameterSource.ENVIRONMENT:
            return value, source
        configuration = read_configuration()
        if self.required and configuration.given and not configuration.exists:
            raise InvalidInput(
                f"no datastore is given, and {PATH_VARIABLE} names {configuration.path}, which does not exist; use -d, "
                "or create the file with 'schemaless config add'"
            )
        if configuration.default is None:
            return value, source
        return configuration.default, ParameterSource.DEFAULT_MAP


def complete_name(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the configured names that start with the incomplete word; none if the configuration cannot be read."""
    try:
        return [name for name in read_configuration().datastores if name.startswith(incomplete)]
    except InvalidInput:  # the command itself reports the error
        return []


_SHARDS: Final = "Only these shards, such as 0-3,8.  [default: all]"

optional_datastore: Final = click.option(cls=DatastoreOption, required=False)
"""Option ``--url`` of a command that can do without a datastore."""


class Command(click.Command):
    """Command with the options for which its function has parameters.

    ``url`` or, for the open datastore, ``store`` stands for ``--url``; beside ``store``, ``shards`` stands for
    ``--shards``, and receives a sorted list, by default of all.

    Args:
        before: decorator whose code runs before the datastore is opened, if given; for checks of options.
    """

    def __init__(
        self,
        name: str | None,
        *,
        callback: Callable[..., Any],
        params: Iterable[click.Parameter] = (),
        before: Callable[..., Callable[..., Any]] = lambda command: command,
        **settings: Any,
    ) -> None:
        wanted, params = signature(callback).parameters, list(params)
        opens = "store" in wanted
        if opens or ("url" in wanted and "url" not in [param.name for param in params]):
            shards = click.Option(["--shards"], metavar="LIST", help=_SHARDS)
            params = [DatastoreOption(), *([shards] if opens and "shards" in wanted else []), *params]
        callback = before(_with_store(callback) if opens else callback)
        super().__init__(name, callback=callback, params=params, **settings)


def _with_store(command: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(command)
    def with_store(*arguments: Any, url: str, **options: Any) -> Any:
        from schemaless.store.opening import connect  # slow, and not every command needs it

        with connect(url) as store:
            if "shards" in options:
                options["shards"] = shards_of(options["shards"], store.shard_count)
            return command(*arguments, store=store, **options)

    return with_store


class JSONCommand(Command):
    """Command with the option ``--json``.

    With it, ``print_result`` prints JSON on standard output and ``out()`` nothing; notes stay the same.
    """

    def __init__(self, name: str | None, *, params: Iterable[click.Parameter] = (), **settings: Any) -> None:
        option = click.Option(
            ["--json", "as_json"],
            is_flag=True,
            expose_value=False,
            callback=set_json,
            help="Print the result as JSON.",
        )
        super().__init__(name, params=[*params, option], **settings)


class ReadOnlyCommand(Command):
    """Command that never changes stored data; an interrupted one reports that nothing was changed."""


class QueryCommand(JSONCommand, ReadOnlyCommand):
    """Read-only command with the option ``--json``."""
