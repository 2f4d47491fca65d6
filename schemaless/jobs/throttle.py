"""When a job has to wait: what the servers of a cluster say, held against thresholds.

Lag is measured by tokens that are written on the primary and read on each replica, so it is that of what is committed
there, on MySQL and MariaDB alike, and no privilege is needed to see it. The same token proves a replica: one that never
shows any does not replicate from this primary, and a job that looked at it would be throttled by nothing.
"""

from __future__ import annotations

import os
import secrets
import struct
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args

from schemaless.errors import (
    AccessDenied,
    InvalidInput,
    OutcomeUnknown,
    ReplicaRefused,
    ServerError,
    ServerTimeout,
    ServerUnavailable,
    TopologyError,
)
from schemaless.jobs.server_load import ServerActivity, server_activity
from schemaless.topology.heartbeat import make_tables, read_token, remove_stale_tokens, remove_token, write_token
from schemaless.topology.model import Cluster
from schemaless.topology.replication import is_same_server
from schemaless.topology.shards import Shards
from schemaless.wire.accounts import own_grant
from schemaless.wire.connection import Connection
from schemaless.wire.errors import ConnectionLost, DatabaseMissing, Deadlock, ReplyTimedOut
from schemaless.wire.node import Node
from schemaless.wire.parallel import on_servers
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.sql.sessions import SELECT_READ_ONLY, set_session

T = TypeVar("T")

Kind = Literal["flag", "unreachable", "unproven", "lag", "threads", "history"]

MOST: Final = 10**12
"""Upper limit of every threshold that is a number. It keeps out what no clock or table can hold."""

PROOF_S: Final = 60.0
"""A replica that answers may show none of the tokens so long before it is refused."""

_OPTIONS: Final = PoolOptions(
    connect_timeout_s=0.8, read_timeout_s=0.8, write_timeout_s=0.8, pool_size=2, pool_timeout_s=0.8
)
_NO_LONG_LOCKS: Final = set_session({"lock_wait_timeout": 1, "innodb_lock_wait_timeout": 1})
"""Where a lock, such as a backup's, keeps a token from being written, its statement must not wait there for ever."""

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0
_KEPT_TOKENS: Final = 256
_KEPT_CALLS: Final = 8
_TOKEN: Final = struct.Struct(">8sQ")


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What makes a job wait; None switches one off.

    Attributes:
        max_lag_s: seconds that a replica may lag; None asks no replica anything.
        max_threads_running: statements that a primary may be executing at a moment, the job's own included.
        max_history_length: transactions whose old rows a primary has not purged yet. While a reader holds purge up,
            each body that is replaced stays in the files too.
        max_mb_per_s: legacy bytes for the whole job, in 1,000,000 a second. Whoever runs the job sees to it.
        yield_above_per_s: reads and writes of applications a second on a primary; above that, a job takes small steps
            there with pauses in between. It does not wait for them.
        flag_file: an absolute path; while it is there, the job waits. Looked for by the runner that watches a cluster,
            on its own machine.
    """

    max_lag_s: float | None = 5.0
    max_threads_running: int | None = 25
    max_history_length: int | None = 1_000_000
    max_mb_per_s: float | None = None
    flag_file: str | None = None
    yield_above_per_s: float | None = 100.0

    def __post_init__(self) -> None:
        for name in ("max_lag_s", "max_mb_per_s", "yield_above_per_s"):
            value = getattr(self, name)
            if value is not None and (type(value) not in (int, float) or not 0 < value <= MOST):
                raise InvalidInput(f"{name} must be a number over 0, or None for no limit, got {value!r}")
        for name in ("max_threads_running", "max_history_length"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not 1 <= value <= MOST):
                raise InvalidInput(f"{name} must be a whole number from 1 up, or None for no limit, got {value!r}")
        flag: Any = self.flag_file
        if flag is not None and (not isinstance(flag, str) or not Path(flag).is_absolute() or "\0" in flag):
            raise InvalidInput(f"flag_file must be an absolute path, the same for every runner, got {flag!r}")

    def asdict(self) -> dict[str, Any]:
        """Return them as a JSON object."""
        return asdict(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Thresholds:
        """Return what ``asdict`` gave.

        Raises:
            InvalidInput: a name or a value is none of a threshold.
        """
        names = [field.name for field in fields(cls)]
        unknown = sorted(set(values) - set(names))
        if unknown:
            raise InvalidInput(f"no threshold is called {', '.join(unknown)}; there are {', '.join(names)}")
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at a cluster's servers says.

    Attributes:
        reason: why the job has to wait, in a line for people; None where it may go on.
        kind: the reason in a word for programs; None without one.
        yields: whether to take small steps, since applications use the primary.
        figures: for JSON. ``lag_s``: seconds by replica, None for one that does not tell; ``threads_running`` and
            ``history_length`` of the primary, None where it does not tell; ``calls_per_s``: reads and writes of
            applications there, None at first; ``yields``: as here; ``proven``: the replicas that were proven.
        notes: what cannot be watched, and the GRANT that mends it; each is said by the first look that meets it.
    """

    reason: str | None
    kind: Kind | None
    figures: dict[str, Any]
    yields: bool = False
    notes: tuple[str, ...] = ()


class ClusterWatch:
    """Looks at the servers of a cluster for a job. Not thread-safe."""

    def __init__(
        self,
        shards: Shards,
        cluster: Cluster,
        thresholds: Thresholds,
        writer: str,
        *,
        proof_s: float = PROOF_S,
        proven: Collection[str] = (),
        catalog: NodePool | None = None,
    ) -> None:
        """Nothing is asked before the first look.

        Args:
            thresholds: what is held against what they say.
            writer: 1 to 255 characters that nobody else who looks at this cluster has, such as a runner's name.
            proof_s: how long a replica that answers may show no token before it is refused.
            proven: replicas that this job has proven before, as ``Look.figures`` names them: not refused any more.
            catalog: the catalog's server, to tell whether it is this primary; None where runners ask it nothing.
        """
        if not 1 <= len(writer) <= 255:
            raise InvalidInput(f"writer must be 1 to 255 characters, got {writer!r}")
        self.cluster = cluster
        self.thresholds = thresholds
        self._shards = shards
        self._datastore = shards.topology.name
        self._writer = writer
        self._proof_s = proof_s
        self._watch_id = secrets.token_bytes(8)
        self._written_us: deque[int] = deque(maxlen=_KEPT_TOKENS)
        self._calls: deque[tuple[float, int]] = deque(maxlen=_KEPT_CALLS)
        self._own_calls = 0
        self._catalog = catalog
        self._has_catalog: bool | None = None if catalog is not None else False
        self._reads = 0
        self._asks_history = True
        self._began = False
        self._notes: list[str] = []
        self._primary = _Endpoint(shards, cluster.primary)
        watched = cluster.replicas if thresholds.max_lag_s is not None else ()
        self._replicas = [_Replica(shards, node, str(node) in proven) for node in watched]

    def look(self, reads: int = 0, runners: int = 1) -> Look:
        """Ask the primary and each replica once, and say whether the job has to wait.

        Args:
            reads: how many SELECTs the runner that looks has sent to the catalog; only grows.
            runners: how many runners the job has, which ask about as often; what they ask is not taken for calls of
                applications where the catalog is on this primary.

        Takes two round trips to the primary and then one to each replica, all at once; about two seconds at most where
        servers do not answer. The first look takes longer: it makes the table of tokens where it is missing.

        Raises:
            ReplicaRefused: a replica shows no token in time, or is the primary itself.
            TopologyError: the primary is read-only.
            AccessDenied: the account lacks what the role ``migrate`` has.
            ServerError: the primary refused otherwise.
        """
        waits: list[tuple[Kind, str]] = []
        flagged = _flagged(self.thresholds.flag_file)
        if flagged is not None:
            waits.append(("flag", flagged))
        load: ServerActivity | None = None
        lags: dict[str, float | None] = {str(replica.node): None for replica in self._replicas}
        try:
            load = self._primary.ask(self._ask_primary)
        except (ServerUnavailable, ServerTimeout, OutcomeUnknown) as problem:
            waits.append(("unreachable", f"the primary {problem.node} does not answer: {problem.message}"))
        else:
            for _ in on_servers([(replica.node, replica) for replica in self._replicas], self._ask_replica, 1):
                pass
            waits += filter(None, (self._wait_of(replica) for replica in self._replicas))
            lags = {str(replica.node): replica.lag_s for replica in self._replicas}
            waits += self._waits_of(load)
        calls_per_s = None if load is None else self._calls_per_s(load, reads, runners)
        limit_per_s = self.thresholds.yield_above_per_s
        yields = limit_per_s is not None and calls_per_s is not None and calls_per_s > limit_per_s
        notes, self._notes = tuple(self._notes), []
        figures = {
            "lag_s": {node: None if lag_s is None else round(lag_s, 3) for node, lag_s in lags.items()},
            "threads_running": None if load is None else load.threads_running,
            "history_length": None if load is None else load.history_length,
            "calls_per_s": calls_per_s,
            "yields": yields,
            "proven": [str(replica.node) for replica in self._replicas if replica.proven],
        }
        if not waits:
            return Look(None, None, figures, yields, notes)
        kind, reason = min(waits, key=lambda wait: get_args(Kind).index(wait[0]))
        return Look(reason, kind, figures, yields, notes)

    def close(self) -> None:
        """Take this watch's token away where that can be done, and close the connections."""
        if self._began:
            with suppress(ServerError):
                self._primary.ask(
                    lambda connection: remove_token(connection, self._datastore, self.cluster.name, self._writer)
                )
        for endpoint in (self._primary, *self._replicas):
            endpoint.pool.close()

    def _ask_primary(self, connection: Connection) -> ServerActivity:
        connection.ensure(_NO_LONG_LOCKS)
        # A replica that has become the primary elsewhere, or the other way round, must not be written to.
        if connection.rows(SELECT_READ_ONLY)[0][0]:
            raise TopologyError(
                f"the primary {connection.node} of {self.cluster.name} is read-only; if another server has taken its "
                "place, name it with 'schemaless topology adopt' after a failover, else with 'schemaless topology "
                "set-primary'; then run the job again"
            )
        load = self._load(connection)
        self._own_calls += 1 if load.history_length is None or connection.is_mariadb else 2
        if self._replicas:
            try:
                if not self._began:
                    self._begin(connection)
                now_us = time.monotonic_ns() // 1000
                token = _TOKEN.pack(self._watch_id, now_us)
                write_token(connection, self._datastore, self.cluster.name, self._writer, token)
            except AccessDenied as refusal:
                raise AccessDenied(
                    f"{refusal.message}; a job needs it to see how far replicas lag, and 'schemaless grants --role "
                    "migrate' prints it",
                    node=refusal.node,
                    code=refusal.code,
                ) from refusal
            self._written_us.append(now_us)
            self._own_calls += 1
        return load

    def _load(self, connection: Connection) -> ServerActivity:
        try:
            return server_activity(connection, history=self._asks_history)
        except AccessDenied:
            self._asks_history = False
            if self.thresholds.max_history_length is not None:
                self._notes.append(
                    f"{connection.node} does not show its history length to this account, so it is not watched; "
                    f"{own_grant(connection, 'PROCESS')}"
                )
            return server_activity(connection, history=False)

    def _calls_per_s(self, load: ServerActivity, reads: int, runners: int) -> float | None:
        """Return how often applications have called the primary in the last looks; None at first."""
        if self._has_catalog is None and self._catalog is not None and self._calls:
            self._has_catalog = is_same_server(self._catalog, self._primary.pool)
        if self._has_catalog:
            self._own_calls += max(0, reads - self._reads) * runners
        self._reads = reads
        self._calls.append((time.monotonic(), load.calls - self._own_calls))
        (first_s, first), (last_s, last) = self._calls[0], self._calls[-1]
        # Less than none after a restart, or where somebody else sends UPDATEs.
        return max(0.0, round((last - first) / (last_s - first_s), 1)) if last_s > first_s else None

    def _begin(self, connection: Connection) -> None:
        try:
            remove_stale_tokens(connection, self._datastore)
        except DatabaseMissing:
            # By the datastore's own pool, which has time for a table to be made.
            make_tables(self._shards.pool_for(self.cluster.primary), self._datastore)
        self._began = True

    def _ask_replica(self, replica: _Replica) -> None:
        replica.lag_s = None
        replica.problem = None
        try:
            token = replica.ask(
                lambda connection: read_token(connection, self._datastore, self.cluster.name, self._writer)
            )
            if not replica.is_another:
                if is_same_server(self._primary.pool, replica.pool):
                    raise ReplicaRefused(
                        f"replica {replica.node} of {self.cluster.name} is the server of its primary "
                        f"{self.cluster.primary} itself, by another address; take it out with 'schemaless topology "
                        f"remove-replica --cluster {self.cluster.name}'"
                    )
                replica.is_another = True
        except ServerError as problem:
            replica.problem = problem
            if isinstance(problem, ServerUnavailable | ServerTimeout):
                replica.answers_since_s = None
                return
            token = None
        if token is not None and len(token) == _TOKEN.size:
            watch_id, written_us = _TOKEN.unpack(token)
            if watch_id == self._watch_id:
                replica.proven = True
                replica.lag_s = self._lag_s(written_us)
                return
        now_s = time.monotonic()
        if replica.answers_since_s is None:
            replica.answers_since_s = now_s
        elif not replica.proven and now_s - replica.answers_since_s >= self._proof_s:
            why = "" if replica.problem is None else f" (its last answer: {replica.problem.message})"
            raise ReplicaRefused(
                f"replica {replica.node} shows nothing of what was written on its primary {self.cluster.primary} "
                f"within {self._proof_s:g} s{why}: it does not replicate from there, lags by more than that, or its "
                "replication is stopped; mend it, or take it out with 'schemaless topology remove-replica --cluster "
                f"{self.cluster.name}'"
            )

    def _lag_s(self, shown_us: int) -> float:
        """Return how long ago the first token was written that a replica does not show."""
        missing_us = next((written_us for written_us in self._written_us if written_us > shown_us), None)
        if missing_us is None:
            return 0.0
        # Of a lag of minutes, the one behind the shown token is not known any more.
        first_us = missing_us if shown_us >= self._written_us[0] else shown_us
        return (time.monotonic_ns() // 1000 - first_us) / 1_000_000

    def _wait_of(self, replica: _Replica) -> tuple[Kind, str] | None:
        limit_s = self.thresholds.max_lag_s
        if isinstance(replica.problem, ServerUnavailable | ServerTimeout):
            return "unreachable", f"replica {replica.node} cannot be asked: {replica.problem}"
        if replica.lag_s is None:
            why = "" if replica.problem is None else f": {replica.problem}"
            primary = self.cluster.primary
            return "unproven", f"waiting for replica {replica.node} to show what was written on {primary}{why}"
        if limit_s is not None and replica.lag_s > limit_s:
            return "lag", f"replica {replica.node} lags by {_seconds(replica.lag_s)} s (limit {limit_s:g} s)"
        return None

    def _waits_of(self, load: ServerActivity) -> list[tuple[Kind, str]]:
        waits: list[tuple[Kind, str]] = []
        node = self.cluster.primary
        limit = self.thresholds.max_threads_running
        if limit is not None and load.threads_running > limit:
            waits.append(("threads", f"{node} has {load.threads_running} threads running (limit {limit})"))
        limit = self.thresholds.max_history_length
        if limit is not None and load.history_length is not None and load.history_length > limit:
            reason = f"{node} has {load.history_length:,} transactions to purge (limit {limit:,}); is an old one open?"
            waits.append(("history", reason))
        return waits


class _Endpoint:
    """A server and how to ask it without waiting long."""

    def __init__(self, shards: Shards, node: Node) -> None:
        self.node = node
        self.pool: NodePool = shards.new_pool(node, _OPTIONS)
        self._pause_s = 0.0
        self._asleep_until_s = 0.0
        self._timed_out: ServerError | None = None

    def ask(self, operation: Callable[[Connection], T]) -> T:
        """Run an operation, and once more where a connection turned out to be dead, or a deadlock ended it.

        A server that did not answer in time may still be at what it was asked: it is asked again after a pause, since
        every statement that waits there takes one of its connections.
        """
        if self._timed_out is not None and time.monotonic() < self._asleep_until_s:
            raise self._timed_out.with_traceback(None)
        try:
            try:
                with self.pool.connection() as connection:
                    result = operation(connection)
            except (ConnectionLost, Deadlock) as problem:
                if isinstance(problem, ReplyTimedOut):
                    raise
                with self.pool.connection() as connection:
                    result = operation(connection)
        except ReplyTimedOut as problem:
            self._timed_out = problem
            self._pause_s = min(max(_FIRST_PAUSE_S, self._pause_s * 2), _LONGEST_PAUSE_S)
            self._asleep_until_s = time.monotonic() + self._pause_s
            raise
        self._timed_out = None
        self._pause_s = 0.0
        return result


class _Replica(_Endpoint):
    """A replica, and what is known of it.

    Attributes:
        proven: whether it has shown a token of this job.
        is_another: whether it was found to be another server than the primary.
        answers_since_s: since when it has answered without showing a token; None where it does not.
        lag_s: at the last look; None where it did not tell.
        problem: what was raised at the last look.
    """

    def __init__(self, shards: Shards, node: Node, proven: bool) -> None:
        super().__init__(shards, node)
        self.proven = proven
        self.is_another = False
        self.answers_since_s: float | None = None
        self.lag_s: float | None = None
        self.problem: ServerError | None = None


def _flagged(path: str | None) -> str | None:
    """Return why a flag file makes the job wait; one that cannot be looked for does, too."""
    if path is None:
        return None
    try:
        os.stat(path)  # noqa: PTH116 - Path.exists() hides why it cannot tell, in some versions
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as problem:
        return f"the flag file {path} cannot be looked for: {problem.strerror}"
    return f"the flag file {path} is there"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds < 10 else f"{seconds:,.0f}"
