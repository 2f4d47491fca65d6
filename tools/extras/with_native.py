"""A packed cell, with the native extension both for the body and for the reply."""

import sys
import uuid

import schemaless_packed

import schemaless
from schemaless.wire import replies

assert replies._native is schemaless_packed
assert schemaless_packed.unpack(schemaless_packed.pack({"a": [1, 2.5, None]}), 32) == {"a": [1, 2.5, None]}
with schemaless.connect(sys.argv[1]) as store:
    row = uuid.uuid4()
    store.put_cell(row, "BASE", 1, {"a": [1, 2.5, None]}, codec="packed+none")
    assert store.get_row(row)["BASE"].body == {"a": [1, 2.5, None]}
