"""The tables, described once. Alembic revisions lead to the same ones; a test holds the two against each other."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import BINARY, CheckConstraint, Column, ForeignKey, Integer, MetaData, Table, UniqueConstraint, text
from sqlalchemy.dialects.mysql import BIGINT, DATETIME, DOUBLE, MEDIUMBLOB, MEDIUMTEXT, SMALLINT, TINYINT, VARCHAR

CHARACTER_SET: Final = "utf8mb4"
COLLATION: Final = "utf8mb4_bin"
"""Of every database that is created here; named outright, since servers differ in their defaults."""

_TABLE_OPTIONS: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_row_format": "DYNAMIC"}
_NOW = text("(UTC_TIMESTAMP(6))")


def _ascii(length: int) -> VARCHAR:
    return VARCHAR(length, charset="ascii", collation="ascii_bin")


shard_metadata = MetaData()

cell = Table(
    "cell",
    shard_metadata,
    Column("added_id", BIGINT(unsigned=True), primary_key=True, autoincrement=True),
    Column("row_key", BINARY(16), nullable=False),
    Column("column_name", _ascii(64), nullable=False),
    Column("ref_key", BIGINT(), nullable=False),
    Column("body", MEDIUMBLOB(), nullable=False),
    Column("created_at", DATETIME(fsp=6), nullable=False, server_default=_NOW),
    UniqueConstraint("row_key", "column_name", "ref_key", name="cell_key"),
    **_TABLE_OPTIONS,
)

shard_identity = Table(
    "shard_identity",
    shard_metadata,
    Column("only_row", TINYINT(), primary_key=True, autoincrement=False),
    Column("datastore", _ascii(64), nullable=False),
    Column("shard", Integer(), nullable=False),
    Column("shard_count", Integer(), nullable=False),
    Column("placement", _ascii(32), nullable=False),
    Column("format", SMALLINT(), nullable=False),
    CheckConstraint("only_row = 1", name="shard_identity_only_row"),
    **_TABLE_OPTIONS,
)

catalog_metadata = MetaData()

datastore = Table(
    "datastore",
    catalog_metadata,
    Column("only_row", TINYINT(), primary_key=True, autoincrement=False),
    Column("name", _ascii(64), nullable=False),
    Column("shard_count", Integer(), nullable=False),
    Column("placement", _ascii(32), nullable=False),
    Column("format", SMALLINT(), nullable=False),
    Column("ready", TINYINT(), nullable=False),
    Column("created_at", DATETIME(fsp=6), nullable=False, server_default=_NOW),
    CheckConstraint("only_row = 1", name="datastore_only_row"),
    **_TABLE_OPTIONS,
)

cluster = Table(
    "cluster",
    catalog_metadata,
    Column("name", _ascii(64), primary_key=True),
    Column("created_at", DATETIME(fsp=6), nullable=False, server_default=_NOW),
    **_TABLE_OPTIONS,
)

node = Table(
    "node",
    catalog_metadata,
    Column("node_id", Integer(), primary_key=True, autoincrement=True),
    Column("cluster", _ascii(64), ForeignKey("cluster.name", name="node_cluster"), nullable=False),
    Column("role", _ascii(16), nullable=False),
    Column("host", VARCHAR(255), nullable=True),
    Column("port", Integer(), nullable=True),
    Column("socket", VARCHAR(255), nullable=True),
    **_TABLE_OPTIONS,
)

shard_range = Table(
    "shard_range",
    catalog_metadata,
    Column("first_shard", Integer(), primary_key=True, autoincrement=False),
    Column("last_shard", Integer(), nullable=False),
    Column("cluster", _ascii(64), ForeignKey("cluster.name", name="shard_range_cluster"), nullable=False),
    **_TABLE_OPTIONS,
)

# Jobs. All times are this server's clock, UTC; what is JSON text is written and read by jobs/ledger.py.

job = Table(
    "job",
    catalog_metadata,
    Column("job_id", Integer(), primary_key=True, autoincrement=True),
    Column("kind", _ascii(16), nullable=False),
    Column("state", _ascii(16), nullable=False),
    Column("spec", MEDIUMTEXT(), nullable=False),
    Column("versions", MEDIUMTEXT(), nullable=False),
    Column("created_by", VARCHAR(255), nullable=False),
    Column("created_at", DATETIME(fsp=6), nullable=False, server_default=_NOW),
    Column("ended_at", DATETIME(fsp=6), nullable=True),
    Column("message", MEDIUMTEXT(), nullable=True),
    # Until when the budget of bytes a second is spent, in microseconds since 1970.
    Column("budget_us", BIGINT(unsigned=True), nullable=False, server_default=text("0")),
    **_TABLE_OPTIONS,
)

job_shard = Table(
    "job_shard",
    catalog_metadata,
    Column("job_id", Integer(), primary_key=True, autoincrement=False),
    Column("shard", Integer(), primary_key=True, autoincrement=False),
    Column("state", _ascii(16), nullable=False),
    Column("pass_number", Integer(), nullable=False, server_default=text("1")),
    Column("first_id", BIGINT(unsigned=True), nullable=False, server_default=text("0")),
    Column("top_id", BIGINT(unsigned=True), nullable=False, server_default=text("0")),
    Column("checkpoint", BIGINT(unsigned=True), nullable=False, server_default=text("0")),
    Column("cells", BIGINT(unsigned=True), nullable=False, server_default=text("0")),
    Column("bytes_before", BIGINT(unsigned=True), nullable=False, server_default=text("0")),
    Column("bytes_after", BIGINT(unsigned=True), nullable=False, server_default=text("0")),
    Column("left_cells", BIGINT(unsigned=True), nullable=False, server_default=text("0")),
    Column("counters", MEDIUMTEXT(), nullable=True),
    Column("busy_s", DOUBLE(), nullable=False, server_default=text("0")),
    Column("data_bytes", BIGINT(unsigned=True), nullable=False, server_default=text("0")),
    Column("runner", VARCHAR(255), nullable=True),
    Column("epoch", Integer(), nullable=False, server_default=text("0")),
    Column("lease_until", DATETIME(fsp=6), nullable=True),
    Column("stop", TINYINT(), nullable=False, server_default=text("0")),
    Column("message", MEDIUMTEXT(), nullable=True),
    Column("started_at", DATETIME(fsp=6), nullable=True),
    Column("ended_at", DATETIME(fsp=6), nullable=True),
    Column("measures", MEDIUMTEXT(), nullable=True),
    **_TABLE_OPTIONS,
)

job_cluster = Table(
    "job_cluster",
    catalog_metadata,
    Column("job_id", Integer(), primary_key=True, autoincrement=False),
    Column("cluster", _ascii(64), primary_key=True),
    Column("runner", VARCHAR(255), nullable=True),
    Column("lease_until", DATETIME(fsp=6), nullable=True),
    Column("looked_at", DATETIME(fsp=6), nullable=True),
    Column("reason", MEDIUMTEXT(), nullable=True),
    Column("figures", MEDIUMTEXT(), nullable=True),
    Column("waits", MEDIUMTEXT(), nullable=True),
    Column("measures", MEDIUMTEXT(), nullable=True),
    **_TABLE_OPTIONS,
)

job_failure = Table(
    "job_failure",
    catalog_metadata,
    Column("job_id", Integer(), primary_key=True, autoincrement=False),
    Column("shard", Integer(), primary_key=True, autoincrement=False),
    Column("added_id", BIGINT(unsigned=True), primary_key=True, autoincrement=False),
    Column("row_key", BINARY(16), nullable=False),
    Column("column_name", _ascii(64), nullable=False),
    Column("ref_key", BIGINT(), nullable=False),
    Column("reason", _ascii(64), nullable=False),
    Column("message", MEDIUMTEXT(), nullable=False),
    **_TABLE_OPTIONS,
)

job_event = Table(
    "job_event",
    catalog_metadata,
    Column("event_id", BIGINT(unsigned=True), primary_key=True, autoincrement=True),
    Column("job_id", Integer(), nullable=False),
    Column("at", DATETIME(fsp=6), nullable=False, server_default=_NOW),
    Column("who", VARCHAR(255), nullable=False),
    Column("what", MEDIUMTEXT(), nullable=False),
    **_TABLE_OPTIONS,
)

# What was measured, as JSON text that capacity/measurement.py alone writes and reads; capacity/history.py thins it.
capacity_sample = Table(
    "capacity_sample",
    catalog_metadata,
    Column("sample_id", Integer(), primary_key=True, autoincrement=True),
    Column("taken_at", DATETIME(fsp=6), nullable=False),
    Column("figures", MEDIUMTEXT(), nullable=False),
    **_TABLE_OPTIONS,
)

# Rows stay once their content was removed, so that no number is ever given twice.
dictionary = Table(
    "dictionary",
    catalog_metadata,
    Column("dictionary_id", Integer(), primary_key=True, autoincrement=True),
    # SHA-256.
    Column("digest", BINARY(32), nullable=False),
    Column("content", MEDIUMBLOB(), nullable=True),
    Column("size_bytes", Integer(), nullable=False),
    # What it was trained on, as JSON text.
    Column("source", MEDIUMTEXT(), nullable=False),
    Column("created_at", DATETIME(fsp=6), nullable=False, server_default=_NOW),
    # From then on nothing begins to write with it.
    Column("retired_at", DATETIME(fsp=6), nullable=True),
    Column("removed_at", DATETIME(fsp=6), nullable=True),
    mysql_auto_increment="32768",
    **_TABLE_OPTIONS,
)

# What new bodies of a column are written in; a column that is not here has the default.
column_codec = Table(
    "column_codec",
    catalog_metadata,
    Column("column_name", _ascii(64), primary_key=True),
    Column("codec", _ascii(64), nullable=False),
    Column("level", Integer(), nullable=True),
    Column("dictionary_id", Integer(), nullable=True),
    Column("set_at", DATETIME(fsp=6), nullable=False, server_default=_NOW),
    **_TABLE_OPTIONS,
)

heartbeat_metadata = MetaData()

# Made where it is missing, and not by a revision: what it holds is of no worth a second later. A table `heartbeat` with
# one token for a cluster was here before; no role may drop it, so this one has another name.
heartbeat_token = Table(
    "heartbeat_token",
    heartbeat_metadata,
    Column("cluster", _ascii(64), primary_key=True),
    Column("writer", VARCHAR(255), primary_key=True),
    Column("token", BINARY(16), nullable=False),
    Column("written_at", DATETIME(fsp=6), nullable=False, server_default=_NOW),
    **_TABLE_OPTIONS,
)
