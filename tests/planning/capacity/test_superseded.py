"""What a report learns of a live datastore's policies."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

import schemaless
from schemaless import Datastore, NewCell
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.planning.capacity.reporting import collect
from schemaless.store.erasures.retention import Policy
from schemaless.store.internals import internals_of
from schemaless.topology.shards import Shards


@pytest.fixture
def admin(admin_url: str) -> Iterator[Datastore]:
    with schemaless.connect(admin_url) as opened:
        yield opened


def test_the_share_of_superseded_bytes_is_sampled(fresh_store: Datastore, admin: Datastore) -> None:
    """Four versions of each row: of one kept, three quarters are superseded; of three, a quarter; of ten, nothing."""
    rows = [uuid.uuid4() for _ in range(20)]
    fresh_store.put_cells([NewCell(row, "LOG", version, {"n": version}) for row in rows for version in range(4)])
    internals_of(admin).policies.set(Policy("LOG", 400, 1))
    collected = collect(fresh_store)

    assert {column: str(policy) for column, policy in collected.policies.items()} == {
        "LOG": "keep 400 days and the last version"
    }
    superseded = collected.measurements[-1].trials.superseded
    assert [superseded["LOG", kept] for kept in (1, 2, 3, 4, 10, 100)] == [0.75, 0.5, 0.25, 0, 0, 0]


def test_a_report_of_a_catalog_without_policies_says_so(
    fresh_store: Datastore, by_hand: Callable[[Datastore], Shards], new_row: Callable[[], uuid.UUID]
) -> None:
    """Of a catalog that was not upgraded, or an account without the privilege: a note, and codecs are tried."""
    fresh_store.put_cells([NewCell(new_row(), "LOG", 1, {"n": number}) for number in range(40)])
    catalog = by_hand(fresh_store).pool_for(internals_of(fresh_store).catalog.node)
    table = f"`{fresh_store.name}`.retention_policy".encode()
    catalog.run(lambda connection: connection.execute(b"RENAME TABLE %b TO %b_away" % (table, table)))
    collected = collect(fresh_store)
    catalog.run(lambda connection: connection.execute(b"RENAME TABLE %b_away TO %b" % (table, table)))

    assert any(note.startswith("retention policies could not be read: ") for note in collected.notes)
    assert collected.measurements[-1].trials.columns


def test_erased_cells_are_no_part_of_codec_trials(
    fresh_store: Datastore, erase_store: Datastore, new_row: Callable[[], uuid.UUID]
) -> None:
    """Tombstones stay as they are in every codec, so they would make every codec look alike."""
    rows = [new_row() for _ in range(40)]
    fresh_store.put_cells([NewCell(row, "LOG", 1, {"text": "abc" * 300}) for row in rows])
    before = collect(fresh_store).measurements[-1].trials
    for row in rows[:20]:
        erase_store.erase(row, reason="test")
    after = collect(fresh_store).measurements[-1].trials

    assert after.disk_per_body["LOG"].mid == pytest.approx(before.disk_per_body["LOG"].mid, rel=0.05)
    assert {trial.sampled for trial in after.columns} == {20}


def test_deltas_are_measured_as_a_codec_of_their_own(
    fresh_store: Datastore, migrate_store: Datastore, new_row: Callable[[], uuid.UUID]
) -> None:
    """They are decoded with the versions that they depend on, so none counts as damaged."""
    row = new_row()
    fresh_store.put_cells([NewCell(row, "LOG", n, {"text": list(range(300)), "n": n}) for n in range(40)])
    migrate.run(migrate_store, MigrateSpec(history=True))
    measured = collect(fresh_store).measurements[-1]

    groups = {group.codec: group for group in measured.groups}
    assert groups.keys() == {"msgpack+zlib", "msgpack+delta"}
    assert groups["msgpack+delta"].cells.mid > 30
    assert groups["msgpack+delta"].json_bytes.mid > 10 * groups["msgpack+delta"].body_bytes.mid
    assert not any("decoded" in note for note in measured.notes)
