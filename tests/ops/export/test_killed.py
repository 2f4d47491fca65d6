"""Processes that export and are killed with -9 at named steps, with and without power: every cell is there once."""

from __future__ import annotations

import random
import threading

import pytest

from tests.ops.export.killed import CONTROLS, STEPS, Death, Exporters

pytestmark = [pytest.mark.mysql, pytest.mark.long]


@pytest.fixture
def exporters(accounts, fresh_url, put, tmp_path):
    """The processes of an export, beside a writer."""
    made = Exporters(accounts.root(fresh_url), tmp_path / "lake", patience_s=120)
    made.prepare()
    stop = threading.Event()

    def write():
        while not stop.wait(0.02):
            put(8, body={"text": "x" * 100})

    writer = threading.Thread(target=write)
    writer.start()

    def finish():
        stop.set()
        writer.join()
        return made.finish()

    yield made, finish
    stop.set()
    writer.join()


@pytest.mark.guarantee("export-once")
def test_exporters_killed_at_any_step_miss_and_repeat_nothing(exporters):
    """What readers see is right after every kill; the last process completes the export."""
    made, finish = exporters
    chance = random.Random(11)
    steps = chance.sample(STEPS, len(STEPS))
    for number, step in enumerate(steps):
        death = Death(step, chance.randrange(2), number if number % 2 else None)
        made.end(made.start(death), death)

    cells, files = finish()

    assert made.faults == []
    assert not made.late
    assert made.killed == dict.fromkeys(steps, 1)
    assert cells > files > 0


@pytest.mark.guarantee("export-once")
@pytest.mark.parametrize("control", CONTROLS)
def test_a_fault_of_an_exporter_is_found(exporters, control):
    """A control: files renamed before they are synced, or listed before they are there, are found after a kill."""
    made, _ = exporters
    for seed in range(10):
        death = Death("rename cells", 1, seed, control)
        made.end(made.start(death), death)
        if made.faults:
            break

    found = ("is not what the manifest says", "is damaged", "cannot be read")
    assert any(text in fault for fault in made.faults for text in found)
