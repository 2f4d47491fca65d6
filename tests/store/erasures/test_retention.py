"""Retention policies: what they say, and how the catalog keeps them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import schemaless
from schemaless import Datastore, InvalidCell, InvalidInput
from schemaless.store.erasures.retention import Policies, Policy, parse_policy
from schemaless.store.internals import internals_of


@pytest.fixture
def admin(admin_url: str) -> Iterator[Datastore]:
    with schemaless.connect(admin_url) as opened:
        yield opened


def policies_of(store: Datastore) -> Policies:
    return Policies(lambda: internals_of(store).catalog, store.name)


@pytest.mark.parametrize(
    ("text", "days", "versions"),
    [
        ("400 days", 400, None),
        ("keep 1 day", 1, None),
        ("3 versions", None, 3),
        ("the last 1 version", None, 1),
        ("1,000 days and the last 3 versions", 1_000, 3),
        ("the last 3 versions and 400 days", 400, 3),
    ],
)
def test_policies_are_read_from_words_and_written_in_words(text: str, days: int | None, versions: int | None) -> None:
    """The words of a policy are read as the same policy."""
    policy = parse_policy("LOG", text)
    assert (policy.keep_days, policy.keep_versions) == (days, versions)
    if versions != 1:
        assert parse_policy("LOG", str(policy)) == policy


@pytest.mark.parametrize(
    "text", ["", "400", "400 weeks", "0 days", "40000 days", "0 versions", "3 days and 4 days", "-1 days"]
)
def test_invalid_policies_are_refused(text: str) -> None:
    """No words are guessed at."""
    with pytest.raises(InvalidInput):
        parse_policy("LOG", text)


def test_a_policy_needs_a_column_and_a_limit() -> None:
    """Neither is assumed."""
    with pytest.raises(InvalidCell):
        Policy("no column", 1)
    with pytest.raises(InvalidInput, match="needs a number of days, a number of versions, or both"):
        Policy("LOG")
    with pytest.raises(InvalidInput, match="retention of LOG: the number of days must be from 1 to "):
        Policy("LOG", True)


def test_policies_are_kept_replaced_and_removed(admin: Datastore, fresh_url: str) -> None:
    """The last policy of a column counts, and every account can read it."""
    policies = policies_of(admin)
    assert policies.all() == []
    policies.set(Policy("LOG", 400))
    policies.set(Policy("BASE", keep_versions=3))
    policies.set(Policy("LOG", 30, 2))
    policies.remove("BASE")
    policies.remove("NONE")
    with schemaless.connect(fresh_url) as store:
        (kept,) = policies_of(store).all()
        with pytest.raises(schemaless.AccessDenied):
            policies_of(store).set(Policy("LOG", 1))
    assert (kept.column_name, kept.keep_days, kept.keep_versions) == ("LOG", 30, 2)
    assert kept.set_by
    assert kept.set_at is not None
