"""Writes docs/reference: public names from their docstrings, commands from their help, metrics from their definitions.

    python tools/reference.py            write the pages
    python tools/reference.py --check    change nothing; exit status 1 if a page is missing or stale

``make docs`` runs it before it builds the site; ``stale`` is for the test that compares the pages with the code.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import click

import schemaless
import schemaless.aio
from schemaless import errors
from schemaless.cli.main import cli
from schemaless.cli.man import commands_below
from schemaless.monitoring.metrics import METRICS, PREFIX

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "reference"
GENERATED = "<!-- Written by `make reference` from {}: do not edit. -->\n"
SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises")
GROUPS = {
    "Opening": ("connect", "create", "Limits", "ReadFrom"),
    "Datastore": ("Datastore", "Ping"),
    "Cells": (
        "new_key",
        "NewCell",
        "Cell",
        "CellKey",
        "Put",
        "Page",
        "NewStoredCell",
        "StoredCell",
        "RowKey",
        "JSONDocument",
    ),
    "Typed documents": ("Column",),
    "Erasure": ("Erasure", "ErasureStatus", "finish_erasure", "Erased", "ErasedCell"),
    "Triggers and indexes": ("trigger", "Trigger", "Call", "catch_up", "Index", "IndexPage", "IndexRow", "IndexEntry"),
}
OPENED = ("Datastore", "Column", "AsyncDatastore", "AsyncColumn", "AsyncIndex")
"""Classes whose instances are returned by a call."""


def markdown(text: str) -> str:
    """Return a docstring's text as Markdown: its literals have single backticks."""
    return re.sub(r"``(.+?)``", r"`\1`", text)


def one_line(text: str) -> str:
    """Return text for a cell of a table."""
    return re.sub(r"\s+", " ", markdown(text)).strip().replace("|", r"\|")


def linked(text: str) -> str:
    """Link each exception that is named in code to what it means for the data."""

    def link(match: re.Match[str]) -> str:
        name = match.group(1)
        known = name in errors_named()
        return f"[`{name}`](../troubleshooting.md#{name.lower()})" if known else match.group()

    return re.sub(r"(?<!\[)`(\w+)`", link, text)


def parts(docstring: str) -> Iterator[tuple[str | None, str]]:
    """Yield a docstring's text before its first section as None, then each section's name and text."""
    pattern = rf"^({'|'.join(SECTIONS)}):\n"
    pieces = re.split(pattern, inspect.cleandoc(docstring), flags=re.MULTILINE)
    yield None, pieces[0].rstrip()
    for name, text in zip(pieces[1::2], pieces[2::2], strict=True):
        yield name, textwrap.dedent(text).strip()


def entries(text: str) -> list[tuple[str, str]]:
    """Return the ``name: what`` entries of a section, with their continuation lines; exceptions may share an entry."""
    found = re.findall(r"^(\w+(?:, \w+)*): (.*(?:\n(?:[ ].*)?)*)", text, re.MULTILINE)
    return [(names, one_line(what)) for names, what in found]


def block(match: re.Match[str]) -> str:
    """Return an indented example as a block of Python."""
    return f"```py\n{textwrap.dedent(match.group()).rstrip()}\n```\n"


def described(docstring: str) -> Iterator[str]:
    """Yield a docstring as Markdown."""
    for name, text in parts(docstring):
        if name is None:
            yield linked(re.sub(r"(?:^    .*(?:\n|$))+", block, markdown(text), flags=re.MULTILINE)).rstrip() + "\n"
        elif name in ("Returns", "Yields"):
            yield f"**{name}:** {linked(one_line(text))}\n"
        else:
            head = {"Args": "argument", "Attributes": "attribute", "Raises": "raises"}[name]
            yield f"| {head} | what it is |\n|---|---|"
            for entry, what in entries(text):
                names = f"`{entry}`".replace(", ", "`, `")
                yield f"| {linked(names) if name == 'Raises' else names} | {linked(what)} |"
            yield ""


