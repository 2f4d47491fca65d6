"""Typed columns: a value is exact, or null for a reason that is counted."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest

from schemaless.errors import InvalidInput
from schemaless.store.arrow.fields import (
    INEXACT,
    INVALID,
    MISSING,
    NOT_FINITE,
    NOT_UNICODE,
    NULL,
    OUT_OF_RANGE,
    TOO_LONG,
    WRONG_TYPE,
    TypedValues,
    typed_columns,
)
from tests.cases import each

pytestmark = pytest.mark.once

CASES = [
    ("int", 2**63 - 1, 2**63 - 1),
    ("int", 2**63, OUT_OF_RANGE),
    ("int", -(2**63) - 1, OUT_OF_RANGE),
    ("int", 1.0, WRONG_TYPE),
    ("int", True, WRONG_TYPE),
    ("float", 1.5, 1.5),
    ("float", -0.0, -0.0),
    ("float", math.nan, NOT_FINITE),
    ("float", -math.inf, NOT_FINITE),
    ("float", 2**53, float(2**53)),
    ("float", 2**53 + 1, INEXACT),
    ("float", 10**400, OUT_OF_RANGE),
    ("float", "1.5", WRONG_TYPE),
    ("bool", False, False),
    ("bool", 0, WRONG_TYPE),
    ("text", "é" * 10_000, "é" * 10_000),
    ("text", "\ud800", NOT_UNICODE),
    ("text", 5, WRONG_TYPE),
    ("text(3)", "abc", "abc"),
    ("text(3)", "abcd", TOO_LONG),
    ("uuid", "C0FFEE00-0000-4000-8000-000000000001", "c0ffee00-0000-4000-8000-000000000001"),
    ("uuid", "coffee", INVALID),
    ("uuid", 7, WRONG_TYPE),
    ("time", "2026-03-01T12:00:00.25+02:00", datetime(2026, 3, 1, 10, 0, 0, 250_000, UTC)),
    ("time", "2026-03-01", datetime(2026, 3, 1, tzinfo=UTC)),
    ("time", "2026-03-01T12:00:00.123456789Z", INEXACT),
    ("time", "2026-03-01T12:00:00.123456000Z", datetime(2026, 3, 1, 12, 0, 0, 123_456, UTC)),
    ("time", "tomorrow", INVALID),
    ("time", 1_700_000_000, WRONG_TYPE),
    ("int", None, NULL),
]


def same_value(value: object, other: object) -> bool:
    """Return True if two values are the same: 0.0 is not -0.0."""
    if isinstance(value, float) and isinstance(other, float):
        return value == other and math.copysign(1, value) == math.copysign(1, other)
    return type(value) is type(other) and value == other


@pytest.mark.guarantee("export-exact")
@each("type_name, value, expected", CASES)
def test_a_value_is_exact_or_null_for_a_reason(type_name, value, expected):
    """Each type holds a value exactly, or gives null and counts the reason."""
    typed = TypedValues(typed_columns([f"x=a.b:{type_name}"], ["BASE"]))
    typed.add("BASE", {"a": {"b": value}})
    if isinstance(expected, str) and typed.values == [[None]]:
        assert typed.nulls == [{expected: 1}]
    else:
        assert same_value(typed.values[0][0], expected)
        assert typed.nulls == [{}]


def test_a_missing_key_and_a_cell_of_another_column_are_null():
    """Only cells of the typed column's source are counted."""
    typed = TypedValues(typed_columns(["x=BASE.a.b:int"], None))
    for column, document in (("BASE", {}), ("BASE", {"a": [1]}), ("BASE", 7), ("LOG", {"a": {"b": 1}})):
        typed.add(column, document)
    assert typed.values == [[None] * 4]
    assert typed.nulls == [{MISSING: 3}]


def test_a_declaration_may_leave_out_the_only_column():
    """A declaration with the column and one without it mean the same."""
    short, long = typed_columns(["total=fare.total:float", "t2=BASE.fare.total:float"], ["BASE"])
    assert (short.source, short.path) == (long.source, long.path) == ("BASE", ("fare", "total"))
    assert typed_columns([short.declared], None) == (short,)
    dotted = typed_columns(["city:text"], ["v1.BASE"])
    assert dotted[0].source == "v1.BASE"
    assert typed_columns([dotted[0].declared], None) == dotted


@each(
    "declared, columns, message",
    [
        (["body=x:int"], ["BASE"], "give the typed column another name"),
        (["a:int", "b.a:int"], ["BASE"], "two typed columns have the name a"),
        (["LOG.a:int"], ["BASE", "STATUS"], "column LOG, which is not exported"),
        (["a:number"], ["BASE"], "the type must be"),
        (["a"], ["BASE"], "a field must be declared as"),
    ],
)
def test_a_declaration_that_cannot_be_used_is_refused(declared, columns, message):
    """The error names the field and the rule."""
    with pytest.raises(InvalidInput, match=message):
        typed_columns(declared, columns)
