"""The tables of the catalog."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import mysql

revision = "catalog_0001"
down_revision = None
branch_labels: tuple[str, ...] = ("catalog",)
depends_on = None


def _ascii(length: int) -> mysql.VARCHAR:
    return mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")


def upgrade(op: Operations) -> None:
    """Create the tables."""
    options: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_row_format": "DYNAMIC"}
    now, zero, number = sa.text("(UTC_TIMESTAMP(6))"), sa.text("0"), mysql.BIGINT(unsigned=True)
    op.create_table(
        "capacity_sample",
        sa.Column("sample_id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("taken_at", mysql.DATETIME(fsp=6), nullable=False),
        sa.Column("figures", mysql.MEDIUMTEXT(), nullable=False),
        sa.PrimaryKeyConstraint("sample_id"),
        **options,
    )
    op.create_table(
        "cluster",
        sa.Column("name", _ascii(64), nullable=False),
        sa.Column("created_at", mysql.DATETIME(fsp=6), server_default=now, nullable=False),
        sa.Column("primary_epoch", sa.Integer(), server_default=zero, nullable=False),
        sa.Column("id_block", number, server_default=zero, nullable=False),
        sa.Column("engine", _ascii(16), server_default=sa.text("'innodb'"), nullable=False),
        sa.Column("replicas", sa.Integer(), nullable=True),
        sa.Column("semi_sync", mysql.TINYINT(), server_default=zero, nullable=False),
        sa.PrimaryKeyConstraint("name"),
        **options,
    )
    op.create_table(
        "cold_store",
        sa.Column("only_row", mysql.TINYINT(), autoincrement=False, nullable=False),
        sa.Column("uri", mysql.VARCHAR(1024), nullable=False),
        sa.Column("incarnation", _ascii(32), nullable=False),
        sa.Column("keep_days", sa.Integer(), server_default=zero, nullable=False),
        sa.Column("set_by", mysql.VARCHAR(255), nullable=False),
        sa.Column("set_at", mysql.DATETIME(fsp=6), server_default=now, nullable=False),
        sa.CheckConstraint("only_row = 1", name="cold_store_only_row"),
        sa.PrimaryKeyConstraint("only_row"),
        **options,
    )
    op.create_table(
        "column_codec",
        sa.Column("column_name", _ascii(64), nullable=False),
        sa.Column("codec", _ascii(64), nullable=False),
        sa.Column("level", sa.Integer(), nullable=True),
        sa.Column("dictionary_id", sa.Integer(), nullable=True),
        sa.Column("history", mysql.TINYINT(), server_default=sa.text("0"), nullable=False),
        sa.Column("set_at", mysql.DATETIME(fsp=6), server_default=now, nullable=False),
        sa.PrimaryKeyConstraint("column_name"),
        **options,
    )
    op.create_table(
        "datastore",
        sa.Column("only_row", mysql.TINYINT(), autoincrement=False, nullable=False),
        sa.Column("name", _ascii(64), nullable=False),
        sa.Column("shard_count", sa.Integer(), nullable=False),
        sa.Column("placement", _ascii(32), nullable=False),
        sa.Column("format", mysql.SMALLINT(), nullable=False),
        sa.Column("ready", mysql.TINYINT(), nullable=False),
        sa.Column("created_at", mysql.DATETIME(fsp=6), server_default=now, nullable=False),
        sa.Column("topology_token", sa.BINARY(16), nullable=True),
        sa.CheckConstraint("only_row = 1", name="datastore_only_row"),
        sa.PrimaryKeyConstraint("only_row"),
        **options,
    )
    op.create_table(
        "dictionary",
        sa.Column("dictionary_id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("digest", sa.BINARY(32), nullable=False),
        sa.Column("content", mysql.MEDIUMBLOB(), nullable=True),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.Column("source", mysql.MEDIUMTEXT(), nullable=False),
        sa.Column("created_at", mysql.DATETIME(fsp=6), server_default=now, nullable=False),
        sa.Column("retired_at", mysql.DATETIME(fsp=6), nullable=True),
        sa.Column("removed_at", mysql.DATETIME(fsp=6), nullable=True),
        sa.PrimaryKeyConstraint("dictionary_id"),
        mysql_auto_increment="32768",
        **options,
    )
    op.create_table(
        "erasure",
        sa.Column("erasure_id", number, autoincrement=True, nullable=False),
        sa.Column("token", sa.BINARY(16), nullable=False),
        sa.Column("kind", _ascii(16), nullable=False),
        sa.Column("scope", mysql.MEDIUMTEXT(), nullable=False),
        sa.Column("reason", _ascii(64), nullable=False),
        sa.Column("requested_by", mysql.VARCHAR(255), nullable=False),
        sa.Column("intended_at", mysql.DATETIME(fsp=6), server_default=now, nullable=False),
        sa.Column("executed_at", mysql.DATETIME(fsp=6), nullable=True),
        sa.Column("acknowledged_at", mysql.DATETIME(fsp=6), nullable=True),
        sa.Column("verified_at", mysql.DATETIME(fsp=6), nullable=True),
        sa.Column("notes", mysql.MEDIUMTEXT(), nullable=True),
        sa.PrimaryKeyConstraint("erasure_id"),
        sa.UniqueConstraint("token", name="erasure_token"),
        **options,
    )
    op.create_table(
        "erasure_follower",
        sa.Column("erasure_id", number, autoincrement=False, nullable=False),
        sa.Column("name", _ascii(80), nullable=False),
        sa.Column("acknowledged_at", mysql.DATETIME(fsp=6), server_default=now, nullable=False),
        sa.PrimaryKeyConstraint("erasure_id", "name"),
        **options,
    )
    op.create_table(
        "erasure_key",
        sa.Column("erasure_id", number, autoincrement=False, nullable=False),
        sa.Column("shard", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("row_key", sa.BINARY(16), nullable=False),
        sa.Column("column_name", _ascii(64), nullable=False),
        sa.Column("ref_key", mysql.BIGINT(), autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("erasure_id", "shard", "row_key", "column_name", "ref_key"),
        **options,
    )
    op.create_table(
        "erasure_shard",
        sa.Column("erasure_id", number, autoincrement=False, nullable=False),
        sa.Column("shard", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("cells", number, server_default=zero, nullable=False),
        sa.Column("body_bytes", number, server_default=zero, nullable=False),
        sa.Column("last_event", number, server_default=zero, nullable=False),
        sa.Column("executed_at", mysql.DATETIME(fsp=6), nullable=True),
        sa.PrimaryKeyConstraint("erasure_id", "shard"),
        **options,
    )
    op.create_table(
        "follower_setting",
        sa.Column("name", _ascii(80), nullable=False),
        sa.Column("wanted", _ascii(16), nullable=False),
        sa.Column("spec", mysql.MEDIUMTEXT(), nullable=False),
        sa.Column("created_at", mysql.DATETIME(fsp=6), server_default=now, nullable=False),
        sa.PrimaryKeyConstraint("name"),
        **options,
    )
    op.create_table(
        "follower_worker",
        sa.Column("worker", mysql.VARCHAR(255), nullable=False),
        sa.Column("followers", mysql.MEDIUMTEXT(), nullable=False),
        sa.Column("lease_until", mysql.DATETIME(fsp=6), nullable=False),
        sa.Column("figures", mysql.MEDIUMTEXT(), nullable=False),
        sa.PrimaryKeyConstraint("worker"),
        **options,
    )
    op.create_table(
        "job",
        sa.Column("job_id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("kind", _ascii(16), nullable=False),
        sa.Column("state", _ascii(16), nullable=False),
        sa.Column("spec", mysql.MEDIUMTEXT(), nullable=False),
        sa.Column("versions", mysql.MEDIUMTEXT(), nullable=False),
        sa.Column("created_by", mysql.VARCHAR(255), nullable=False),
        sa.Column("created_at", mysql.DATETIME(fsp=6), server_default=now, nullable=False),
        sa.Column("ended_at", mysql.DATETIME(fsp=6), nullable=True),
        sa.Column("message", mysql.MEDIUMTEXT(), nullable=True),
        sa.Column("budget_us", number, server_default=zero, nullable=False),
        sa.PrimaryKeyConstraint("job_id"),
        **options,
    )
    op.create_table(
        "job_cluster",
        sa.Column("job_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("cluster", _ascii(64), nullable=False),
        sa.Column("runner", mysql.VARCHAR(255), nullable=True),
        sa.Column("lease_until", mysql.DATETIME(fsp=6), nullable=True),
        sa.Column("looked_at", mysql.DATETIME(fsp=6), nullable=True),
        sa.Column("reason", mysql.MEDIUMTEXT(), nullable=True),
        sa.Column("figures", mysql.MEDIUMTEXT(), nullable=True),
        sa.Column("waits", mysql.MEDIUMTEXT(), nullable=True),
        sa.Column("measures", mysql.MEDIUMTEXT(), nullable=True),
        sa.PrimaryKeyConstraint("job_id", "cluster"),
        **options,
    )
    op.create_table(
        "job_event",
        sa.Column("event_id", number, autoincrement=True, nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("at", mysql.DATETIME(fsp=6), server_default=now, nullable=False),
        sa.Column("who", mysql.VARCHAR(255), nullable=False),
        sa.Column("what", mysql.MEDIUMTEXT(), nullable=False),
        sa.PrimaryKeyConstraint("event_id"),
        **options,
    )
    op.create_table(
        "job_failure",
        sa.Column("job_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("shard", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("added_id", number, autoincrement=False, nullable=False),
        sa.Column("row_key", sa.BINARY(16), nullable=False),
        sa.Column("column_name", _ascii(64), nullable=False),
        sa.Column("ref_key", mysql.BIGINT(), nullable=False),
        sa.Column("reason", _ascii(64), nullable=False),
        sa.Column("message", mysql.MEDIUMTEXT(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "shard", "added_id"),
        **options,
    )
    op.create_table(
        "job_shard",
        sa.Column("job_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("shard", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("state", _ascii(16), nullable=False),
        sa.Column("pass_number", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("first_id", number, server_default=zero, nullable=False),
        sa.Column("top_id", number, server_default=zero, nullable=False),
        sa.Column("checkpoint", number, server_default=zero, nullable=False),
        sa.Column("cells", number, server_default=zero, nullable=False),
        sa.Column("bytes_before", number, server_default=zero, nullable=False),
        sa.Column("bytes_after", number, server_default=zero, nullable=False),
        sa.Column("left_cells", number, server_default=zero, nullable=False),
        sa.Column("counters", mysql.MEDIUMTEXT(), nullable=True),
        sa.Column("busy_s", mysql.DOUBLE(asdecimal=True), server_default=zero, nullable=False),
        sa.Column("data_bytes", number, server_default=zero, nullable=False),
        sa.Column("runner", mysql.VARCHAR(255), nullable=True),
        sa.Column("epoch", sa.Integer(), server_default=zero, nullable=False),
        sa.Column("lease_until", mysql.DATETIME(fsp=6), nullable=True),
        sa.Column("stop", mysql.TINYINT(), server_default=zero, nullable=False),
        sa.Column("message", mysql.MEDIUMTEXT(), nullable=True),
        sa.Column("started_at", mysql.DATETIME(fsp=6), nullable=True),
        sa.Column("ended_at", mysql.DATETIME(fsp=6), nullable=True),
        sa.Column("measures", mysql.MEDIUMTEXT(), nullable=True),
        sa.PrimaryKeyConstraint("job_id", "shard"),
        **options,
    )
    op.create_table(
        "legal_hold",
        sa.Column("hold_id", number, autoincrement=True, nullable=False),
        sa.Column("row_key", sa.BINARY(16), nullable=False),
        sa.Column("held_by", mysql.VARCHAR(255), nullable=False),
        sa.Column("reason", _ascii(64), nullable=False),
        sa.Column("held_at", mysql.DATETIME(fsp=6), server_default=now, nullable=False),
        sa.Column("released_at", mysql.DATETIME(fsp=6), nullable=True),
        sa.Column("released_by", mysql.VARCHAR(255), nullable=True),
        sa.PrimaryKeyConstraint("hold_id"),
        sa.UniqueConstraint("row_key", "hold_id", name="legal_hold_row"),
        **options,
    )
    op.create_table(
        "retention_policy",
        sa.Column("column_name", _ascii(64), nullable=False),
        sa.Column("keep_days", sa.Integer(), nullable=True),
        sa.Column("keep_versions", sa.Integer(), nullable=True),
        sa.Column("set_by", mysql.VARCHAR(255), nullable=False),
        sa.Column("set_at", mysql.DATETIME(fsp=6), server_default=now, nullable=False),
        sa.PrimaryKeyConstraint("column_name"),
        **options,
    )
    op.create_table(
        "secondary_index",
        sa.Column("index_id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("name", _ascii(32), nullable=False),
        sa.Column("definition", mysql.MEDIUMTEXT(), nullable=False),
        sa.Column("state", _ascii(16), nullable=False),
        sa.Column("created_at", mysql.DATETIME(fsp=6), server_default=now, nullable=False),
        sa.Column("ready_at", mysql.DATETIME(fsp=6), nullable=True),
        sa.Column("dropped_at", mysql.DATETIME(fsp=6), nullable=True),
        sa.Column("message", mysql.MEDIUMTEXT(), nullable=True),
        sa.PrimaryKeyConstraint("index_id"),
        **options,
    )
    op.create_table(
        "shard_move",
        sa.Column("job_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("shard", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("source", _ascii(64), nullable=False),
        sa.Column("target", _ascii(64), nullable=False),
        sa.Column("phase", _ascii(16), nullable=False),
        sa.Column("token", _ascii(16), nullable=True),
        sa.Column("settled_id", number, server_default=zero, nullable=False),
        sa.Column("verified_id", number, server_default=zero, nullable=False),
        sa.Column("fence_id", number, nullable=True),
        sa.Column("fence_rows", number, nullable=True),
        sa.Column("target_server", mysql.VARCHAR(255), nullable=True),
        sa.Column("pause_s", mysql.DOUBLE(asdecimal=True), nullable=True),
        sa.PrimaryKeyConstraint("job_id", "shard"),
        **options,
    )
    op.create_table(
        "tier_policy",
        sa.Column("column_name", _ascii(64), nullable=False),
        sa.Column("after_days", sa.Integer(), nullable=False),
        sa.Column("set_by", mysql.VARCHAR(255), nullable=False),
        sa.Column("set_at", mysql.DATETIME(fsp=6), server_default=now, nullable=False),
        sa.PrimaryKeyConstraint("column_name"),
        **options,
    )
    op.create_table(
        "node",
        sa.Column("node_id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("cluster", _ascii(64), nullable=False),
        sa.Column("role", _ascii(16), nullable=False),
        sa.Column("host", mysql.VARCHAR(255), nullable=True),
        sa.Column("port", sa.Integer(), nullable=True),
        sa.Column("socket", mysql.VARCHAR(255), nullable=True),
        sa.Column("server", _ascii(64), nullable=True),
        sa.ForeignKeyConstraint(["cluster"], ["cluster.name"], name="node_cluster"),
        sa.PrimaryKeyConstraint("node_id"),
        **options,
    )
    op.create_table(
        "shard_range",
        sa.Column("first_shard", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("last_shard", sa.Integer(), nullable=False),
        sa.Column("cluster", _ascii(64), nullable=False),
        sa.ForeignKeyConstraint(["cluster"], ["cluster.name"], name="shard_range_cluster"),
        sa.PrimaryKeyConstraint("first_shard"),
        **options,
    )
