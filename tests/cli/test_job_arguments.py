"""Options of commands that begin or control jobs: what cannot be used is refused before there is a job."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

import schemaless
from schemaless.cli.main import cli
from schemaless.ops.jobs.job_store import JobStore
from tests.cases import each
from tests.ops.migrate.originals import load

NOWHERE = "mysql://u@nowhere.invalid:3306/trips"
"""No command gets as far as a job there: a refusal has exit status 2, an attempt to connect 1."""

WHOLE = ("-1", "99999999999999999999", "9" * 5_000, "nan", "1.5", "", "many")
FROM_1 = ("0", *WHOLE)
NUMBER = ("-5", "nan", "inf", "-inf", "1e300", "1e400", "", "long")
OVER_0 = ("0", "-0.0", *NUMBER)

VALUES = {
    "--workers": FROM_1,
    "--job": FROM_1,
    "--chunk-ms": ("60001", *FROM_1),
    "--dictionary": FROM_1,
    "--level": ("99", "-99", *WHOLE[1:]),
    "--lock-wait": ("3601", *FROM_1),
    "--attempts": ("3601", *FROM_1),
    "--max-rebuild-lag": OVER_0,
    "--max-pause": OVER_0,
    "--give-up": OVER_0,
    "--lag-timeout": NUMBER,
    "--stop-timeout": NUMBER,
    "--free-bytes": ("-1", "nan", "inf", "1e300", "1e400", "", "much", "9" * 5_000),
    "--max-lag": OVER_0,
    "--max-threads-running": FROM_1,
    "--max-history-length": FROM_1,
    "--max-mb-per-s": OVER_0,
    "--min-free": ("0", "-1", "nan", "inf", "1e300", "", "much", "9" * 5_000),
    "--yield-above": OVER_0,
    "--number": FROM_1,
    "--seed": ("nan", "1.5", "", "any"),
    "--sample": ("0", "1", "-1%", "100%", "nan", "inf", "", "some"),
}
COMMANDS = {
    "shards move": ("0", "--to", "cluster-2", "--execute"),
    "shards abort": (),
    "shards status": (),
    "migrate run": ("--execute", "--to", "msgpack+zstd"),
    "migrate restore": ("--execute", "--archive", "."),
    "job set": ("1",),
    "migrate report": (),
    "migrate verify": (),
    "migrate finalise": (),
    "rebuild": ("--execute",),
    "check": (),
    "trigger run": ("json:dumps",),
    "index run": (),
    "index drop": ("trips", "--execute"),
}


def options_of(words: str) -> Iterator[str]:
    """Yield the options of a command that take a number."""
    command: click.Command = cli
    for word in words.split():
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None
        command = found
    for option in command.params:
        if not isinstance(option, click.Option):
            continue
        text = isinstance(option.type, click.types.StringParamType | click.Choice | click.Path) or option.is_flag
        if not text or option.opts[0] == "--sample":
            yield option.opts[0]


CASES = [(words, option) for words in COMMANDS for option in options_of(words)]


@pytest.mark.once
@each("words, option", CASES)
def test_a_number_that_cannot_be_used_is_refused_before_anything_is_opened(invoke, words, option):
    """Exit 2, the option by its name, and no connection to a server: so there cannot be a job either."""
    wrong = []
    for value in VALUES[option]:
        result = invoke(*words.split(), *COMMANDS[words], f"{option}={value}", url=NOWHERE)
        names_it = f"'{option}'" in result.err or option in ("--level", "--sample", "--free-bytes")
        if (result.code, "Traceback" in result.err, names_it) != (2, False, True):
            wrong.append((value[:20], result))

    assert wrong == []


@pytest.mark.mysql
@pytest.mark.parametrize(
    "words",
    [
        ("migrate", "run", "--dask", "nowhere://x"),
        ("migrate", "run", "--to", "msgpack+zstd", "--dictionary", "99"),
        ("migrate", "run", "--verify-after", "replica"),
        ("migrate", "run", "--archive", "/dev/null/originals"),
        ("migrate", "run", "--shards", "99999999999999999999"),
        ("migrate", "run", "--shards", "9" * 5_000),
        ("migrate", "run", "--flag-file", "relative"),
        ("migrate", "restore", "--dask", "nowhere://x", "--archive", "{archive}"),
        ("migrate", "restore", "--archive", "{archive}/none"),
        ("rebuild", "--dask", "nowhere://x"),
        ("shards", "move", "0", "--to", "cluster-2", "--unchecked-accounts", "--dask", "nowhere://x"),
        (
            "shards",
            "move",
            "--drain",
            "cluster-1",
            "--to",
            "cluster-2",
            "--unchecked-accounts",
            "--dask",
            "nowhere://x",
        ),
        ("shards", "move", "0", "--to", "cluster-2", "--unchecked-accounts", "--workers", "0"),
        ("shards", "move", "0", "--to", "cluster-9"),
        ("shards", "move", "0", "--drain", "cluster-1", "--to", "cluster-2"),
        ("shards", "move", "--drain", "cluster-1", "--to", "cluster-1"),
        ("shards", "move", "--drain", "cluster-9", "--to", "cluster-1"),
        ("shards", "move", "--drain", "cluster-1"),
        ("shards", "move", "--balance", "--to", "cluster-2"),
    ],
    ids=lambda words: " ".join(words)[:60],
)
def test_arguments_refused_by_the_datastore_leave_no_job(
    invoke, accounts, fresh_url, fresh_store, new_row, tmp_path, words
):
    """They are refused late, by what the catalog says or by who does the work, and still before there is a job."""
    load(fresh_store, new_row)
    url = accounts.root(fresh_url)
    archive = tmp_path / "originals"
    before = 0
    if "{archive}" in words:
        invoke("migrate", "run", "--execute", "--archive", archive, url=url)
        before = 1
    result = invoke(*(word.format(archive=archive) for word in words), "--execute", url=url)
    with schemaless.connect(url) as store:
        jobs = JobStore(store).jobs()

    # A dictionary that is not there is no wrong usage: it can be imported.
    assert (result.code, result.out) == (1 if "--dictionary" in words else 2, ""), result.err
    assert "Traceback" not in result.err
    assert len(jobs) == before


@pytest.mark.mysql
def test_one_more_shard_that_cannot_be_moved_is_one(invoke, accounts, fresh_url):
    """And not "1 others"."""
    url = accounts.root(fresh_url)
    said = {
        shards: invoke("shards", "move", shards, "--to", "cluster-2", "--execute", url=url).err
        for shards in ("2-3", "3")
    }

    assert said["2-3"].endswith(
        " cannot be moved to cluster-2: it is already on cluster-2; 1 more shard cannot be moved either\n"
    )
    assert said["3"] == "schemaless: shard 3 cannot be moved to cluster-2: it is already on cluster-2\n"


@pytest.mark.mysql
def test_dry_run_of_a_move_counts_only_shards_that_can_be_moved(invoke, accounts, fresh_url):
    """It does not propose --execute, which would be refused."""
    move = ("shards", "move", "1,3", "--to", "cluster-2", "--unchecked-accounts")
    dry = invoke(*move, url=accounts.root(fresh_url))

    assert dry.code == 1
    assert re.match(r"1 shard with \S+ \S+ would move to cluster-2; ", dry.out)
    assert "shard 3 cannot be moved: it is already on cluster-2\n" in dry.err
    assert dry.err.endswith("nothing was changed; --execute is refused while a shard cannot be moved\n")
