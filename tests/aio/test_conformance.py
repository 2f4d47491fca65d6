"""Tests of the synchronous client, through ``schemaless.aio``: the fixtures of this folder replace the datastores."""

from __future__ import annotations

import pytest

from tests.store.cells.test_append import (  # noqa: F401 - collected here
    test_append_after_the_highest_ref_key_is_refused,
    test_append_continues_at_1_after_0,
    test_append_refuses_before_any_io,
    test_append_starts_at_1_and_continues_after_the_latest,
    test_many_appenders_of_one_row_take_a_ref_key_each,
    test_the_same_body_twice_is_two_cells,
)
from tests.store.cells.test_reading import (  # noqa: F401
    test_arguments_of_the_wrong_type_are_refused,
    test_columns_are_independent_and_case_counts,
    test_datastore_is_neither_copied_nor_pickled,
    test_every_format_at_once_reads_the_same_through_every_call,
    test_get_absent_cell_is_none,
    test_get_cell_carries_its_key_id_and_time,
    test_get_cell_gives_an_exact_old_version,
    test_get_cells_latest_many_rows_over_all_shards,
    test_get_latest_is_the_highest_ref_key_not_the_last_written,
    test_get_over_the_readers_limit_raises_and_another_limit_reads_it,
    test_get_rotten_body_raises_naming_cell_and_shard,
    test_get_rows_reads_many_rows_over_all_shards,
    test_get_versions_bad_arguments_raise_at_once,
    test_get_versions_ranges_directions_and_limits,
    test_reads_at_a_time_ignore_what_was_stored_later,
    test_reads_from_anything_but_primary_or_replica_are_refused,
    test_scan_shard_pages_in_added_id_order,
)
from tests.store.cells.test_whole import (  # noqa: F401
    cells,
    test_iter_cells_returns_every_cell_once_or_the_latest_ones,
)
from tests.store.cells.test_writing import (  # noqa: F401
    test_put_after_reencoding_is_still_the_same_cell,
    test_put_at_the_ends_of_ref_key_is_kept,
    test_put_cells_added_ids_are_right_beside_bulk_inserts,
    test_put_cells_empty_batch_is_fine,
    test_put_cells_from_many_threads_all_agree_on_one_winner,
    test_put_cells_partly_there_writes_what_is_missing,
    test_put_cells_returns_puts_in_the_order_given,
    test_put_cells_same_key_twice_with_one_body_is_one_cell,
    test_put_cells_same_key_with_two_bodies_raises_before_any_io,
    test_put_cells_with_a_created_at_no_cell_may_have_raises_before_any_io,
    test_put_cells_with_created_at_keep_it_and_others_get_the_clocks,
    test_put_cells_with_look_first_uses_no_added_id,
    test_put_cells_with_one_bad_body_writes_nothing_and_names_it,
    test_put_cells_with_one_conflict_writes_nothing_in_that_shard,
    test_put_every_byte_value_in_every_position_comes_back,
    test_put_falsy_and_awkward_bodies_round_trip,
    test_put_over_text_with_a_duplicate_key_compares_the_text,
    test_put_row_writes_all_columns_or_none,
    test_put_same_cell_same_body_is_a_no_op,
    test_put_same_ref_key_with_other_body_raises_conflict,
    test_put_stored_cells_that_do_not_decode_are_refused,
    test_put_with_a_body_outside_the_model_names_the_path,
    test_put_with_a_key_no_cell_may_have_raises_before_any_io,
)
from tests.store.feed.test_reader import (  # noqa: F401
    database,
    primary,
    put,
    test_a_cell_that_is_committed_late_is_not_skipped,
    test_a_location_beyond_the_last_cell_is_an_error,
    test_arguments_are_checked_at_once,
    test_following_gives_cells_as_they_come,
    test_gaps_in_the_ids_are_passed,
    test_one_column_only,
    test_pages_are_ordered_limited_and_strictly_after_the_location,
    test_the_end_is_settled,
    test_the_feed_continues_after_a_rollback,
    test_writers_at_once_never_make_it_skip,
)
from tests.store.test_typed import (  # noqa: F401
    test_a_model_that_cannot_be_converted_is_refused_at_once,
    test_documents_are_written_as_the_model_says_and_come_back_as_declared,
    test_documents_of_another_shape_are_named_or_upcast,
    test_what_would_not_read_back_is_not_written,
)
from tests.topology.test_pinging import test_every_server_answers  # noqa: F401

pytestmark = pytest.mark.mysql
