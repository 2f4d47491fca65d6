"""States of a follower: as a whole, and in a shard."""

from __future__ import annotations

from typing import Final

RUNNING: Final = "running"
PAUSED: Final = "paused"
STOPPED: Final = "stopped"
QUARANTINED: Final = "quarantined"
"""A cell of the shard killed its worker; only workers that serve no healthy shard claim it."""

DIED: Final = "its worker died while it was called"
"""Start of the message of an attempt that its worker did not survive, or is still making."""
