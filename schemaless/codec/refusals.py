"""Tells a codec's own errors from exceptions that a signal handler raised during the call."""

from __future__ import annotations


def is_own(error: BaseException, *packages: str) -> bool:
    """Return whether the call itself raised ``error``, rather than a signal handler that ran during the call.

    Every frame of the traceback must belong to this package or to one of ``packages``.
    """
    trace = error.__traceback__
    while trace is not None:
        package = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if package != "schemaless" and package not in packages:
            return False
        trace = trace.tb_next
    return True
