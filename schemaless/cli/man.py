"""``schemaless man``: the manual page, generated from the commands' help."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib.metadata import version

import click

from schemaless.cli.command import ReadOnlyCommand
from schemaless.ui.terminal.output import out

_VARIABLES = {
    "SCHEMALESS_URL": "The datastore, where the command line names none: a URL, or a name in the configuration.",
    "SCHEMALESS_PASSWORD": "The password, where the URL has none.",
    "SCHEMALESS_CONFIG": "The configuration file; by default config.toml in schemaless/ below XDG_CONFIG_HOME or "
    "~/.config.",
}


@click.command(cls=ReadOnlyCommand)
@click.pass_context
def man(ctx: click.Context) -> None:
    """Print the manual page.

    The page describes every command with its options, in the form that man(1) reads.

    \b
    Examples:
      schemaless man | man -l -
      schemaless man > ~/.local/share/man/man1/schemaless.1
    """
    root = ctx.find_root()
    out().file.write("\n".join(_page(root)) + "\n")


def _page(root: click.Context) -> Iterator[str]:
    summary, _, rest = inspect.cleandoc(root.command.help or "").partition("\n\n")
    yield f'.TH SCHEMALESS 1 "" "schemaless {version("schemaless-store")}" "User Commands"'
    yield from (".SH NAME", f"schemaless \\- {_escaped(summary.rstrip('.'))}")
    yield from (".SH SYNOPSIS", ".B schemaless", "[OPTIONS] COMMAND [ARGS]...")
    yield from (".SH DESCRIPTION", *_text(rest))
    yield from (".SH OPTIONS", *_options(root))
    yield ".SH COMMANDS"
    for context in commands_below(root):
        yield f".SS {_escaped(' '.join((context.command_path, *context.command.collect_usage_pieces(context))))}"
        yield from _text(inspect.cleandoc(context.command.help or ""))
        yield from _options(context)
    yield ".SH ENVIRONMENT"
    for name, meaning in _VARIABLES.items():
        yield from (".TP", f".B {name}", _escaped(meaning))


def commands_below(context: click.Context) -> Iterator[click.Context]:
    """Yield a context for each command below ``context``; a group precedes the commands in it."""
    group = context.command
    if not isinstance(group, click.Group):
        return
    for name in group.list_commands(context):
        if (command := group.get_command(context, name)) is not None:
            below = click.Context(command, info_name=name, parent=context)
            yield below
            yield from commands_below(below)


def _options(context: click.Context) -> Iterator[str]:
    for parameter in context.command.get_params(context):
        if (record := parameter.get_help_record(context)) is not None:
            names, meaning = record
            yield from (".TP", f".B {_escaped(names)}", _escaped(" ".join(meaning.split())))


def _text(text: str) -> Iterator[str]:
    """Yield paragraphs; those after ``\\b`` and indented ones are unchanged."""
    for paragraph in text.split("\n\n"):
        kept = paragraph.startswith(("\b", " "))
        lines = [_escaped(line) for line in paragraph.splitlines() if line != "\b"]
        yield from (".PP", *([".nf", *lines, ".fi"] if kept else lines))


def _escaped(line: str) -> str:
    line = line.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return f"\\&{line}" if line.startswith(".") else line
