"""OpenTelemetry spans and metrics of calls, retries and waits; nothing without it, and no contents of cells."""

from __future__ import annotations

import threading

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import schemaless
from schemaless.base.events import Advanced, Step, ignore_events
from schemaless.monitoring import telemetry
from schemaless.store.internals import internals_of
from schemaless.wire.pool import NodePool, PoolOptions
from tests.cold import ColdFolder

DOCUMENT = {"said": "the-document-says-this"}


class Told:
    """The exports of an instrumented program."""

    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader])

    @property
    def spans(self):
        return self._spans.get_finished_spans()

    def figures(self) -> dict[tuple[str, tuple[tuple[str, object], ...]], float]:
        """Return counts and sums by metric and attributes."""
        data = self._reader.get_metrics_data()
        return {
            (metric.name, tuple(sorted(point.attributes.items()))): getattr(point, "count", None) or point.value
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        }


@pytest.fixture
def told() -> Told:
    """An application's SDK configuration."""
    return Told()


@pytest.fixture
def traced(datastore_url, told):
    """An instrumented datastore with one connection to each server."""
    with schemaless.connect(datastore_url, pool_size=1) as store:
        assert telemetry.instrument(store, tracer_provider=told.tracers, meter_provider=told.meters)
        yield store


@pytest.mark.mysql
def test_calls_make_spans_and_durations_without_a_word_of_the_cell(traced, told, row):
    """One span per call; an error is identified only by its class."""
    assert telemetry.instrument(traced)
    traced.put_cell(row, "BASE", 1, DOCUMENT)
    assert traced.get_cell_latest(row, "BASE").body == DOCUMENT
    with pytest.raises(schemaless.CellConflict):
        traced.put_cell(row, "BASE", 1, {"other": 1})

    name = {"schemaless.datastore": traced.name}
    assert [(span.name, dict(span.attributes), span.status.is_ok) for span in told.spans] == [
        ("schemaless.put_cell", {**name, "schemaless.call": "put_cell"}, True),
        ("schemaless.get_cell_latest", {**name, "schemaless.call": "get_cell_latest"}, True),
        ("schemaless.put_cell", {**name, "schemaless.call": "put_cell", "error.type": "CellConflict"}, False),
    ]
    figures = told.figures()
    named = ("schemaless.datastore", traced.name)
    put, get = (("schemaless.call", call) for call in ("put_cell", "get_cell_latest"))
    assert figures["schemaless.calls", (put, named)] == 2
    assert figures["schemaless.calls", (get, named)] == 1
    assert figures["schemaless.call.seconds", (get, named)] > 0
    assert figures["schemaless.errors", (("error.type", "CellConflict"), put, named)] == 1
    nodes = {str(node) for node in internals_of(traced).shards.pools.breakers()}
    assert nodes
    assert {key[1][1][1] for key in figures if key[0] == "schemaless.breaker.open"} == nodes
    assert {value for key, value in figures.items() if key[0] == "schemaless.breaker.open"} == {0}
    everything = "".join(span.to_json() for span in told.spans) + repr(told.figures())
    assert [word for word in (str(row), row.hex, DOCUMENT["said"], "password") if word in everything] == []


@pytest.mark.mysql
def test_erasures_and_index_queries_are_recorded(erase_url, told, row):
    """Each query of an index, whether by query, first or iter."""
    with schemaless.connect(erase_url) as store:
        telemetry.instrument(store, tracer_provider=told.tracers, meter_provider=told.meters)
        store.erase(row, reason="gdpr")
        index = store.index("none")
        for query in (index.query, index.first, lambda: next(index.iter())):
            with pytest.raises(schemaless.UnknownIndex):
                query()

    assert [span.name for span in told.spans] == ["schemaless.erase", *["schemaless.index.query"] * 3]
    call = ("schemaless.call", "index.query"), ("schemaless.datastore", store.name)
    assert told.figures()["schemaless.errors", (("error.type", "UnknownIndex"), *call)] == 3


