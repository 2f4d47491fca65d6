"""The codec of each column's new bodies: set in the catalog, read by the processes that write.

A process reads the settings when it opens the datastore and, while it writes, once a minute. An outdated setting does
no harm, because a body names its own codec. A dictionary, however, is only used while the setting is less than a minute
old, and is dropped if the catalog does not answer, so no process still writes with a dictionary when it can be removed,
an hour after it was retired.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from schemaless.base.keys import check_column_name
from schemaless.base.logger import log
from schemaless.codec.dictionaries import NO_DICTIONARIES, Dictionaries
from schemaless.codec.registry import DEFAULT, LEGACY, Codec, codec_named
from schemaless.errors import CorruptBody, DictionaryDamaged, InvalidInput, SchemalessError, ServerError
from schemaless.store.cells import sql
from schemaless.store.cells.dictionary_replicas import DictionaryReplicas
from schemaless.wire.connection import Connection
from schemaless.wire.pool import NodePool

REFRESH_S: Final = 60.0
"""Time after which settings are read from the catalog again, in seconds."""

_RETRY_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class ColumnSetting:
    """The codec setting of a column.

    Attributes:
        column_name: the column.
        codec: name of the codec.
        level: level of the compressor; None for its default.
        dictionary_id: the zstd dictionary; None for no dictionary.
        set_at: time at which the codec was set, UTC; None if the setting has not been stored yet.
        history: whether migrations store versions that have a higher one as deltas.
    """

    column_name: str
    codec: str
    level: int | None = None
    dictionary_id: int | None = None
    set_at: datetime | None = None
    history: bool = False

    def resolved(self, dictionaries: Dictionaries) -> Codec:
        """Return the codec that this setting describes.

        Raises:
            UnknownCodec, InvalidInput: this version does not support the codec or the level.
            CorruptBody: the dictionary is missing or damaged.
        """
        return codec_with(self.codec, self.level, self.dictionary_id, dictionaries)


def codec_with(name: str, level: int | None, dictionary_id: int | None, dictionaries: Dictionaries) -> Codec:
    """Return a codec by name, with a level (None for the default) and a dictionary (None for no dictionary).

    Raises:
        UnknownCodec, InvalidInput: there is no such codec or level, or the codec does not support dictionaries.
        CorruptBody: the dictionary is missing or damaged.
    """
    codec = codec_named(name)
    if level is not None:
        codec = replace(codec, level=level)
    if dictionary_id is None:
        return codec
    codec.check_takes_dictionary()
    return replace(codec, dictionary=dictionaries.get(dictionary_id))


def settings(pool: NodePool, name: str) -> list[ColumnSetting]:
    """Read the settings of a datastore's columns, ordered by column name.

    Raises:
        ServerError: the catalog's server is unreachable or rejects a statement.
    """
    rows = pool.rows(sql.select_column_codecs(name))
    return [
        ColumnSetting(str(column), str(codec), level, dictionary_id, datetime.fromisoformat(set_at), bool(history))
        for column, codec, level, dictionary_id, set_at, history in rows
    ]


def set_column(dictionary_replicas: DictionaryReplicas, setting: ColumnSetting) -> None:
    """Set the codec of a column's new bodies; running processes apply it within ``REFRESH_S``.

    The dictionary, if any, is copied to clusters that lack it; a retired dictionary is put back into use.

    Raises:
        InvalidCell: the column name is invalid.
        InvalidInput: the codec cannot be used for new bodies, or the dictionary does not exist.
        UnknownCodec: there is no such codec.
        DictionaryDamaged: the dictionary is damaged, or a cluster has no intact copy.
        AccessDenied: the account lacks the privileges of the role ``admin``.
        OutcomeUnknown: the reply was lost; repeat the call.
    """
    check_column_name(setting.column_name)
    if codec_named(setting.codec) == LEGACY:
        raise InvalidInput("a column cannot be set to legacy, because bare JSON text has no checksum; use json+none")
    codec = codec_with(setting.codec, setting.level, None, NO_DICTIONARIES)
    if setting.history and not codec.is_binary:
        raise no_deltas(codec.name)
    if setting.dictionary_id is not None:
        codec.check_takes_dictionary()
        _copy_everywhere(dictionary_replicas, setting.dictionary_id)
    name = dictionary_replicas.catalog.database
    statement = sql.upsert_column_codec(
        name, setting.column_name, setting.codec, setting.level, setting.dictionary_id, setting.history
    )

    def write(connection: Connection) -> None:
        with connection.transaction():
            if setting.dictionary_id is not None:
                _take_back(connection, name, setting.dictionary_id)
            connection.execute(statement)

    dictionary_replicas.catalog.pool.run(write, writes=True)


def _copy_everywhere(dictionary_replicas: DictionaryReplicas, dictionary_id: int) -> None:
    row = dictionary_replicas.catalog.row(dictionary_id)
    if row is None or row.removed:
        raise _missing(dictionary_id)
    dictionary = row.dictionary
    if dictionary is None:
        raise DictionaryDamaged(
            f"dictionary {dictionary_id} is damaged in the catalog: {row.fault}. Restore it from a cluster's copy with "
            "'schemaless schema upgrade', or from a file with 'schemaless codec import'"
        )
    dictionary_replicas.copy(dictionary, row.source)


def no_deltas(codec: str) -> InvalidInput:
    """Return the error for history with a codec whose serializer has no deltas."""
    return InvalidInput(f"codec {codec} has no deltas; for history, use one with msgpack or packed")


def _missing(dictionary_id: int) -> InvalidInput:
    return InvalidInput(
        f"the catalog has no dictionary {dictionary_id}; 'schemaless codec list' lists all dictionaries"
    )


def unset_column(pool: NodePool, name: str, column_name: str) -> None:
    """Remove a column's setting, so that new bodies use the default codec; raises as ``set_column`` does."""
    check_column_name(column_name)
    pool.execute(sql.delete_column_codec(name, column_name))


