"""Statements about the catalog: where a datastore's shards are, what its columns are written in, its dictionaries."""

from __future__ import annotations

from collections.abc import Iterable

from schemaless.mysql.sql.parts import NOW, Term, blob, delete, insert, matching, numbers, table, text, update, upsert

NodeRow = tuple[str, str | None, int | None, str | None]
"""A node's row is its role, host, port and socket."""

# The datastore


def select_datastore(catalog: str) -> bytes:
    """Select what a datastore is; one row, or none where a creation was interrupted.

    Returns:
        A statement whose row is name, shard_count, placement, format, ready and topology_token.
    """
    return b"SELECT name, shard_count, placement, format, ready, topology_token FROM %b" % table(catalog, b"datastore")


def select_token(catalog: str, cluster: str) -> bytes:
    """Select the token of the topology, whether the server is set read-only, and a cluster's epoch."""
    epoch = b"(SELECT primary_epoch FROM %b WHERE name=%b)" % (table(catalog, b"cluster"), text(cluster))
    return b"SELECT topology_token, @@global.read_only, %b FROM %b" % (epoch, table(catalog, b"datastore"))


def update_token(catalog: str, token: bytes) -> bytes:
    """Give the topology another token."""
    return b"UPDATE %b SET topology_token=%b" % (table(catalog, b"datastore"), blob(token))


def lock_datastore(catalog: str) -> bytes:
    """Hold off everybody else who changes the topology until the transaction ends."""
    return b"SELECT only_row FROM %b FOR UPDATE" % table(catalog, b"datastore")


def insert_datastore(catalog: str, shard_count: int, placement: str, format_number: int) -> bytes:
    """Insert what a datastore is, which has the catalog's name, as not ready; refused where it is there."""
    row = (1, catalog, shard_count, placement, format_number, 0)
    return insert(table(catalog, b"datastore"), "only_row, name, shard_count, placement, format, ready", [row])


def mark_ready(catalog: str) -> bytes:
    """Write down that every shard is there."""
    return b"UPDATE %b SET ready=1" % table(catalog, b"datastore")


def select_clusters(catalog: str) -> bytes:
    """Select name, epoch and id_block of the clusters, in the order of their names."""
    return b"SELECT name, primary_epoch, id_block FROM %b ORDER BY name" % table(catalog, b"cluster")


def update_epoch(catalog: str, cluster: str, epoch: int, id_block: int) -> bytes:
    """Have another claim be asked for on a cluster's primary, and write down the block of added_ids that it begins."""
    return update(table(catalog, b"cluster"), {"primary_epoch": epoch, "id_block": id_block}, name=cluster)


def insert_clusters(catalog: str, names: Iterable[str]) -> bytes:
    """Insert clusters."""
    return insert(table(catalog, b"cluster"), "name", ((name,) for name in names))


def select_nodes(catalog: str) -> bytes:
    """Select cluster, role, host, port and socket of every node, in the order in which they were written down."""
    return b"SELECT cluster, role, host, port, socket FROM %b ORDER BY node_id" % table(catalog, b"node")


def insert_nodes(catalog: str, cluster: str, nodes: Iterable[NodeRow]) -> bytes:
    """Insert nodes of a cluster."""
    return insert(table(catalog, b"node"), "cluster, role, host, port, socket", ((cluster, *node) for node in nodes))


def delete_nodes(catalog: str, cluster: str) -> bytes:
    """Delete the nodes of a cluster."""
    return delete(table(catalog, b"node"), cluster=cluster)


def select_ranges(catalog: str) -> bytes:
    """Select first_shard, last_shard and cluster of every range of shards, in their order."""
    return b"SELECT first_shard, last_shard, cluster FROM %b ORDER BY first_shard" % table(catalog, b"shard_range")


def insert_ranges(catalog: str, ranges: Iterable[tuple[int, int, str]]) -> bytes:
    """Insert ranges of shards: first, last and cluster of each."""
    return insert(table(catalog, b"shard_range"), "first_shard, last_shard, cluster", ranges)


def delete_ranges(catalog: str) -> bytes:
    """Delete all ranges of shards; in the transaction that inserts others."""
    return b"DELETE FROM %b" % table(catalog, b"shard_range")


# Columns


def select_column_codecs(catalog: str) -> bytes:
    """Select column_name, codec, level, dictionary_id and set_at of every column that is set."""
    return (
        b"SELECT column_name, codec, level, dictionary_id, CONCAT(set_at,'+00:00') FROM %b "
        b"ORDER BY column_name" % table(catalog, b"column_codec")
    )


def upsert_column_codec(
    catalog: str, column_name: str, codec: str, level: int | None, dictionary_id: int | None
) -> bytes:
    """Set what a column's new bodies are written in."""
    setting: dict[str, Term] = {"codec": codec, "level": level, "dictionary_id": dictionary_id, "set_at": NOW}
    return upsert(table(catalog, b"column_codec"), {"column_name": column_name}, setting)


def delete_column_codec(catalog: str, column_name: str) -> bytes:
    """Let a column be written in the default again."""
    return delete(table(catalog, b"column_codec"), column_name=column_name)


def select_columns_with(catalog: str, dictionary_id: int) -> bytes:
    """Select the names of the columns that are set to a dictionary, in their order."""
    which = (table(catalog, b"column_codec"), dictionary_id)
    return b"SELECT column_name FROM %b WHERE dictionary_id=%d ORDER BY column_name" % which


# Dictionaries


def select_dictionary(catalog: str, dictionary_id: int, *, lock: bool = False) -> bytes:
    """Select content, digest, removed_at and retired_at of a dictionary, all times UTC.

    With ``lock``, others are held off it until the transaction ends.
    """
    which = (table(catalog, b"dictionary"), dictionary_id, b" FOR UPDATE" if lock else b"")
    return b"SELECT content, digest, removed_at, retired_at FROM %b WHERE dictionary_id=%d%b" % which


def lock_dictionary_times(catalog: str, dictionary_id: int) -> bytes:
    """Select retired_at, removed_at and how long ago it was retired, in seconds, and hold others off it."""
    return (
        b"SELECT retired_at, removed_at, TIMESTAMPDIFF(MICROSECOND, retired_at, UTC_TIMESTAMP(6))/1000000 FROM %b "
        b"WHERE dictionary_id=%d FOR UPDATE" % (table(catalog, b"dictionary"), dictionary_id)
    )


def select_dictionaries(catalog: str, dictionary_id: int | None = None) -> bytes:
    """Select whole dictionaries, or one, in the order of their numbers.

    Returns:
        A statement whose rows are dictionary_id, content, digest, size_bytes, source, created_at, retired_at and
        removed_at.
    """
    return (
        b"SELECT dictionary_id, content, digest, size_bytes, source, created_at, retired_at, removed_at FROM %b "
        b"WHERE %b ORDER BY dictionary_id" % (table(catalog, b"dictionary"), matching(dictionary_id=dictionary_id))
    )


def select_highest_dictionary(catalog: str) -> bytes:
    """Select the highest number that a dictionary has, removed ones included; 0 without any."""
    return b"SELECT COALESCE(MAX(dictionary_id),0) FROM %b" % table(catalog, b"dictionary")


def select_dictionaries_of_size(catalog: str, size_bytes: int) -> bytes:
    """Select dictionary_id and content of the dictionaries in use that have so many bytes, in their order."""
    return (
        b"SELECT dictionary_id, content FROM %b WHERE LENGTH(content)=%d AND retired_at IS NULL "
        b"ORDER BY dictionary_id" % (table(catalog, b"dictionary"), size_bytes)
    )


