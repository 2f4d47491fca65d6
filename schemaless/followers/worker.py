"""A worker: it takes the shards that are dealt to it, reads their feeds, and has each page dealt with.

The servers' binary logs say where there is more (``wakes.py``). Where they do not, and now and then besides, a worker
looks at its own shards' highest added_ids, many in a statement, as often as its ``pace.py`` says. Shards with a few new
cells are read together (``reading.py``). How far it is, is written down for all shards of a server in one step, every
100 ms or 250 cells, while it goes on with the next ones (``notes.py``); only then does a location count.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

from schemaless.cell import Page, StoredCell
from schemaless.datastore import Datastore
from schemaless.errors import LeaseLost, SchemalessError
from schemaless.followers.batches import PAGE_CELLS, in_turn, next_ones, read_together
from schemaless.followers.binlog_notifier import Wakes
from schemaless.followers.black_box import BlackBox
from schemaless.followers.handler import Dealer
from schemaless.followers.inflight import Hand
from schemaless.followers.lease_state import LEAST_AGAIN_S, MOST_AGAIN_S, Owned, wake
from schemaless.followers.lookout import Lookout, Seen
from schemaless.followers.membership import ALL, HEALTHY, QUARANTINE, Member, Members, Pair, Role, Timing, View
from schemaless.followers.notes import Notes
from schemaless.followers.poll_schedule import Pace
from schemaless.followers.rows import FollowerRow, FollowerRows
from schemaless.followers.states import DIED, QUARANTINED, RUNNING, STOPPED
from schemaless.internals import internals_of

_log = logging.getLogger("schemaless")

_SLICE_S: Final = 0.25  # who waits to hear something looks so often whether it is to stop
_NOTED_CELLS: Final = PAGE_CELLS // 2

_LATE_S: Final = 10.0  # what was heard of is taken to become visible for so long
_TOLD: Final = 20  # of the shards that wait, a worker names so many


class Interrupted(Exception):
    """The page is left where it is: to be gone on with later, or by somebody else."""


class Worker:
    """Works on its share of some followers' shards until it is told to stop.

    Args:
        store: the datastore.
        dealers: what is done with the cells, one for each follower.
        name: that no other worker has.
        timing: how long things take.
        stop: when it is set, the worker ends the call that it is in, writes down how far it is, and goes.
        listen: whether new cells are heard of from the servers' binary logs, where that is to be had.
        role: which shards it serves.
        box: what its supervisor reads after its death.
    """

    def __init__(
        self,
        store: Datastore,
        dealers: Sequence[Dealer],
        name: str,
        *,
        timing: Timing | None = None,
        stop: threading.Event,
        listen: bool = True,
        role: Role = ALL,
        box: BlackBox | None = None,
    ) -> None:
        self.store = store
        self.name = name
        self.timing = timing or Timing()
        self._rows = FollowerRows(internals_of(store).shards)
        self._notes = Notes(self._rows)
        self.owned: dict[Pair, Owned] = {}
        self.hand = Hand()
        self._dealers = {dealer.name: dealer for dealer in dealers}
        self._stop = stop
        self._members = Members(
            internals_of(store), name, list(self._dealers), self.timing, self._beat, self._look_soon
        )
        self._generation = 0
        self._role = role
        self._box = box or BlackBox()
        # Pairs dealt to this worker while they are healthy, and while they are quarantined, by the members and
        # followers that there are.
        self._deal: tuple[tuple[tuple[Member, ...], frozenset[str]], tuple[frozenset[Pair], frozenset[Pair]]] | None
        self._deal = None
        # As of the last look at all rows that may be this worker's: those that are, and those that would be, were they
        # not quarantined.
        self._due: frozenset[Pair] = frozenset()
        self._quarantined: frozenset[Pair] = frozenset()
        # Its own, as far as it knows, but not looked at since it was taken to live again.
        self._unsure: set[Pair] = set()
        # Shards whose row may be in this worker's name, though it does not know.
        self._doubtful: set[Pair] = set()
        self._listen = listen
        self._wakes: Wakes | None = None
        self._open: set[Pair] = set()  # with something to be done, now or later; whose turn it was last:
        self._last: Pair | None = None
        # In how many shards new cells were heard of, and in how many they were found by looking.
        self._heard = self._found = 0
        self._dealt = self._pending = 0
        self._noted_s = time.monotonic()
        self._lookout = Lookout(self._rows)
        self._pace = Pace(self.timing.look_s)
        self._looked: tuple[tuple[Member, ...], Mapping[str, str]] | None = None

    def run(self) -> None:
        """Work until ``stop`` is set, or none of its followers is there any more."""
        with self._members:
            if self._listen:
                self._wakes = Wakes(internals_of(self.store).shards, self.timing)
            try:
                while not self._stop.is_set():
                    view = self._members.view
                    if view is not None and not any(name in view.wanted for name in self._dealers):
                        _log.warning("%s ends, with nothing left of %s", self.name, ", ".join(self._dealers))
                        self.owned.clear()
                        return
                    self.turn()
                    self._rest(view)
                self.let_go()
            finally:
                self._lookout.close()
                self._notes.close()
                if self._wakes is not None:
                    self._wakes.close()

    def turn(self) -> None:
        """Look where it is time to, and work off what there is then."""
        view = self._members.view
        if view is None:
            return
        # Before the look: whoever owned something before then, owns it by what the rows say now.
        if self._members.generation != self._generation:
            self._generation = self._members.generation
            self._doubt()
        self._hear()
        seen = self._lookout.take()
        if seen is not None:
            self._note(seen)
        if self._wakes is None or self._looked is None or time.monotonic() >= self._pace.sweep_at_s:
            self._find(view)
        self._end_quarantines()
        if (back := self._rows.back()) is not None:
            wake(self.owned.values(), back)
        with suppress(Interrupted):
            self._work_off(view, time.monotonic() + max(self.timing.renew_s / 2, self._pace.pause_s))
        if self._wakes is None or time.monotonic() >= self._noted_s + self.timing.note_s:
            self.write_down(wait=self._wakes is None)

    def _doubt(self) -> None:
        """Have nothing be worked on before its row was looked at: what was this worker's own may be another's."""
        self._lookout.drop()
        self._looked = None
        self._unsure |= self.owned.keys()

    def _find(self, view: View) -> None:
        """Look at rows, or for new cells, whichever it is time for."""
        unheard = self._unheard()
        started_s = time.thread_time()
        changed = bool(self._doubtful or self._unsure) or self.owned.keys() != self._due
        changed |= self._looked != (view.members, view.wanted)
        due = time.monotonic() >= self._pace.look_at_s
        # Which shards are quarantined is known from their rows only.
        if changed or (due and (unheard or self._quarantined or self._role == QUARANTINE)):
            self._look(view)
            self._looked = view.members, view.wanted
        elif unheard:
            self._sweep(unheard)
        elif due and not self._lookout.busy:
            self._lookout.begin(self.owned.values())
        else:
            due = False
        self._pace.looked(time.thread_time() - started_s, whole=changed or due, hears=not unheard)

    def _hear(self) -> None:
        """Note where there is more, as far as that was heard."""
        if self._wakes is None:
            return
        woken, look = self._wakes.take()
        if look:
            self._pace.now()
        for shard, added_id in woken.items():
            for name in self._dealers:
                owned = self.owned.get((name, shard))
                if owned is not None and owned.hear(added_id):
                    self._heard += 1
                    self._open.add(owned.pair)

    def _unheard(self) -> set[int]:
        """Listen to the servers of its shards; return the shards of which nothing is heard."""
        shards = {shard for _, shard in self.owned}
        if self._wakes is None:
            return shards
        nodes = {shard: internals_of(self.store).shards.node_of(shard) for shard in shards}
        self._wakes.listen(nodes.values())
        return {shard for shard, node in nodes.items() if not self._wakes.hears(node)}

    def _rest(self, view: View | None) -> None:
        """Wait until there is something to do, or to be written down."""
        if self._wakes is None or view is None:
            self._stop.wait(self._pace.pause_s)
            return
        now_s = time.monotonic()
        until_s = self._pace.sweep_at_s
        # What is on its way is not asked after all the time.
        note_at_s = max(self._noted_s + self.timing.note_s, now_s + MOST_AGAIN_S if self._notes.busy else now_s)
        if self._pending:
            until_s = min(until_s, note_at_s)
        for pair in self._open:
            owned = self.owned.get(pair)
            if owned is not None and owned.more and view.wanted.get(pair[0]) == RUNNING:
                again_at_s = note_at_s if owned.stuck else max(owned.again_at_s, now_s + LEAST_AGAIN_S)
                until_s = min(until_s, max(owned.not_before_s, again_at_s))
        while (left_s := until_s - time.monotonic()) > 0 and not self._stop.is_set() and not self._wakes.news:
            self._wakes.wait(min(left_s, _SLICE_S))

    # What is its own

    def _sweep(self, shards: set[int]) -> None:
        """See in which of these shards there is more."""
        tops, failed = self._rows.tops(shards)
        for owned in list(self.owned.values()):
            if owned.pair[1] in failed:
                owned.fail(failed[owned.pair[1]])
            else:
                self._seen(owned, tops.get(owned.pair[1], owned.top))

    def _seen(self, owned: Owned, top: int) -> None:
        """Note the highest added_id, as a look found it."""
        self._found += top > owned.top
        # What was just heard of may not be visible yet.
        owned.top = max(top, owned.heard) if time.monotonic() < owned.heard_at_s + _LATE_S else top
        if owned.more:
            self._open.add(owned.pair)

    def _note(self, seen: Seen) -> None:
        """Take over what a look found that others did not wait for; so what came since counts before it."""
        for pair, before in seen.before.items():
            owned = self.owned.get(pair)
            if owned is not None and owned.epoch == before.epoch:
                self._compare(owned, seen.row(owned), seen.looked.failed.get(pair[1]))
        self._pace.took(seen.cpu_s)

    def _compare(self, owned: Owned, row: FollowerRow | None, failure: SchemalessError | None) -> None:
        """Have what it has of a shard be as the row says."""
        if failure is not None:
            owned.fail(failure)
            return
        self._unsure.discard(owned.pair)
        if row is None or row.epoch != owned.epoch:
            self._lose(owned.pair)
        else:
            owned.parked, owned.replays = row.parked, row.replays
            self._seen(owned, row.top)
            if row.quarantined and self._role == HEALTHY:
                # To be given back.
                self._looked = None
            if owned.state != row.state:
                owned.state, owned.attempts = row.state, row.attempts
                if row.state == QUARANTINED:
                    owned.careful = PAGE_CELLS
                if row.state != STOPPED:
                    owned.wait(0, "")

    def _look(self, view: View) -> None:
        """See how the rows are: what is lost, what is to be given back or taken, and where there is more."""
        healthy, quarantined = self.dealt_to_me(view)
        looked = self._rows.look(healthy | quarantined | self.owned.keys() | self._doubtful)
        for pair in list(self.owned):
            self._compare(self.owned[pair], looked.rows.get(pair), looked.failed.get(pair[1]))
        self._quarantine(view, healthy, looked.rows)
        is_quarantined = {pair for pair, row in looked.rows.items() if row.quarantined}
        # A shard without a row, or that cannot be asked, stays with whom it is.
        kept = {pair for pair in quarantined & self.owned.keys() if pair not in looked.rows}
        pairs = (healthy - is_quarantined) | (quarantined & is_quarantined) | kept
        self._due, self._quarantined = pairs, (healthy | quarantined) & is_quarantined
        self._box.found(len(pairs - is_quarantined), len(self._quarantined))
        given_back = [pair for pair in self.owned if pair not in pairs]
        if given_back:
            self.write_down()
            for pair in given_back:
                self._give_back(pair)
        for pair in pairs - self.owned.keys():
            row = looked.rows.get(pair)
            if row is not None and (row.worker == self.name or view.is_free(pair, row.worker)):
                self._take(view, pair, row)
        for pair in self._doubtful - self.owned.keys():
            row = looked.rows.get(pair)
            theirs = row is None or row.worker != self.name or (pair not in pairs and self._released(pair, row.epoch))
            # Else nobody would ever have it: others leave alone what is in the name of one who lives.
            if theirs and pair[1] not in looked.failed:
                self._doubtful.discard(pair)
        self._unsure &= self.owned.keys()

    def dealt_to_me(self, view: View) -> tuple[frozenset[Pair], frozenset[Pair]]:
        """Return the pairs that are dealt to this worker while they are healthy, and while they are quarantined."""
        by = view.members, frozenset(view.wanted)
        if self._deal is None or self._deal[0] != by:
            self._deal = (
                by,
                (
                    frozenset() if self._role == QUARANTINE else frozenset(self._deal_out(view, quarantined=False)),
                    frozenset() if self._role == HEALTHY else frozenset(self._deal_out(view, quarantined=True)),
                ),
            )
        return self._deal[1]

    def _deal_out(self, view: View, *, quarantined: bool) -> Iterator[Pair]:
        for name in self._dealers:
            for shard in range(self.store.shard_count) if name in view.wanted else ():
                if view.owner((name, shard), quarantined=quarantined) == self.name:
                    yield name, shard

    def _quarantine(self, view: View, pairs: Iterable[Pair], rows: dict[Pair, FollowerRow]) -> None:
        """Quarantine shards whose dead owner left a message that it was in a call which it may have died of.

        Its supervisor does that as a rule, unless it died as well. The next worker would die of the same cell.
        """
        if self._role != HEALTHY:
            return
        for pair in pairs:
            row = rows.get(pair)
            if row is None or row.worker in (None, self.name) or view.member(row.worker) is not None:
                continue
            if row.state == RUNNING and row.attempts and (row.message or "").startswith(DIED):
                try:
                    if self._rows.quarantine(pair, row.epoch, row.message or DIED, 0.0):
                        rows[pair] = replace(row, state=QUARANTINED, worker=None, epoch=row.epoch + 1)
                except SchemalessError as error:
                    _log.warning("%s: shard %d could not be quarantined: %s", *pair, error)

    def _end_quarantines(self) -> None:
        """Release shards that are healthy again: no worker died for a page of cells, or for a while up to the end."""
        for owned in [each for each in self.owned.values() if each.state == QUARANTINED and not each.replays]:
            proven = owned.careful == 0
            idle = not owned.more and time.monotonic() - owned.claimed_at_s > self.timing.probation_s
            if not (proven or idle):
                continue
            self.write_down()
            if owned.location != owned.reached or self.owned.get(owned.pair) is not owned:
                continue
            try:
                self._rows.end_quarantine(owned.pair, owned.epoch)
            except SchemalessError as error:
                owned.fail(error)
                continue
            _log.warning("%s: shard %d is no longer quarantined", *owned.pair)
            del self.owned[owned.pair]
            self._pace.now()
            self._looked = None

    def _take(self, view: View, pair: Pair, row: FollowerRow) -> None:
        self._box.claim()
        try:
            epoch = self._rows.claim(pair, self.name, row)
            if epoch is None:
                return
            # How far it is counts as of now: whoever had it may have gone on until he lost it.
            now = self._rows.look([pair]).rows.get(pair)
        except SchemalessError as error:
            # It may have been, and the reply was lost.
            self._doubtful.add(pair)
            _log.warning("%s: shard %d could not be taken over: %s", pair[0], pair[1], error)
            return
        self._doubtful.discard(pair)
        self._unsure.discard(pair)
        if now is None or now.epoch != epoch:
            return
        dead = row.worker is not None and view.member(row.worker) is None
        careful = PAGE_CELLS if dead or now.quarantined else 0
        owned = Owned(pair, epoch, now.location, now.location, now.top, now.attempts, careful)
        owned.state, owned.parked, owned.replays = now.state, now.parked, now.replays
        owned.death = now.message if now.message is not None and now.message.startswith(DIED) else None
        if now.retry_s is not None and now.retry_s > 0:
            owned.wait(now.retry_s, now.message or "")
        self.owned[pair] = owned
        self._open.add(pair)

    def _lose(self, pair: Pair) -> None:
        """Leave a shard whose epoch is another; where nobody has taken it, as behind a move, its row names this one."""
        self.owned.pop(pair, None)
        self._doubtful.add(pair)

    def _give_back(self, pair: Pair) -> None:
        owned = self.owned.get(pair)
        if owned is not None and owned.location == owned.reached and self._released(pair, owned.epoch):
            del self.owned[pair]

    def _released(self, pair: Pair, epoch: int) -> bool:
        try:
            self._rows.release(pair, epoch)
        except SchemalessError as error:
            _log.warning("%s: shard %d could not be given back: %s", pair[0], pair[1], error)
            return False
        return True

    def let_go(self) -> None:
        """Write down how far everything is, and give all of it back."""
        self._noted(wait=True)
        for owned in self.owned.values():
            owned.wait(0, "")  # there is no later
        self.write_down()
        for pair in list(self.owned):
            self._give_back(pair)

    # Pages

    def _work_off(self, view: View, until_s: float) -> None:
        left = [owned for pair in in_turn(self._open, self._last) if (owned := self.owned.get(pair)) is not None]
        self._open = {owned.pair for owned in left if owned.more}
        for owned in left:
            if owned.replays and self._is_due(view, owned):
                with self._waiting(owned):
                    self._dealers[owned.pair[0]].replay(self, owned)
        ready = deque(owned for owned in left if owned.state != STOPPED and self._is_due(view, owned))
        while ready:
            # A death is blamed on one shard, so quarantined shards share nothing.
            together = [ready.popleft()] if self._role == QUARANTINE else next_ones(ready)
            dealer = self._dealers[together[0].pair[0]]
            pages = read_together(self.store, together, dealer.column)
            self._box.enter(together[0].pair)
            try:
                done = dealer.deal_together(self, [(o, pages[o.pair[1]].cells) for o in together if o.pair[1] in pages])
            except Interrupted:
                self._box.leave()
                raise
            self._box.leave()
            for owned in together:
                self._last = owned.pair
                if self.owned.get(owned.pair) is owned and owned.free and self._page(owned, pages.get(owned.pair[1])):
                    ready.append(owned)
                # Behind one, however long reading took; those that are left out are read again.
                if time.monotonic() >= until_s and (not done or owned is together[-1]):
                    return

    def _is_due(self, view: View, owned: Owned) -> bool:
        wanted = owned.pair not in self._unsure and view.wanted.get(owned.pair[0]) == RUNNING
        wanted = wanted and not (owned.state == QUARANTINED and self._role == HEALTHY)
        return wanted and owned.more and owned.free and owned.again_at_s <= time.monotonic()

    def _page(self, owned: Owned, page: Page[StoredCell] | None = None) -> bool:
        """Deal with a page, which is read unless it is given; return whether there is more at once."""
        dealer = self._dealers[owned.pair[0]]
        came = False
        with self._waiting(owned):
            self.go_on(owned)
            if page is None:
                page = self.store.get_stored_cells_for_shard(
                    owned.pair[1], owned.reached, PAGE_CELLS, column_name=dealer.column
                )
            owned.read(came=page.next_location > owned.reached)
            if page.next_location == owned.reached and page.held is None:
                # The end; the dead one cannot have been behind it. A quarantined shard may get such cells again.
                owned.careful = owned.careful if owned.state == QUARANTINED else 0
            elif dealer.deal(self, owned, page.cells):
                came = page.next_location > owned.reached or bool(page.cells)
                self._reached(owned, page.next_location, 0)
        return came and owned.reached < owned.top

    @contextmanager
    def _waiting(self, owned: Owned) -> Iterator[None]:
        """Have what the block raises about servers be a reason to wait; any other exception ends the worker."""
        self._box.enter(owned.pair)
        try:
            yield
        except LeaseLost:
            self._lose(owned.pair)
        except Interrupted:
            # Where its server failed, that is about this shard alone.
            if owned.free:
                self._box.leave()
                raise
        except SchemalessError as error:
            owned.fail(error)
        else:
            if owned.free:
                owned.failures = 0
        self._box.leave()

    # For dealers

    @property
    def rows(self) -> FollowerRows:
        """The rows, for who changes one himself: behind what is on its way to be written down."""
        self._noted(wait=True)
        return self._rows

    def go_on(self, owned: Owned) -> None:
        """Be called before each cell.

        Raises:
            Interrupted: nothing may be begun now: this worker stops, is paused, or is not sure to own anything.
        """
        view = self._members.view
        if (
            self._stop.is_set()
            or view is None
            or self._members.generation != self._generation
            or view.wanted.get(owned.pair[0]) != RUNNING
        ):
            raise Interrupted

    def calling(self, owned: Owned, cell: StoredCell) -> AbstractContextManager[None]:
        """Have others see, while the block runs, what this worker is at."""
        return self.hand.taking(owned.pair, cell)

    def dealt(self, owned: Owned, added_id: int, *, at_once: bool = False) -> None:
        """Be called behind each cell; writes locations down now and then, or ``at_once``.

        Raises:
            LeaseLost: the shard is somebody else's by now.
            Interrupted: its server failed; what is reached is kept and written down later.
        """
        self._dealt += 1
        self._reached(owned, added_id, 1)
        if at_once:
            self.write_down()
        if self.owned.get(owned.pair) is not owned:
            raise LeaseLost(f"{owned.pair[0]} in shard {owned.pair[1]} was taken over by another worker")
        if not owned.free:
            raise Interrupted

    def written(self, owned: Owned) -> None:
        """Be called when ``owned.reached`` is written down already."""
        owned.location, owned.stuck = owned.reached, False
        owned.top = max(owned.top, owned.reached)

    def _reached(self, owned: Owned, location: int, cells: int) -> None:
        owned.reached = max(owned.reached, location)
        owned.top = max(owned.top, owned.reached)
        owned.attempts = 0 if cells else owned.attempts
        self._pending += cells
        if self._pending >= _NOTED_CELLS or time.monotonic() - self._noted_s >= self.timing.note_s:
            # Those on their way and those since are a page together, at most.
            self.write_down(wait=self._wakes is None or self._pending >= _NOTED_CELLS)

    def write_down(self, *, wait: bool = True) -> None:
        """Write down how far everything is; what is lost is dropped, what fails is kept for the next time.

        Args:
            wait: until it is; else it is begun at most, and calls go on.
        """
        if not self._noted(wait=wait):
            return
        behind = (owned for owned in self.owned.values() if owned.reached != owned.location)
        self._notes.begin(owned for owned in behind if not owned.stuck or owned.due)
        self._pending = 0
        self._noted_s = time.monotonic()
        if wait:
            self._noted(wait=True)

    def _noted(self, *, wait: bool) -> bool:
        """Take over what was written down; return whether nothing is on its way any more."""
        noted = self._notes.take(wait=wait)
        for owned, move in noted.begun:
            if self.owned.get(owned.pair) is not owned:
                continue
            if owned.pair in noted.lost:
                self._lose(owned.pair)
            elif owned.pair in noted.failed:
                owned.stuck = True
                owned.fail(noted.failed[owned.pair])
            else:
                owned.noted(move.location)
        return not self._notes.busy

    # Signs of life, on another thread

    def _look_soon(self) -> None:
        if self._wakes is not None:
            self._wakes.look()

    def hurry(self) -> None:
        """See at once who lives: the membership has changed."""
        self._members.hurry()

    def _beat(self) -> Mapping[str, Any]:
        told: dict[str, Any] = {
            "dealt": self._dealt,
            "role": self._role,
            "owned": len(self.owned),
            "heard": self._heard,
            "found": self._found,
            "finds_by": {} if self._wakes is None else self._wakes.told(),
        }
        told |= self.hand.told(self.timing.busy_s, {name: dealer.timeout_s for name, dealer in self._dealers.items()})
        waiting = [owned for owned in list(self.owned.values()) if owned.reason and not owned.due]
        told["waits"] = [[*owned.pair, owned.reason] for owned in waiting[:_TOLD]]
        return told
