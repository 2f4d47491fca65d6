"""Whether a result or an error fits the rows that are there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import schemaless
from schemaless.cell import CellKey
from schemaless.errors import (
    BatchError,
    CellConflict,
    OutcomeUnknown,
    SchemalessError,
    ServerError,
    ServerTimeout,
    ServerUnavailable,
)
from tests.faults.cases import Case

Found = Mapping[CellKey, tuple[int, Any]]
"""The added_id and the document of each cell in a case's rows."""


class Untrue(AssertionError):
    """The store said something that is not so."""


def expect(holds: object, what: str) -> None:
    """Raise ``Untrue`` unless it holds."""
    if not holds:
        raise Untrue(what)


def judge(case: Case, result: list[schemaless.Put] | BaseException, there: Mapping[CellKey, Any], found: Found) -> str:
    """Return the outcome in a few words.

    Args:
        case: what was asked for.
        result: what was returned or raised.
        there: the documents that others wrote before or at the same time.
        found: what is there now.

    Raises:
        Untrue: they do not fit together.
    """
    if isinstance(result, BaseException):
        expect_ours(result)
    for key, body in there.items():
        expect(key in found and found[key][1] == body, f"{key} was there before, and is not any more")
    if case.append:
        return _judge_append(case, result, there, found)
    for key, (_, body) in found.items():
        expect(key in case.wanted, f"{key} was never asked for")
        expect(body == there.get(key, case.wanted.get(key)), f"{key} has a body that no caller wrote")
    new = {key for key in found if key not in there}
    for shard in {case.shard_of(key) for key in case.wanted}:
        mine = {key for key in case.wanted if key not in there and case.shard_of(key) == shard}
        expect(mine <= new or not mine & new, f"of shard {shard}'s part a part is written")
    if isinstance(result, list):
        expect([put.key for put in result] == list(case.wanted), "a Put for each cell, in the order given")
        expect_puts(case, result, there, found)
        return "written"
    if isinstance(result, BatchError):
        outcome = f"BatchError of {_judge_batch_error(case, result, there, found, new)}"
    else:
        expect(len(case.wanted) == 1, f"a batch raised {result!r}")
        outcome = _judge_cause(result, set(case.wanted), found, new)
    return outcome + (", written" if new else ", not written") * is_unknown(result)


def is_unknown(result: object) -> bool:
    """Whether an error leaves anything open."""
    causes = result.causes.values() if isinstance(result, BatchError) else [result]
    return any(isinstance(cause, OutcomeUnknown) for cause in causes)


def expect_ours(error: BaseException) -> None:
    """Expect one of the library's errors, complete."""
    if not isinstance(error, SchemalessError):
        raise Untrue(f"left the library: {error!r}") from error
    expect(type(error).__module__.startswith("schemaless."), f"{error!r} is not the library's")
    if isinstance(error, ServerError):
        expect(error.node and error.node in str(error), f"{error!r} names no node")
        expect(error.shard is not None, f"{error!r} names no shard")


def expect_puts(case: Case, puts: list[schemaless.Put], there: Mapping[CellKey, Any], found: Found) -> None:
    """Expect each Put to be true; ``there`` are the cells that it cannot have created."""
    for put in puts:
        expect(put.key in found, f"{put} is not there")
        expect(put.added_id == found[put.key][0], f"{put} has added_id {found[put.key][0]}")
        expect(found[put.key][1] == case.wanted[put.key], f"{put} has another body")
        expect(not (put.created and put.key in there), f"{put}: it was there before")


def public_name(error: BaseException) -> str:
    """Return the name of the class of ``schemaless.errors`` that an error is of."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "schemaless.errors")


def _judge_batch_error(
    case: Case, error: BatchError, there: Mapping[CellKey, Any], found: Found, new: set[CellKey]
) -> str:
    written = [put.key for put in error.written]
    expect(sorted([*written, *error.not_written]) == sorted(case.wanted), "each cell is in one of the two lists")
    expect_puts(case, error.written, there, found)
    outcomes = set()
    for shard, cause in error.causes.items():
        expect_ours(cause)
        if isinstance(cause, ServerError):
            expect(cause.shard == shard, f"{cause!r} names shard {cause.shard}, not {shard}")
        mine = {key for key in case.wanted if case.shard_of(key) == shard}
        expect(mine <= set(error.not_written), f"shard {shard} failed, and is said to have written")
        outcomes.add(_judge_cause(cause, mine, found, new))
    failed = {key for key in case.wanted if case.shard_of(key) in error.causes}
    expect(failed == set(error.not_written), "what was not written is what the failed shards were to write")
    expect(error.retryable == all(cause.retryable for cause in error.causes.values()), "retryable")
    return " and ".join(sorted(outcomes))


def _judge_cause(error: BaseException, keys: set[CellKey], found: Found, new: set[CellKey]) -> str:
    """Judge what a shard raised; ``keys`` are all that were asked for there."""
    if isinstance(error, CellConflict):
        stored = error.stored
        expect(stored.key in keys and found[stored.key] == (stored.added_id, stored.body), "the conflict's cell")
        expect(not keys & new, "a conflict, and something was written")
    elif isinstance(error, OutcomeUnknown):
        expect(error.retryable and error.key is None, "an unknown outcome is settled by repeating")
    elif isinstance(error, ServerUnavailable | ServerTimeout):
        expect(not keys & new, f"{error!r}, and it was written")
        expect(error.retryable, f"{error!r}: a retry would succeed")
    else:
        raise Untrue(f"{error!r} is no error for this fault") from error
    return public_name(error)


def _judge_append(case: Case, result: Any, there: Mapping[CellKey, Any], found: Found) -> str:
    (body,) = case.wanted.values()
    mine = [key for key in found if key not in there]
    expect(len(mine) <= 1, f"appended {len(mine)} times")
    expect(all(found[key][1] == body for key in mine), "the body that was appended")
    refs = sorted(key.ref_key for key in found)
    expect(refs == list(range(1, len(refs) + 1)), f"ref_keys without gaps, got {refs}")
    if isinstance(result, list):
        (put,) = result
        expect([put.key] == mine and put.created and put.added_id == found[put.key][0], f"{put}, found {mine}")
        return "written"
    if isinstance(result, OutcomeUnknown):
        expect(not result.retryable, "an append whose outcome is unknown may not simply be repeated")
        expect(result.key is not None and set(mine) <= {result.key}, f"key {result.key}, found {mine}")
        return f"OutcomeUnknown{', written' if mine else ', not written'}"
    expect(isinstance(result, ServerUnavailable | ServerTimeout), f"{result!r} is no error for this fault")
    expect(not mine, f"{result!r}, and it was written")
    expect(result.retryable, f"{result!r}: a retry would succeed")
    return public_name(result)
