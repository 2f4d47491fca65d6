"""A call with OpenTelemetry's API, which does nothing without its SDK."""

import sys
import uuid

import schemaless
from schemaless.monitoring import telemetry

assert telemetry.available()
with schemaless.connect(sys.argv[1]) as store:
    assert store.get_row(uuid.uuid4()) == {}
