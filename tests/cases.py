"""Cases of one test in one item.

pytest takes some milliseconds for an item. Where a case takes less, and there are many of them, that was a minute of
every run.
"""

from __future__ import annotations

import functools
import inspect
import reprlib
from collections.abc import Callable, Iterable
from typing import Any


def each(names: str, cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for each case, as ``pytest.mark.parametrize`` does, but as one item; the failing case is named.

    Fixtures are made once, for all of the cases.
    """
    wanted, chosen = names.split(", "), list(cases)
    assert chosen, f"no case of {names}"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def run(**others: Any) -> None:
            for case in chosen:
                values = dict(zip(wanted, case if len(wanted) > 1 else [case], strict=True))
                try:
                    test(**others, **values)
                except BaseException as error:
                    error.add_note(f"in the case {reprlib.repr(values)}")
                    raise

        left = [parameter for name, parameter in signature.parameters.items() if name not in wanted]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return run

    return decorate
