"""Typed columns proposed from a sample hold every value of the sample."""

from __future__ import annotations

import random

import pytest

from schemaless.store.arrow.fields import TypedValues
from schemaless.store.arrow.infer import propose
from tests.store.arrow.random_documents import random_document

pytestmark = pytest.mark.once


def test_each_type_is_proposed_for_its_values():
    """The first type that holds all values; a path with values of several types has none."""
    documents = [
        {
            "n": number,
            "x": number if number % 2 else 0.5,
            "ok": True,
            "at": "2026-03-01T12:00:00Z",
            "id": f"c0ffee00-0000-4000-8000-{number:012d}",
            "name": f"n{number}",
            "mixed": number if number % 2 else "one",
            "list": [1],
            "body": "b",
            "fare": {"total": 1.5, "name": "t"},
            "no.dots": 1,
        }
        for number in range(40)
    ]
    documents[0]["rare"] = 1
    found = {proposal.column.declared for proposal in propose(("BASE", document) for document in documents)}
    assert found == {
        "n=BASE.n:int",
        "x=BASE.x:float",
        "ok=BASE.ok:bool",
        "at=BASE.at:time",
        "id=BASE.id:uuid",
        "name=BASE.name:text",
        "total=BASE.fare.total:float",
        "fare_name=BASE.fare.name:text",
    }


def test_what_is_proposed_holds_every_value_of_the_sample():
    """Also for random documents."""
    chance = random.Random(7)
    documents = [random_document(chance) for _ in range(300)]
    columns = [proposal.column for proposal in propose((("BASE", document) for document in documents), least=0.0)]
    typed = TypedValues(columns)
    for document in documents:
        typed.add("BASE", document)
    assert columns
    assert {reason for nulls in typed.nulls for reason in nulls} <= {"missing", "null"}
