"""The history of a cell as an Arrow table."""

import sys
import uuid

import schemaless

with schemaless.connect(sys.argv[1]) as store:
    store.put_cell(uuid.uuid4(), "BASE", 1, {"fare": 12.5})
    table = store.arrow("BASE", fields=["fare:float"]).read_all()
assert table.column("fare").to_pylist() == [12.5], table
