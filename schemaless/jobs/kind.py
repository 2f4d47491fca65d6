"""A kind of job: what is asked for, what is done on a shard, and what around it; begun or joined and run in one way."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final, Generic, Self, TypedDict, TypeVar, Unpack

from schemaless.datastore import Datastore
from schemaless.errors import InvalidInput, JobConflict
from schemaless.events import Listener, nobody
from schemaless.internals import internals_of
from schemaless.jobs.driver import GIVE_UP_S, Driver
from schemaless.jobs.job import Job, Kind, RunBegan, check_goes_on, thresholds_of
from schemaless.jobs.job_store import JobStore
from schemaless.jobs.runner import make_watch
from schemaless.jobs.throttle import Thresholds
from schemaless.jobs.versions import versions
from schemaless.jobs.worker import Work
from schemaless.jobs.workers import workers
from schemaless.numbers import shards_text
from schemaless.opening import opening_of

_LONGEST_LIST: Final = 100


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a job is to do, as it stands in the catalog: the base of each kind's.

    Attributes:
        thresholds: when to wait; they are the job's own once it is begun, and may be changed.
    """

    thresholds: Thresholds = field(default_factory=Thresholds, kw_only=True)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)

    @classmethod
    def of(cls, job: Job) -> Self:
        """Return what a job is to do."""
        return cls.from_json(job.spec)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return what ``as_json`` gave, by this version or an earlier one."""
        known = {field.name: value[field.name] for field in fields(cls) if field.name in value}
        told: dict[str, Any] = {
            name: tuple(given) if isinstance(given, list) else given for name, given in known.items()
        }
        return cls(**{**told, "thresholds": thresholds_of(value)})


S = TypeVar("S", bound=JobSpec)


class HowToRun(TypedDict, total=False):
    """How a job is run, whatever its kind.

    Attributes:
        job: go on with this one, whatever else is asked for.
        new: whether that one was begun just now, for this run.
        count: workers: 1, unless given, is a thread of this process, more are processes.
        dask: the address of a Dask scheduler, or "local".
        give_up_s: how long a server may be unreachable before the run ends.
        listener: told ``RunBegan`` before the work, and ``RunGoesOn`` meanwhile.
    """

    job: Job | None
    new: bool
    count: int
    dask: str | None
    give_up_s: float
    listener: Listener


def _nothing(store: Datastore, job: Job) -> None:
    pass


def _shards(shards: Sequence[int]) -> str:
    text = shards_text(shards)
    return text if len(text) <= _LONGEST_LIST else f"{len(shards):,}"


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class JobKind(Generic[S]):
    """A kind of job.

    Attributes:
        name: as the catalog has it.
        spec: the class of what is asked for.
        weigh: returns what each of some shards weighs against the others, in bytes.
        work: does the work on a shard. A function of a module.
        check: raises where a new job cannot do what is asked for on these shards. Runs before the job is created, and
            not for a job that is joined: that one passed it.
        covers: whether an unfinished job, given by its spec, is the one that a command asks for, whichever shards the
            command finds now. The shards of a drain are fewer with each one that has moved.
        reaches: returns the clusters that it is about besides those that the shards are on.
        before: called once a job is new, before its work.
        after: called after each run that came to the job's end, or to its abortion.
    """

    name: Kind
    spec: type[S]
    weigh: Callable[[Datastore, Sequence[int]], Mapping[int, int]]
    work: Work
    check: Callable[[Datastore, S, Sequence[int]], None] = lambda store, spec, shards: None
    covers: Callable[[S, S], bool] = lambda begun, asked: False
    reaches: Callable[[S], Collection[str]] = lambda spec: ()
    before: Callable[[Datastore, Job], None] = _nothing
    after: Callable[[Datastore, Job], None] = _nothing

    def begin_or_join(self, store: Datastore, spec: S, shards: Iterable[int] | None = None) -> tuple[Job, bool]:
        """Return a job for this, and whether it is new: an unfinished one that is about just this is joined.

        Args:
            spec: what to do. With other thresholds it is the same all the same.
            shards: numbers of the shards; all unless given.

        Raises:
            InvalidInput: there is no such shard, no shard at all, or what ``check`` raises.
            JobConflict: another unfinished job is about one of these shards; the message says how it differs.
        """
        chosen = internals_of(store).chosen_shards(shards)
        job_store = JobStore(store)
        joined = self.same(job_store, spec, chosen)
        if joined is not None:
            return joined, False
        if not chosen:
            raise InvalidInput("a job needs at least one shard")
        self.check(store, spec, chosen)
        clusters = {internals_of(store).topology.cluster_of(shard).name for shard in chosen} | {*self.reaches(spec)}
        try:
            job = job_store.create(self.name, spec.as_json(), self.weigh(store, chosen), clusters, versions(store))
        except JobConflict as conflict:
            # The same command may have created the job at this moment.
            joined = self.same(job_store, spec, chosen)
            if joined is None:
                raise self._explained(job_store, conflict, spec, chosen) from None
            return joined, False
        return job, True

    def _explained(self, job_store: JobStore, conflict: JobConflict, spec: S, shards: Sequence[int]) -> JobConflict:
        """Add to a conflict with a job of this kind which options keep this command from joining it."""
        begun = None if conflict.job_id is None else job_store.job(conflict.job_id)
        if begun is None or begun.kind != self.name:
            return conflict
        asked, there = spec.as_json(), self.spec.of(begun).as_json()
        numbers = job_store.numbers(begun.job_id)
        parts = [
            f"{name} ({_text(there[name])} there, {_text(value)} here)"
            for name, value in asked.items()
            if name != "thresholds" and there[name] != value
        ]
        if numbers != list(shards):
            parts.append(f"its shards ({_shards(numbers)} there, {_shards(shards)} here)")
        if not parts:
            return conflict
        return JobConflict(f"{conflict}; it differs from this command in {', '.join(parts)}", conflict.job_id)

    def same(self, job_store: JobStore, spec: S, shards: Sequence[int]) -> Job | None:
        """Return the unfinished job that is about just this, whatever its thresholds; None where there is none."""
        for job in job_store.jobs(self.name):
            if not job.unfinished:
                continue
            begun = self.spec.of(job)
            same = replace(begun, thresholds=spec.thresholds) == spec
            if same and (self.covers(begun, spec) or job_store.numbers(job.job_id) == list(shards)):
                return job
        return None

    def resumed(self, job_store: JobStore, job_id: int) -> tuple[Job, S, list[int]]:
        """Return a job that a run is to go on with, what it is to do, and the shards that it is about.

        Raises:
            InvalidInput: there is no such job, or it is of another kind.
            JobConflict: it has ended.
        """
        job = job_store.job(job_id)
        check_goes_on(job, self.name)
        return job, self.spec.of(job), job_store.numbers(job_id)

    def run(self, store: Datastore, spec: S, shards: Iterable[int] | None = None, **how: Unpack[HowToRun]) -> Job:
        """Begin a job, or go on with one, and work until it has ended; return it.

        Raises:
            InvalidInput: the job is of another kind, or what ``begin_or_join`` raises.
            JobConflict: another unfinished job is about one of these shards, or the job has ended otherwise.
            ServerError: a server cannot be reached; what was done is kept, and the same call goes on.
        """
        new = how.get("new", False)
        job = how.get("job")
        if job is not None:
            check_goes_on(job, self.name)
        listener = how.get("listener", nobody)
        # Workers that cannot be had must not leave a job behind that stands in the way of others.
        with workers(how.get("count", 1), how.get("dask")) as hands:
            if job is None:
                job, new = self.begin_or_join(store, spec, shards)
            listener(RunBegan(job, new))
            hands.prepare(opening_of(store))
            if new:
                self.before(store, job)
            ended = Driver(
                store, job, self.work, make_watch, give_up_s=how.get("give_up_s", GIVE_UP_S), listener=listener
            ).run(hands)
            hands.let_go()
            self.after(store, ended)
        if ended.state == "aborted":
            raise JobConflict(f"job {job.job_id} was aborted: {ended.message}; what it had done stays done", job.job_id)
        return ended
