"""A kind of job: what is asked for, what is done on a shard, and what around it; begun or joined and run in one way."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Generic, Self, TypedDict, TypeVar, Unpack

from schemaless.datastore import Datastore
from schemaless.errors import JobConflict
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
from schemaless.opening import opening_of


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


@dataclass(frozen=True, slots=True)
class JobKind(Generic[S]):
    """A kind of job.

    Attributes:
        name: as the catalog has it.
        spec: the class of what is asked for.
        weigh: returns what each of some shards weighs against the others, in bytes.
        work: does the work on a shard. A function of a module.
        check: raises where what is asked for cannot be done on these shards; before there is a job.
        reaches: returns the clusters that it is about besides those that the shards are on.
        before: called once a job is new, before its work.
        after: called after each run that came to the job's end, or to its abortion.
    """

    name: Kind
    spec: type[S]
    weigh: Callable[[Datastore, Sequence[int]], Mapping[int, int]]
    work: Work
    check: Callable[[Datastore, S, Sequence[int]], None] = lambda store, spec, shards: None
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
            JobConflict: another unfinished job is about one of these shards.
        """
        chosen = internals_of(store).chosen_shards(shards)
        self.check(store, spec, chosen)
        job_store = JobStore(store)
        joined = self.same(job_store, spec, chosen)
        if joined is not None:
            return joined, False
        clusters = {internals_of(store).topology.cluster_of(shard).name for shard in chosen} | {*self.reaches(spec)}
        try:
            job = job_store.create(self.name, spec.as_json(), self.weigh(store, chosen), clusters, versions(store))
        except JobConflict:
            # Somebody may have begun the same at this moment.
            joined = self.same(job_store, spec, chosen)
            if joined is None:
                raise
            return joined, False
        return job, True

    def same(self, job_store: JobStore, spec: S, shards: Sequence[int]) -> Job | None:
        """Return the unfinished job that is about just this, whatever its thresholds; None where there is none."""
        for job in job_store.jobs(self.name):
            same = job.unfinished and replace(self.spec.of(job), thresholds=spec.thresholds) == spec
            if same and job_store.numbers(job.job_id) == list(shards):
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
        if job is None:
            job, new = self.begin_or_join(store, spec, shards)
        else:
            check_goes_on(job, self.name)
        listener = how.get("listener", nobody)
        listener(RunBegan(job, new))
        with workers(how.get("count", 1), how.get("dask")) as hands:
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