def signature(name: str, value: Callable[..., Any]) -> str:
    """Return a call as declared, with one parameter per line if it is long."""
    declared = inspect.signature(value)
    declared = declared.replace(
        parameters=[parameter for key, parameter in declared.parameters.items() if key != "self"]
    )
    # Annotations are strings; drop their quotes.
    if inspect.isclass(value):
        declared = declared.replace(return_annotation=inspect.Signature.empty)
    text = name + re.sub(r"'([^']*)'(?=[,)\s=]|$)", r"\1", re.sub(r"ForwardRef\(([^)]*)\)", r"\1", str(declared)))
    if len(text) > 100:
        inside, _, returned = text[len(name) + 1 :].rpartition(")")
        split = re.split(r", (?=\*{0,2}\w+: |\*(?:,|$))", inside)
        text = f"{name}(\n" + "".join(f"    {part},\n" for part in split) + f"){returned}"
    # Without ``def``, which is left out everywhere.
    before = "async " if inspect.iscoroutinefunction(value) else ""
    return f"```py\n{before}{text}\n```\n"


def members(owner: type) -> Iterator[str]:
    """Yield the public methods and properties of a class, in their order."""
    for name, value in vars(owner).items():
        if name.startswith("_") or not (inspect.isfunction(value) or isinstance(value, property)):
            continue
        yield f"#### {owner.__name__}.{name}\n"
        if inspect.isfunction(value):
            yield signature(name, value)
        # The page says for all asynchronous methods what help() says for each.
        yield from described((value.__doc__ or "").partition("\n\nArguments, results and errors are those of")[0])


def alias(name: str) -> str:
    """Return a type alias with the text below it in its module."""
    pattern = re.compile(rf'^{name} = (.*)\n(?:"""((?:.|\n)*?)""")?', re.MULTILINE)
    sources = (path.read_text(encoding="utf-8") for path in sorted((ROOT / "schemaless").glob("**/*.py")))
    found = next(match for source in sources if (match := pattern.search(source)))
    return f"```py\n{name} = {found[1]}\n```\n" + (f"\n{markdown(found[2])}\n" if found[2] else "")


def name_of(name: str, module: Any = schemaless) -> Iterator[str]:
    """Yield the section about a public name that is not an exception."""
    value = getattr(module, name)
    yield f"### {'aio.' if module is schemaless.aio and name in schemaless.__all__ else ''}{name}\n"
    if inspect.isfunction(value):
        yield signature(name, value)
        yield from described(value.__doc__ or "")
    elif inspect.isclass(value) and value is not Any:
        if name not in OPENED:
            yield signature(name, value)
        yield from described(value.__doc__ or "")
        yield from members(value)
    else:
        yield alias(name)


def exceptions() -> Iterator[str]:
    """Yield the tree of exceptions, and a line about each."""
    tree = inspect.cleandoc(errors.__doc__ or "").split("\n\n")
    yield "```text\n" + inspect.cleandoc(tree[1]) + "\n```\n"
    yield "| exception | when | carries |\n|---|---|---|"
    for name in sorted(errors_named()):
        sections = dict(parts(getattr(schemaless, name).__doc__ or ""))
        carried = ", ".join(f"`{entry}`" for entry, _ in entries(sections.get("Attributes", "")))
        summary = one_line((sections[None] or "").split("\n\n")[0])
        yield f"| [`{name}`](../troubleshooting.md#{name.lower()}) | {summary} | {carried} |"


def errors_named() -> list[str]:
    """Return the names of the public exceptions."""
    named = vars(errors).items()
    return [name for name, value in named if inspect.isclass(value) and issubclass(value, errors.SchemalessError)]


def api() -> str:
    """Return the page about the public names."""
    grouped = {name for names in GROUPS.values() for name in names}
    rest = tuple(name for name in schemaless.__all__ if name not in grouped and name not in errors_named())
    lines = [
        "# API reference\n",
        GENERATED.format("the docstrings of the package"),
        "`import schemaless` has these names, and `import schemaless.aio` those [for asyncio](#asyncio). No others",
        "are promised. Exceptions link to advice.\n",
    ]
    for title, names in {**GROUPS, "Others": rest}.items():
        if names:
            lines.append(f"## {title}\n")
            for name in names:
                lines += name_of(name)
    lines += [
        "## asyncio\n",
        "[The guide](../asyncio.md) shows how to use these names. The method of the same name in `Datastore` describes",
        "arguments and exceptions.\n",
    ]
    for name in ("connect", "AsyncDatastore", "AsyncColumn", "AsyncIndex", "catch_up", "finish_erasure"):
        lines += name_of(name, schemaless.aio)
    lines += ["## Exceptions\n", *exceptions()]
    return "\n".join(lines).rstrip() + "\n"


