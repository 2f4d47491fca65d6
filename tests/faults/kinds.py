"""For tests whose faults are met by the client alone: one kind of server does for them."""

import pytest

from tests import foreign

ONE_KIND = pytest.mark.parametrize(
    "server_kind", ["given" if foreign.GIVEN else foreign.CHOSEN or "mysql"], indirect=True, scope="session"
)
