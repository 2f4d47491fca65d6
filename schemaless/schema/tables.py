"""The tables, described once. Alembic revisions lead to the same ones; a test holds the two against each other."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BINARY, CheckConstraint, Column, ForeignKey, Integer, MetaData, Table, UniqueConstraint, text
from sqlalchemy.dialects.mysql import BIGINT, DATETIME, DOUBLE, MEDIUMBLOB, MEDIUMTEXT, SMALLINT, TINYINT, VARCHAR
from sqlalchemy.schema import SchemaItem

_NOW = text("(UTC_TIMESTAMP(6))")


def _ascii(length: int) -> VARCHAR:
    return VARCHAR(length, charset="ascii", collation="ascii_bin")


def _stamp(name: str) -> Column[Any]:
    """Return a column for when a row was written."""
    return Column(name, DATETIME(fsp=6), nullable=False, server_default=_NOW)


def _table(name: str, metadata: MetaData, *parts: SchemaItem, **options: Any) -> Table:
    return Table(name, metadata, *parts, mysql_engine="InnoDB", mysql_row_format="DYNAMIC", **options)


shard_metadata = MetaData()

cell = _table(
    "cell",
    shard_metadata,
    Column("added_id", BIGINT(unsigned=True), primary_key=True, autoincrement=True),
    Column("row_key", BINARY(16), nullable=False),
    Column("column_name", _ascii(64), nullable=False),
    Column("ref_key", BIGINT(), nullable=False),
    Column("body", MEDIUMBLOB(), nullable=False),
    _stamp("created_at"),
    UniqueConstraint("row_key", "column_name", "ref_key", name="cell_key"),
)

shard_identity = _table(
    "shard_identity",
    shard_metadata,
    Column("only_row", TINYINT(), primary_key=True, autoincrement=False),
    Column("datastore", _ascii(64), nullable=False),
    Column("shard", Integer(), nullable=False),
    Column("shard_count", Integer(), nullable=False),
    Column("placement", _ascii(32), nullable=False),
    Column("format", SMALLINT(), nullable=False),
    CheckConstraint("only_row = 1", name="shard_identity_only_row"),
)

# Who reads a shard's change feed, and how far: a row for each follower. What is noted here is asked for its epoch.
follower = _table(
    "follower",
    shard_metadata,
    Column("name", _ascii(80), primary_key=True),
    # All cells up to here are dealt with, or parked.
    Column("location", BIGINT(unsigned=True), nullable=False),
    Column("worker", VARCHAR(255), nullable=True),
    Column("epoch", BIGINT(unsigned=True), nullable=False, server_default=text("0")),
    Column("state", _ascii(16), nullable=False, server_default=text("'running'")),
    # Of the first cell behind location.
    Column("attempts", Integer(), nullable=False, server_default=text("0")),
    Column("retry_at", DATETIME(fsp=6), nullable=True),
    Column("message", MEDIUMTEXT(), nullable=True),
    _stamp("moved_at"),
)

# Cells that a follower went past without having dealt with them.
parked = _table(
    "parked",
    shard_metadata,
    Column("name", _ascii(80), primary_key=True),
    Column("added_id", BIGINT(unsigned=True), primary_key=True, autoincrement=False),
    Column("row_key", BINARY(16), nullable=False),
    Column("column_name", _ascii(64), nullable=False),
    Column("ref_key", BIGINT(), nullable=False),
    Column("attempts", Integer(), nullable=False),
    Column("error", MEDIUMTEXT(), nullable=False),
    _stamp("parked_at"),
    # 1: somebody asked for it to be tried again; 1 more for each time that that was begun.
    Column("replay", TINYINT(), nullable=False, server_default=text("0")),
)

catalog_metadata = MetaData()

datastore = _table(
    "datastore",
    catalog_metadata,
    Column("only_row", TINYINT(), primary_key=True, autoincrement=False),
    Column("name", _ascii(64), nullable=False),
    Column("shard_count", Integer(), nullable=False),
    Column("placement", _ascii(32), nullable=False),
    Column("format", SMALLINT(), nullable=False),
    Column("ready", TINYINT(), nullable=False),
    _stamp("created_at"),
    # Random; drawn anew in every transaction that changes clusters, nodes or ranges of shards.
    Column("topology_token", BINARY(16), nullable=True),
    CheckConstraint("only_row = 1", name="datastore_only_row"),
)

cluster = _table(
    "cluster",
    catalog_metadata,
    Column("name", _ascii(64), primary_key=True),
    _stamp("created_at"),
    # Which claim its primary has to have; 0: none was ever made.
    Column("primary_epoch", Integer(), nullable=False, server_default=text("0")),
    # The highest block of added_ids that a claim began in its shards.
    Column("id_block", BIGINT(unsigned=True), nullable=False, server_default=text("0")),
)

node = _table(
    "node",
    catalog_metadata,
    Column("node_id", Integer(), primary_key=True, autoincrement=True),
    Column("cluster", _ascii(64), ForeignKey("cluster.name", name="node_cluster"), nullable=False),
    Column("role", _ascii(16), nullable=False),
    Column("host", VARCHAR(255), nullable=True),
    Column("port", Integer(), nullable=True),
    Column("socket", VARCHAR(255), nullable=True),
)

shard_range = _table(
    "shard_range",
    catalog_metadata,
    Column("first_shard", Integer(), primary_key=True, autoincrement=False),
    Column("last_shard", Integer(), nullable=False),
    Column("cluster", _ascii(64), ForeignKey("cluster.name", name="shard_range_cluster"), nullable=False),
)

# Jobs. All times are this server's clock, UTC; what is JSON text is written and read by jobs/ledger.py.

job = _table(
    "job",
    catalog_metadata,
    Column("job_id", Integer(), primary_key=True, autoincrement=True),
    Column("kind", _ascii(16), nullable=False),
    Column("state", _ascii(16), nullable=False),
    Column("spec", MEDIUMTEXT(), nullable=False),
    Column("versions", MEDIUMTEXT(), nullable=False),
    Column("created_by", VARCHAR(255), nullable=False),
    _stamp("created_at"),
    Column("ended_at", DATETIME(fsp=6), nullable=True),
    Column("message", MEDIUMTEXT(), nullable=True),
    # Until when the budget of bytes a second is spent, in microseconds since 1970.
    Column("budget_us", BIGINT(unsigned=True), nullable=False, server_default=text("0")),
)

job_shard = _table(
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
)

job_cluster = _table(
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
)

job_failure = _table(
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
)

job_event = _table(
    "job_event",
    catalog_metadata,
    Column("event_id", BIGINT(unsigned=True), primary_key=True, autoincrement=True),
    Column("job_id", Integer(), nullable=False),
    _stamp("at"),
    Column("who", VARCHAR(255), nullable=False),
    Column("what", MEDIUMTEXT(), nullable=False),
)

# What was measured, as JSON text that capacity/measurement.py alone writes and reads; capacity/history.py thins it.
capacity_sample = _table(
    "capacity_sample",
    catalog_metadata,
    Column("sample_id", Integer(), primary_key=True, autoincrement=True),
    Column("taken_at", DATETIME(fsp=6), nullable=False),
    Column("figures", MEDIUMTEXT(), nullable=False),
)

# Rows stay once their content was removed, so that no number is ever given twice.
dictionary = _table(
    "dictionary",
    catalog_metadata,
    Column("dictionary_id", Integer(), primary_key=True, autoincrement=True),
    # SHA-256.
    Column("digest", BINARY(32), nullable=False),
    Column("content", MEDIUMBLOB(), nullable=True),
    Column("size_bytes", Integer(), nullable=False),
    # What it was trained on, as JSON text.
    Column("source", MEDIUMTEXT(), nullable=False),
    _stamp("created_at"),
    # From then on nothing begins to write with it.
    Column("retired_at", DATETIME(fsp=6), nullable=True),
    Column("removed_at", DATETIME(fsp=6), nullable=True),
    mysql_auto_increment="32768",
)

# What new bodies of a column are written in; a column that is not here has the default.
column_codec = _table(
    "column_codec",
    catalog_metadata,
    Column("column_name", _ascii(64), primary_key=True),
    Column("codec", _ascii(64), nullable=False),
    Column("level", Integer(), nullable=True),
    Column("dictionary_id", Integer(), nullable=True),
    _stamp("set_at"),
)

# Followers as a whole: whether they are to run, and what each is told to do, as JSON text (feed/settings.py).
follower_setting = _table(
    "follower_setting",
    catalog_metadata,
    Column("name", _ascii(80), primary_key=True),
    Column("wanted", _ascii(16), nullable=False),
    Column("spec", MEDIUMTEXT(), nullable=False),
    _stamp("created_at"),
)

# The processes that do followers' work: alive as long as their lease holds, by this server's clock.
follower_worker = _table(
    "follower_worker",
    catalog_metadata,
    Column("worker", VARCHAR(255), primary_key=True),
    Column("followers", MEDIUMTEXT(), nullable=False),
    Column("lease_until", DATETIME(fsp=6), nullable=False),
    Column("figures", MEDIUMTEXT(), nullable=False),
)

# Secondary indexes (store/registry.py). Rows stay once an index was dropped, so that no number is ever given twice.
secondary_index = _table(
    "secondary_index",
    catalog_metadata,
    Column("index_id", Integer(), primary_key=True, autoincrement=True),
    Column("name", _ascii(32), nullable=False),
    # JSON text (store/definitions.py).
    Column("definition", MEDIUMTEXT(), nullable=False),
    Column("state", _ascii(16), nullable=False),
    _stamp("created_at"),
    Column("ready_at", DATETIME(fsp=6), nullable=True),
    Column("dropped_at", DATETIME(fsp=6), nullable=True),
    Column("message", MEDIUMTEXT(), nullable=True),
)

# Shards on their way to another cluster, beside what job_shard has of each; what move/record.py writes and reads.
shard_move = _table(
    "shard_move",
    catalog_metadata,
    Column("job_id", Integer(), primary_key=True, autoincrement=False),
    Column("shard", Integer(), primary_key=True, autoincrement=False),
    Column("source", _ascii(64), nullable=False),
    Column("target", _ascii(64), nullable=False),
    Column("phase", _ascii(16), nullable=False),
    # What the move's own tables are called by; drawn anew by each runner that takes the shard.
    Column("token", _ascii(16), nullable=True),
    # All cells up to here are on the target.
    Column("settled_id", BIGINT(unsigned=True), nullable=False, server_default=text("0")),
    # All up to here were compared afterwards.
    Column("verified_id", BIGINT(unsigned=True), nullable=False, server_default=text("0")),
    # Of the table that was left behind: its highest added_id, and how many cells it has.
    Column("fence_id", BIGINT(unsigned=True), nullable=True),
    Column("fence_rows", BIGINT(unsigned=True), nullable=True),
    # Which two servers the cells were copied from and to.
    Column("target_server", VARCHAR(255), nullable=True),
    # How long the shard was held, in seconds.
    Column("pause_s", DOUBLE(), nullable=True),
)

heartbeat_metadata = MetaData()

# A cluster's own database. Its tables are made where they are missing, and not by revisions: whatever is in them, its
# primary may be given anew. What this one holds is of no worth a second later. A table `heartbeat` with
# one token for a cluster was here before; no role may drop it, so this one has another name.
heartbeat_token = _table(
    "heartbeat_token",
    heartbeat_metadata,
    Column("cluster", _ascii(64), primary_key=True),
    Column("writer", VARCHAR(255), primary_key=True),
    Column("token", BINARY(16), nullable=False),
    _stamp("written_at"),
)

# Which server of a cluster is its primary. On the cluster itself, so that it reaches whatever follows that server; and
# with the server's own identity, so that what has only followed it has no claim.
primary_claim = _table(
    "primary_claim",
    heartbeat_metadata,
    Column("cluster", _ascii(64), primary_key=True),
    Column("epoch", Integer(), nullable=False),
    Column("server", _ascii(36), nullable=False),
    _stamp("claimed_at"),
    Column("claimed_by", VARCHAR(255), nullable=False),
)

# Former primaries that may have cells which a failover lost, by address, until somebody says that it is settled.
lost_primary = _table(
    "lost_primary",
    heartbeat_metadata,
    Column("cluster", _ascii(64), primary_key=True),
    Column("server", VARCHAR(255), primary_key=True),
    _stamp("lost_at"),
)

# A copy of the catalog's, so that the loss of a catalog takes no dictionary along.
dictionary_copy = dictionary.to_metadata(heartbeat_metadata)