@pytest.mark.mysql
def test_figures_alone_make_no_span_and_lose_no_call(datastore_url, told, row):
    """Concurrent threads, and more calls than are added up at a time."""
    with schemaless.connect(datastore_url) as store:
        get = store.shard_of
        assert telemetry.instrument(store, spans=False, tracer_provider=told.tracers, meter_provider=told.meters)
        assert store.column_names(row) == []
        assert store.shard_of == get
    tally = telemetry._Tally()
    threads = [threading.Thread(target=lambda: [tally.add(0.5) for _ in range(5_000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert tally.totals() == (20_000, 10_000.0)
    assert told.spans == ()
    call = (("schemaless.call", "column_names"), ("schemaless.datastore", store.name))
    assert told.figures()["schemaless.calls", call] == 1


@pytest.mark.mysql
def test_retries_and_waits_are_reported(traced, told, row, by_hand, eventually):
    """A killed connection counts as a retry with its cause, and a full pool as a wait."""
    traced.put_cell(row, "BASE", 1, DOCUMENT)
    shard = traced.shard_of(row)
    shards = internals_of(traced).shards
    pool = shards.pool_for(shards.node_of(shard))
    thread = pool.run(lambda connection: connection.rows(b"SELECT CONNECTION_ID()")[0][0])
    root = by_hand(traced).pool_for(shards.node_of(shard))
    killer = NodePool(root.node, root.credentials, PoolOptions())
    killer.run(lambda connection: connection.execute(b"KILL %d" % thread))
    killer.close()
    assert traced.get_cell_latest(row, "BASE") is not None

    name = ("schemaless.datastore", traced.name)

    def has_waited() -> bool:
        with pool.connection():
            waiting = threading.Thread(target=traced.get_cell_latest, args=(row, "BASE"))
            waiting.start()
            waiting.join(0.05)  # on a busy machine, it may not have come to the pool by then
        waiting.join()
        return ("schemaless.pool.wait", (name,)) in told.figures()

    eventually(has_waited, "a call has waited for a connection")
    figures = told.figures()
    assert figures["schemaless.retries", (("error.type", "ConnectionLost"), name)] == 1
    assert figures["schemaless.pool.wait", (name,)] == 1


@pytest.mark.mysql
def test_fetches_from_cold_files_are_counted(fresh_store, told, row, by_hand, tmp_path):
    """The first read of a row group fetches it, the next ones find it in the cache."""
    fresh_store.put_cell(row, "BASE", 1, DOCUMENT)
    ColdFolder(fresh_store, by_hand(fresh_store), tmp_path).freeze([(row, "BASE", 1)])
    telemetry.instrument(fresh_store, spans=False, meter_provider=told.meters)
    name = (("schemaless.datastore", fresh_store.name),)

    def counted():
        figures = told.figures()
        return figures["schemaless.cold.misses", name], figures["schemaless.cold.hits", name]

    misses, hits = counted()
    for _ in range(3):
        assert fresh_store.get_cell(row, "BASE", 1).body == DOCUMENT
    assert counted() == (misses + 1, hits + 2)


@pytest.mark.once
def test_a_long_calls_events_are_counted(told):
    """By class, together with the units of progress."""
    listener = telemetry.listener("nightly", meter_provider=told.meters)
    for event in (Step("reading"), Advanced(3), Advanced()):
        listener(event)

    work = ("schemaless.work", "nightly")
    assert told.figures() == {
        ("schemaless.events", (("schemaless.event", "Step"), work)): 1,
        ("schemaless.events", (("schemaless.event", "Advanced"), work)): 2,
        ("schemaless.units", (work,)): 4,
    }


@pytest.mark.mysql
def test_without_opentelemetry_nothing_happens(store, monkeypatch):
    """A program may always call instrument; the datastore is left unchanged."""
    monkeypatch.setattr(telemetry, "available", lambda: False)

    assert telemetry.instrument(store) is False
    assert telemetry.listener("nightly") is ignore_events
    assert not set(telemetry.CALLS) & set(vars(store))
    assert internals_of(store).shards.pools.pool_for(internals_of(store).shards.node_of(0)).listener is None
