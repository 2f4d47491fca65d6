"""What each column's new bodies are written in: set in the catalog, learnt by running processes.

A process asks the catalog when it opens the datastore and, while it writes, once a minute. Whatever it knows, what it
writes can be read: bodies say what they are in. A dictionary is used as long as the catalog said less than a minute ago
that it should be, and left away where it does not answer; so an hour after a dictionary is retired, nothing writes with
it any more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from schemaless.cells import sql
from schemaless.cells.dictionary_replicas import DictionaryReplicas, spread
from schemaless.codec.dictionaries import NO_DICTIONARIES, Dictionaries
from schemaless.codec.registry import DEFAULT, LEGACY, Codec, codec_named
from schemaless.errors import CorruptBody, DictionaryDamaged, InvalidInput, SchemalessError, ServerError
from schemaless.keys import check_column_name
from schemaless.wire.connection import Connection
from schemaless.wire.pool import NodePool

_log = logging.getLogger("schemaless")

REFRESH_S: Final = 60.0
"""What the catalog said counts for so long."""

_RETRY_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class ColumnSetting:
    """What a column's new bodies are to be written in.

    Attributes:
        column_name: the column.
        codec: its name.
        level: the compressor's level; None for its own.
        dictionary_id: what zstd compresses with; None for nothing.
        set_at: UTC; None for one that is yet to be set.
    """

    column_name: str
    codec: str
    level: int | None = None
    dictionary_id: int | None = None
    set_at: datetime | None = None

    def resolved(self, dictionaries: Dictionaries) -> Codec:
        """Return the codec.

        Raises:
            UnknownCodec, InvalidInput: this version has no such codec, or level.
            CorruptBody: the dictionary cannot be had.
        """
        return codec_with(self.codec, self.level, self.dictionary_id, dictionaries)


def codec_with(name: str, level: int | None, dictionary_id: int | None, dictionaries: Dictionaries) -> Codec:
    """Return a codec by its name, at a level and with a dictionary; None for its own level, and for no dictionary.

    Raises:
        UnknownCodec, InvalidInput: there is no such codec or level, or it takes no dictionary.
        CorruptBody: the dictionary cannot be had.
    """
    codec = codec_named(name)
    if level is not None:
        codec = replace(codec, level=level)
    if dictionary_id is None:
        return codec
    codec.check_takes_dictionary()
    return replace(codec, dictionary=dictionaries.get(dictionary_id))


def settings(pool: NodePool, name: str) -> list[ColumnSetting]:
    """Return what is set for the columns of a datastore, by column_name.

    Raises:
        ServerError: the catalog's server cannot be reached, or refuses.
    """
    rows = pool.run(lambda connection: connection.rows(sql.select_column_codecs(name)))
    return [
        ColumnSetting(str(column), str(codec), level, dictionary_id, datetime.fromisoformat(set_at))
        for column, codec, level, dictionary_id, set_at in rows
    ]


def set_column(dictionary_replicas: DictionaryReplicas, setting: ColumnSetting) -> None:
    """Set what a column's new bodies are written in; running processes follow within ``REFRESH_S``.

    A dictionary that was retired is taken back by this, and copied first to clusters that lack it.

    Raises:
        InvalidInput: no cell may have this column_name, or the codec is one that nothing new is written in.
        UnknownCodec: there is no such codec.
        InvalidInput: the dictionary is not there.
        DictionaryDamaged: it is not intact, or not on every cluster.
        AccessDenied: the account may not; the role ``admin`` may.
        OutcomeUnknown: the reply was lost; the same call again settles it.
    """
    check_column_name(setting.column_name)
    if codec_named(setting.codec) == LEGACY:
        raise InvalidInput("a column cannot be set to legacy: bare JSON text has no checksum; take json+none")
    codec = codec_with(setting.codec, setting.level, None, NO_DICTIONARIES)
    if setting.dictionary_id is not None:
        codec.check_takes_dictionary()
        _copy_everywhere(dictionary_replicas, setting.dictionary_id)
    name = dictionary_replicas.catalog.database
    statement = sql.upsert_column_codec(name, setting.column_name, setting.codec, setting.level, setting.dictionary_id)

    def write(connection: Connection) -> None:
        with connection.transaction():
            if setting.dictionary_id is not None:
                _take_back(connection, name, setting.dictionary_id)
            connection.execute(statement)

    dictionary_replicas.catalog.pool.run(write, writes=True)


def _copy_everywhere(dictionary_replicas: DictionaryReplicas, dictionary_id: int) -> None:
    row = dictionary_replicas.catalog.row(dictionary_id)
    if row is None or row.removed:
        raise _not_there(dictionary_id)
    dictionary = row.dictionary
    if dictionary is None:
        raise DictionaryDamaged(
            f"dictionary {dictionary_id} is damaged in the catalog: {row.fault}; 'schemaless schema upgrade' mends it "
            "from a cluster's copy, 'schemaless codec import' from a file"
        )
    spread(dictionary_replicas, dictionary, row.source)


def _not_there(dictionary_id: int) -> InvalidInput:
    return InvalidInput(f"the catalog has no dictionary {dictionary_id}; 'schemaless codec list' shows them")


def unset_column(pool: NodePool, name: str, column_name: str) -> None:
    """Let a column's new bodies be written in the default again; raises as ``set_column`` does."""
    check_column_name(column_name)
    pool.run(lambda connection: connection.execute(sql.delete_column_codec(name, column_name)), writes=True)