def select_dictionary_source(catalog: str, dictionary_id: int) -> bytes:
    """Select what a dictionary was trained on, as JSON text."""
    return b"SELECT source FROM %b WHERE dictionary_id=%d" % (table(catalog, b"dictionary"), dictionary_id)


def insert_dictionary(catalog: str, size_bytes: int, source: str, dictionary_id: int | None) -> bytes:
    """Insert a dictionary whose content is still to come, with the next number or this one."""
    number = b"DEFAULT" if dictionary_id is None else dictionary_id
    row = (number, blob(bytes(32)), size_bytes, source)
    return insert(table(catalog, b"dictionary"), "dictionary_id, digest, size_bytes, source", [row])


def upsert_dictionary(catalog: str, dictionary_id: int, content: bytes, digest: bytes, source: str) -> bytes:
    """Write a dictionary as it is elsewhere; one that was removed is there again."""
    key: dict[str, Term] = {"dictionary_id": dictionary_id, "source": source}
    return upsert(table(catalog, b"dictionary"), key, _content(content, digest))


def delete_dictionary(catalog: str, dictionary_id: int) -> bytes:
    """Delete the row of a dictionary that was inserted in this transaction."""
    return delete(table(catalog, b"dictionary"), dictionary_id=dictionary_id)


def update_dictionary(catalog: str, dictionary_id: int, content: bytes, digest: bytes) -> bytes:
    """Write a dictionary's content; one that was removed is there again."""
    return update(table(catalog, b"dictionary"), _content(content, digest), dictionary_id=dictionary_id)


def take_back_dictionary(catalog: str, dictionary_id: int) -> bytes:
    """Let a dictionary be written with, also where it was retired."""
    return update(table(catalog, b"dictionary"), {"retired_at": None}, dictionary_id=dictionary_id)


def retire_dictionary(catalog: str, dictionary_id: int) -> bytes:
    """Let nothing more begin to write with a dictionary."""
    return update(table(catalog, b"dictionary"), {"retired_at": NOW}, dictionary_id=dictionary_id)


def remove_dictionary(catalog: str, dictionary_id: int) -> bytes:
    """Remove a dictionary's content; its number stays taken."""
    return update(table(catalog, b"dictionary"), {"content": None, "removed_at": NOW}, dictionary_id=dictionary_id)


# Measurements of capacity


def select_same_sample(catalog: str, taken_at: str, figures: str) -> bytes:
    """Select the number of a measurement of this time, about which no more is compared than its length."""
    same = (table(catalog, b"capacity_sample"), text(taken_at), len(figures))
    return b"SELECT sample_id FROM %b WHERE taken_at=%b AND LENGTH(figures)=%d" % same


def insert_sample(catalog: str, taken_at: str, figures: str) -> bytes:
    """Insert a measurement."""
    return insert(table(catalog, b"capacity_sample"), "taken_at, figures", [(taken_at, figures)])


def select_sample_times(catalog: str) -> bytes:
    """Select number and time of every measurement, the oldest first."""
    samples = table(catalog, b"capacity_sample")
    return b"SELECT sample_id, CONCAT(taken_at,'+00:00') FROM %b ORDER BY taken_at, sample_id" % samples


def select_samples(catalog: str, sample_ids: Iterable[int]) -> bytes:
    """Select number and figures of measurements, the oldest first."""
    some = (table(catalog, b"capacity_sample"), numbers(sample_ids))
    return b"SELECT sample_id, figures FROM %b WHERE sample_id IN (%b) ORDER BY taken_at, sample_id" % some


def delete_samples(catalog: str, sample_ids: Iterable[int]) -> bytes:
    """Delete measurements."""
    return b"DELETE FROM %b WHERE sample_id IN (%b)" % (table(catalog, b"capacity_sample"), numbers(sample_ids))


def _content(content: bytes, digest: bytes) -> dict[str, Term]:
    return {"content": blob(content), "digest": blob(digest), "size_bytes": len(content), "removed_at": None}
