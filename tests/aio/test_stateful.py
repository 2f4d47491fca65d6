"""The state machine of the synchronous client, through ``schemaless.aio``."""

from __future__ import annotations

import pytest

import schemaless
from tests.store.cells.test_stateful import agree

pytestmark = [pytest.mark.mysql]


@pytest.mark.guarantee("aio-parity")
def test_the_asyncio_client_agrees_with_a_plain_dict(
    fresh_store, tail_store, fresh_url, migrate_store, erase_store, admin_url, by_hand
):
    """Puts, batches, conflicts, erasures, legacy text, dictionaries, migrations and all reads, in random order."""
    with schemaless.connect(fresh_url) as plain:
        agree(fresh_store, plain, migrate_store, tail_store, erase_store, admin_url, by_hand(plain))