def _take_back(connection: Connection, name: str, dictionary_id: int) -> None:
    """Let a dictionary be written with, also where it was retired; in a transaction that begins to do so.

    Raises:
        InvalidInput: it is not there, or was removed.
    """
    rows = connection.rows(sql.select_dictionary(name, dictionary_id, lock=True))
    if not rows or rows[0][0] is None:
        raise _not_there(dictionary_id)
    connection.execute(sql.take_back_dictionary(name, dictionary_id))


class ColumnCodecs:
    """The codec of each column, for a process that writes. Safe to share between threads and across ``fork``."""

    def __init__(
        self,
        read: Callable[[], Sequence[ColumnSetting]],
        dictionaries: Dictionaries,
        known: Sequence[ColumnSetting] | None = None,
    ) -> None:
        """Make it; nothing is asked before the first write.

        Args:
            read: asks the catalog.
            dictionaries: the datastore's.
            known: what the catalog said just now, if it was asked.
        """
        self._read = read
        self._dictionaries = dictionaries
        self._known = known
        self._known_at_s = time.monotonic()
        self._codecs: dict[str, Codec] = {}
        self._stale_at_s = 0.0

    def codec_for(self, column_name: str) -> Codec:
        """Return what a new body of this column is to be written in."""
        if time.monotonic() >= self._stale_at_s:
            self._renew()
        return self._codecs.get(column_name, DEFAULT)

    def _renew(self) -> None:
        now = time.monotonic()
        # First, so that other threads go on with what is known meanwhile.
        self._stale_at_s = now + REFRESH_S
        known, self._known = self._known, None
        try:
            if known is None or now - self._known_at_s > REFRESH_S:
                known = self._read()
        except SchemalessError as error:
            self._stale_at_s = now + _RETRY_S
            self._codecs = {name: replace(codec, dictionary=None) for name, codec in self._codecs.items()}
            _log.warning("the catalog does not say what columns are written in, so no dictionary is used: %s", error)
            return
        self._codecs = {setting.column_name: self._codec(setting) for setting in known}

    def _codec(self, setting: ColumnSetting) -> Codec:
        try:
            return setting.resolved(self._dictionaries)
        except (CorruptBody, ServerError) as error:
            _log.warning("column %s is written without its dictionary: %s", setting.column_name, error)
        except SchemalessError as error:
            _log.warning("column %s is written as by default: %s", setting.column_name, error)
            return DEFAULT
        return replace(setting, dictionary_id=None).resolved(self._dictionaries)
