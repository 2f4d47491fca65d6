"""Progress on standard error: one line of a terminal's width, in units for people, with the end where it is known."""

from __future__ import annotations

import io
import itertools
import re
import time
from datetime import UTC, datetime

import pytest
from rich.cells import cell_len
from rich.console import Console

from schemaless.base.events import Advanced, Total
from schemaless.ops.jobs.job import ClusterState, Job, ShardState
from schemaless.ops.jobs.status import Eta, JobStatus
from schemaless.ui.terminal import job_progress, output
from schemaless.ui.terminal.output import progress, speed_text
from schemaless.ui.terminal.progress import ProgressLine, amount_text, duration, rate_text
from tests.cases import each
from tests.faults.kinds import ONE_KIND
from tests.ops.migrate.originals import TEXTS, load

FACTS = ["823 k of 1,235 k ids", "1,994 k ids/s", "0:00:01"]


@each("description", ["checking", "loading " + "trips-2016-01-01" * 8, "読み込み" * 20])
@each("share", [None, 0.0, 0.4, 1.0])
@each("width", [20, 40, 60, 80, 200])
def test_progress_line_is_one_line_at_any_width(description, share, width):
    """Never wrapped, whatever the description; the first fact is the last to go."""
    screen = io.StringIO()
    Console(file=screen, width=width, force_terminal=True, color_system=None).print(
        ProgressLine(description, share, FACTS)
    )

    (line,) = screen.getvalue().splitlines()
    assert cell_len(line.rstrip()) < width
    assert FACTS[0] in line or width < 40
    assert (", ".join(FACTS) in line) == (width >= 80 or (width == 60 and description == "checking"))


@pytest.fixture
def terminal(monkeypatch):
    """Standard error as a terminal of 80 columns; gives what is on it."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, color_system=None, highlight=False)
    for module in (output, job_progress):
        monkeypatch.setattr(module, "err", lambda **how: console)
    return screen


def lines_on(screen: io.StringIO) -> list[str]:
    """What was drawn, without the codes that move the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).replace("\r", "\n").splitlines()


@pytest.mark.parametrize(
    ("done", "total", "unit", "text"),
    [
        (0, None, "bytes", "0 B"),
        (12, 94, "bytes", "12 of 94 B"),
        (12.3e6, 94.2e6, "bytes", "12.3 of 94.2 MB"),
        (512, 3e12, "bytes", "0.0 of 3.0 TB"),
        (999, 9_999, "cells", "999 of 9,999 cells"),
        (1_234, 12_345, "cells", "1.2 of 12.3 k cells"),
        (1_234_567, 3_400_000_000, "ids", "0.0 of 3.4 G ids"),
        (1_234_567, None, "ids", "1.2 M ids"),
        (1, 4, "clusters", "1 of 4 clusters"),
        (0.9, 1, "shards", "0 of 1 shard"),
        (3.6, 4, "shards", "3 of 4 shards"),
    ],
)
def test_amounts_are_scaled_alike(done, total, unit, text):
    """Done and total in one unit, chosen by the larger."""
    assert amount_text(done, total, unit) == text


@pytest.mark.parametrize(
    ("per_s", "unit", "text"),
    [
        (4.5e6, "bytes", "4.5 MB/s"),
        (3, "bytes", "3 B/s"),
        (12_300, "cells", "12.3 k cells/s"),
        (10, "shards", "10 shards/s"),
        (2.54, "shards", "2.5 shards/s"),
        (0.04, "shards", "2.4 shards/min"),
        (0.004, "shards", "14.4 shards/h"),
        (0.0001, "shards", "0.4 shards/h"),
        (0, "shards", "0 shards/s"),
    ],
)
def test_a_rate_is_in_the_unit_in_which_it_can_be_read(per_s, unit, text):
    """Shards that take minutes each are not done at 0 a second."""
    assert rate_text(per_s, unit) == text


