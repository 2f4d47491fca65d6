"""Where a datastore's cold files are, and which columns' cells become cold; both are stored in the catalog."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from schemaless.base.keys import check_column_name
from schemaless.base.numbers import counted
from schemaless.base.runner_names import who
from schemaless.errors import InvalidInput
from schemaless.store.cold import sql
from schemaless.store.cold.targets import check_marked, mark, open_target
from schemaless.wire.pool import NodePool

MOST_DAYS: Final = 36_525
_MOST_URI: Final = 1024


@dataclass(frozen=True, slots=True)
class ColdStore:
    """Where the cold files of a datastore are.

    Attributes:
        uri: a folder, or a URI that ``pyarrow.fs`` opens, without credentials.
        incarnation: identifies the datastore in the names of its files, in hexadecimal.
        keep_days: how long a file that no cell refers to is kept for restored backups, in days.
        set_by: who set it.
        set_at: when it was set.
    """

    uri: str
    incarnation: str
    keep_days: int
    set_by: str
    set_at: datetime


@dataclass(frozen=True, slots=True)
class TierPolicy:
    """When the cells of a column become cold.

    Attributes:
        column_name: name of the column.
        after_days: cells written at least this many days ago become cold.
        set_by: who set it; empty for a policy that is not in the catalog.
        set_at: when it was set; None for a policy that is not in the catalog.

    Raises:
        InvalidInput: the number of days is out of range.
        InvalidCell: the column name is invalid.
    """

    column_name: str
    after_days: int
    set_by: str = ""
    set_at: datetime | None = None

    def __post_init__(self) -> None:
        check_column_name(self.column_name)
        if type(self.after_days) is not int or not 0 <= self.after_days <= MOST_DAYS:
            raise InvalidInput(f"after_days must be an integer from 0 to {MOST_DAYS:,}, got {self.after_days!r}")

    def __str__(self) -> str:
        return f"cold after {counted(self.after_days, 'day')}"


class ColdSettings:
    """The cold store and the policies of a datastore.

    Every method raises ``ServerError`` if the catalog's server is unreachable or rejects a statement.

    Args:
        catalog: returns the connections to the catalog's server, which a failover may change.
        datastore: name of the datastore.

    Attributes:
        is_new: the datastore is being given its incarnation, so no file of it is looked for that shards do not list.
    """

    def __init__(self, catalog: Callable[[], NodePool], datastore: str) -> None:
        self.is_new: bool = False
        self._catalog = catalog
        self._name = datastore

    def store(self) -> ColdStore | None:
        """Return where the cold files are; None if this was never set."""
        rows = self._catalog().rows(sql.select_store(self._name))
        if not rows:
            return None
        uri, incarnation, keep_days, set_by, set_at = rows[0]
        return ColdStore(uri, incarnation, keep_days, set_by, datetime.fromisoformat(set_at))

    def set_store(self, uri: str, keep_days: int, *, marked: bool = False) -> None:
        """Set where the cold files are, and mark the place as a cold store. Existing files are not moved.

        Args:
            uri: a folder, or a URI that ``pyarrow.fs`` opens.
            keep_days: how long a file that no cell refers to is kept, in days.
            marked: the place must have been marked before, because files are there.

        Raises:
            ColdStoreUnavailable: the place cannot be written, or it was not marked before; nothing was changed.
            InvalidInput: the URI is too long, or the number of days is out of range.
            AccessDenied: the account lacks the privileges of the role ``admin``.
        """
        if not 0 < len(uri) <= _MOST_URI:
            raise InvalidInput(f"the URI of a cold store has 1 to {_MOST_URI} characters, this one has {len(uri)}")
        if type(keep_days) is not int or not 0 <= keep_days <= MOST_DAYS:
            raise InvalidInput(f"keep_days must be an integer from 0 to {MOST_DAYS:,}, got {keep_days!r}")
        target = open_target(uri)
        if marked:
            check_marked(target)
        else:
            mark(target)
        self._catalog().execute(sql.upsert_store(self._name, uri, secrets.token_hex(16), keep_days, who()))

    def policies(self) -> list[TierPolicy]:
        """Return the policies by column name."""
        rows = self._catalog().rows(sql.select_policies(self._name))
        return [TierPolicy(column, days, by, datetime.fromisoformat(at)) for column, days, by, at in rows]

    def set(self, policy: TierPolicy) -> None:
        """Set the policy of a column; it takes effect with the next run.

        Raises:
            AccessDenied: the account lacks the privileges of the role ``admin``.
        """
        self._catalog().execute(sql.upsert_policy(self._name, policy.column_name, policy.after_days, who()))

    def remove(self, column_name: str) -> None:
        """Remove the policy of a column: its cells stay as they are, and no further ones become cold."""
        self._catalog().execute(sql.delete_policy(self._name, check_column_name(column_name)))
