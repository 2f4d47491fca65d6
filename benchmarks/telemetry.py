"""Cost of a get with metrics and traces on, and with OpenTelemetry's API alone.

    python benchmarks/telemetry.py [--rounds N] [--gets N] [--flavour mysql|mariadb]

One thread reads the same row by ``get_cell_latest`` from a private server on this machine, in short rounds, in turns;
which reader begins changes from round to round. ``plain`` is a datastore without instrumentation, measured twice, so
that its ratio to itself shows how exact the other ratios are; ``figures`` counts calls, time and errors for the SDK;
``spans`` records every call as a span in memory as well; ``1 %`` has a sampler, based on the parent, that records one
trace in a hundred; ``API`` uses only OpenTelemetry's API, whose spans do nothing. Figures are medians over the rounds.
The cost per call is then measured without a server, on a call that does nothing, in CPU time, as the minimum of many
turns: once for starting and ending such a span by the SDK alone, and once for the whole of ``instrument``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import timeit
import types
import uuid
from collections.abc import Callable
from contextlib import ExitStack

from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import NoOpTracerProvider, SpanKind, Tracer
from opentelemetry.trace import TracerProvider as AnyTracerProvider

import schemaless
from schemaless.monitoring import telemetry
from schemaless.testing.servers import private_servers


def main() -> int:
    """Measure, print, and return 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--gets", type=int, default=200)
    parser.add_argument("--flavour", choices=("mysql", "mariadb"), default="mysql")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        (server,) = stack.enter_context(private_servers(arguments.flavour, 1))
        url = schemaless.create("told", 4, [server.url])
        stores = {
            name: stack.enter_context(schemaless.connect(url))
            for name in ("plain", "plain again", "figures", "1 %", "spans", "API")
        }
        telemetry.instrument(stores["API"], tracer_provider=NoOpTracerProvider(), meter_provider=NoOpMeterProvider())
        spans = InMemorySpanExporter()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(spans))
        meters = MeterProvider([InMemoryMetricReader()])
        telemetry.instrument(stores["figures"], spans=False, meter_provider=meters)
        telemetry.instrument(stores["spans"], tracer_provider=tracers, meter_provider=MeterProvider())
        seldom = TracerProvider(sampler=ParentBased(TraceIdRatioBased(0.01)))
        seldom.add_span_processor(SimpleSpanProcessor(spans))
        telemetry.instrument(stores["1 %"], tracer_provider=seldom, meter_provider=meters)
        row = uuid.uuid4()
        stores["plain"].put_cell(row, "BASE", 1, {"fare": {"total": 12.5}, "to": "JFK"})
        print(f"{arguments.flavour} {server.version}; {arguments.rounds} rounds of {arguments.gets} gets each")
        taken = measure({name: reader(store, row) for name, store in stores.items()}, arguments, spans.clear)
        report(taken)
        plain_us = min(taken["plain"])
        report_own({"API": NoOpTracerProvider(), "1 %": seldom, "spans": TracerProvider()}, meters, plain_us)
    return 0


def nothing() -> None:
    """Do nothing, as a call."""


def told_nothing(meters: MeterProvider, tracers: AnyTracerProvider | None) -> Callable[[], object]:
    """Return an instrumented call that does nothing; without ``tracers``, it records only figures."""
    pools = types.SimpleNamespace(listen=lambda met: None, breakers=dict)
    calls = dict.fromkeys(telemetry.CALLS, nothing)
    kind = type("Nothing", (), {name: staticmethod(call) for name, call in calls.items()})
    store = kind()
    vars(store).update(name="nothing", _internals=types.SimpleNamespace(shards=types.SimpleNamespace(pools=pools)))
    telemetry.instrument(store, spans=tracers is not None, tracer_provider=tracers, meter_provider=meters)
    told: Callable[[], object] = store.get_cell_latest
    return told


def report_own(tracers: dict[str, AnyTracerProvider], meters: MeterProvider, plain_us: float) -> None:
    """Print the overhead of a call: the SDK's, and that of the library's code around it."""
    nothing_us = cpu_us(nothing)
    own_us = cpu_us(told_nothing(meters, None)) - nothing_us
    share = own_us / plain_us
    print(f"  figures alone: {own_us:.2f} us of a call, {share:.2%} of the quickest plain get, {plain_us:.1f} us")
    attributes = {"schemaless.datastore": "nothing", "schemaless.call": "get_cell_latest"}
    for name, provider in tracers.items():
        tracer = provider.get_tracer("schemaless")

        def span(tracer: Tracer = tracer) -> None:
            tracer.start_span("schemaless.get_cell_latest", kind=SpanKind.CLIENT, attributes=attributes).end()

        sdk_us = cpu_us(span) - nothing_us
        all_us = cpu_us(told_nothing(meters, provider)) - nothing_us
        print(
            f"  figures and spans, {name:<6} {all_us:5.2f} us of a call: {sdk_us:5.2f} for the span itself, and "
            f"{all_us - sdk_us:.2f} here, {(all_us - sdk_us) / plain_us:.2%} of that get"
        )


def cpu_us(call: Callable[[], object], calls: int = 2_000, turns: int = 25) -> float:
    """Return the CPU time of a call in microseconds: the minimum of many turns, the least disturbed one."""
    return min(timeit.repeat(call, number=calls, repeat=turns, timer=time.process_time)) / calls * 1e6


def reader(store: schemaless.Datastore, row: uuid.UUID) -> Callable[[], object]:
    """Return a function that reads the row once."""
    get = store.get_cell_latest
    return lambda: get(row, "BASE")


def measure(
    readers: dict[str, Callable[[], object]], arguments: argparse.Namespace, between: Callable[[], None]
) -> dict[str, list[float]]:
    """Return the microseconds per get of each round."""
    taken: dict[str, list[float]] = {name: [] for name in readers}
    names = list(readers)
    for number in range(arguments.rounds + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            read = readers[name]
            began_s = time.perf_counter()
            for _ in range(arguments.gets):
                read()
            seconds = time.perf_counter() - began_s
            if number:  # the first round opens connections
                taken[name].append(seconds / arguments.gets * 1e6)
        between()
    return taken


def report(taken: dict[str, list[float]]) -> None:
    """Print each one's time, and its ratio to ``plain`` within a round."""
    for name, values in taken.items():
        ratios = [value / plain - 1 for value, plain in zip(values, taken["plain"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"  {name:<12} {statistics.median(values):7.1f} us a get, {middle:+.2%} against plain "
            f"(quartiles {low:+.2%} to {high:+.2%})"
        )


if __name__ == "__main__":
    sys.exit(main())
