"""Every public name; a cell written, read and followed; the command says which extra it needs."""

import sys
import uuid

import schemaless
from schemaless.cli.entry import main

assert [getattr(schemaless, name) for name in schemaless.__all__]
with schemaless.connect(sys.argv[1]) as store:
    row = uuid.uuid4()
    store.put_cell(row, "BASE", 1, {"fare": 12.5})
    cell = store.get_cell_latest(row, "BASE")
    assert cell is not None
    assert cell.body == {"fare": 12.5}
    assert [each.row_key for shard in range(4) for each in store.iter_shard(shard)] == [row]
assert main() == 2
