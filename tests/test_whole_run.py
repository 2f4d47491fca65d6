"""The suite's own progress, in a run of pytest of its own."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

pytest_plugins = ["pytester"]

OPTIONS = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:docker", "-p", "no:schemaless")


def test_progress_of_processes_with_different_tests_ends_at_100_percent(pytester, monkeypatch):
    """As make test runs it: what all processes have is the whole, not what the last one to collect has."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        monkeypatch.delenv(name)
    pytester.makeconftest(
        "from tests.whole_run import WholeRun\n"
        "def pytest_configure(config):\n"
        "    config.pluginmanager.register(WholeRun())\n"
    )
    pytester.makepyfile(
        """
        import os, pytest

        @pytest.mark.parametrize("server", [os.environ["SERVER"]])
        @pytest.mark.parametrize("number", range(60))
        def test_there(number, server):
            pass

        @pytest.mark.parametrize("number", range(60))
        def test_anywhere(number):
            pass
        """
    )

    processes = [part for server in ("mysql", "mariadb") for part in ("--tx", f"popen//env:SERVER={server}")]
    result = pytester.runpytest_subprocess(*OPTIONS, "--dist", "each", *processes)

    result.assert_outcomes(passed=240)
    percents = [int(percent) for percent in re.findall(r"\[ *(\d+)%\]", result.stdout.str())]
    assert percents == sorted(percents)
    assert percents[-1] == 100
