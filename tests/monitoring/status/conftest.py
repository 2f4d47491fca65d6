"""The command line, as tests/cli has it."""

from tests.cli.conftest import _of_no_configuration, invoke, start

__all__ = ["_of_no_configuration", "invoke", "start"]
