"""How dictionaries and settings of columns are printed."""

from __future__ import annotations

from typing import Any

from schemaless.cells import dictionaries as keeping
from schemaless.cells.column_codecs import ColumnSetting
from schemaless.cells.dictionaries import DictionaryEntry
from schemaless.datastore import Datastore
from schemaless.errors import InvalidInput
from schemaless.internals import internals_of
from schemaless.terminal.output import facts


def entry_of(store: Datastore, dictionary_id: int) -> DictionaryEntry:
    """Return the entry of a dictionary that is there; InvalidInput where there is none."""
    for entry in keeping.entries(internals_of(store).catalog, store.name):
        if entry.id == dictionary_id and entry.removed_at is None:
            return entry
    raise InvalidInput(f"the catalog has no dictionary {dictionary_id}; 'schemaless codec list' shows them")


def entry_state(entry: DictionaryEntry) -> str:
    """Return in a word what may be done with a dictionary."""
    if entry.removed_at is not None:
        return "removed"
    if entry.fault is not None:
        return "damaged"
    return "retired" if entry.retired_at is not None else "intact"


def setting_words(setting: ColumnSetting) -> str:
    """Return what a column is set to, for people."""
    level = "" if setting.level is None else f" level {setting.level}"
    return f"{setting.codec}{level}" + (
        "" if setting.dictionary_id is None else f" with dictionary {setting.dictionary_id}"
    )


def number_text(value: Any) -> str:
    """Return a whole number for a table; nothing for what is none."""
    return f"{value:,}" if isinstance(value, int) else ""


def entry_json(entry: DictionaryEntry) -> dict[str, Any]:
    """Return a dictionary's entry, for ``--json``."""
    return {
        "dictionary": entry.id,
        "state": entry_state(entry),
        "fault": entry.fault,
        "sha256": entry.digest.hex(),
        "bytes": entry.size_bytes,
        **facts(entry, "source", "created_at", "retired_at", "removed_at"),
    }


def setting_json(setting: ColumnSetting) -> dict[str, Any]:
    """Return what a column is set to, for ``--json``."""
    return {
        **facts(setting, "column_name", "codec", "level"),
        "dictionary": setting.dictionary_id,
        **facts(setting, "set_at"),
    }
