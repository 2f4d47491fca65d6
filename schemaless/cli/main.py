"""Root of the command line: command groups and error handling.

Exit status: 0 if done, 1 if it failed or found faults, 2 for wrong usage, 3 if stopped; run it again to resume.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import signal
import sys
import traceback
from importlib import import_module
from types import FrameType
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from schemaless.base.interrupts import advice_of, is_interrupt, settle_exit_status
from schemaless.errors import InvalidCell, InvalidInput, SchemalessError, ServerError, UnknownCodec
from schemaless.ui.terminal.output import (
    EXIT_FAILED,
    EXIT_STOPPED,
    EXIT_USAGE,
    begin_output,
    error,
    redacted,
)
from schemaless.ui.terminal.shown import shown

_SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    # heading: {name: (module with a command of that name, one line for the overview; a test compares it with its help)}
    "Getting started": {
        "demo": ("schemaless.cli.demo", "Take a tour of the store, using 7,134 real documents."),
        "local": ("schemaless.cli.local", "Run private MySQL servers on this machine, without root or Docker."),
        "create": ("schemaless.cli.create", "Create a datastore."),
        "config": ("schemaless.cli.config", "Name datastores, and show the settings in effect."),
        "man": ("schemaless.cli.man", "Print the manual page."),
    },
    "Documents": {
        "cell": ("schemaless.cli.cell", "Write and read single cells, or follow the change feed."),
        "load": ("schemaless.cli.load", "Load documents from an NDJSON file."),
        "dump": ("schemaless.cli.dump", "Write cells as NDJSON."),
        "export": ("schemaless.cli.export", "Write all versions of all cells as Parquet files, for analytics."),
        "index": ("schemaless.cli.index", "Find rows by the contents of their documents."),
        "trigger": ("schemaless.cli.trigger", "Call a function for each new cell."),
        "erase": ("schemaless.cli.erase", "Erase documents, verify the erasure, and repeat it after a restore."),
        "retention": ("schemaless.cli.retention", "Erase old cells by policy, and place legal holds on rows."),
    },
    "Space": {
        "tier": ("schemaless.cli.tier", "Keep the documents of old cells in files on cheap storage."),
        "capacity": ("schemaless.cli.capacity", "Measure a datastore and forecast when its disks will be full."),
        "codec": ("schemaless.cli.codec", "Choose the codec of each column, and manage zstd dictionaries."),
        "migrate": ("schemaless.cli.migrate", "Re-encode bodies in place."),
        "rebuild": ("schemaless.cli.rebuild", "Rebuild tables to give free space back to the disk."),
        "bench": ("schemaless.cli.bench", "Compare codecs on your own documents."),
    },
    "Servers and tables": {
        "topology": ("schemaless.cli.topology", "Show and change the servers of a datastore."),
        "shards": ("schemaless.cli.shards", "Move shards to another cluster."),
        "backup": ("schemaless.cli.backup", "Plan backups, and check that they are complete."),
        "schema": ("schemaless.cli.schema", "Upgrade tables, or show their versions."),
        "grants": ("schemaless.cli.grants", "Print the SQL that gives an account a role."),
    },
    "Watching": {
        "job": ("schemaless.cli.job", "Show and control long-running jobs."),
        "status": ("schemaless.cli.status", "Show what needs attention: servers, jobs, triggers, indexes and disks."),
        "info": ("schemaless.cli.info", "Show a datastore's topology and cell counts."),
        "check": ("schemaless.cli.check", "Check every cell and the tables of every shard. Read-only."),
        "metrics": ("schemaless.cli.metrics", "Serve metrics for Prometheus, until Ctrl-C."),
    },
}
_NOUNS = {name: noun for nouns in _SECTIONS.values() for name, noun in nouns.items()}


class _Nouns(click.Group):
    """Loads a command's module only when the command is named, so that ``--help`` and each command start fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_NOUNS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _NOUNS:
            return None
        command = getattr(import_module(_NOUNS[cmd_name][0]), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        longest = max(map(len, _NOUNS))  # so that all sections have the same columns
        for heading, nouns in _SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(longest), line) for name, (_, line) in nouns.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return shell completions without loading every command's module for its help line."""
        nouns = [(name, line) for name, (_, line) in _NOUNS.items() if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [CompletionItem(name, help=line) for name, line in nouns] + options

    def invoke(self, ctx: click.Context) -> Any:
        try:
            outcome = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # Click would make it exit status 1.
            raise _ReaderGone from None
        return outcome


class _ReaderGone(Exception):
    """The reader of standard output (head, less) has exited."""


def _names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from schemaless.cli.command import complete_name  # at the top, it would have --help import SQLAlchemy

    return complete_name(ctx, param, incomplete)


@click.group(
    cls=_Nouns, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80, "show_default": True}
)
@click.version_option(package_name="schemaless-store", prog_name="schemaless")
@click.option(
    "--traceback", is_flag=True, help="Show the Python traceback of an error; accepted anywhere on the command line."
)
@click.option(
    "-q",
    "--quiet",
    is_flag=True,
    help="Show no progress and no notes, only results and errors, for cron; accepted anywhere on the command line.",
)
@click.option(
    "--binary",
    is_flag=True,
    help="Show sizes in KiB to PiB (powers of 1,024) instead of kB to PB; accepted anywhere on the command line.",
)
@click.option(
    "-d",
    "--datastore",
    metavar="NAME",
    shell_complete=_names,
    help="The datastore: its name in the configuration, or its URL; also accepted after the command.",
)
def cli(traceback: bool, quiet: bool, binary: bool, datastore: str | None) -> None:
    """An append-only cell store on sharded MySQL.

    Data goes to standard output, progress and errors to standard error. No command rewrites stored cells without
    --execute. Name the datastore with -d, --url or SCHEMALESS_URL: either a URL, for example

        mysql://app@db-1:3306/mezzanine

    or a name that 'schemaless config add' gave to such a URL. Put the password, if any, in SCHEMALESS_PASSWORD. Start
    with 'schemaless demo', or with 'schemaless local up' and 'schemaless create'.

    Exit status: 0 if done, 1 if it failed or found faults, 2 for wrong usage, 3 if stopped; run it again to resume.
    """
    begin_output(quiet=quiet, binary=binary)


