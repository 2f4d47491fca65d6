"""MyRocks on private servers: MariaDB with its RocksDB plugin, and settings that keep the store's guarantees."""

from __future__ import annotations

from typing import Final

ENGINES: Final = ("innodb", "rocksdb")
"""Storage engines of private servers."""

PLUGIN: Final = "ha_rocksdb.so"
"""File of the plugin in a server's plugin folder."""

PACKAGES: Final = ("mariadb-plugin-rocksdb", "libsnappy1v5")
"""Packages that MyRocks needs in addition to those of the server."""

CF_OPTIONS: Final = (
    "block_based_table_factory={block_size=16384;cache_index_and_filter_blocks=1;filter_policy=bloomfilter:10:false;"
    "whole_key_filtering=1};level_compaction_dynamic_level_bytes=true;optimize_filters_for_hits=true;"
    "compression=kZSTD;compression_opts=-14:3:0:16384;"
    "bottommost_compression=kZSTD;bottommost_compression_opts=-14:3:0:16384:0:true"
)
"""Column family options: blocks of 16 KB, and zstd with a dictionary of 16 KB per file.

The upper levels need zstd too: the key ranges of an append-only table's files do not overlap, so compaction moves their
files down without compressing them again, and they would otherwise stay compressed with the default, LZ4.
"""

ARGUMENTS: Final = (
    f"--plugin-load-add={PLUGIN}",
    # Errors of the plugin must end the server; without this it would start without the tables.
    "--rocksdb=FORCE",
    f"--rocksdb-default-cf-options={CF_OPTIONS}",
    "--rocksdb-flush-log-at-trx-commit=1",
    # The defaults are 1 s without deadlock detection: concurrent writers of one row would fail after a second.
    "--rocksdb-lock-wait-timeout=50",
    "--rocksdb-deadlock-detect=ON",
    "--rocksdb-block-cache-size=64M",
    "--rocksdb-db-write-buffer-size=64M",
)
"""Start options of servers with MyRocks."""
