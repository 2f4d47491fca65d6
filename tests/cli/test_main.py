"""The top of the command line: errors in one line, their exit statuses, and no password in any of them."""

from __future__ import annotations

import re

import click
import pytest

from schemaless.cli.main import _NOUNS, cli

NOWHERE = "mysql://u:secret@nowhere.invalid:3306/trips"


@pytest.mark.parametrize("name", list(_NOUNS))
def test_overview_says_what_the_command_says(name):
    """The overview's line is the first sentence of the command's own help."""
    command = cli.get_command(click.Context(cli), name)

    assert command is not None
    assert (command.help or "").strip().split("\n\n")[0].replace("\n", " ").rstrip(".") == _NOUNS[name][2].rstrip(".")


def commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    """Return every command below a group."""
    found: list[tuple[tuple[str, ...], click.Command]] = []
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        found += commands(command, (*path, name)) if isinstance(command, click.Group) else [((*path, name), command)]
    return found


@pytest.mark.parametrize("path", [path for path, _ in commands(cli)], ids=" ".join)
def test_every_command_has_help_and_an_example_of_itself(invoke, path):
    """--help is on standard output, with exit 0; examples in it start with the command."""
    result = invoke(*path, "--help")

    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"Usage: schemaless {' '.join(path)}")
    for example in re.findall(r"^ +schemaless (\S+(?: \S+)?)", result.out.partition("Examples:")[2], re.MULTILINE):
        assert example.split()[0] in _NOUNS


@pytest.mark.parametrize(
    "arguments",
    [
        ("info",),
        ("check",),
        ("dump",),
        ("schema", "status"),
        ("schema", "upgrade"),
        ("cell", "get", "uuid5:x", "A"),
        ("migrate", "plan"),
        ("migrate", "run", "--execute"),
        ("load", "-", "--column", "A", "--row-key", "@line"),
    ],
)
def test_missing_url_says_what_to_set(invoke, arguments):
    """Exit 2, and the name of the option and of the variable."""
    result = invoke(*arguments)

    assert (result.code, result.out) == (2, "")
    assert "--url" in result.err
    assert "SCHEMALESS_URL" in result.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("info", "--url", NOWHERE),
        ("info", "--traceback", "--url", NOWHERE),
        ("--traceback", "check", "--url", NOWHERE),
        ("schema", "status", "--url", NOWHERE),
        ("cell", "put", "uuid5:x", "A", 1, "{}", "--url", NOWHERE),
        ("create", "trips", "--shards", 2, "--cluster", NOWHERE.removesuffix("trips")),
    ],
)
def test_server_that_is_not_there_is_exit_1_without_the_password(invoke, arguments):
    """The server is named, what to look at is said, the password is nowhere: not in a traceback either."""
    result = invoke(*arguments)

    assert (result.code, result.out) == (1, "")
    assert "schemaless: nowhere.invalid:3306" in result.err
    assert "secret" not in result.err
    assert ("Traceback" in result.err) == ("--traceback" in arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ("info", NOWHERE),
        ("info", "--url", "postgres://u:secret@nowhere/x"),
        ("info", "--url", "mysql://u:secret@/x"),
        ("info", "--url", "mysql://u:secret@nowhere:port/x"),
        ("info", "--url", "mysql://u:secret@nowhere"),
        ("info", "--url", "mysql://u:secret@nowhere/Bad Name"),
        ("info", "--url", "mysql://u:secret@nowhere/x?charset=latin1"),
        ("create", "trips", "--shards", 2, "--cluster", NOWHERE),
        ("create", "trips", "--shards", 2, "--cluster", "mysql://u:secret@a/", "--cluster", "mysql://u:secret2@b/"),
        ("load", NOWHERE, "--column", "A", "--row-key", "id", "--url", "mysql://u:secret@/x"),
        ("dump", "--shards", "1", "--url", "mysql://u:secret@nowhere/x", "mysql://u:se@cret@nowhere/x"),
    ],
)
def test_unusable_url_is_exit_2_without_the_password(invoke, arguments):
    """Also where it stands in the wrong place."""
    result = invoke(*arguments)

    assert (result.code, result.out) == (2, "")
    assert "secret" not in result.err
    assert "cret@" not in result.err


def test_traceback_may_stand_anywhere_and_is_off_otherwise(invoke):
    """One line without it; with it the traceback, and the same line."""
    arguments = ["load", "/no/such/file", "--column", "A", "--row-key", "id", "--url", "mysql://u@/x"]
    plain = invoke(*arguments)
    first, last = invoke("--traceback", *arguments), invoke(*arguments, "--traceback")

    assert plain.err.count("\n") == 1
    assert first.err == last.err
    assert first.err.startswith("Traceback (most recent call last):")
    assert first.err.endswith(plain.err)
    assert plain.code == first.code == last.code == 2


@pytest.mark.parametrize("arguments", [("frobnicate",), ("cell", "frobnicate"), ("info", "--frobnicate")])
def test_unknown_command_or_option_is_exit_2(invoke, arguments):
    """Usage goes to standard error."""
    result = invoke(*arguments)

    assert (result.code, result.out) == (2, "")
    assert "frobnicate" in result.err
