"""The asyncio classes have the methods, signatures and summaries of the synchronous ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import schemaless
import schemaless.aio
from schemaless.aio import AsyncColumn, AsyncDatastore, AsyncIndex
from schemaless.store.datastore import Datastore
from schemaless.store.indexes.query import Index
from schemaless.store.typed import Column

pytestmark = pytest.mark.once

PAIRS = [(Datastore, AsyncDatastore), (Index, AsyncIndex), (Column, AsyncColumn)]


def public(kind: type) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if not name.startswith("_")}


METHODS = [
    pytest.param(value, public(other)[name], id=f"{kind.__name__}.{name}")
    for kind, other in PAIRS
    for name, value in public(kind).items()
]


def summary(value: object) -> str:
    return (inspect.getdoc(value) or "").partition("\n")[0]


@pytest.mark.parametrize(("kind", "other"), PAIRS)
def test_both_clients_have_the_same_public_names(kind, other):
    """In the same order; a method added to one class fails here until the other has it."""
    assert list(public(other)) == list(public(kind))


@pytest.mark.guarantee("aio-parity")
@pytest.mark.parametrize(("blocking", "counterpart"), METHODS)
def test_signatures_and_summaries_are_in_step(blocking: Callable[..., Any], counterpart: Callable[..., Any]):
    """Calls are coroutines, iterators are asynchronous, and the first line of the docstring is the same."""
    assert summary(counterpart) == summary(blocking)
    if isinstance(blocking, property):
        assert isinstance(counterpart, property)
        blocking, counterpart = blocking.fget, counterpart.fget
    ours, theirs = inspect.signature(counterpart), inspect.signature(blocking)
    assert ours.parameters == theirs.parameters
    returned = str(theirs.return_annotation)
    if blocking.__name__ == "arrow":
        # pyarrow's reader calls Python from C++, which cannot be suspended.
        returned = "Iterator[Any]"
    lazy = returned.startswith("Iterator[")
    expected = f"Async{returned}" if lazy or returned in ("Index", "Column[T]") else returned
    assert ours.return_annotation == expected
    without_io = blocking.__name__ in ("name", "shard_count", "column", "index", "convert")
    assert inspect.iscoroutinefunction(counterpart) == (not lazy and not without_io)


@pytest.mark.parametrize("name", ["connect", "catch_up", "finish_erasure"])
def test_functions_have_the_signature_of_the_synchronous_ones(name):
    """So an application changes by adding await."""
    ours, theirs = (inspect.signature(getattr(module, name)) for module in (schemaless.aio, schemaless))

    expected = [str(each).replace("'Datastore'", "'AsyncDatastore'") for each in theirs.parameters.values()]
    assert list(map(str, ours.parameters.values())) == expected
    assert inspect.iscoroutinefunction(getattr(schemaless.aio, name))
