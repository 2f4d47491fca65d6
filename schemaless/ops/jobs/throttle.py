"""Throttling: poll the servers of a cluster, and compare their load and lag with a job's thresholds.

Lag is measured with tokens that are written on the primary and read on each replica, so it is the lag of committed
transactions. This works the same on MySQL and MariaDB, and requires no replication privilege. The tokens also prove
that a replica belongs to the primary: one that never shows a token does not replicate from it and is refused.
"""

from __future__ import annotations

import os
import secrets
import shlex
import struct
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

from schemaless.base.keys import heartbeat_database
from schemaless.base.type_variables import T
from schemaless.errors import (
    AccessDenied,
    InvalidInput,
    OutcomeUnknown,
    ReplicaRefused,
    ServerError,
    ServerTimeout,
    ServerUnavailable,
)
from schemaless.ops.jobs.sql import SELECT_HISTORY_LENGTH, SHOW_ACTIVITY
from schemaless.planning.sampling.table_sizes import database_folder, disk_space_in
from schemaless.topology.heartbeat import make_tables, read_token, remove_stale_tokens, remove_token, write_token
from schemaless.topology.model import Cluster
from schemaless.topology.replication import is_same_server
from schemaless.topology.shards import Shards
from schemaless.wire.accounts import own_grant
from schemaless.wire.connection import Connection
from schemaless.wire.errors import (
    READ_ONLY,
    ConnectionLost,
    DatabaseMissing,
    Deadlock,
    ReadOnly,
    ReplyTimedOut,
    reworded,
)
from schemaless.wire.node import Node
from schemaless.wire.parallel import on_servers
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.sql.sessions import NOTHING, SELECT_READ_ONLY, set_session

Kind = Literal["flag", "unreachable", "unproven", "disk", "hook", "lag", "threads", "history"]

MOST: Final = 10**12
"""Upper limit of every numeric threshold, which keeps values within the range of timers and table columns."""

MOST_BYTES: Final = 10**18
"""Upper limit of a threshold in bytes."""

HOOK_VARIABLE: Final = "SCHEMALESS_THROTTLE_HOOK"
"""Environment variable with a command that a job runs to learn whether to wait.

It is no threshold, because these are in the catalog: an account that may write to it could then run commands wherever
jobs run.
"""

_HOOK_S: Final = 5.0
"""Time limit of the hook, and time for which its result is reused, in seconds."""

_SAID: Final = 200
"""Maximum length of the hook's output in a reason, in characters."""

PROOF_S: Final = 60.0
"""Time after which a replica that answers but shows no token is refused, in seconds."""

_OPTIONS: Final = PoolOptions(
    connect_timeout_s=0.8, read_timeout_s=0.8, write_timeout_s=0.8, pool_size=2, pool_timeout_s=0.8
)
_NO_LONG_LOCKS: Final = set_session({"lock_wait_timeout": 1, "innodb_lock_wait_timeout": 1})
"""Statement that limits how long the write of a token waits for a lock, such as a backup's."""

_CACHE_S: Final = 0.25
"""Time for which the result of a poll is reused, in seconds: half the interval between a runner's heartbeats.

A worker's first heartbeat on each shard polls, so without it small shards would poll too often.
"""

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0
_KEPT_TOKENS: Final = 256
_KEPT_CALLS: Final = 8
_TOKEN: Final = struct.Struct(">8sQ")


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Conditions that make a job wait or slow down; None disables a condition.

    Attributes:
        max_lag_s: maximum lag of a replica, in seconds; if None, replicas are not polled.
        max_threads_running: maximum number of statements that a primary executes at a time, including the job's own.
        max_history_length: maximum number of transactions that a primary has not purged. While a long-running read
            blocks the purge, the old copy of every replaced body stays in the files.
        max_mb_per_s: rate limit for the whole job, in megabytes (1,000,000 bytes) of old bodies per second. It is
            enforced by the runners, not by the watch.
        flag_file: absolute path of a file; the job waits while it exists. It is checked by the runner that watches a
            cluster, on its machine.
        yield_above_per_s: application reads and writes per second on a primary above which the job takes small steps
            with pauses in between. The job does not stop for this condition.
        min_free_bytes: free bytes below which the job waits, on the disks of the cluster's servers, of the archive and
            of a cold store to which the job writes, as far as the runner that watches the cluster can see them.
    """

    max_lag_s: float | None = 5.0
    max_threads_running: int | None = 25
    max_history_length: int | None = 1_000_000
    max_mb_per_s: float | None = None
    flag_file: str | None = None
    yield_above_per_s: float | None = 100.0
    min_free_bytes: int | None = 1_000_000_000

    def __post_init__(self) -> None:
        for name in ("max_lag_s", "max_mb_per_s", "yield_above_per_s"):
            value = getattr(self, name)
            if value is not None and (type(value) not in (int, float) or not 0 < value <= MOST):
                raise InvalidInput(f"{name} must be a number above 0, or None for no limit, got {value!r}")
        for name in ("max_threads_running", "max_history_length", "min_free_bytes"):
            value = getattr(self, name)
            most = MOST_BYTES if name == "min_free_bytes" else MOST
            if value is not None and (type(value) is not int or not 1 <= value <= most):
                raise InvalidInput(f"{name} must be an integer of at least 1, or None for no limit, got {value!r}")
        flag: Any = self.flag_file
        if flag is not None and (not isinstance(flag, str) or not Path(flag).is_absolute() or "\0" in flag):
            raise InvalidInput(f"flag_file must be an absolute path, the same for every runner, got {flag!r}")

    def asdict(self) -> dict[str, Any]:
        """Return the thresholds as a JSON object."""
        return asdict(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Thresholds:
        """Restore thresholds from ``asdict``; missing ones get their defaults.

        Raises:
            InvalidInput: a name is unknown, or a value is invalid.
        """
        names = [field.name for field in fields(cls)]
        unknown = sorted(set(values) - set(names))
        if unknown:
            raise InvalidInput(f"unknown threshold {', '.join(unknown)}; the thresholds are {', '.join(names)}")
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Look:
    """Result of polling the servers of a cluster.

    Attributes:
        reason: why the job has to wait, as text for users; None if it may continue.
        kind: the reason as a keyword, for programs; None without a reason.
        figures: measurements as JSON values. ``lag_s``: seconds by replica, None if unknown; ``threads_running`` and
            ``history_length`` of the primary, None if unknown; ``free_bytes``: by server and folder, None if unknown;
            ``calls_per_s``: application reads and writes on the
            primary, None at first; ``yields``: as below; ``proven``: replicas that have shown a token.
        yields: whether to take small steps because applications use the primary.
        notes: measurements that the account may not take, and the GRANT that allows them. Each note appears once.
    """

    reason: str | None
    kind: Kind | None
    figures: dict[str, Any]
    yields: bool = False
    notes: tuple[str, ...] = ()


class _Load(NamedTuple):
    """Load of a primary at one moment.

    Attributes:
        threads_running: statements being executed, including the one that reads the status.
        calls: approximate number of application reads and writes since the server started: SELECTs and INSERTs, minus
            one for each multi-table UPDATE and each DO. A migration sends one of these for each SELECT of a block: the
            UPDATE that replaces its bodies, or ``discount_read`` if there is nothing to replace.
        history_length: transactions waiting to be purged; None if the account may not see it.
    """

    threads_running: int
    calls: int
    history_length: int | None


def discount_read(connection: Connection) -> None:
    """Offset one of the job's own SELECTs in the calls of a server, lest it count as application load."""
    connection.execute(NOTHING)


class ClusterWatch:
    """Watch over the servers of a cluster on behalf of a job; it follows changes of the topology. Not thread-safe.

    Attributes:
        proven: replicas that have shown a token to this job, named as in ``Look.figures``; they are no longer refused
            for lack of a token.
    """

    def __init__(
        self,
        shards: Shards,
        cluster: str,
        writer: str,
        *,
        folders: Sequence[Path] = (),
        proof_s: float = PROOF_S,
        cache_s: float = _CACHE_S,
    ) -> None:
        """Create the watch; no server is contacted before the first ``look``.

        Args:
            shards: access to the shards of the datastore.
            cluster: name of the cluster to watch.
            writer: name of at most 255 characters that is unique among the watches of this cluster, such as a runner's.
            folders: folders that the job writes to on the runners' machines.
            proof_s: time after which a replica that answers but shows no token is refused, in seconds.
            cache_s: time for which a result is reused, in seconds.
        """
        self.proven: set[str] = set()
        self._shards = shards
        self._datastore = shards.topology.name
        self._writer = writer
        self._folders = folders
        self._hooked: tuple[str | None, float] | None = None
        self._proof_s = proof_s
        self._cache_s = cache_s
        self._cached: Look | None = None
        self._polled_s = 0.0
        self._thresholds = Thresholds()
        self._watch_id = secrets.token_bytes(8)
        self._written_us: deque[int] = deque(maxlen=_KEPT_TOKENS)
        self._calls: deque[tuple[float, int]] = deque(maxlen=_KEPT_CALLS)
        self._own_calls = 0
        self._notes: list[str] = []
        self._noted_space = False
        self._take_servers(shards.topology.cluster(cluster))

    def _take_servers(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._primary = _Endpoint(self._shards, cluster.primary)
        self._replicas = [_Replica(self._shards, node) for node in cluster.replicas]
        self._written_us.clear()
        self._calls.clear()
        self._asks_history = True
        self._began = False

    def look(self, thresholds: Thresholds) -> Look:
        """Poll the primary and each replica once, and decide whether the job has to wait.

        This takes up to four round trips to the primary, then one to each replica in parallel; at most about two
        seconds if servers do not answer. The first call takes longer, as it creates the table of tokens if it is
        missing. A recent result for the same thresholds is returned again, without its notes.

        Args:
            thresholds: thresholds to compare with.

        Returns:
            The measurements, and the reason to wait, if any.

        Raises:
            ReplicaRefused: a replica has shown no token in time, or is the primary itself.
            AccessDenied: the account lacks a privilege of the role ``migrate``.
            ServerError: the primary refused a statement.
        """
        if (
            self._cached is not None
            and thresholds == self._thresholds
            and time.monotonic() - self._polled_s < self._cache_s
        ):
            return self._cached
        self._cached, self._thresholds = None, thresholds
        self._shards.router.refresh_if_due()
        self._follow()
        known = self._shards.routing
        look, problem = None, None
        try:
            look = self._poll()
        except ServerError as error:
            problem = error
        if look is None or look.kind == "unreachable":
            self._shards.router.again(known)
            if self._follow():
                look = self._poll()
            elif problem is not None:
                raise problem
        assert look is not None
        self._cached, self._polled_s = replace(look, notes=()), time.monotonic()
        return look

    def _follow(self) -> bool:
        """Switch to the cluster's current servers; return whether they have changed."""
        cluster = self._shards.topology.cluster(self.cluster.name)
        if cluster == self.cluster:
            return False
        self.close()
        self._take_servers(cluster)
        return True

    def _poll(self) -> Look:
        thresholds = self._thresholds
        replicas = self._replicas if thresholds.max_lag_s is not None else []
        waits: list[tuple[Kind, str]] = []
        flagged = _flagged(thresholds.flag_file)
        if flagged is not None:
            waits.append(("flag", flagged))
        load: _Load | None = None
        for replica in replicas:
            replica.lag_s = None

        try:
            try:
                load = self._primary.ask(self._ask_primary)
            except ReadOnly:
                # The address may lead to another server now, which only a new connection reaches.
                self._primary.pool.replace_connections()
                load = self._primary.ask(self._ask_primary)
        except ReadOnly as problem:
            waits.append(("unreachable", problem.message))
        except (ServerUnavailable, ServerTimeout, OutcomeUnknown) as problem:
            waits.append(("unreachable", f"the primary {problem.node} does not answer: {problem.message}"))
        else:
            for _ in on_servers([(replica.node, replica) for replica in replicas], self._ask_replica, 1):
                pass
            waits += filter(None, (self._wait_of(replica) for replica in replicas))
            waits += self._waits_of(load)
        free_bytes = self._free_bytes(replicas)
        for_space = self._waits_for_space(free_bytes)
        waits += for_space
        if for_space and not self._noted_space:
            # Unlike other waits, this one may last until space is freed by hand, so even a quiet command says it.
            self._notes.append(f"waits, because {for_space[0][1]}")
            self._noted_space = True
        hooked = self._ask_hook()
        if hooked is not None:
            waits.append(("hook", hooked))
        calls_per_s = None if load is None else self._calls_per_s(load)
        limit_per_s = thresholds.yield_above_per_s
        yields = limit_per_s is not None and calls_per_s is not None and calls_per_s > limit_per_s
        notes, self._notes = tuple(self._notes), []
        figures = {
            "lag_s": {str(each.node): None if each.lag_s is None else round(each.lag_s, 3) for each in replicas},
            "threads_running": None if load is None else load.threads_running,
            "history_length": None if load is None else load.history_length,
            "free_bytes": free_bytes,
            "calls_per_s": calls_per_s,
            "yields": yields,
            "proven": [str(replica.node) for replica in replicas if str(replica.node) in self.proven],
        }
        kind, reason = min(waits, key=lambda wait: get_args(Kind).index(wait[0]), default=(None, None))
        return Look(reason, kind, figures, yields, notes)

    def close(self) -> None:
        """Remove the token of this watch if the primary is reachable, and close the connections."""
        if self._began:
            with suppress(ServerError):
                self._primary.ask(
                    lambda connection: remove_token(connection, self._datastore, self.cluster.name, self._writer)
                )
        for endpoint in (self._primary, *self._replicas):
            endpoint.pool.close()

    def _ask_primary(self, connection: Connection) -> _Load:
        connection.ensure(_NO_LONG_LOCKS)
        # Do not write to a server that was demoted by a failover.
        if connection.rows(SELECT_READ_ONLY)[0][0]:
            raise ReadOnly(
                f"the primary {connection.node} of {self.cluster.name} is read-only; if another server is the primary "
                "now, record it with 'schemaless topology adopt' after a failover, else with 'schemaless topology "
                "set-primary'",
                node=connection.node,
                code=min(READ_ONLY),
            )
        load = self._load(connection)
        self._own_calls += 1
        if self._thresholds.min_free_bytes is not None:
            self._own_calls += self._primary.find_folder(connection, self._datastore)
        if self._replicas and self._thresholds.max_lag_s is not None:
            try:
                if not self._began:
                    self._begin(connection)
                now_us = time.monotonic_ns() // 1000
                token = _TOKEN.pack(self._watch_id, now_us)
                write_token(connection, self._datastore, self.cluster.name, self._writer, token)
            except AccessDenied as refusal:
                raise reworded(
                    refusal, f"{refusal.message}; a job needs this privilege to measure the lag of replicas"
                ) from refusal
            self._written_us.append(now_us)
            self._own_calls += 1
        return load

    def _load(self, connection: Connection) -> _Load:
        status = {str(name).lower(): int(value) for name, value in connection.rows(SHOW_ACTIVITY)}
        history_length = status.get("innodb_history_list_length")
        if history_length is None and self._asks_history:
            try:
                rows = connection.rows(SELECT_HISTORY_LENGTH)
                history_length = int(rows[0][0]) if rows else None
                self._own_calls += 1
            except AccessDenied:
                self._asks_history = False
                if self._thresholds.max_history_length is not None:
                    self._notes.append(
                        f"{connection.node} does not show its history length to this account, so max_history_length "
                        f"is not checked; run {own_grant(connection, 'PROCESS')}"
                    )
        calls = status["com_select"] + status["com_insert"] - status["com_update_multi"] - status["com_do"]
        return _Load(status["threads_running"], calls, history_length)

    def _calls_per_s(self, load: _Load) -> float | None:
        """Return the application calls per second over the last polls; None at first."""
        self._calls.append((time.monotonic(), load.calls - self._own_calls))
        (first_s, first), (last_s, last) = self._calls[0], self._calls[-1]
        # The difference is negative after a restart, or if another program sends multi-table UPDATEs.
        return max(0.0, round((last - first) / (last_s - first_s), 1)) if last_s > first_s else None

    def _begin(self, connection: Connection) -> None:
        try:
            remove_stale_tokens(connection, self._datastore)
        except DatabaseMissing:
            # Through the datastore's pool, whose timeouts leave time to create a table.
            make_tables(self._shards.pool_for(self.cluster.primary), self._datastore)
        self._began = True

    def _ask_replica(self, replica: _Replica) -> None:
        replica.problem = None
        try:
            token = replica.ask(self._ask_token(replica))
            if not replica.differs_from_primary:
                if is_same_server(self._primary.pool, replica.pool):
                    raise ReplicaRefused(
                        f"replica {replica.node} of {self.cluster.name} is the same server as its primary "
                        f"{self.cluster.primary} under another address; remove it with 'schemaless topology "
                        f"remove-replica --cluster {self.cluster.name}'"
                    )
                replica.differs_from_primary = True
        except ServerError as problem:
            replica.problem = problem
            if isinstance(problem, ServerUnavailable | ServerTimeout):
                replica.answers_since_s = None
                return
            token = None
        if token is not None and len(token) == _TOKEN.size:
            watch_id, written_us = _TOKEN.unpack(token)
            if watch_id == self._watch_id:
                self.proven.add(str(replica.node))
                replica.lag_s = self._lag_s(written_us)
                return
        now_s = time.monotonic()
        if replica.answers_since_s is None:
            replica.answers_since_s = now_s
        elif str(replica.node) not in self.proven and now_s - replica.answers_since_s >= self._proof_s:
            last_error = "" if replica.problem is None else f" (last error: {replica.problem.message})"
            raise ReplicaRefused(
                f"replica {replica.node} has received no write from its primary {self.cluster.primary} within "
                f"{self._proof_s:g} s{last_error}: it replicates from another server, it lags by more than "
                "that, or its replication is stopped; repair replication, or remove the replica with 'schemaless "
                f"topology remove-replica --cluster {self.cluster.name}'"
            )

    def _ask_token(self, replica: _Replica) -> Callable[[Connection], bytes | None]:
        def operation(connection: Connection) -> bytes | None:
            if self._thresholds.min_free_bytes is not None:
                replica.find_folder(connection, self._datastore)
            return read_token(connection, self._datastore, self.cluster.name, self._writer)

        return operation

    def _lag_s(self, shown_us: int) -> float:
        """Return the age of the oldest token that the replica has not received."""
        missing_us = next((written_us for written_us in self._written_us if written_us > shown_us), None)
        if missing_us is None:
            return 0.0
        # With a lag of minutes, the token after the received one has been dropped from the list.
        first_us = missing_us if shown_us >= self._written_us[0] else shown_us
        return (time.monotonic_ns() // 1000 - first_us) / 1_000_000

    def _wait_of(self, replica: _Replica) -> tuple[Kind, str] | None:
        limit_s = self._thresholds.max_lag_s
        if isinstance(replica.problem, ServerUnavailable | ServerTimeout):
            return "unreachable", f"replica {replica.node} does not answer: {replica.problem}"
        if replica.lag_s is None:
            error = "" if replica.problem is None else f": {replica.problem}"
            primary = self.cluster.primary
            return "unproven", f"waiting for replica {replica.node} to receive a write from {primary}{error}"
        if limit_s is not None and replica.lag_s > limit_s:
            return "lag", f"replica {replica.node} lags by {_seconds(replica.lag_s)} s (limit {limit_s:g} s)"
        return None

    def _waits_of(self, load: _Load) -> list[tuple[Kind, str]]:
        waits: list[tuple[Kind, str]] = []
        node = self.cluster.primary
        limit = self._thresholds.max_threads_running
        if limit is not None and load.threads_running > limit:
            waits.append(("threads", f"{node} has {load.threads_running} threads running (limit {limit})"))
        limit = self._thresholds.max_history_length
        if limit is not None and load.history_length is not None and load.history_length > limit:
            reason = (
                f"{node} has {load.history_length:,} transactions to purge (limit {limit:,}); look for a long-running "
                "transaction"
            )
            waits.append(("history", reason))
        return waits

    def _free_bytes(self, replicas: Sequence[_Replica]) -> dict[str, int | None]:
        """Return the free space by server and folder, None if unknown; empty without a threshold."""
        if self._thresholds.min_free_bytes is None:
            return {}
        places = [(str(each.node), each.folder) for each in (self._primary, *replicas)]
        spaces = {
            name: None if folder is None else disk_space_in(folder)
            for name, folder in (*places, *((str(folder), folder) for folder in self._folders))
        }
        return {name: None if space is None else space.free_bytes for name, space in spaces.items()}

    def _waits_for_space(self, free_bytes: Mapping[str, int | None]) -> list[tuple[Kind, str]]:
        limit = self._thresholds.min_free_bytes
        return [
            ("disk", f"the disk of {name} has {free / 1e6:,.0f} MB free (limit {limit / 1e6:,.0f} MB)")
            for name, free in free_bytes.items()
            if limit is not None and free is not None and free < limit
        ]

    def _ask_hook(self) -> str | None:
        """Return why the hook makes the job wait, or None; a hook that cannot be run makes it wait, too."""
        command = os.environ.get(HOOK_VARIABLE)
        if not command:
            return None
        if self._hooked is None or time.monotonic() - self._hooked[1] >= _HOOK_S:
            self._hooked = _run_hook(command, self.cluster), time.monotonic()
        return self._hooked[0]


class _Endpoint:
    """A server that is polled with short timeouts.

    Attributes:
        folder: folder of the datastore's heartbeat database; None if it is not known, or not on this machine.
    """

    def __init__(self, shards: Shards, node: Node) -> None:
        self.node = node
        self.pool: NodePool = shards.pools.new_pool(node, _OPTIONS)
        self.folder: Path | None = None
        self._pause_s = 0.0
        self._asleep_until_s = 0.0
        self._timed_out: ServerError | None = None

    def ask(self, operation: Callable[[Connection], T]) -> T:
        """Run an operation, and retry it once after a lost connection or a deadlock.

        A server that timed out may still be executing the statement, which occupies one of its connections. It is
        therefore not contacted for a time that doubles with each timeout.
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

    def find_folder(self, connection: Connection, datastore: str) -> bool:
        """Find the folder unless it is known; return whether that took a statement."""
        if self.folder is not None or self.node.socket is None:
            return False
        self.folder = database_folder(connection, heartbeat_database(datastore))
        return True


class _Replica(_Endpoint):
    """State of a replica.

    Attributes:
        differs_from_primary: whether it is known not to be the primary itself.
        answers_since_s: when it began to answer without showing a token; None if it does not answer.
        lag_s: lag at the last poll; None if unknown.
        problem: error of the last poll.
    """

    def __init__(self, shards: Shards, node: Node) -> None:
        super().__init__(shards, node)
        self.differs_from_primary = False
        self.answers_since_s: float | None = None
        self.lag_s: float | None = None
        self.problem: ServerError | None = None


def _flagged(path: str | None) -> str | None:
    """Return why the flag file makes the job wait, or None. A path that cannot be checked makes it wait, too."""
    if path is None:
        return None
    try:
        os.stat(path)  # noqa: PTH116 - Path.exists() hides the error in some Python versions
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as problem:
        return f"cannot check the flag file {path}: {problem.strerror}"
    return f"the flag file {path} exists"


def _run_hook(command: str, cluster: Cluster) -> str | None:
    known = {"SCHEMALESS_HOOK_CLUSTER": cluster.name, "SCHEMALESS_HOOK_PRIMARY": str(cluster.primary)}
    try:
        ended = subprocess.run(
            shlex.split(command),
            env={**os.environ, **known},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_HOOK_S,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as problem:
        return f"the hook of {HOOK_VARIABLE} cannot be run: {problem}"
    if not ended.returncode:
        return None
    said = ended.stdout.decode("utf-8", "replace").strip()[:_SAID]
    return f"the hook of {HOOK_VARIABLE} exits with {ended.returncode}{said and f': {said}'}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds < 10 else f"{seconds:,.0f}"
