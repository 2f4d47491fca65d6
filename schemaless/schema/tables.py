"""Definitions of all tables. The Alembic revisions produce the same tables; a test compares the two."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from sqlalchemy import (
    BINARY,
    CheckConstraint,
    Column,
    ForeignKey,
    Integer,
    MetaData,
    Table,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.mysql import BIGINT, DATETIME, DOUBLE, MEDIUMBLOB, MEDIUMTEXT, SMALLINT, TINYINT, VARCHAR
from sqlalchemy.schema import SchemaItem

_NOW = text("(UTC_TIMESTAMP(6))")


def _ascii(length: int) -> VARCHAR:
    return VARCHAR(length, charset="ascii", collation="ascii_bin")


def _stamp(name: str) -> Column[Any]:
    """Return a column that defaults to the time of the insert."""
    return Column(name, DATETIME(fsp=6), nullable=False, server_default=_NOW)


def _table(metadata: MetaData, name: str, *parts: SchemaItem, **options: Any) -> Table:
    return Table(name, metadata, *parts, mysql_engine="InnoDB", mysql_row_format="DYNAMIC", **options)


shard_metadata: Final = MetaData()
_shard_table: Final = partial(_table, shard_metadata)

cell: Final = _shard_table(
    "cell",
    Column("added_id", BIGINT(unsigned=True), primary_key=True, autoincrement=True),
    Column("row_key", BINARY(16), nullable=False),
    Column("column_name", _ascii(64), nullable=False),
    Column("ref_key", BIGINT(), nullable=False),
    Column("body", MEDIUMBLOB(), nullable=False),
    _stamp("created_at"),
    UniqueConstraint("row_key", "column_name", "ref_key", name="cell_key"),
)

shard_identity: Final = _shard_table(
    "shard_identity",
    Column("only_row", TINYINT(), primary_key=True, autoincrement=False),
    Column("datastore", _ascii(64), nullable=False),
    Column("shard", Integer(), nullable=False),
    Column("shard_count", Integer(), nullable=False),
    Column("placement", _ascii(32), nullable=False),
    Column("format", SMALLINT(), nullable=False),
    CheckConstraint("only_row = 1", name="shard_identity_only_row"),
)

# Followers of a shard's change feed: one row with the checkpoint of each. Updates are conditional on the epoch.
follower: Final = _shard_table(
    "follower",
    Column("name", _ascii(80), primary_key=True),
    # Checkpoint: all cells up to here are processed or parked.
    Column("location", BIGINT(unsigned=True), nullable=False),
    Column("worker", VARCHAR(255), nullable=True),
    Column("epoch", BIGINT(unsigned=True), nullable=False, server_default=text("0")),
    Column("state", _ascii(16), nullable=False, server_default=text("'running'")),
    # Attempts at the first cell after location.
    Column("attempts", Integer(), nullable=False, server_default=text("0")),
    Column("retry_at", DATETIME(fsp=6), nullable=True),
    Column("message", MEDIUMTEXT(), nullable=True),
    _stamp("moved_at"),
    # All events of erased_cell up to here are handled.
    Column("erased_event", BIGINT(unsigned=True), nullable=False, server_default=text("0")),
)

# Cells that a follower has set aside without processing them.
parked: Final = _shard_table(
    "parked",
    Column("name", _ascii(80), primary_key=True),
    Column("added_id", BIGINT(unsigned=True), primary_key=True, autoincrement=False),
    Column("row_key", BINARY(16), nullable=False),
    Column("column_name", _ascii(64), nullable=False),
    Column("ref_key", BIGINT(), nullable=False),
    Column("attempts", Integer(), nullable=False),
    Column("error", MEDIUMTEXT(), nullable=False),
    _stamp("parked_at"),
    # 0: parked; 1: a replay was requested; plus 1 for each replay attempt that was started.
    Column("replay", TINYINT(), nullable=False, server_default=text("0")),
)

# Log of erased cells, from which followers learn what was erased. The row with event_id 0 is locked by each erasure, so
# that events become visible in order and without gaps.
erased_cell: Final = _shard_table(
    "erased_cell",
    Column("event_id", BIGINT(unsigned=True), primary_key=True, autoincrement=False),
    Column("added_id", BIGINT(unsigned=True), nullable=False),
    Column("erasure", BIGINT(unsigned=True), nullable=False),
    # Size of the body before the erasure. In the row with event_id 0, 1 if the shard may have deltas.
    Column("body_bytes", Integer(), nullable=False),
    # Shards in which indexes may have entries of the row, as JSON text by index number.
    Column("entry_shards", MEDIUMTEXT(), nullable=True),
    _stamp("erased_at"),
    UniqueConstraint("erasure", "event_id", name="erased_cell_erasure"),
)

# Files with the documents of cold cells. A file is rewritten as a new generation; rows are kept after their file is
# deleted, so that no number is ever reused.
cold_file: Final = _shard_table(
    "cold_file",
    Column("file_id", BIGINT(unsigned=True), primary_key=True, autoincrement=False),
    Column("generation", Integer(), primary_key=True, autoincrement=False),
    # The datastore's incarnation (catalog table cold_store) and a random token, in hexadecimal: parts of its name.
    Column("incarnation", _ascii(32), nullable=False),
    Column("token", _ascii(16), nullable=False),
    # writing, live, condemned or deleted. A reference is written only while the row is locked and live.
    Column("state", _ascii(16), nullable=False),
    Column("first_id", BIGINT(unsigned=True), nullable=False),
    Column("last_id", BIGINT(unsigned=True), nullable=False),
    Column("cells", BIGINT(unsigned=True), nullable=False, server_default=text("0")),
    Column("text_bytes", BIGINT(unsigned=True), nullable=False, server_default=text("0")),
    Column("file_bytes", BIGINT(unsigned=True), nullable=False, server_default=text("0")),
    # SHA-256 in hexadecimal; empty while writing.
    Column("sha256", _ascii(64), nullable=False, server_default=text("''")),
    # The file has no document whose erasure is an event of erased_cell up to this one: the last event when the row was
    # inserted, which must be before any of the file's bodies is read.
    Column("erased_event", BIGINT(unsigned=True), nullable=False),
    _stamp("created_at"),
    # When the state last changed.
    _stamp("changed_at"),
)

catalog_metadata: Final = MetaData()
_catalog_table: Final = partial(_table, catalog_metadata)

datastore: Final = _catalog_table(
    "datastore",
    Column("only_row", TINYINT(), primary_key=True, autoincrement=False),
    Column("name", _ascii(64), nullable=False),
    Column("shard_count", Integer(), nullable=False),
    Column("placement", _ascii(32), nullable=False),
    Column("format", SMALLINT(), nullable=False),
    Column("ready", TINYINT(), nullable=False),
    _stamp("created_at"),
    # Random; replaced in every transaction that changes clusters, nodes or shard ranges.
    Column("topology_token", BINARY(16), nullable=True),
    CheckConstraint("only_row = 1", name="datastore_only_row"),
)

cluster: Final = _catalog_table(
    "cluster",
    Column("name", _ascii(64), primary_key=True),
    _stamp("created_at"),
    # Epoch of the claim that the primary must hold; 0: no claim yet.
    Column("primary_epoch", Integer(), nullable=False, server_default=text("0")),
    # Highest block of added_ids that a claim has started in the cluster's shards.
    Column("id_block", BIGINT(unsigned=True), nullable=False, server_default=text("0")),
    # Storage engine of cells; see schema/engines.py.
    Column("engine", _ascii(16), nullable=False, server_default=text("'innodb'")),
    # What the cluster has had, and should have: the number of replicas (NULL: never any), and semi-synchronous
    # replication.
    Column("replicas", Integer(), nullable=True),
    Column("semi_sync", TINYINT(), nullable=False, server_default=text("0")),
)

node: Final = _catalog_table(
    "node",
    Column("node_id", Integer(), primary_key=True, autoincrement=True),
    Column("cluster", _ascii(64), ForeignKey("cluster.name", name="node_cluster"), nullable=False),
    Column("role", _ascii(16), nullable=False),
    Column("host", VARCHAR(255), nullable=True),
    Column("port", Integer(), nullable=True),
    Column("socket", VARCHAR(255), nullable=True),
    # Identity of the server, which tells a catalog from its copy on another server; NULL if unknown.
    Column("server", _ascii(64), nullable=True),
)

shard_range: Final = _catalog_table(
    "shard_range",
    Column("first_shard", Integer(), primary_key=True, autoincrement=False),
    Column("last_shard", Integer(), nullable=False),
    Column("cluster", _ascii(64), ForeignKey("cluster.name", name="shard_range_cluster"), nullable=False),
)

# Jobs. All times are from this server's clock, in UTC. JSON text is written and read by jobs/job_store.py.

job: Final = _catalog_table(
    "job",
    Column("job_id", Integer(), primary_key=True, autoincrement=True),
    Column("kind", _ascii(16), nullable=False),
    Column("state", _ascii(16), nullable=False),
    Column("spec", MEDIUMTEXT(), nullable=False),
    Column("versions", MEDIUMTEXT(), nullable=False),
    Column("created_by", VARCHAR(255), nullable=False),
    _stamp("created_at"),
    Column("ended_at", DATETIME(fsp=6), nullable=True),
    Column("message", MEDIUMTEXT(), nullable=True),
    # Time until which the rate limit's budget is used up, in microseconds since 1970.
    Column("budget_us", BIGINT(unsigned=True), nullable=False, server_default=text("0")),
)

job_shard: Final = _catalog_table(
    "job_shard",
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

job_cluster: Final = _catalog_table(
    "job_cluster",
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

job_failure: Final = _catalog_table(
    "job_failure",
    Column("job_id", Integer(), primary_key=True, autoincrement=False),
    Column("shard", Integer(), primary_key=True, autoincrement=False),
    Column("added_id", BIGINT(unsigned=True), primary_key=True, autoincrement=False),
    Column("row_key", BINARY(16), nullable=False),
    Column("column_name", _ascii(64), nullable=False),
    Column("ref_key", BIGINT(), nullable=False),
    Column("reason", _ascii(64), nullable=False),
    Column("message", MEDIUMTEXT(), nullable=False),
)

job_event: Final = _catalog_table(
    "job_event",
    Column("event_id", BIGINT(unsigned=True), primary_key=True, autoincrement=True),
    Column("job_id", Integer(), nullable=False),
    _stamp("at"),
    Column("who", VARCHAR(255), nullable=False),
    Column("what", MEDIUMTEXT(), nullable=False),
)

# Capacity measurements, as JSON text of capacity/measurement.py; capacity/history.py thins them out.
capacity_sample: Final = _catalog_table(
    "capacity_sample",
    Column("sample_id", Integer(), primary_key=True, autoincrement=True),
    Column("taken_at", DATETIME(fsp=6), nullable=False),
    Column("figures", MEDIUMTEXT(), nullable=False),
)

# Compression dictionaries. Rows are kept after their content is removed, so that no id is ever reused.
dictionary: Final = _catalog_table(
    "dictionary",
    Column("dictionary_id", Integer(), primary_key=True, autoincrement=True),
    # SHA-256.
    Column("digest", BINARY(32), nullable=False),
    Column("content", MEDIUMBLOB(), nullable=True),
    Column("size_bytes", Integer(), nullable=False),
    # Training data, as JSON text.
    Column("source", MEDIUMTEXT(), nullable=False),
    _stamp("created_at"),
    # Retired: not used for new bodies from this time on.
    Column("retired_at", DATETIME(fsp=6), nullable=True),
    Column("removed_at", DATETIME(fsp=6), nullable=True),
    mysql_auto_increment="32768",
)

# Codec of new bodies per column; columns without a row use the default codec.
column_codec: Final = _catalog_table(
    "column_codec",
    Column("column_name", _ascii(64), primary_key=True),
    Column("codec", _ascii(64), nullable=False),
    Column("level", Integer(), nullable=True),
    Column("dictionary_id", Integer(), nullable=True),
    Column("history", TINYINT(), nullable=False, server_default=text("0")),
    _stamp("set_at"),
)

# Followers across all shards: desired state, and settings as JSON text (followers/settings.py).
follower_setting: Final = _catalog_table(
    "follower_setting",
    Column("name", _ascii(80), primary_key=True),
    Column("wanted", _ascii(16), nullable=False),
    Column("spec", MEDIUMTEXT(), nullable=False),
    _stamp("created_at"),
)

# Worker processes of followers, alive until their lease expires by this server's clock.
follower_worker: Final = _catalog_table(
    "follower_worker",
    Column("worker", VARCHAR(255), primary_key=True),
    Column("followers", MEDIUMTEXT(), nullable=False),
    Column("lease_until", DATETIME(fsp=6), nullable=False),
    Column("figures", MEDIUMTEXT(), nullable=False),
)

# Secondary indexes (indexes/registry.py). Rows are kept after an index is dropped, so that no id is ever reused.
secondary_index: Final = _catalog_table(
    "secondary_index",
    Column("index_id", Integer(), primary_key=True, autoincrement=True),
    Column("name", _ascii(32), nullable=False),
    # JSON text (indexes/definition.py).
    Column("definition", MEDIUMTEXT(), nullable=False),
    Column("state", _ascii(16), nullable=False),
    _stamp("created_at"),
    Column("ready_at", DATETIME(fsp=6), nullable=True),
    Column("dropped_at", DATETIME(fsp=6), nullable=True),
    Column("message", MEDIUMTEXT(), nullable=True),
)

# Shards being moved, in addition to their rows in job_shard; written and read by move/record.py.
shard_move: Final = _catalog_table(
    "shard_move",
    Column("job_id", Integer(), primary_key=True, autoincrement=False),
    Column("shard", Integer(), primary_key=True, autoincrement=False),
    Column("source", _ascii(64), nullable=False),
    Column("target", _ascii(64), nullable=False),
    Column("phase", _ascii(16), nullable=False),
    # Part of the names of the move's tables; replaced by each runner that takes over the shard.
    Column("token", _ascii(16), nullable=True),
    # All cells up to here have been copied to the target.
    Column("settled_id", BIGINT(unsigned=True), nullable=False, server_default=text("0")),
    # All cells up to here have been compared after the move.
    Column("verified_id", BIGINT(unsigned=True), nullable=False, server_default=text("0")),
    # Highest added_id and number of cells of the source's table at the cutover.
    Column("fence_id", BIGINT(unsigned=True), nullable=True),
    Column("fence_rows", BIGINT(unsigned=True), nullable=True),
    # The two servers between which the cells were copied.
    Column("target_server", VARCHAR(255), nullable=True),
    # How long the shard was unavailable, in seconds.
    Column("pause_s", DOUBLE(), nullable=True),
)

# Retention policies of columns; a column without limits keeps everything.
retention_policy: Final = _catalog_table(
    "retention_policy",
    Column("column_name", _ascii(64), primary_key=True),
    Column("keep_days", Integer(), nullable=True),
    Column("keep_versions", Integer(), nullable=True),
    Column("set_by", VARCHAR(255), nullable=False),
    _stamp("set_at"),
)

# Where cold files are. Credentials come from the environment of each process.
cold_store: Final = _catalog_table(
    "cold_store",
    Column("only_row", TINYINT(), primary_key=True, autoincrement=False),
    Column("uri", VARCHAR(1024), nullable=False),
    # Random, in hexadecimal; a restored copy of the datastore gets another one, so that it deletes no files of the
    # original.
    Column("incarnation", _ascii(32), nullable=False),
    # How long files that no cell refers to are kept for restored backups, in days.
    Column("keep_days", Integer(), nullable=False, server_default=text("0")),
    Column("set_by", VARCHAR(255), nullable=False),
    _stamp("set_at"),
    CheckConstraint("only_row = 1", name="cold_store_only_row"),
)

# Columns whose cells become cold, after a number of days.
tier_policy: Final = _catalog_table(
    "tier_policy",
    Column("column_name", _ascii(64), primary_key=True),
    Column("after_days", Integer(), nullable=False),
    Column("set_by", VARCHAR(255), nullable=False),
    _stamp("set_at"),
)

# Rows that must not be erased until released.
legal_hold: Final = _catalog_table(
    "legal_hold",
    Column("hold_id", BIGINT(unsigned=True), primary_key=True, autoincrement=True),
    Column("row_key", BINARY(16), nullable=False),
    Column("held_by", VARCHAR(255), nullable=False),
    Column("reason", _ascii(64), nullable=False),
    _stamp("held_at"),
    Column("released_at", DATETIME(fsp=6), nullable=True),
    Column("released_by", VARCHAR(255), nullable=True),
    UniqueConstraint("row_key", "hold_id", name="legal_hold_row"),
)

# The ledger of erasures: what was asked for and what was done, without any document. Times are those of this server.
erasure: Final = _catalog_table(
    "erasure",
    Column("erasure_id", BIGINT(unsigned=True), primary_key=True, autoincrement=True),
    # Random, so that the insert can be repeated after a lost reply.
    Column("token", BINARY(16), nullable=False),
    # "keys" (listed in erasure_key) or "range" (described by scope).
    Column("kind", _ascii(16), nullable=False),
    Column("scope", MEDIUMTEXT(), nullable=False),
    Column("reason", _ascii(64), nullable=False),
    Column("requested_by", VARCHAR(255), nullable=False),
    _stamp("intended_at"),
    Column("executed_at", DATETIME(fsp=6), nullable=True),
    Column("acknowledged_at", DATETIME(fsp=6), nullable=True),
    Column("verified_at", DATETIME(fsp=6), nullable=True),
    # What else the erasure concerns, such as dictionaries and archives, as JSON text.
    Column("notes", MEDIUMTEXT(), nullable=True),
    UniqueConstraint("token", name="erasure_token"),
)

# Keys of an erasure: '' is any column, -1 any version.
erasure_key: Final = _catalog_table(
    "erasure_key",
    Column("erasure_id", BIGINT(unsigned=True), primary_key=True, autoincrement=False),
    Column("shard", Integer(), primary_key=True, autoincrement=False),
    Column("row_key", BINARY(16), primary_key=True),
    Column("column_name", _ascii(64), primary_key=True),
    Column("ref_key", BIGINT(), primary_key=True, autoincrement=False),
)

erasure_shard: Final = _catalog_table(
    "erasure_shard",
    Column("erasure_id", BIGINT(unsigned=True), primary_key=True, autoincrement=False),
    Column("shard", Integer(), primary_key=True, autoincrement=False),
    Column("cells", BIGINT(unsigned=True), nullable=False, server_default=text("0")),
    Column("body_bytes", BIGINT(unsigned=True), nullable=False, server_default=text("0")),
    # Last event of the erasure in the shard's log.
    Column("last_event", BIGINT(unsigned=True), nullable=False, server_default=text("0")),
    Column("executed_at", DATETIME(fsp=6), nullable=True),
)

# When each follower was first seen to have handled all events of an erasure.
erasure_follower: Final = _catalog_table(
    "erasure_follower",
    Column("erasure_id", BIGINT(unsigned=True), primary_key=True, autoincrement=False),
    Column("name", _ascii(80), primary_key=True),
    _stamp("acknowledged_at"),
)

heartbeat_metadata: Final = MetaData()
_heartbeat_table: Final = partial(_table, heartbeat_metadata)

# A cluster's own database. Its tables are created if missing, without revisions, because their contents can be rebuilt.
# Tokens are worthless after a second.
heartbeat_token: Final = _heartbeat_table(
    "heartbeat_token",
    Column("cluster", _ascii(64), primary_key=True),
    Column("writer", VARCHAR(255), primary_key=True),
    Column("token", BINARY(16), nullable=False),
    _stamp("written_at"),
)

# Claims of primaries. They are stored on the cluster itself, so that they are replicated, and with the server's
# identity, so that a replica does not hold its primary's claim.
primary_claim: Final = _heartbeat_table(
    "primary_claim",
    Column("cluster", _ascii(64), primary_key=True),
    Column("epoch", Integer(), nullable=False),
    Column("server", _ascii(36), nullable=False),
    _stamp("claimed_at"),
    Column("claimed_by", VARCHAR(255), nullable=False),
)

# Former primaries, by address, that may hold cells lost in a failover, until they are settled.
lost_primary: Final = _heartbeat_table(
    "lost_primary",
    Column("cluster", _ascii(64), primary_key=True),
    Column("server", VARCHAR(255), primary_key=True),
    _stamp("lost_at"),
)

# Replica of the catalog's dictionaries, so that they survive the loss of the catalog.
dictionary_copy: Final = dictionary.to_metadata(heartbeat_metadata)
