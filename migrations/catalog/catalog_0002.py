"""Jobs: what they are to do, where they are on each shard and cluster, what they met, who did what."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import mysql

revision = "catalog_0002"
down_revision = "catalog_0001"
branch_labels = None
depends_on = None


def _ascii(length: int) -> mysql.VARCHAR:
    return mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")


def _now() -> Any:
    return sa.text("(UTC_TIMESTAMP(6))")


def upgrade(op: Operations) -> None:
    """Create the five tables."""
    options: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_row_format": "DYNAMIC"}
    op.create_table(
        "job",
        sa.Column("job_id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("kind", _ascii(16), nullable=False),
        sa.Column("state", _ascii(16), nullable=False),
        sa.Column("spec", mysql.MEDIUMTEXT(), nullable=False),
        sa.Column("versions", mysql.MEDIUMTEXT(), nullable=False),
        sa.Column("created_by", mysql.VARCHAR(255), nullable=False),
        sa.Column("created_at", mysql.DATETIME(fsp=6), nullable=False, server_default=_now()),
        sa.Column("ended_at", mysql.DATETIME(fsp=6), nullable=True),
        sa.Column("message", mysql.MEDIUMTEXT(), nullable=True),
        sa.Column("budget_us", mysql.BIGINT(unsigned=True), nullable=False, server_default=sa.text("0")),
        sa.PrimaryKeyConstraint("job_id"),
        **options,
    )
    op.create_table(
        "job_shard",
        sa.Column("job_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("shard", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("state", _ascii(16), nullable=False),
        sa.Column("pass_number", sa.Integer(), nullable=False, server_default=sa.text("1")),
        sa.Column("first_id", mysql.BIGINT(unsigned=True), nullable=False, server_default=sa.text("0")),
        sa.Column("top_id", mysql.BIGINT(unsigned=True), nullable=False, server_default=sa.text("0")),
        sa.Column("checkpoint", mysql.BIGINT(unsigned=True), nullable=False, server_default=sa.text("0")),
        sa.Column("cells", mysql.BIGINT(unsigned=True), nullable=False, server_default=sa.text("0")),
        sa.Column("bytes_before", mysql.BIGINT(unsigned=True), nullable=False, server_default=sa.text("0")),
        sa.Column("bytes_after", mysql.BIGINT(unsigned=True), nullable=False, server_default=sa.text("0")),
        sa.Column("left_cells", mysql.BIGINT(unsigned=True), nullable=False, server_default=sa.text("0")),
        sa.Column("counters", mysql.MEDIUMTEXT(), nullable=True),
        sa.Column("busy_s", mysql.DOUBLE(), nullable=False, server_default=sa.text("0")),
        sa.Column("data_bytes", mysql.BIGINT(unsigned=True), nullable=False, server_default=sa.text("0")),
        sa.Column("runner", mysql.VARCHAR(255), nullable=True),
        sa.Column("epoch", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("lease_until", mysql.DATETIME(fsp=6), nullable=True),
        sa.Column("stop", mysql.TINYINT(), nullable=False, server_default=sa.text("0")),
        sa.Column("message", mysql.MEDIUMTEXT(), nullable=True),
        sa.Column("started_at", mysql.DATETIME(fsp=6), nullable=True),
        sa.Column("ended_at", mysql.DATETIME(fsp=6), nullable=True),
        sa.Column("measures", mysql.MEDIUMTEXT(), nullable=True),
        sa.PrimaryKeyConstraint("job_id", "shard"),
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
        "job_failure",
        sa.Column("job_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("shard", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("added_id", mysql.BIGINT(unsigned=True), autoincrement=False, nullable=False),
        sa.Column("row_key", sa.BINARY(16), nullable=False),
        sa.Column("column_name", _ascii(64), nullable=False),
        sa.Column("ref_key", mysql.BIGINT(), nullable=False),
        sa.Column("reason", _ascii(64), nullable=False),
        sa.Column("message", mysql.MEDIUMTEXT(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "shard", "added_id"),
        **options,
    )
    op.create_table(
        "job_event",
        sa.Column("event_id", mysql.BIGINT(unsigned=True), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("at", mysql.DATETIME(fsp=6), nullable=False, server_default=_now()),
        sa.Column("who", mysql.VARCHAR(255), nullable=False),
        sa.Column("what", mysql.MEDIUMTEXT(), nullable=False),
        sa.PrimaryKeyConstraint("event_id"),
        **options,
    )
