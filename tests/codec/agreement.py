"""With the ``[fast]`` extra and without it: what both engines are put to, and what it is to agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from schemaless.codec.documents import identical
from schemaless.codec.engine import REFERENCE, Engine
from schemaless.errors import SchemalessError

FAST = Engine(fast=True)


BOUNDED = settings(deadline=None, suppress_health_check=list(HealthCheck))


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.sampled_from(
        [0, -1, 127, 128, 255, 256, 2**31, 2**32, 2**63, -32, -33, -(2**63), 0.0, -0.0, 1.0, 1e16, 5e-324]
    )
)


MODEL = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5)
)


UNHELD = st.integers(2**64, 2**200) | st.integers(-(2**200), -(2**63) - 1) | st.text(st.characters())


ANY_DOCUMENT = st.recursive(
    SCALARS | UNHELD,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(), max_size=4), inner, max_size=4)
    ),
)


def outcome(call: Callable[[], Any]) -> tuple[str, Any]:
    """Return what a call gives, or the class and the words of what it raises on purpose."""
    try:
        return "gives", call()
    except SchemalessError as refusal:
        return type(refusal).__name__, str(refusal)


def agree(call: Callable[[Engine], Any]) -> tuple[str, Any]:
    """Assert that both engines give the same document or the same refusal, and return it."""
    fast, reference = outcome(lambda: call(FAST)), outcome(lambda: call(REFERENCE))
    assert fast[0] == reference[0], (fast, reference)
    if fast[0] == "gives" and not isinstance(fast[1], bytes | bool):
        assert identical(fast[1], reference[1]), (fast, reference)
    elif fast[0] != "gives":
        assert fast[1] == reference[1]
    return reference
