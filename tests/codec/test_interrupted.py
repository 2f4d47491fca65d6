"""A signal's handler that raises while the codec works: what it raised arrives, and is no verdict on the body."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from schemaless.codec import envelope
from schemaless.codec.engine import REFERENCE, Engine
from schemaless.codec.envelope import decode_body, encode_body
from schemaless.codec.registry import codec_named, codec_names

pytestmark = pytest.mark.once  # each test names its engine

CODEC = str(Path(envelope.__file__).parent)
DOCUMENT = {
    "day": ["2013-01-01", "2013-01-02", "2013-02-30", "2013-01-04"],
    "number": [1, 2.5, -0.0, 123456789012345678901234567890],
    "text": ["ü", "", None, True, {"n": 1}],
}
ENGINES = {"reference": REFERENCE, "fast": Engine(fast=True)}
NAMES = [name for name in codec_names() if name != "legacy"]


def struck(call: Callable[[], object], at: int, error: BaseException | None) -> int:
    """Run a call, raise ``error`` at one of the lines that it runs in the codec, and return how many it came to."""
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if not frame.f_code.co_filename.startswith(CODEC):
            return None
        if event == "line":
            lines += 1
            if error is not None and lines == at:
                raise error
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", [ValueError, TypeError])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("codec", [*NAMES, "legacy"])
def test_a_handlers_exception_at_any_line_of_the_codec_arrives_unchanged(codec, engine, kind, step):
    """Encoding and decoding: a handler's ValueError never makes a sound body look malformed, and is never swallowed."""
    using = ENGINES[engine]
    body = b'{"a": [1, 2.5, "x"]}' if codec == "legacy" else encode_body(DOCUMENT, codec_named(codec), engine=using)
    calls: list[Callable[[], object]] = [lambda: decode_body(body, engine=using)]
    if codec != "legacy":
        calls.append(lambda: encode_body(DOCUMENT, codec_named(codec), engine=using))

    for call in calls:
        call()  # so that one-time initialisation is done
        lines = struck(call, 0, None)
        assert lines > 5
        for at in range(1 + (kind is TypeError) % step, lines + 1, step):
            error = kind("by a handler")
            with pytest.raises(kind) as caught:
                struck(call, at, error)
            assert caught.value is error, f"line event {at} of {lines}"
