"""A run of several processes of xdist: who runs what, and progress, where they have different tests.

``--dist loadfile`` hands a file to whichever process is free and takes it that all of them have the same tests. Here
some test on MySQL and others on MariaDB. Those with the same environment are a side: a side has each of its tests once,
and within it a file goes to whichever process is free. Files of which either side may run all tests are the first
side's, and the other takes them over once it has nothing else: both end at the same time, on any machine.
"""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from execnet import XSpec
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController, parse_tx_spec_config


def belongs(item: pytest.Item, side: int) -> bool:
    """Whether a side, 0 or 1, runs a test.

    Of what is shared, cases are dealt out by their names, less the server's kind: the commands', and those so marked.
    """
    if item.get_closest_marker("once"):
        return side == 0 or is_for_either_side(item.path)
    if item.get_closest_marker("shared") or item.path.is_relative_to(Path(__file__).parent / "cli"):
        name = re.sub(r"(mysql|mariadb|myrocks)(-|(?=]))", "", item.nodeid)
        # The first side also has what runs once: as measured, three quarters of the cases make both take as long.
        return (zlib.crc32(name.encode()) % 4 != 0) == (side == 1)
    return True


@functools.cache
def is_for_either_side(path: Path) -> bool:
    """Whether a file is marked "once" as a whole."""
    marked = re.compile(r"^pytestmark = (?:\[\s*)?pytest\.mark\.once\b", re.MULTILINE)
    return path.name.startswith("test_") and marked.search(path.read_text(encoding="utf-8")) is not None


class Side(LoadFileScheduling):
    """A side: as many processes as have its environment, which hand in the same tests.

    Args:
        config: of the whole run.
        log: of the whole run.
        first: the side whose files this one takes over in the end, where both may run them; none has the first one.
    """

    def __init__(self, config: pytest.Config, log: Producer, first: Side | None) -> None:
        super().__init__(config, log)
        self.numnodes = 0
        self._first = first

    def schedule(self) -> None:
        """Hand out the first files, two to each process."""
        if self.collection is None:
            if not self._check_nodes_have_same_collection():
                return
            self.collection = list(next(iter(self.registered_collections.values())))
            for test in self.collection:
                file = self._split_scope(test)
                if self._first is None or not self._is_for_either(file):
                    self.workqueue.setdefault(file, {})[test] = False
        for node in [*self.nodes, *self.nodes]:
            self._reschedule(node)

    def _is_for_either(self, file: str) -> bool:
        return is_for_either_side(self.config.rootpath / file.partition("::")[0])

    def _taken_over(self) -> str | None:
        """Return a file of the first side that this one may run, and has all the tests of."""
        queue = {} if self._first is None else self._first.workqueue
        mine = set(self.collection or ())
        return next((file for file, unit in queue.items() if self._is_for_either(file) and unit.keys() <= mine), None)

    def remove_node(self, node: WorkerController) -> str | None:
        """Return the test that a process died of, and have another run what it left; xdist would run that test too."""
        left = ((unit, test) for unit in self.assigned_work[node].values() for test in unit if not unit[test])
        unit, test = next(left, ({}, None))
        if test is not None:
            unit[test] = True
        super().remove_node(node)
        return test

    def _reschedule(self, node: WorkerController) -> None:
        """Give a process a file; it ends where there is none.

        Left alone is one that came for one that died, and has not said yet which tests it has.
        """
        if node not in self.registered_collections:
            return
        if not self.workqueue and not node.shutting_down and (file := self._taken_over()) is not None:
            if self._pending_of(self.assigned_work[node]) > 2:
                return
            assert self._first is not None
            self.workqueue[file] = self._first.workqueue.pop(file)
        super()._reschedule(node)


class Sides:
    """A scheduler of xdist that leaves each process to its side."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        self._sides: dict[frozenset[tuple[str, str]], Side] = {}
        for text in parse_tx_spec_config(config):
            first = next(iter(self), None)
            self._sides.setdefault(frozenset(XSpec(text).env.items()), Side(config, log, first)).numnodes += 1

    def _side(self, node: WorkerController) -> Side:
        return self._sides[frozenset(node.gateway.spec.env.items())]

    def __iter__(self) -> Iterator[Side]:
        return iter(self._sides.values())

    @property
    def nodes(self) -> list[WorkerController]:
        """The processes that are there."""
        return [node for side in self for node in side.nodes]

    @property
    def collection_is_completed(self) -> bool:
        """Whether each process has said which tests it has."""
        return all(side.collection_is_completed for side in self)

    @property
    def tests_finished(self) -> bool:
        """Whether every test has been handed out, and the last ones are being run."""
        return all(side.tests_finished for side in self)

    @property
    def has_pending(self) -> bool:
        """Whether some test has not ended."""
        return any(side.has_pending for side in self)

    def add_node(self, node: WorkerController) -> None:
        """Take a new process."""
        self._side(node).add_node(node)

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        """Take which tests a process has."""
        self._side(node).add_node_collection(node, collection)

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Take that a test has ended."""
        self._side(node).mark_test_complete(node, item_index, duration)

    def remove_node(self, node: WorkerController) -> str | None:
        """Forget a process that ended, and return the test that it died of."""
        return self._side(node).remove_node(node)

    def schedule(self) -> None:
        """Hand out the first files of each side."""
        for side in self:
            side.schedule()


class WholeRun:
    """A plugin of the process that starts the others.

    pytest counts every test that any process has reported, but takes what one of them collected for the whole: where
    one tests on MySQL and the other on MariaDB it ended at 124 %.
    """

    def __init__(self) -> None:
        self._session: pytest.Session | None = None
        self._ids: set[str] = set()

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Take the session, which says how many tests there are."""
        self._session = session

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Producer) -> Sides | None:
        """Make ``--dist loadfile`` aware of sides."""
        return Sides(config, log) if config.getoption("dist") == "loadfile" else None

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Add what a process has collected."""
        self._ids.update(ids)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        """Correct the number, which xdist sets anew after each collection."""
        if self._ids and self._session is not None:
            self._session.testscollected = len(self._ids)
