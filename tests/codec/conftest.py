"""Both engines, and the folder of public suites where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemaless.codec.engine import REFERENCE, Engine

FAST = Engine(fast=True)
_SHARED = Path(__file__).resolve().parents[3] / "shared"


@pytest.fixture(params=["reference", "fast"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return REFERENCE if request.param == "reference" else FAST


@pytest.fixture(scope="session")
def shared() -> Path:
    if not _SHARED.is_dir():
        pytest.skip("the folder of public suites and corpora is not beside this checkout")
    return _SHARED
