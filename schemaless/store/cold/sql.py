"""Statements about cold files: the cold store and its policies in the catalog, the files of a shard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from schemaless.wire.sql.parts import (
    COLD,
    NOW,
    Term,
    all_rows,
    assigned,
    cell_table,
    delete,
    id_range,
    insert,
    numbers,
    table,
    term,
    text,
    update,
    upsert,
)

# In the catalog


def select_store(catalog: str) -> bytes:
    """Select uri, incarnation, keep_days, set_by and set_at of the cold store."""
    return b"SELECT uri, incarnation, keep_days, set_by, CONCAT(set_at,'+00:00') FROM %b" % table(
        catalog, b"cold_store"
    )


def upsert_store(catalog: str, uri: str, incarnation: str, keep_days: int, set_by: str) -> bytes:
    """Set the cold store; one that exists keeps its incarnation."""
    changes: dict[str, Term] = {"uri": uri, "keep_days": keep_days, "set_by": set_by, "set_at": NOW}
    return b"INSERT INTO %b SET %b ON DUPLICATE KEY UPDATE %b" % (
        table(catalog, b"cold_store"),
        assigned({"only_row": 1, "incarnation": incarnation, **changes}),
        assigned(changes),
    )


def select_policies(catalog: str) -> bytes:
    """Select column_name, after_days, set_by and set_at of every policy, by column."""
    return b"SELECT column_name, after_days, set_by, CONCAT(set_at,'+00:00') FROM %b ORDER BY column_name" % table(
        catalog, b"tier_policy"
    )


def upsert_policy(catalog: str, column_name: str, after_days: int, set_by: str) -> bytes:
    """Set the policy of a column."""
    values: dict[str, Term] = {"after_days": after_days, "set_by": set_by, "set_at": NOW}
    return upsert(table(catalog, b"tier_policy"), {"column_name": column_name}, values)


def delete_policy(catalog: str, column_name: str) -> bytes:
    """Remove the policy of a column."""
    return delete(table(catalog, b"tier_policy"), column_name=column_name)


# In a shard

_FILE: Final = (
    b"file_id, generation, incarnation, token, state, first_id, last_id, cells, text_bytes, file_bytes, sha256, "
    b"erased_event, CONCAT(created_at,'+00:00'), CONCAT(changed_at,'+00:00')"
)
COPIED: Final = (
    "file_id",
    "generation",
    "incarnation",
    "token",
    "first_id",
    "last_id",
    "cells",
    "text_bytes",
    "file_bytes",
    "sha256",
    "erased_event",
)
"""Columns of ``cold_file`` that say what an object is and has."""


def select_files(database: str, states: Iterable[str] = (), file_ids: Iterable[int] = ()) -> bytes:
    """Select the rows of ``cold_file``, oldest first; with ``states`` or ``file_ids``, those that have one of them."""
    conditions = [b"TRUE"]
    if wanted := b",".join(map(text, states)):
        conditions.append(b"state IN (%b)" % wanted)
    if chosen := numbers(file_ids):
        conditions.append(b"file_id IN (%b)" % chosen)
    return b"SELECT %b FROM %b WHERE %b ORDER BY file_id, generation" % (
        _FILE,
        table(database, b"cold_file"),
        b" AND ".join(conditions),
    )


def insert_file(
    database: str,
    file_id: int,
    generation: int,
    incarnation: str,
    token: str,
    first_id: int,
    last_id: int,
    last_event: int | None,
) -> bytes:
    """List a file that is about to be written, as of an event of the log of erased cells, unless it is listed.

    Without ``last_event``, that is the last event at this moment.
    """
    return (
        b"INSERT INTO %b (file_id, generation, incarnation, token, state, first_id, last_id, erased_event) "
        b"SELECT %d, %d, %b, %b, 'writing', %d, %d, %b FROM %b "
        b"ON DUPLICATE KEY UPDATE generation=VALUES(generation)"
        % (
            table(database, b"cold_file"),
            file_id,
            generation,
            text(incarnation),
            text(token),
            first_id,
            last_id,
            b"COALESCE(MAX(event_id),0)" if last_event is None else b"MIN(%d)" % last_event,
            table(database, b"erased_cell"),
        )
    )


def insert_known_file(database: str, values: Mapping[str, Term], *, ignore: bool = False) -> bytes:
    """List a file that exists, with its state and the columns ``COPIED``; with ``ignore``, unless it is listed."""
    return insert(table(database, b"cold_file"), ", ".join(values), [list(values.values())], ignore=ignore)


def update_writing_file(database: str, values: Mapping[str, Term]) -> bytes:
    """Give the row of a file that is listed as being written the values of ``insert_known_file``.

    A row of a deleted file with another name, which an interrupted rewriting leaves, gets them as well.
    """
    key = {name: values[name] for name in ("file_id", "generation")}
    token = term(values["token"])
    return b"%b AND (state='writing' AND token=%b OR state='deleted' AND token<>%b)" % (
        update(table(database, b"cold_file"), {**values, "changed_at": NOW}, **key),
        token,
        token,
    )


def update_file(
    database: str, file_id: int, generation: int, states: Iterable[str], changes: Mapping[str, Term]
) -> bytes:
    """Change a file's row if it is in one of these states."""
    return b"%b AND state IN (%b)" % (
        update(table(database, b"cold_file"), {"changed_at": NOW, **changes}, file_id=file_id, generation=generation),
        b",".join(map(text, states)),
    )


def lock_live_file(database: str, file_id: int) -> bytes:
    """Lock the row of a file's current generation until the transaction ends; selects no row if it is not live."""
    return b"SELECT generation FROM %b WHERE file_id=%d AND state='live' FOR UPDATE" % (
        table(database, b"cold_file"),
        file_id,
    )


def count_references(database: str, after: int, up_to: int) -> bytes:
    """Select the number of a file, as 8 bytes, and the number of cells that refer to it, in a range of added_ids."""
    return b"SELECT SUBSTRING(body,3,8), COUNT(*) FROM %b WHERE %b AND %b GROUP BY 1" % (
        cell_table(database),
        id_range(after, up_to),
        COLD,
    )


def sum_live_files(databases: Iterable[str]) -> bytes:
    """Select, for each of these shards on a server, number, size and length of the JSON text of the live cold files."""
    return all_rows(
        b"SELECT COUNT(*), COALESCE(SUM(file_bytes),0), COALESCE(SUM(text_bytes),0) FROM %b WHERE state='live'"
        % table(database, b"cold_file")
        for database in databases
    )


def count_files(databases: Iterable[str]) -> bytes:
    """Count the cold files of shards on the same server.

    Returns:
        A statement whose rows, one for each shard, are the number of live files, their size in bytes, the number of
        files that may have documents of cells that were erased, and the first of these erasures.
    """
    return all_rows(
        b"SELECT COUNT(IF(state='live',1,NULL)), COALESCE(SUM(IF(state='live',file_bytes,0)),0), COUNT(erasure), "
        b"MIN(erasure) FROM (SELECT state, file_bytes, (SELECT erasure FROM %b AS log "
        b"WHERE log.event_id>file.erased_event AND log.added_id>=file.first_id AND log.added_id<=file.last_id "
        b"ORDER BY event_id LIMIT 1) AS erasure FROM %b AS file WHERE state<>'deleted') AS files"
        % (table(database, b"erased_cell"), table(database, b"cold_file"))
        for database in databases
    )
