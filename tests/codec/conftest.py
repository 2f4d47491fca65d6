"""Both engines, and the folder of public suites where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemaless.codec.engine import REFERENCE, Engine
from tests import skips

FAST = Engine(fast=True)


@pytest.fixture(params=["reference", "fast"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return REFERENCE if request.param == "reference" else FAST


@pytest.fixture(scope="session")
def shared() -> Path:
    return skips.shared()