def test_an_age_by_a_clock_that_is_behind_is_not_negative():
    """The status page measures the age of the newest measurement, whose time is the server's, by its own clock."""
    assert duration(-7_200) == duration(0) == "0.0 s"


@pytest.mark.parametrize(("mb_per_s", "text"), [(3.94, "3.9 MB/s"), (0.1, "0.1 MB/s"), (0.02, "20 kB/s")])
def test_the_rate_of_a_slow_job_is_not_zero(mb_per_s, text):
    """A throttled job with 0.02 MB/s does not look as if it had stopped."""
    assert speed_text(mb_per_s) == text


def test_progress_is_one_line_of_a_terminal(terminal):
    """Whatever the description and the figures: nothing is wrapped, and the end is known once it is."""
    with progress("loading a-file-with-a-very-long-name-of-its-own.ndjson.gz", None, "bytes") as listener:
        listener(Advanced(10**6))
        listener(Total(94 * 10**6))
        listener(Advanced(93 * 10**6))
    lines = [line for line in lines_on(terminal) if line.strip()]

    assert lines
    assert all(len(line) <= 80 and line.startswith("loading a") for line in lines)
    assert "94.0 of 94.0 MB" in lines[-1]
    assert "/s, in " in lines[-1]
    assert "\u2026" in lines[-1]


def test_progress_without_a_terminal_is_a_line_now_and_then(monkeypatch, capsys):
    """With share, speed and what is left where the end is known."""
    clock = itertools.count(step=6)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    with progress("restoring", None, "cells") as listener:
        listener(Advanced(50_000))
        listener(Total(200_000))
        listener(Advanced(50_000))
    first, last = capsys.readouterr().err.splitlines()

    assert first.startswith("restoring: 50.0 k cells, ")
    assert last.startswith("restoring: 100.0 of 200.0 k cells, 50%, ")
    assert last.endswith(" s left")


@pytest.mark.long
@pytest.mark.mysql
@ONE_KIND
def test_restore_knows_how_much_there_is(invoke, terminal, fresh_store, new_row, migrate_url, tmp_path):
    """From what the job has noted."""
    load(fresh_store, new_row)
    archive = ("--archive", tmp_path / "originals")
    assert invoke("migrate", "run", "--execute", *archive, url=migrate_url).code == 0
    assert invoke("migrate", "restore", *archive, url=migrate_url).code == 0
    counted = terminal.getvalue()
    assert invoke("migrate", "restore", "--execute", *archive, url=migrate_url).code == 0

    assert f"{len(TEXTS)} of {len(TEXTS)} cells" in counted
    assert f"{len(TEXTS)} cells, 4 of 4 shards" in terminal.getvalue().removeprefix(counted)


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("width", [40, 80, 120])
def test_picture_of_a_job_is_one_line(waits, width):
    """How far, how fast and how long; or, where it waits, for what."""
    began = datetime(2026, 1, 1, tzinfo=UTC)
    job = Job(
        3, "migrate", "paused" if waits else "running", {"to": "x"}, {}, "me", began, None, "by me, for lunch " * 9
    )
    shards = [ShardState(number, cells=600_000) for number in range(32)]
    clusters: list[ClusterState] = []
    status = JobStatus(job, shards, clusters, 2e8, 1e8, 2, 3.9, Eta(20.0, 50.0, 190.0))
    screen = io.StringIO()
    Console(file=screen, width=width, force_terminal=True, color_system=None).print(job_progress.picture(status))

    (line,) = screen.getvalue().splitlines()
    assert line.startswith("job 3 ")
    assert "50.0% of 200 MB" in line
    assert ("waits on all clusters: paused by me" in line) == (waits and width > 40)
    assert ("3.9 MB/s" in line) == (not waits)
    assert ("19.2 M cells" in line) == (not waits and width > 40)
    assert ("0 of 32 shards, 2 runners" in line) == (not waits and width > 80)
