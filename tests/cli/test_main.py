"""The top of the command line: errors in one line, their exit statuses, and no password in any of them."""

from __future__ import annotations

import os
import re
import runpy
import signal
import socket

import click
import pytest

import schemaless
from schemaless.cli import main
from schemaless.cli.command import ReadOnlyCommand
from schemaless.cli.main import _NOUNS, _SECTIONS, cli
from tests.cases import each

NOWHERE = "mysql://u:secret@nowhere.invalid:3306/trips"


@pytest.mark.parametrize("name", list(_NOUNS))
def test_the_overview_matches_the_help_of_each_command(name):
    """The overview's line is the first sentence of the command's own help."""
    command = cli.get_command(click.Context(cli), name)

    assert command is not None
    assert (command.help or "").strip().split("\n\n")[0].replace("\n", " ").rstrip(".") == _NOUNS[name][1].rstrip(".")


def commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    """Return every command below a group."""
    found: list[tuple[tuple[str, ...], click.Command]] = []
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        found += commands(command, (*path, name)) if isinstance(command, click.Group) else [((*path, name), command)]
    return found


@each("path", [path for path, _ in commands(cli)])
def test_every_command_has_help_and_an_example_of_itself(invoke, path):
    """--help is on standard output, with exit 0: a sentence, and examples that start with the command."""
    result = invoke(*path, "--help")

    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"Usage: schemaless {' '.join(path)} ")
    assert re.search(r"\n\n  [A-Z].*\.", result.out)
    for example in re.findall(r"^ +schemaless (\S+(?: \S+)?)", result.out.partition("Examples:")[2], re.MULTILINE):
        assert example.split()[0] in _NOUNS


def test_every_help_fits_into_80_columns(monkeypatch):
    """Of the root, every group and every command: text, examples, and names of choices; and nothing is cut off."""
    monkeypatch.setenv("COLUMNS", "80")
    root = click.Context(cli, info_name="schemaless", **cli.context_settings)
    contexts = [root]
    for context in contexts:  # grows while it is read
        if isinstance(group := context.command, click.Group):
            below = [(name, group.get_command(context, name)) for name in group.list_commands(context)]
            contexts += [click.Context(command, parent=context, info_name=name) for name, command in below if command]
    wide = [
        f"{context.command_path}: {line}"
        for context in contexts
        for line in context.get_help().splitlines()
        if len(line) > 80 or re.match(r"  \S+ .*\.\.\.$", line)
    ]

    assert len(contexts) > len(commands(cli)) > len(_NOUNS)
    assert wide == []


def test_overview_groups_all_commands():
    """Every command is in one section, and all descriptions start in the same column."""
    shown = cli.get_help(click.Context(cli, info_name="schemaless"))
    starts = {
        line.index(text) for line in shown.splitlines() for _, text in _NOUNS.values() if line.endswith(f"  {text}")
    }

    assert len(_NOUNS) == sum(map(len, _SECTIONS.values()))
    assert [heading for heading in _SECTIONS if f"\n{heading}:\n" not in shown] == []
    assert len(starts) == 1


def test_read_only_commands_have_no_execute_option():
    """A read-only command has no --execute; a command with that option changes nothing without it."""
    read_only = {" ".join(path): command for path, command in commands(cli) if isinstance(command, ReadOnlyCommand)}

    assert {"dump", "cell get", "migrate plan", "trigger status"} <= read_only.keys()
    assert read_only.keys().isdisjoint({"load", "cell put", "migrate run", "trigger reset", "local up"})
    assert not any(option.name == "execute" for command in read_only.values() for option in command.params)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("dump", "--column", "A"), "nothing was changed"),
        (("cell", "get", "uuid5:x", "A"), "nothing was changed"),
        (("migrate", "plan"), "nothing was changed"),
        (("migrate", "run"), "nothing was changed"),
        (("rebuild", "--shards", "1"), "nothing was changed"),
        (("rebuild", "--execute"), "completed writes are kept"),
        (("migrate", "run", "--execute"), "completed writes are kept"),
        (("load", "-"), "completed writes are kept"),
        (("cell", "put"), "completed writes are kept"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_stopped_command_reports_what_was_stored(invoke, monkeypatch, arguments, said):
    """One that only reads does not speak of what was written."""

    def stopped(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main.cli, "main", stopped)
    result = invoke(*arguments)

    assert (result.code, result.out) == (3, "")
    assert result.err == f"schemaless: stopped; {said}, and the same command can be run again\n"


def test_a_second_signal_changes_nothing_of_how_a_command_ends(invoke, monkeypatch):
    """``timeout`` sends SIGTERM to the process and to its group."""

    def stopped(*args: object, **options: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def settle() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(main.cli, "main", stopped)
    monkeypatch.setattr(main, "settle_exit_status", settle)
    result = invoke("info")

    assert (result.code, result.err.count("stopped")) == (3, 1)


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
    ("server", "asked"),
    [
        ("/trips?unix_socket={folder}/none.sock", "is the server running, and is the socket right?"),
        ("127.0.0.1:{port}/trips", "is the server running, and are host and port right?"),
        ("nowhere.invalid/trips", "is the server running, and are host and port right?"),
    ],
)
def test_a_missing_server_is_named_by_its_address_or_socket(invoke, tmp_path, server, asked):
    """A missing socket has no host and no port; what has these is asked for them."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        url = "mysql://u@" + server.format(folder=tmp_path, port=unused.getsockname()[1])
        result = invoke("info", "--url", url)

    assert result.code == 1
    assert result.err.endswith(f"; {asked}\n")
    assert ("localhost" in result.err or "host and" in result.err) == ("unix_socket" not in server)


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


@pytest.mark.mysql
@pytest.mark.parametrize(
    "arguments",
    [
        ("dump", "--column"),
        ("load", os.devnull, "--row-key", "@line", "--column"),
        ("cell", "tail", "--column"),
        ("cell", "put", "uuid5:row", "{name}", "1", "{{}}"),
        ("cell", "get", "uuid5:row"),
        ("cell", "get", "uuid5:row", "{name}", "1"),
        ("cell", "history", "uuid5:row"),
        ("migrate", "plan", "--column"),
        ("migrate", "run", "--column"),
        ("codec", "advise", "--column"),
        ("codec", "train", "--column"),
        ("codec", "set", "msgpack+zstd", "--column"),
        ("codec", "set", "default", "--column"),
        ("capacity", "model", "--documents-per-day=1", "--body=1KB", "--disk=1GB", "--column"),
    ],
    ids=" ".join,
)
@each("name", ["a`b", "it's", "", "x" * 65, "tab\t"])
def test_column_name_that_no_cell_can_have_is_exit_2(invoke, admin_url, arguments, name):
    """A misspelt column is said to be one, everywhere, instead of finding nothing."""
    given = [part.format(name=name) for part in arguments]
    result = invoke(*given, *([] if "{name}" in arguments else [name]), url=admin_url)

    assert (result.code, result.out) == (2, "")
    assert "column_name must be 1 to 64 characters of [A-Za-z0-9_.:-], got" in result.err


def test_python_m_schemaless_is_the_command(monkeypatch, capsys):
    """Both have the version of the package."""
    monkeypatch.setattr("sys.argv", ["schemaless", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(f"{schemaless.__path__[0]}/__main__.py", run_name="__main__")

    assert ended.value.code == 0
    assert capsys.readouterr().out == f"schemaless, version {schemaless.__version__}\n"


def test_traceback_is_accepted_anywhere_and_off_by_default(invoke):
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