def _with_advice(error: click.ClickException) -> click.ClickException:
    """Return the error, with an explanation if a negative number was read as an option."""
    if isinstance(error, click.NoSuchOption) and error.option_name[1:].isdigit():
        return click.UsageError(f"{error.message} No argument may be a negative number.", error.ctx)
    return error


def _on_sigterm(signum: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


class _ShownRecords(logging.Formatter):
    """Formats the library's warnings like all other output."""

    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record))


def run(arguments: list[str]) -> int:
    """Run one command and return the exit status; report every error as one line on standard error."""
    show_traceback = "--traceback" in arguments
    quiet = bool({"-q", "--quiet"} & set(arguments))
    anywhere = [flag for flag in ("-q", "--binary") if flag in arguments or (flag == "-q" and quiet)]
    arguments = [argument for argument in arguments if argument not in ("--traceback", "-q", "--quiet", "--binary")]
    arguments = [*anywhere, *arguments]
    signal.signal(signal.SIGTERM, _on_sigterm)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        signal.signal(signal.SIGHUP, _on_sigterm)
    if logging.lastResort is not None:  # prints warnings if logging is not configured
        logging.lastResort.setFormatter(_ShownRecords())
    try:
        outcome: Any = cli.main(args=arguments, prog_name="schemaless", standalone_mode=False)
        status = outcome if isinstance(outcome, int) else 0
        if status and quiet:
            # What was found may have been a note.
            error(f"failed or found something to report (exit status {status}); the same command without -q shows it")
        return status
    except click.exceptions.Exit as exit_request:
        return exit_request.exit_code
    except click.ClickException as usage_error:
        said = io.StringIO()
        _with_advice(usage_error).show(file=said)
        sys.stderr.write(shown(redacted(said.getvalue())))
        return EXIT_USAGE
    except _ReaderGone:
        # Not a fault.
        _drop_output()
        return 0
    except (click.Abort, KeyboardInterrupt, SchemalessError, OSError, RuntimeError) as problem:
        if isinstance(problem, RuntimeError) and not isinstance(problem, click.Abort) and not is_interrupt(problem):
            raise
        if show_traceback:
            sys.stderr.write(shown(traceback.format_exc()))
        return _ended_by(problem, arguments)


def _ended_by(problem: BaseException, arguments: list[str]) -> int:
    match problem:
        case InvalidInput() | InvalidCell() | UnknownCodec():
            error(str(problem))
            return EXIT_USAGE
        case SchemalessError():
            # Without -q, what continues a command was printed when it began.
            advice = advice_of(problem) if isinstance(problem, ServerError) and "-q" in arguments else None
            error(str(problem) if advice is None else f"{problem}; {advice}")
            return EXIT_FAILED
        case OSError():
            full = problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # files that are written have their names
            where = problem.filename or ("standard output" if full else "reading or writing")
            error(f"{where}: {problem.strerror or problem}")
            try:
                sys.stdout.flush()
            except OSError:
                _drop_output()
            return EXIT_FAILED
    # 'timeout', for one, sends SIGTERM twice; the second one would end the process with another status.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    settle_exit_status()
    try:
        changes_nothing = _changes_nothing(arguments)
    except (Exception, KeyboardInterrupt):  # noqa: BLE001 - a module may be half imported, or Ctrl-C pressed again
        changes_nothing = False
    kept = "nothing was changed" if changes_nothing else "completed writes are kept"
    error(f"stopped; {kept}, and {advice_of(problem) or 'the same command can be run again'}")
    return EXIT_STOPPED


def _changes_nothing(arguments: list[str]) -> bool:
    from schemaless.cli.command import ReadOnlyCommand

    words = list(arguments)
    while words and words[0].startswith("-"):  # -d takes the next word as its value
        words = words[2:] if words[0] in ("-d", "--datastore") else words[1:]
    command: click.Command | None = cli
    for word in words:
        if not isinstance(command, click.Group):
            break
        command = command.get_command(click.Context(command), word)
    if command is None:
        return False
    has_execute = any(parameter.name == "execute" for parameter in command.params)
    return isinstance(command, ReadOnlyCommand) or (has_execute and "--execute" not in arguments)


def _drop_output() -> None:
    """Discard buffered output, so that Python's flush at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
