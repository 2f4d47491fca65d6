"""Parser for option files such as ``~/.my.cnf``, compatible with MySQL's own programs.

PyMySQL's parser is not used: it applies the file's socket to every node of a datastore, whatever host the catalog
names, and supports neither comments after values nor escapes.
"""

from __future__ import annotations

import re
import stat
from typing import Final

from schemaless.base.home import expanded
from schemaless.errors import InvalidInput

DEFAULT_FILE: Final = "~/.my.cnf"

_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "s": " ", '"': '"', "'": "'", "\\": "\\"}


def read_option_file(path: str, groups: tuple[str, ...]) -> dict[str, str | None]:
    """Read the options of the given groups; the last occurrence of an option wins.

    Args:
        path: the file; ``~`` expands to the home directory.
        groups: group names such as ``client``.

    Returns:
        Values by name, with ``-`` replaced by ``_``; None for an option without a value.

    Raises:
        InvalidInput: the file cannot be read, is world-writable, or includes other files, or there is no home folder.
            Messages quote no values.
    """
    file = expanded(path)
    try:
        text = file.read_text(encoding="utf-8-sig")
        mode = file.stat().st_mode
    except OSError as problem:
        raise InvalidInput(f"option file {path}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"option file {path} is not UTF-8 text") from None
    if mode & stat.S_IWOTH:
        raise InvalidInput(f"option file {path} is world-writable, so it is not trusted; run chmod 600 {path}")
    options: dict[str, str | None] = {}
    group = None
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        if line[0] == "!":
            raise InvalidInput(
                f"option file {path}, line {number}: includes are not supported; name the included file instead"
            )
        heading = re.match(r"\[\s*([^\]]*?)\s*\]", line)
        if heading is not None:
            group = heading[1]
            continue
        if group is None:
            raise InvalidInput(f"option file {path}, line {number}: an option before the first [group]")
        if group in groups:
            name, equals, value = _without_comment(line).partition("=")
            options[name.strip().replace("-", "_").removeprefix("loose_")] = (
                _unquoted(value.strip()) if equals else None
            )
    return options


def _without_comment(line: str) -> str:
    """Cut a line at the first ``#`` outside quotes."""
    quote = None
    escaped = False
    for position, character in enumerate(line):
        if character in "'\"" and not escaped:
            quote = character if quote is None else None if quote == character else quote
        if quote is None and character == "#":
            return line[:position]
        escaped = quote is not None and character == "\\" and not escaped
    return line


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] in "'\"" and value[-1] == value[0]:
        value = value[1:-1]
    return re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[0]), value, flags=re.DOTALL)
