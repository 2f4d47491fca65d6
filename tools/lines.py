"""Counts the package's lines of code and docstrings: ``python tools/lines.py [REVISION]...``; default: the checkout.

A line of code has at least one token that is neither a comment nor part of a docstring; docstrings include their blank
lines.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
import tokenize
from collections import Counter
from pathlib import Path

_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def counted(source: str) -> tuple[int, int]:
    """Return a module's numbers of lines of code and of docstrings, including those of constants."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            documented.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    filled = {number for number, line in enumerate(source.splitlines(), 1) if line.strip()}
    return len((code - documented) & filled), len(documented)


def modules(revision: str | None) -> dict[str, str]:
    """Return the package's modules by path, as they are in the checkout or were in a revision."""
    if revision is None:
        return {str(path): path.read_text(encoding="utf-8") for path in Path("schemaless").rglob("*.py")}
    archive = subprocess.run(["git", "archive", revision, "schemaless"], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        files = {member.name: tar.extractfile(member) for member in tar if member.name.endswith(".py")}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


def main() -> None:
    """Print the sums, in all and by subpackage."""
    revisions: list[str | None] = [*sys.argv[1:]]
    for revision in revisions or [None]:
        code: Counter[str] = Counter()
        documented: Counter[str] = Counter()
        for path, source in modules(revision).items():
            room = path.split("/")[1]
            code[room], documented[room] = (
                sum(pair) for pair in zip((code[room], documented[room]), counted(source), strict=True)
            )
        print(f"{revision or 'checkout'}: {code.total():,} of code, {documented.total():,} of docstrings")
        for room, lines in code.most_common():
            print(f"  {room:<16}{lines:>8,}{documented[room]:>8,}")


if __name__ == "__main__":
    main()
