"""Runs of simulated schedules, up to millions: spread over processes by seed, and added up."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import fields
from typing import Any

_AT_ONCE = 2_000
_TELL_S = 30


def outcomes(
    run: Callable[[str, range], Any], decided: str, controls: tuple[str, ...], count: int, of_controls: int
) -> Iterator[tuple[Any, float]]:
    """Yield the summed outcome of each variant's schedules and the seconds they took; progress goes to stderr."""
    with ProcessPoolExecutor() as processes:
        for variant in (decided, *controls):
            started_s = told_s = time.monotonic()
            seeds = range(count if variant == decided else of_controls)
            parts = [seeds[first : first + _AT_ONCE] for first in range(0, len(seeds), _AT_ONCE)]
            found = []
            for done in as_completed(processes.submit(run, variant, part) for part in parts):
                found.append(done.result())
                now_s = time.monotonic()
                if now_s - told_s > _TELL_S:
                    told_s = now_s
                    left_s = (now_s - started_s) * (len(parts) / len(found) - 1)
                    print(f"{variant}: {len(found) / len(parts):.0%}, {left_s:.0f} s left", file=sys.stderr, flush=True)
            yield _together(found), time.monotonic() - started_s


def _together(found: list[Any]) -> Any:
    sums = {}
    for field in fields(found[0]):
        first, *others = (getattr(outcome, field.name) for outcome in found)
        # The variant's name is the same in all.
        sums[field.name] = first if isinstance(first, str) else sum(others, first)
    return type(found[0])(**sums)
