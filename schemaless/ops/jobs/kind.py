"""Kinds of jobs: parameters, work on a shard and hooks, with one way to start, join and run jobs of every kind."""

from __future__ import annotations

import importlib.metadata
import platform
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache, partial
from typing import Any, Final, Generic, Self, TypedDict, TypeVar

from schemaless.base.events import Listener, ignore_events
from schemaless.base.numbers import shards_text
from schemaless.errors import InvalidInput, JobConflict
from schemaless.ops.jobs.driver import Driver, patiently
from schemaless.ops.jobs.job import Job, Kind, RunStarted, check_unfinished, role_of, thresholds_of
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.throttle import Thresholds
from schemaless.ops.jobs.worker import Work
from schemaless.ops.jobs.workers import workers
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.store.opening import opening_of
from schemaless.wire.errors import needing

_LONGEST_LIST: Final = 100


@dataclass(frozen=True, slots=True)
class JobSpec:
    """Parameters of a job as stored in the catalog: base class of each kind's spec.

    Attributes:
        thresholds: thresholds for throttling. They may be changed while the job runs.
    """

    thresholds: Thresholds = field(default_factory=Thresholds, kw_only=True)

    def as_json(self) -> dict[str, Any]:
        """Return the parameters as JSON values."""
        return asdict(self)

    @classmethod
    def of(cls, job: Job) -> Self:
        """Restore the parameters of a job from its stored spec."""
        return cls.from_json(job.spec)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Restore parameters from ``as_json`` output; missing ones get their defaults.

        Raises:
            InvalidInput: there is a parameter that this version does not know.
        """
        unknown = sorted(value.keys() - {item.name for item in fields(cls)})
        if unknown:
            raise InvalidInput(
                f"this version does not know the parameters {', '.join(unknown)} of the job; use the version that "
                "created it"
            )
        arguments: dict[str, Any] = {
            name: tuple(item) if isinstance(item, list) else item for name, item in value.items()
        }
        return cls(**{**arguments, "thresholds": thresholds_of(value)})


S = TypeVar("S", bound=JobSpec)


class RunOptions(TypedDict, total=False):
    """Options of a run, for every kind of job.

    Attributes:
        job: the job to continue, with its own parameters; None to start or join one.
        count: number of workers. A single one (the default) is a thread of this process; several are processes.
        dask: address of a Dask scheduler, or "local".
        listener: receives ``RunStarted`` before the work and ``RunProgress`` during it.
    """

    job: Job | None
    count: int
    dask: str | None
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
        name: name of the kind in the catalog.
        spec: class of the parameters.
        weigh: returns the weights of shards, in bytes.
        work: does the work on a shard; a module-level function.
        check: raises if a new job with these parameters is not possible on these shards. Called before the job is
            created, and not for a job that is joined, which passed the check when it was created.
        covers: whether a command joins an unfinished job with the same parameters even if its shards differ from the
            job's. For example, a drain has fewer shards left after each move.
        reaches: returns clusters involved besides those of the shards.
        before: called once for a new job, before its work.
        after: called after each run that ends with the job done or cancelled.
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
        """Join an unfinished job with the same parameters and shards, or create a job.

        Args:
            store: the datastore.
            spec: parameters. Thresholds are not compared.
            shards: shard numbers, all by default.

        Returns:
            The job, and whether it is new.

        Raises:
            InvalidInput: a shard does not exist, there are no shards, or ``check`` raised it.
            JobConflict: another unfinished job includes one of these shards; the message says how that job differs.
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
            job = job_store.create(self.name, spec.as_json(), self.weigh(store, chosen), clusters, _versions(store))
        except JobConflict as conflict:
            # Another process may have created the same job at the same time.
            joined = self.same(job_store, spec, chosen)
            if joined is None:
                raise self._explained(job_store, conflict, spec, chosen) from None
            return joined, False
        return job, True

    def _explained(self, job_store: JobStore, conflict: JobConflict, spec: S, shards: Sequence[int]) -> JobConflict:
        """Extend a conflict with the differences that prevent this command from joining the job."""
        begun = None if conflict.job_id is None else job_store.job(conflict.job_id)
        if begun is None or begun.kind != self.name:
            return conflict
        asked, there = spec.as_json(), self.spec.of(begun).as_json()
        numbers = job_store.numbers(begun.job_id)
        parts = [
            f"{name} (job: {_text(there[name])}, this command: {_text(value)})"
            for name, value in asked.items()
            if name != "thresholds" and there[name] != value
        ]
        if numbers != list(shards):
            parts.append(f"shards (job: {_shards(numbers)}, this command: {_shards(shards)})")
        if not parts:
            return conflict
        return JobConflict(f"{conflict}; it differs from this command in {', '.join(parts)}", conflict.job_id)

    def same(self, job_store: JobStore, spec: S, shards: Sequence[int]) -> Job | None:
        """Return the unfinished job that a command with these parameters and shards joins, or None."""
        for job in job_store.jobs(self.name):
            if not job.unfinished:
                continue
            begun = self.spec.of(job)
            same = replace(begun, thresholds=spec.thresholds) == spec
            if same and (self.covers(begun, spec) or job_store.numbers(job.job_id) == list(shards)):
                return job
        return None

    def resumed(self, job_store: JobStore, job_id: int) -> tuple[Job, S, list[int]]:
        """Return a job to continue, its parameters and its shards.

        Raises:
            InvalidInput: the job does not exist, or is of another kind.
            JobConflict: the job has ended.
        """
        job = job_store.job(job_id)
        check_unfinished(job, self.name)
        return job, self.spec.of(job), job_store.numbers(job_id)

    def run(
        self,
        store: Datastore,
        spec: S,
        shards: Iterable[int] | None = None,
        *,
        job: Job | None = None,
        count: int = 1,
        dask: str | None = None,
        listener: Listener = ignore_events,
    ) -> Job:
        """Start or continue a job, and work until it has ended; for the options, see ``RunOptions``.

        Returns:
            The job in its final state.

        Raises:
            InvalidInput: the job is of another kind, or ``begin_or_join`` raised it.
            JobConflict: another unfinished job includes one of these shards, or the job had already ended or was
                cancelled during the run.
            ServerError: a server cannot be reached. The work done is kept, and repeating the call continues the job.
        """
        new = False
        if job is not None:
            check_unfinished(job, self.name)
        # Workers first: if they cannot be started, no job may remain that blocks other jobs.
        with needing(role_of(self.name)), workers(count, dask) as pool:
            if job is None:
                job, new = self.begin_or_join(store, spec, shards)
            listener(RunStarted(job, new))
            pool.prepare(opening_of(store))
            if new:
                patiently(store, partial(self.before, store, job))
            ended = Driver(store, job, self.work, listener).run(pool)
            patiently(store, partial(self.after, store, ended))
        if ended.state == "cancelled":
            raise JobConflict(f"job {job.job_id} was cancelled ({ended.message}); completed work is kept", job.job_id)
        return ended


def _versions(store: Datastore) -> dict[str, Any]:
    """Return the versions of the packages that produce stored bytes, and of the servers."""
    internals = internals_of(store)
    found: dict[str, Any] = {"python": platform.python_version(), "zlib": zlib.ZLIB_RUNTIME_VERSION, **_installed()}
    found["servers"] = {
        cluster.name: internals.shards.pool_for(cluster.primary).run(lambda connection: connection.version)
        for cluster in internals.topology.clusters
    }
    return found


@cache
def _installed() -> dict[str, str | None]:
    versions: dict[str, str | None] = {}
    for name in (
        *("schemaless-store", "PyMySQL", "msgpack", "zstandard", "ormsgpack", "msgspec", "orjson"),
        "schemaless-packed",
    ):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions
