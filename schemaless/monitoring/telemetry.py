"""OpenTelemetry instrumentation: calls and their duration, spans, retries, waits for connections, errors by class.

    import schemaless.monitoring.telemetry

    store = schemaless.connect("mezzanine")
    schemaless.monitoring.telemetry.instrument(store)

Only the API package is required (extra ``[telemetry]``); the application configures the SDK, and so decides where spans
and metrics go. A datastore that is not instrumented runs no code of this module.

No attribute contains a row key, a document, a statement or a message; errors are identified by their class.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from schemaless.base.events import Advanced, Event, Listener, ignore_events
from schemaless.store.cold.fetching import cache
from schemaless.store.datastore import Datastore
from schemaless.store.indexes.query import Index
from schemaless.store.internals import internals_of
from schemaless.wire.attempts import Retried
from schemaless.wire.connection_slots import SlotAwaited
from schemaless.wire.pools import Pools

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import Tracer, TracerProvider

    from schemaless.aio.datastore import AsyncDatastore

CALLS: Final = (
    "put_cell",
    "put_row",
    "put_cells",
    "append_cell",
    "put_stored_cells",
    "get_cell",
    "get_cell_latest",
    "get_cells_latest",
    "get_row",
    "get_rows",
    "column_names",
    "count",
    "erase",
    "erase_many",
    "get_erased_for_shard",
    "create_index",
    "drop_index",
    "indexes",
    "get_cells_for_shard",
    "get_stored_cells_for_shard",
    "end_of_shard",
)
"""The instrumented calls. Iterators are not among them, because their work continues after the call has returned."""

_INDEX_CALLS: Final = ("query", "wait")
"""The instrumented calls of an index; ``first`` and ``iter`` make queries."""

_SCOPE: Final = "schemaless"
_FOLD_AT: Final = 4_096
"""Number of durations after which they are added up, unless a metric reader has already done so."""


def available() -> bool:
    """Return True if the OpenTelemetry API is installed."""
    return find_spec("opentelemetry") is not None and find_spec("opentelemetry.trace") is not None


class _Tally:
    """Counts calls and adds up their durations. A call only appends to a deque, which is atomic and cheap."""

    def __init__(self) -> None:
        self._new: deque[float] = deque()
        self._folding = threading.Lock()
        self._calls = 0
        self._seconds = 0.0

    def add(self, seconds: float) -> None:
        self._new.append(seconds)
        if len(self._new) >= _FOLD_AT and self._folding.acquire(blocking=False):
            try:
                self._fold()
            finally:
                self._folding.release()

    def totals(self) -> tuple[int, float]:
        """Return the number of calls and their total duration in seconds."""
        with self._folding:
            self._fold()
            return self._calls, self._seconds

    def _fold(self) -> None:
        for _ in range(len(self._new)):  # items are removed under the lock only
            self._seconds += self._new.popleft()
            self._calls += 1


def instrument(
    store: Datastore | AsyncDatastore,
    *,
    spans: bool = True,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> bool:
    """Instrument a datastore: from now on its calls produce metrics and spans.

    Calling it again has no effect. Without OpenTelemetry it does nothing, so an application can always call it.

    Args:
        store: an open datastore. Spans of the asyncio client are children of the task's current span, and end when the
            call ends or is cancelled.
        spans: whether each call also creates a span. Metrics add less than 1 % to the duration of a get; the cost of a
            span depends on the SDK.
        tracer_provider: the tracer provider; defaults to the application's global one.
        meter_provider: the meter provider; defaults to the application's global one.

    Returns:
        Whether the datastore is instrumented.
    """
    if not available():
        return False
    if not isinstance(store, Datastore):
        # The asyncio client makes the calls of the datastore inside it.
        store = store._blocking  # noqa: SLF001
    if CALLS[0] in vars(store):
        return True
    from opentelemetry import metrics, trace

    instruments = _Instruments(metrics.get_meter(_SCOPE, meter_provider=meter_provider), store.name)
    pools = internals_of(store).shards.pools
    instruments.observe(pools)
    pools.listen(instruments.on_event)
    tracer = trace.get_tracer(_SCOPE, tracer_provider=tracer_provider)

    def recorded(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        return instruments.spanned(name, call, tracer) if spans else instruments.counted(name, call)

    def index(name: str, opened: Callable[[str], Index] = store.index) -> Index:
        found = opened(name)
        for call in _INDEX_CALLS:
            setattr(found, call, recorded(f"index.{call}", getattr(found, call)))
        return found

    for name in CALLS:
        setattr(store, name, recorded(name, getattr(store, name)))
    store.index = functools.wraps(store.index)(index)  # type: ignore[method-assign]
    return True


class _Instruments:
    """Metric instruments of one datastore, and wrappers that record its calls with them."""

    def __init__(self, meter: Meter, datastore: str) -> None:
        self._meter = meter
        self._named = {"schemaless.datastore": datastore}
        self._tallies = {name: _Tally() for name in (*CALLS, *(f"index.{call}" for call in _INDEX_CALLS))}
        self._errors = meter.create_counter(
            "schemaless.errors", "1", "Calls that ended with an error, by class of error."
        )
        self._waits = meter.create_histogram(
            "schemaless.pool.wait", "s", "Time that a call waited for a free connection."
        )
        self._retries = meter.create_counter(
            "schemaless.retries", "1", "Statements sent again, by the error of the failed attempt."
        )

    def observe(self, pools: Pools) -> None:
        """Register the instruments that a metric reader polls."""
        from opentelemetry.metrics import CallbackOptions, Observation

        def total(which: int) -> Callable[[CallbackOptions], Iterator[Observation]]:
            def observe_total(options: CallbackOptions) -> Iterator[Observation]:
                for name, tally in self._tallies.items():
                    totals = tally.totals()
                    if totals[0]:
                        yield Observation(totals[which], {**self._named, "schemaless.call": name})

            return observe_total

        def observe_hits(options: CallbackOptions) -> Iterator[Observation]:
            yield Observation(cache().hits, self._named)

        def observe_misses(options: CallbackOptions) -> Iterator[Observation]:
            yield Observation(cache().misses, self._named)

        def observe_breakers(options: CallbackOptions) -> Iterator[Observation]:
            for node, breaker in pools.breakers().items():
                yield Observation(int(breaker.is_open), {**self._named, "schemaless.server": str(node)})

        meter = self._meter
        meter.create_observable_gauge(
            "schemaless.breaker.open",
            [observe_breakers],
            "1",
            "1 while the circuit breaker refuses calls to the server.",
        )
        meter.create_observable_counter(
            "schemaless.cold.hits", [observe_hits], "1", "Row groups of cold files that were in the process's cache."
        )
        meter.create_observable_counter(
            "schemaless.cold.misses", [observe_misses], "1", "Row groups that the process has fetched from cold files."
        )
        meter.create_observable_counter("schemaless.calls", [total(0)], "1", "Calls that have ended.")
        meter.create_observable_counter(
            "schemaless.call.seconds", [total(1)], "s", "Total duration of the calls that have ended."
        )

    def on_event(self, event: Event) -> None:
        if isinstance(event, SlotAwaited):
            self._waits.record(event.seconds, self._named)
        elif isinstance(event, Retried):
            self._retries.add(1, {**self._named, "error.type": event.cause})

    def counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        add, clock = self._tallies[name].add, time.perf_counter

        @functools.wraps(call)
        def counted_call(*arguments: Any, **options: Any) -> Any:
            began_s = clock()
            try:
                return call(*arguments, **options)
            except Exception as error:
                self._errors.add(1, {**self._named, "schemaless.call": name, "error.type": type(error).__name__})
                raise
            finally:
                add(clock() - began_s)

        return counted_call

    def spanned(self, name: str, call: Callable[..., Any], tracer: Tracer) -> Callable[..., Any]:
        from opentelemetry import context, trace

        span_name, attributes = f"schemaless.{name}", {**self._named, "schemaless.call": name}
        counted_call, start, kind = self.counted(name, call), tracer.start_span, trace.SpanKind.CLIENT

        @functools.wraps(call)
        def spanned_call(*arguments: Any, **options: Any) -> Any:
            # start_as_current_span would double the cost of a span that the sampler drops. An exception's message may
            # contain a key, so only its class is recorded.
            span = start(span_name, None, kind, attributes, record_exception=False, set_status_on_exception=False)
            token = None
            try:
                # Without an SDK the span is invalid and need not become the current one.
                if span.get_span_context().is_valid:
                    token = context.attach(trace.set_span_in_context(span))
                return counted_call(*arguments, **options)
            except Exception as error:
                span.set_status(trace.StatusCode.ERROR)
                span.set_attribute("error.type", type(error).__name__)
                raise
            finally:
                if token is not None:
                    context.detach(token)
                span.end()

        return spanned_call


def listener(what: str, *, meter_provider: MeterProvider | None = None) -> Listener:
    """Return a listener that counts the events and units of progress of a long-running operation.

    Args:
        what: name of the operation, such as ``nightly migration``; recorded as the attribute ``schemaless.work``.
        meter_provider: the meter provider; defaults to the application's global one.

    Returns:
        The listener. Without OpenTelemetry it does nothing.
    """
    if not available():
        return ignore_events
    from opentelemetry import metrics

    meter = metrics.get_meter(_SCOPE, meter_provider=meter_provider)
    events = meter.create_counter("schemaless.events", "1", "Events of long-running operations, by class.")
    units = meter.create_counter("schemaless.units", "1", "Progress of long-running operations, in their own units.")

    def count(event: Event) -> None:
        events.add(1, {"schemaless.work": what, "schemaless.event": type(event).__name__})
        if isinstance(event, Advanced):
            units.add(event.units, {"schemaless.work": what})

    return count
