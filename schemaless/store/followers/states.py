"""States of a follower: as a whole, and in a shard."""

from __future__ import annotations

from typing import Final

RUNNING: Final = "running"
PAUSED: Final = "paused"
STOPPED: Final = "stopped"
QUARANTINED: Final = "quarantined"
"""State of a shard with a cell that killed a worker; workers for healthy shards do not claim the shard."""

DIED: Final = "its worker died during the call"
"""Start of the message of an attempt that is in progress, or that its worker did not survive."""
