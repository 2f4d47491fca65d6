"""The library's logger."""

from __future__ import annotations

import logging
from typing import Final

log: Final = logging.getLogger("schemaless")
