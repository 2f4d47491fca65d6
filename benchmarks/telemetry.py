"""What a get costs with metrics and traces on, and what it costs that they could be.

    python benchmarks/telemetry.py [--rounds N] [--gets N] [--flavour mysql|mariadb]

One thread reads the same row by ``get_cell_latest`` from a private server on this machine, in short rounds that take
turns; who begins changes from round to round. ``plain`` is a datastore that is not instrumented, twice, so that its
ratio to itself shows how exact the others are; ``figures`` counts calls, time and errors for the SDK; ``spans`` records
every call as a span in memory as well; ``API`` is both with OpenTelemetry's API alone, whose spans do nothing. What a
call pays for them is then measured without a server, on a call that does nothing. Figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
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
from opentelemetry.trace import NoOpTracerProvider

import schemaless
from schemaless import telemetry
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
            for name in ("plain", "plain again", "figures", "spans", "API")
        }
        telemetry.instrument(stores["API"], tracer_provider=NoOpTracerProvider(), meter_provider=NoOpMeterProvider())
        spans = InMemorySpanExporter()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(spans))
        meters = MeterProvider([InMemoryMetricReader()])
        telemetry.instrument(stores["figures"], spans=False, meter_provider=meters)
        telemetry.instrument(stores["spans"], tracer_provider=tracers, meter_provider=MeterProvider())
        row = uuid.uuid4()
        stores["plain"].put_cell(row, "BASE", 1, {"fare": {"total": 12.5}, "to": "JFK"})
        print(f"{arguments.flavour} {server.version}; {arguments.rounds} rounds of {arguments.gets} gets each")
        taken = measure({name: reader(store, row) for name, store in stores.items()}, arguments, spans.clear)
        report(taken)
        plain_us = statistics.median(taken["plain"])
        bare = measure({"nothing": nothing, "figures": counted_nothing(meters)}, arguments, spans.clear)
        own_us = statistics.median(bare["figures"]) - statistics.median(bare["nothing"])
        print(f"  figures cost a call {own_us:.2f} us by themselves: {own_us / plain_us:.2%} of a plain get")
    return 0


def nothing() -> None:
    """Do nothing, as a call."""


def counted_nothing(meters: MeterProvider) -> Callable[[], object]:
    """Return a call that does nothing, instrumented for figures."""
    pools = types.SimpleNamespace(listen=lambda met: None, breakers=dict)
    calls = dict.fromkeys(telemetry.CALLS, nothing)
    kind = type("Nothing", (), {name: staticmethod(call) for name, call in calls.items()})
    store = kind()
    vars(store).update(name="nothing", _tools=types.SimpleNamespace(shards=types.SimpleNamespace(pools=pools)))
    telemetry.instrument(store, spans=False, meter_provider=meters)
    counted: Callable[[], object] = store.get_cell_latest
    return counted


def reader(store: schemaless.Datastore, row: uuid.UUID) -> Callable[[], object]:
    """Return what reads the row once."""
    get = store.get_cell_latest
    return lambda: get(row, "BASE")


def measure(
    readers: dict[str, Callable[[], object]], arguments: argparse.Namespace, between: Callable[[], None]
) -> dict[str, list[float]]:
    """Return microseconds a get, of each round."""
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
