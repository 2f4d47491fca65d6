"""A finished migration, for the tests of restore, verify and finalise."""

from __future__ import annotations

import pytest

from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.spec import MigrateSpec
from tests.ops.migrate.originals import load


@pytest.fixture
def job(fresh_store, new_row, migrate_store, tmp_path):
    """Job of a finished migration with its archive in ``tmp_path``."""
    load(fresh_store, new_row)
    report = migrate.run(migrate_store, MigrateSpec(archive=str(tmp_path)))
    return JobStore(migrate_store).job(report.job_id)
