"""A worker that dies at any statement of a page: another worker repeats the page, and the index is correct."""

from __future__ import annotations

import uuid

import pytest

import schemaless
from schemaless.ops.admin.indexes import indexes_of
from schemaless.store.indexes.entries import Entries
from schemaless.wire.connection import Connection

pytestmark = pytest.mark.mysql


class Died(BaseException):
    """Stands in for the death of the process."""


@pytest.mark.long
@pytest.mark.guarantee("index-late")
def test_a_worker_that_dies_at_any_statement_of_a_page_leaves_nothing_wrong(kept, fresh_store, new_row, monkeypatch):
    """Rows change their shard, over two servers; the page is cut before each of its write statements in turn.

    Uncommitted writes are lost with the connection, and the repeated page meets the committed ones.
    """
    rows = [new_row() for _ in range(8)]

    def put(version: int) -> None:
        clients = (uuid.UUID(int=number + version) for number in range(len(rows)))
        cells = [
            schemaless.NewCell(row, "BASE", version, {"client": str(client), "city": version})
            for row, client in zip(rows, clients, strict=True)
        ]
        fresh_store.put_cells(cells)

    put(1)
    entry = kept.fill()
    applying, left, deaths = False, 0, 0
    apply, execute = Entries.apply, Connection.execute

    def watched(self, writes):
        nonlocal applying
        applying = True
        try:
            apply(self, writes)
        finally:
            applying = False

    def cut(self, sql):
        nonlocal left
        if applying and left:
            left -= 1
            if left == 0:
                raise Died
        return execute(self, sql)

    monkeypatch.setattr(Entries, "apply", watched)
    monkeypatch.setattr(Connection, "execute", cut)
    for version in range(2, 60):
        put(version)
        left = version - 1
        try:
            kept.catch_up()
        except Died:
            deaths += 1
            # Its successor begins at the stored location.
            for lease in kept.worker().leases.held.values():
                lease.reached = lease.row.location
        finished = left > 0
        left = 0
        kept.catch_up()
        assert [each.faults + each.lagging for each in indexes_of(kept.follow).check(entry).run(range(4))] == [0] * 4
        if finished:
            break

    assert finished, "every write statement was cut"
    assert deaths == version - 2 > 15