def _take_back(connection: Connection, name: str, dictionary_id: int) -> None:
    """Put a dictionary back into use, within the transaction that sets a column to use it.

    Raises:
        InvalidInput: the dictionary does not exist, or was removed.
    """
    rows = connection.rows(sql.select_dictionary(name, dictionary_id, lock=True))
    if not rows or rows[0][0] is None:
        raise _missing(dictionary_id)
    connection.execute(sql.restore_retired_dictionary(name, dictionary_id))


class ColumnCodecs:
    """Cache of the columns' codecs, for a process that writes. Thread-safe and fork-safe."""

    def __init__(
        self,
        read: Callable[[], Sequence[ColumnSetting]],
        dictionaries: Dictionaries,
        known: Sequence[ColumnSetting] | None = None,
    ) -> None:
        """Create the cache; nothing is read before the first write.

        Args:
            read: reads the settings from the catalog.
            dictionaries: the datastore's dictionaries.
            known: the settings, if they were just read.
        """
        self._read = read
        self._dictionaries = dictionaries
        self._known = known
        self._known_at_s = time.monotonic()
        self._codecs: dict[str, Codec] = {}
        self._stale_at_s = 0.0

    def codec_for(self, column_name: str) -> Codec:
        """Return the codec for new bodies of a column."""
        if time.monotonic() >= self._stale_at_s:
            try:
                self._refresh()
            except BaseException:
                # The caller was interrupted or cancelled, so the next write reads the settings.
                self._stale_at_s = 0.0
                raise
        return self._codecs.get(column_name, DEFAULT)

    def _refresh(self) -> None:
        now = time.monotonic()
        # First, so that other threads continue with the old settings.
        self._stale_at_s = now + REFRESH_S
        known, self._known = self._known, None
        try:
            if known is None or now - self._known_at_s > REFRESH_S:
                known = self._read()
        except SchemalessError as error:
            self._stale_at_s = now + _RETRY_S
            self._codecs = {name: replace(codec, dictionary=None) for name, codec in self._codecs.items()}
            log.warning("cannot read the codecs of columns from the catalog, so no dictionary is used: %s", error)
            return
        self._codecs = {setting.column_name: self._codec(setting) for setting in known}

    def _codec(self, setting: ColumnSetting) -> Codec:
        try:
            return setting.resolved(self._dictionaries)
        except (CorruptBody, ServerError) as error:
            log.warning("writing column %s without its dictionary: %s", setting.column_name, error)
        except SchemalessError as error:
            log.warning("writing column %s with the default codec: %s", setting.column_name, error)
            return DEFAULT
        return replace(setting, dictionary_id=None).resolved(self._dictionaries)
