"""The tables, described once. Alembic revisions lead to the same ones; a test holds the two against each other."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import BINARY, CheckConstraint, Column, ForeignKey, Integer, MetaData, Table, UniqueConstraint, text
from sqlalchemy.dialects.mysql import BIGINT, DATETIME, MEDIUMBLOB, SMALLINT, TINYINT, VARCHAR

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

heartbeat_metadata = MetaData()

# Made where it is missing, and not by a revision: what it holds is of no worth a second later.
heartbeat = Table(
    "heartbeat",
    heartbeat_metadata,
    Column("cluster", _ascii(64), primary_key=True),
    Column("token", BINARY(16), nullable=False),
    Column("written_at", DATETIME(fsp=6), nullable=False, server_default=_NOW),
    **_TABLE_OPTIONS,
)
