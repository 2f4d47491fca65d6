"""Statements about the catalog: columns, dictionaries."""

from __future__ import annotations


def select_column_codecs(catalog: str) -> bytes:
    """Select column_name, codec, level, dictionary_id and set_at of every column that is set."""
    return (
        b"SELECT column_name, codec, level, dictionary_id, CONCAT(set_at,'+00:00') FROM `%b`.column_codec "
        b"ORDER BY column_name" % catalog.encode()
    )


def select_dictionary(catalog: str, dictionary_id: int) -> bytes:
    """Select content, digest and removed_at of a dictionary."""
    return b"SELECT content, digest, removed_at FROM `%b`.dictionary WHERE dictionary_id=%d" % (
        catalog.encode(),
        dictionary_id,
    )
