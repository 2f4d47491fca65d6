"""Index queries and waits of the synchronous client, through ``schemaless.aio``."""

from __future__ import annotations

import pytest

from tests.indexes.conftest import admin_store, kept  # noqa: F401 - fixtures
from tests.indexes.test_indexes import (  # noqa: F401 - collected here
    test_a_damaged_cell_keeps_no_other_row_from_being_found,
    test_a_stale_index_entry_is_filtered,
    test_an_index_row_without_its_cell_gives_nothing,
    test_pages_go_on_behind_the_last_entry_and_only_with_the_same_query,
    test_queries_give_what_a_look_at_each_document_gives,
    test_wait_gives_read_your_writes,
)

pytestmark = pytest.mark.mysql
