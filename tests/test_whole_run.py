"""The suite's own run of several processes, in runs of pytest of its own."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.whole_run import belongs, is_for_either_side

pytestmark = pytest.mark.once

pytest_plugins = ["pytester"]

OPTIONS = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:docker", "-p", "no:schemaless", "-v")
CONFTEST = """
    from tests.whole_run import WholeRun

    def pytest_configure(config):
        config.pluginmanager.register(WholeRun())
"""
TESTS = """
    import os, pytest

    @pytest.mark.parametrize("server", [os.environ["SERVER"]])
    @pytest.mark.parametrize("number", range(20))
    def test_there(number, server):
        pass

    @pytest.mark.parametrize("number", range(20))
    def test_anywhere(number):
        pass
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., pytest.RunResult]:
    """Runs files as make test does: on two sides, each of two processes."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        monkeypatch.delenv(name)
    pytester.makeconftest(CONFTEST)

    def run(*options: str, **files: str) -> pytest.RunResult:
        pytester.makepyfile(**files)
        processes = [
            part
            for server in ("mysql", "mariadb")
            for number in (1, 2)
            for part in ("--tx", f"id={server}-{number}//popen//env:SERVER={server}")
        ]
        return pytester.runpytest_subprocess(*OPTIONS, "--dist", "loadfile", *processes, *options)

    return run


def test_each_side_has_each_of_its_tests_once(run):
    """In one of its two processes, a file in one; progress is that of the whole, and ends at 100 %."""
    result = run(**{f"test_{letter}": TESTS for letter in "abcd"})

    result.assert_outcomes(passed=4 * 80)
    found = re.findall(r"\[(mysql|mariadb)-(\d)\] \[ *(\d+)%\] PASSED (test_\w)\.py::(\S+)", result.stdout.str())
    assert Counter((side, file, test) for side, _, _, file, test in found).most_common(1)[0][1] == 1
    where = {(side, file): {number for other, number, _, each, _ in found if (other, each) == (side, file)}
             for side, _, _, file, _ in found}  # fmt: skip
    assert all(len(numbers) == 1 for numbers in where.values())
    assert {(side, number) for side, number, *_ in found} == {(s, n) for s in ("mysql", "mariadb") for n in "12"}
    percents = [int(percent) for _, _, percent, _, _ in found]
    assert percents == sorted(percents)
    assert percents[-1] == 100


def test_a_side_without_tests_does_not_keep_the_other_from_its_own(run):
    """As with ARGS of a test that runs on one side only; there are more processes than files, too."""
    run("-k", "mysql", test_a=TESTS).assert_outcomes(passed=20)


def test_a_test_that_ends_its_process_fails_once(run):
    """The rest of the file runs in another process, and what other processes run is not touched."""
    result = run(
        test_a="""
            import os

            def test_before():
                pass

            def test_that_ends_it():
                os._exit(3)

            def test_after():
                pass
        """,
        test_b=TESTS,
    )

    result.assert_outcomes(passed=4 + 80, failed=2)
    result.stdout.fnmatch_lines(["*crashed while running 'test_a.py::test_that_ends_it'*"])


SHARED = """
    import pytest

    @pytest.fixture(params=["mysql", "mariadb"])
    def server(request):
        return request.param

    def test_both(server): pass

    @pytest.mark.once
    def test_once(server): pass

    @pytest.mark.shared
    @pytest.mark.parametrize("number", range(20))
    def test_shared(number, server): pass
"""


def test_a_shared_case_runs_on_one_side_whatever_the_server(pytester):
    """No case is left out, none runs on both; what is not marked runs on both, and what is marked once on the first."""
    pytester.makepyprojecttoml("[tool.pytest.ini_options]\nmarkers = ['once', 'shared']")
    items, _ = pytester.inline_genitems(pytester.makepyfile(SHARED))
    sides = {item.name: [side for side in (0, 1) if belongs(item, side)] for item in items}

    assert sides.pop("test_both[mysql]") == sides.pop("test_both[mariadb]") == [0, 1]
    assert sides.pop("test_once[mysql]") == sides.pop("test_once[mariadb]") == [0]
    for number in range(20):
        assert len(sides[f"test_shared[mysql-{number}]"]) == 1
        assert sides[f"test_shared[mysql-{number}]"] == sides[f"test_shared[mariadb-{number}]"]
    assert {side for (side,) in sides.values()} == {0, 1}


@pytest.mark.parametrize(
    "marks", ["pytest.mark.once", "[pytest.mark.once, pytest.mark.long]", "[\n    pytest.mark.once,\n]"]
)
def test_a_file_is_for_either_side_where_all_of_it_runs_once(tmp_path, marks):
    """One that has a test for both is not."""
    whole, part = tmp_path / "test_whole.py", tmp_path / "test_part.py"
    whole.write_text(f"import pytest\n\npytestmark = {marks}\n")
    part.write_text(SHARED)

    assert [is_for_either_side(path) for path in (whole, part)] == [True, False]


EITHER = """
    import os, pytest, time

    pytestmark = pytest.mark.once

    def test_once():
        # The first side is busy until the other one has begun to help.
        if os.environ["SERVER"] == "mysql":
            deadline = time.monotonic() + 60
            while not os.path.exists("helped") and time.monotonic() < deadline:
                time.sleep(0.01)
        else:
            open("helped", "w").close()
"""


def test_the_second_side_takes_over_what_either_may_run(run, pytester):
    """Each such file runs once, on whichever side is free; what both have to run, both run."""
    pytester.makepyprojecttoml("[tool.pytest.ini_options]\nmarkers = ['once']")
    result = run(test_a=TESTS, **{f"test_either_{letter}": EITHER for letter in "abcdefgh"})

    result.assert_outcomes(passed=80 + 8)
    found = re.findall(r"\[(mysql|mariadb)-\d\] \[ *\d+%\] PASSED test_either_(\w)\.py::test_once", result.stdout.str())
    assert sorted(letter for _, letter in found) == list("abcdefgh")
    assert {side for side, _ in found} == {"mysql", "mariadb"}


def test_an_engine_is_the_default_for_tests_on_its_servers_only(run, pytester):
    """Neither a test of another kind nor one without servers creates cells in MyRocks because of the test before."""
    pytester.makeconftest("from tests.conftest import pytest_runtest_protocol, server_kind")
    pytester.makepyfile("""
        import pytest, schemaless

        def engine():
            return schemaless.create.__kwdefaults__["engine"]

        @pytest.fixture(scope="session")
        def created_in(server_kind):
            return engine()

        @pytest.mark.parametrize("server_kind", ["myrocks"], indirect=True, scope="session")
        def test_on_myrocks(created_in):
            assert (engine(), created_in) == ("rocksdb", "rocksdb")

        def test_without_servers():
            assert engine() == "innodb"

        @pytest.mark.parametrize("server_kind", ["mysql"], indirect=True, scope="session")
        def test_on_mysql(created_in):
            assert (engine(), created_in) == ("innodb", "innodb")
    """)

    pytester.runpytest_subprocess(*OPTIONS).assert_outcomes(passed=3)
