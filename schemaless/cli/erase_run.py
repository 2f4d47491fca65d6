"""``schemaless erase run``, and the options that say what to erase."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Final

import click

from schemaless.base.interrupts import advising
from schemaless.cli.command import JSONCommand
from schemaless.cli.erase_shown import plan_and_show, print_status
from schemaless.cli.job_options import JobRun, run_options
from schemaless.cli.option import option
from schemaless.cli.options import execute_option, row_key_of, with_options
from schemaless.errors import InvalidCell, InvalidInput
from schemaless.ops.erasure.job import ERASE, ErasureSpec
from schemaless.ops.erasure.job import run as run_erasure
from schemaless.ops.erasure.status import record_acknowledgements
from schemaless.ops.jobs.job_store import JobStore
from schemaless.store.datastore import Datastore
from schemaless.store.erasures.holds import check_reason
from schemaless.store.erasures.ledger import Target, completed_by, target
from schemaless.store.internals import internals_of
from schemaless.ui.terminal.output import note

_UNKNOWN: Final = "'schemaless erase status' shows whether the erasure is in the ledger"

target_options: Final = with_options(
    click.argument("row_key", required=False),
    click.argument("column", required=False),
    click.argument("ref_key", type=int, required=False),
    option(
        "--keys FILE",
        "Erase what each line of this file names: ROW_KEY [COLUMN [REF_KEY]], or a JSON object with row_key, "
        "and optionally column_name and ref_key; - is standard input.",
        name="keys",
        type=click.Path(allow_dash=True),
    ),
)
"""The arguments and options that say what to erase; ``targets_of`` reads them."""


def targets_of(row_key: str | None, column: str | None, ref_key: int | None, keys: str | None) -> list[Target]:
    """Return the targets given by the arguments and the file.

    Raises:
        InvalidInput: no target is given, or a line is invalid.
    """
    targets = [] if row_key is None else [target(row_key_of(row_key), column, ref_key)]
    if keys is not None:
        with click.open_file(keys, encoding="utf-8-sig") as lines:
            targets += _read(lines)
    if not targets:
        raise InvalidInput("name a row to erase, or a file of keys with --keys")
    return list(dict.fromkeys(targets))


def _read(lines: IO[str]) -> Iterator[Target]:
    name = getattr(lines, "name", "keys")
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        try:
            yield _target(text)
        except (InvalidInput, InvalidCell, ValueError) as error:
            raise InvalidInput(f"{name}, line {number}: {error}; nothing was erased") from error


def _target(text: str) -> Target:
    if not text.startswith("{"):
        row_key, *rest = text.split()
        if len(rest) > 2:
            raise InvalidInput(f"expected ROW_KEY [COLUMN [REF_KEY]], got {text!r}")
        return target(row_key_of(row_key), rest[0] if rest else None, int(rest[1]) if len(rest) > 1 else None)
    fields = json.loads(text)
    if "row_key" not in fields:
        raise InvalidInput("the object lacks row_key")
    return target(row_key_of(str(fields["row_key"])), fields.get("column_name"), fields.get("ref_key"))


@click.command(cls=JSONCommand)
@target_options
@option("--reason CODE", "The reason, as a code such as gdpr-art-17; kept in the ledger forever.")
@option("--requested-by WHO", "Who asked for it.  [default: this user and machine]")
@option("--erasure N", "Continue or complete this erasure.", name="number", type=click.IntRange(1))
@execute_option("Erase. Without this option, the command shows what it would erase.")
@run_options("Continue this job; all other options are ignored.")
def run(
    row_key: str | None,
    column: str | None,
    ref_key: int | None,
    keys: str | None,
    store: Datastore,
    reason: str | None,
    requested_by: str | None,
    number: int | None,
    execute: bool,
    how: JobRun,
) -> None:
    """Erase a row, a column of it, a version, or what a file lists.

    The erasure is recorded in the ledger first. Then every body is replaced by a tombstone, including in tables that
    moves have left behind, and the command waits for replicas. Keys, added_id and created_at stay, and a key cannot be
    written again. Followers notice the erasure by themselves; 'erase status' shows those that have not acknowledged it
    yet. 'erase verify' looks for remains. The account needs the role erase.

    The command starts a job, which may run beside other jobs. If it is stopped or killed, continue it with --erasure N;
    run it with --erasure N on several machines to share the work.

    \b
    Examples:
      schemaless erase run 71f0c4d2-2918-44cc-a2df-000000000001 \\
          --reason gdpr-art-17
      schemaless erase run 71f0c4d2-2918-44cc-a2df-000000000001 \\
          --reason gdpr-art-17 --execute
      schemaless erase run --keys subject.txt --reason ticket-4711 --execute \\
          --workers 4
      schemaless erase run --erasure 12 --execute

    Exit status: 0, or 3 if stopped; 'erase run --erasure N --execute' continues the erasure.
    """
    job_store, ledger = JobStore(store), internals_of(store).erasures.ledger
    job, resumed, _ = how.resumed(ERASE, job_store) or (None, None, ())
    number = number if resumed is None else resumed.erasure
    if number is None:
        targets = targets_of(row_key, column, ref_key, keys)
        if reason is None:
            raise InvalidInput("give the reason for the erasure with --reason, as a code such as gdpr-art-17")
        check_reason(reason)
    else:
        if ledger.entry(number).kind != "keys":
            raise InvalidInput(
                f"erasure {number} comes from a retention policy; 'schemaless retention run' executes it"
            )
        targets = list(ledger.targets(number))
    if not execute:
        plan_and_show(store, targets)
        return
    with advising(lambda: _UNKNOWN if number is None else completed_by(number)):
        if number is None:
            assert reason is not None
            number = ledger.intend(reason, targets, scope={"keys": len(targets)}, requested_by=requested_by)
            note(completed_by(number))
        jobs = (each for each in job_store.jobs(ERASE.name) if each.unfinished)
        job = job or next((each for each in jobs if ErasureSpec.of(each).erasure == number), None)
        with how.options(job_store, job) as options:
            run_erasure(store, ErasureSpec(number, thresholds=how.thresholds), **options)
        outcome = record_acknowledgements(store, number)
    print_status(outcome)
