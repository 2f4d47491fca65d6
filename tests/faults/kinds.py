"""For tests whose faults are met by the client alone: one kind of server does for them."""

import pytest

from tests import foreign

ONE_KIND = pytest.mark.parametrize("flavour", [foreign.CHOSEN or "mysql"], indirect=True)