def metrics() -> str:
    """Return the page about the exported metrics."""
    lines = [
        "# Metrics reference\n",
        GENERATED.format("the exporter's metrics"),
        "`schemaless metrics` exports these; [the guide](../monitoring.md#prometheus) shows how to use them. Each also",
        "has the label `datastore`.\n",
        "| metric | labels | value |\n|---|---|---|",
    ]
    for metric in METRICS.values():
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "-"
        lines.append(f"| `{PREFIX}{metric.name}` | {labels} | {one_line(metric.text)} |")
    return "\n".join(lines) + "\n"


# ---- the command line


def help_text(text: str) -> Iterator[str]:
    """Yield a command's help as Markdown: indented lines as code, those of examples as commands."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        lines = paragraph.removeprefix("\b\n").splitlines()
        if lines[0].startswith("- "):
            yield escaped("\n".join(lines)) + "\n"
            continue
        head = ""
        for indented, block in groupby(lines, lambda line: line.startswith(" ")):
            part = textwrap.dedent("\n".join(block))
            if not indented:
                head = part
                yield escaped(part) + "\n"
            elif head.startswith("Example"):
                # A prompt at each line that does not continue one.
                yield "```console\n" + re.sub(r"(?m)^(?<!\\\n)", "$ ", part) + "\n```\n"
            else:
                yield "```text\n" + part + "\n```\n"


def escaped(text: str) -> str:
    """Return text of a help page with its Markdown characters escaped and its commands and options as code."""
    text = re.sub(r"(?<!\w)'((?:schemaless|[a-z]+ [a-z-]+) ?[^']*)'(?!\w)", r"`\1`", text)
    text = re.sub(r"(?<![\w`'-])(--[a-z][\w-]*)(?![^`]*`(?:[^`]*`[^`]*`)*[^`]*$)", r"`\1`", text)
    return re.sub(r"[<>*](?![^`]*`)", lambda match: f"\\{match.group()}", text)


def command_text(context: click.Context, level: int) -> Iterator[str]:
    """Yield the section about a command: usage, help and options."""
    command, path = context.command, context.command_path
    yield f"{'#' * level} {path}\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{path} {usage}\n```\n"
    yield from help_text(command.help or "")
    records = [
        record
        for parameter in command.get_params(context)
        if "--help" not in parameter.opts and (record := parameter.get_help_record(context)) and record[1]
    ]
    if records:
        yield "| option | what it does |\n|---|---|"
        for option, what in map(shortened, records):
            # A bar ends a table cell; only some renderers support escaping it inside code.
            yield f"| `{option.replace('|', ' or ')}` | {escaped(one_line(what))} |"
        yield ""


def shortened(record: tuple[str, str]) -> tuple[str, str]:
    """Move a long list of an option's choices to the end of its description, so that the table stays readable."""
    option, what = record
    name, bracket, choices = option.partition(" [")
    if not bracket or len(option) < 40:
        return record
    return f"{name} CHOICE", f"{what} One of {', '.join(choices.removesuffix(']').split('|'))}."


def commands() -> str:
    """Return the page about the commands: a table of them, then each group with its commands."""
    os.environ.pop("SCHEMALESS_URL", None)  # an option's help would show values from the environment
    top = click.Context(cli, info_name="schemaless", **cli.context_settings)
    below = list(commands_below(top))
    lines = ["# CLI reference\n", GENERATED.format("the commands' own help"), *command_text(top, 2)]
    lines.append("| command | what it does |\n|---|---|")
    for context in below:
        if not isinstance(context.command, click.Group):
            path = context.command_path
            summary = escaped(one_line(context.command.get_short_help_str(200)))
            lines.append(f"| [`{path}`](#{path.replace(' ', '-')}) | {summary} |")
    lines.append("")
    for context in below:
        lines += command_text(context, 2 if context.parent is top else 3)
    return "\n".join(lines).rstrip() + "\n"


PAGES = {FOLDER / "api.md": api, FOLDER / "commands.md": commands, FOLDER / "metrics.md": metrics}


def stale() -> list[str]:
    """Return the pages that are missing or outdated."""
    return [
        path.relative_to(ROOT).as_posix()
        for path, page in PAGES.items()
        if not path.exists() or path.read_text(encoding="utf-8") != page()
    ]


def main() -> int:
    """Write the pages, or compare them."""
    if "--check" in sys.argv[1:]:
        wrong = stale()
        for name in wrong:
            print(f"{name} is not what 'make reference' writes", file=sys.stderr)
        return 1 if wrong else 0
    for path, page in PAGES.items():
        path.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
