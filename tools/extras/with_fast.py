"""A cell through the faster JSON and MessagePack libraries."""

import sys
import uuid

import schemaless
from schemaless.codec.engine import ENGINE

assert ENGINE.fast
with schemaless.connect(sys.argv[1]) as store:
    row = uuid.uuid4()
    store.put_cell(row, "BASE", 1, {"fare": [12.5, None]})
    assert store.get_row(row)["BASE"].body == {"fare": [12.5, None]}
