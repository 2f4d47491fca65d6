"""Whose exception it is: a codec's own refusal of what it was given, or what a signal's handler raised meanwhile."""

from __future__ import annotations


def is_own(error: BaseException, *packages: str) -> bool:
    """Whether the call that was tried raised this itself, and not the handler of a signal that came meanwhile.

    Told by where it was raised: each frame is this package's, or one of those that are named.
    """
    trace = error.__traceback__
    while trace is not None:
        package = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if package != "schemaless" and package not in packages:
            return False
        trace = trace.tb_next
    return True
