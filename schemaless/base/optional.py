"""Optional packages, which are imported when they are first needed."""

from __future__ import annotations

import importlib
from typing import Any

from schemaless.errors import InvalidInput


def load(module: str = "pyarrow", extra: str = "export") -> Any:
    """Import pyarrow or one of its modules.

    Raises:
        InvalidInput: pyarrow is not installed; the message names ``extra``.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InvalidInput(
            f"cannot import {module}: {error}. Install the [{extra}] extra: pip install 'schemaless-store[{extra}]'"
        ) from error
