"""Short names of servers that are reached by a socket, in output for people."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

_DIGEST: Final = re.compile("[0-9a-f]{12,}")
_DIGITS: Final = 7


class ServerNames:
    """Short and unique names for the sockets among the addresses of servers; other addresses are short enough.

    A name is the end of the socket's path, without ``.sock``; of a digest, as private servers have it, the beginning.

    >>> ServerNames(["/run/db-1/mysqld.sock", "/run/db-2/mysqld.sock", "/run/a.sock"]).short("replica /run/a.sock lags")
    'replica a lags'

    Args:
        addresses: addresses of all servers that the output may name.
    """

    def __init__(self, addresses: Iterable[str]) -> None:
        candidates = {address: list(_candidates(address)) for address in set(addresses) if address.startswith("/")}
        counts = Counter(name for names in candidates.values() for name in set(names))
        self._names = {
            address: next((name for name in names if counts[name] == 1), address)
            for address, names in candidates.items()
        }
        longest_first = sorted(map(re.escape, self._names), key=len, reverse=True)
        # An address within a URL stays, since commands need it.
        self._pattern = re.compile(rf"(?<![=\w])(?:{'|'.join(longest_first)})(?![\w/-])") if longest_first else None

    def short(self, text: str, shown: Callable[[str, str], str] = lambda name, address: name) -> str:
        """Replace the sockets in a text by what ``shown`` returns for their name and address."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda found: shown(self._names[found[0]], found[0]), text)


def _candidates(address: str) -> Iterator[str]:
    parts = address.removesuffix(".sock").split("/")
    if _DIGEST.fullmatch(parts[-1]):
        yield parts[-1][:_DIGITS]
    for count in range(1, len(parts)):
        yield "/".join(parts[-count:])
