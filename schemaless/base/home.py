"""The user's home folder, which a user in a container may not have."""

from __future__ import annotations

from pathlib import Path

from schemaless.errors import InvalidInput


def expanded(path: str | Path) -> Path:
    """Return a path with the home folder in place of ``~``.

    Raises:
        InvalidInput: there is no such home folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InvalidInput(
            f"cannot expand the ~ in {path}: HOME is not set, and there is no such user in the passwd database; give "
            "an absolute path, or set HOME"
        ) from None
