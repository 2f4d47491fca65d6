"""Retention policies: how long the cells of a column are kept, stored in the catalog."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from schemaless.base.keys import check_column_name
from schemaless.base.numbers import counted
from schemaless.base.runner_names import who
from schemaless.errors import InvalidInput
from schemaless.store.erasures import sql
from schemaless.wire.pool import NodePool

MOST_DAYS: Final = 36_525
MOST_VERSIONS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits on which cells of a column are kept; all others expire. A cell is kept if either limit keeps it.

    Attributes:
        column_name: name of the column.
        keep_days: keep cells written at most this many days ago; None to disregard age.
        keep_versions: keep this many of the latest versions of each row; None to disregard versions.
        set_by: who set it; empty for a policy that is not in the catalog.
        set_at: when it was set; None for a policy that is not in the catalog.

    Raises:
        InvalidInput: a limit is out of range, or neither limit is given.
        InvalidCell: the column name is invalid.
    """

    column_name: str
    keep_days: int | None = None
    keep_versions: int | None = None
    set_by: str = ""
    set_at: datetime | None = None

    def __post_init__(self) -> None:
        check_column_name(self.column_name)
        if self.keep_days is None and self.keep_versions is None:
            raise InvalidInput(
                f"a retention policy for {self.column_name} needs a number of days, a number of versions, or both"
            )
        for name, value, most in (
            ("days", self.keep_days, MOST_DAYS),
            ("versions", self.keep_versions, MOST_VERSIONS),
        ):
            if value is not None and (type(value) is not int or not 1 <= value <= most):
                raise InvalidInput(
                    f"retention of {self.column_name}: the number of {name} must be from 1 to {most:,}, got {value!r}"
                )

    def __str__(self) -> str:
        parts = []
        if self.keep_days is not None:
            parts.append(counted(self.keep_days, "day"))
        if self.keep_versions is not None:
            parts.append("the last version" if self.keep_versions == 1 else f"the last {self.keep_versions:,} versions")
        return f"keep {' and '.join(parts)}"


_PART: Final = re.compile(r"(?:keep )?(?:the last )?(?P<number>[0-9][0-9,]*) (?P<unit>days?|versions?)")


def parse_policy(column_name: str, text: str) -> Policy:
    """Return the policy that a text describes: ``400 days``, ``3 versions``, ``400 days and the last 3 versions``.

    Raises:
        InvalidInput: the text is not such a description, or a limit is out of range.
        InvalidCell: the column name is invalid.
    """
    limits: dict[str, int] = {}
    for part in text.split(" and "):
        found = _PART.fullmatch(part.strip())
        unit = None if found is None else "keep_days" if found["unit"].startswith("day") else "keep_versions"
        if found is None or unit is None or unit in limits:
            raise InvalidInput(
                f"retention of {column_name}: {text!r} is not a policy; write, for example, '400 days', '3 versions' "
                "or '400 days and the last 3 versions'"
            )
        limits[unit] = int(found["number"].replace(",", ""))
    return Policy(column_name, limits.get("keep_days"), limits.get("keep_versions"))


class Policies:
    """The retention policies of a datastore.

    Args:
        catalog: returns the connections to the catalog's server, which a failover may change.
        datastore: name of the datastore.
    """

    def __init__(self, catalog: Callable[[], NodePool], datastore: str) -> None:
        self._catalog = catalog
        self._name = datastore

    def all(self) -> list[Policy]:
        """Return the policies by column name.

        Raises:
            ServerError: the catalog's server is unreachable or rejects a statement.
        """
        rows = self._catalog().rows(sql.select_policies(self._name))
        return [
            Policy(column, days, versions, by, datetime.fromisoformat(at)) for column, days, versions, by, at in rows
        ]

    def set(self, policy: Policy) -> None:
        """Set the policy of a column; it takes effect with the next retention run.

        Raises:
            AccessDenied: the account lacks the privileges of the role ``erase``.
            ServerError: the catalog's server is unreachable or rejects a statement.
        """
        self._write(policy.column_name, policy.keep_days, policy.keep_versions)

    def remove(self, column_name: str) -> None:
        """Remove the policy of a column, so that its cells are kept forever; raises what ``set`` raises."""
        self._write(check_column_name(column_name), None, None)

    def _write(self, column_name: str, keep_days: int | None, keep_versions: int | None) -> None:
        self._catalog().execute(sql.upsert_policy(self._name, column_name, keep_days, keep_versions, who()))
