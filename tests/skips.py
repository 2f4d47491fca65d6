"""Why tests are skipped, where several say the same: what is not here, and where to look."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemaless.codec.engine import ENGINE

_SHARED = Path(__file__).resolve().parents[2] / "shared"

NATIVE_NOT_BUILT = (
    "schemaless_packed is not installed: .venv/native-from says why 'make install' has not built ./rust; with cargo, "
    "'make test-native' builds it and runs this on each Python"
)
"""For what asks the native extension by itself."""

NATIVE_NOT_USED = (
    NATIVE_NOT_BUILT
    if ENGINE.fast
    else "SCHEMALESS_FAST=0, so the engine is without the native extension; SCHEMALESS_FAST=1 runs this"
)
"""For what asks the engine of this run, where that has no native extension."""

PRIVATE_ONLY = (
    "SERVER is docker or a URL, and this test starts, stops or reaches into private servers; it runs with SERVER=mysql "
    "or SERVER=mariadb"
)
"""For what a foreign server is not suited to."""


def shared(*names: str) -> Path:
    """Return a file or folder beside the checkout, of the public suites, corpora and figures; skip where it is not."""
    path = _SHARED.joinpath(*names)
    if not path.exists():
        pytest.skip(
            f"{path} is not there: public suites, corpora and figures are no part of the checkout; put them beside it"
        )
    return path
