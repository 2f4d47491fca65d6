"""Entry point of the ``schemaless`` command; explains what to install if the extra ``[cli]`` is missing."""

from __future__ import annotations

import os
import sys
import threading
from importlib.util import find_spec
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import Any

from schemaless.base.interrupts import is_interrupt, settle_exit_status


class _Notes(FileIO):
    """Standard error; drops what cannot be written, as when its disk is full, or its reader has exited or is slow.

    Neither may end a service or a job.
    """

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or len(data)
        except OSError:
            return len(data)


def _settle_streams() -> None:
    """Open closed standard streams, so that no connection gets their descriptors, and prepare standard error.

    Worker processes inherit them.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdin, sys.stdout = sys.stdin or os.fdopen(0), sys.stdout or os.fdopen(1, "w")
    encoding = getattr(sys.stderr, "encoding", None)
    notes = BufferedWriter(_Notes(2, "w", closefd=False))
    sys.stderr = TextIOWrapper(notes, encoding, errors="backslashreplace", line_buffering=True)


def main() -> int:
    """Run the command line and return its exit status."""
    _settle_streams()
    missing = [name for name in ("click", "rich") if find_spec(name) is None]
    if missing:
        print(
            f"schemaless: the command line needs {' and '.join(missing)}: pip install 'schemaless-store[cli]'",
            file=sys.stderr,
        )
        return 2
    try:
        from schemaless.cli.main import run
        from schemaless.ui.terminal.output import EXIT_STOPPED
    except (KeyboardInterrupt, RuntimeError) as error:
        if not is_interrupt(error):
            raise
        settle_exit_status()
        print("schemaless: stopped before anything was done; the same command can be run again", file=sys.stderr)
        return 3
    status = run(sys.argv[1:])
    if status == EXIT_STOPPED and threading.active_count() > 1:
        # Python would join a thread that waits for a server; its work may be interrupted at any point.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


if __name__ == "__main__":
    sys.exit(main())
