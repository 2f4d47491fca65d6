"""Entry point of the ``schemaless`` command; explains what to install if the extra ``[cli]`` is missing."""

from __future__ import annotations

import os
import sys
import threading
from importlib.util import find_spec

from schemaless.base.interrupts import is_interrupt, settle_exit_status


def main() -> int:
    """Run the command line and return its exit status."""
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
