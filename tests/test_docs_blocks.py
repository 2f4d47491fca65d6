"""What the pages show is run: Python blocks, the commands of the tutorials; every other command is parsed."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from schemaless.cli.main import cli
from tests.cases import each
from tests.test_docs import PAGES, ROOT, relative

pytestmark = pytest.mark.once

TUTORIALS = sorted(ROOT.glob("docs/tutorial-*.md"))
BEFORE_THE_SUITE = ("make install", "python3 -m venv", "pip install", ". .venv/bin/activate", "schemaless local ")
"""What has been done where the suite runs: the package is installed, and a private server of its own is there."""
OF_THE_README = "mysql://app@db-1:3306/mezzanine"
PROMPT = re.compile(r"^(?:\$ )?(?=(?:\w+=\S* )?schemaless )")


@dataclass(frozen=True)
class Block:
    """A block of code of a page, and why it is not run where the page says that it is not."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str | None

    def __str__(self) -> str:
        return f"{relative(self.page)}, line {self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page, in their order."""
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(r"^```(\w*)[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        above = text[: match.start()].rstrip("\n")
        reason = re.search(r"\*The tests of this page skip this block: ([^*]+)\*\Z", above)
        line = text.count("\n", 0, match.start()) + 1
        yield Block(page, line, match[1], match[2], reason[1] if reason else None)


def lines_of(text: str) -> list[str]:
    """Return the lines of a block, with continuation lines joined."""
    return text.replace("\\\n", " ").splitlines()


ALL = [block for page in PAGES for block in blocks(page)]
WITH_PYTHON = sorted({block.page for block in ALL if block.language == "python"} - set(TUTORIALS))


def executed(block: Block, urls: dict[str, str]) -> None:
    """Run a Python block with the URLs of accounts, and compare what it prints with the comments behind its prints."""
    text = block.text
    for account, url in urls.items():
        text = text.replace(OF_THE_README.replace("app", account), url)
    expected = re.findall(r"^ *print\(.*\)  # (.*)$", block.text, re.MULTILINE)
    printed = io.StringIO()
    with redirect_stdout(printed):
        code = compile(text, str(block), "exec", dont_inherit=True)
        exec(code, {"__name__": "__main__"})

    assert not expected or printed.getvalue().splitlines() == expected, block


@pytest.mark.mysql
@pytest.mark.parametrize("page", WITH_PYTHON, ids=relative)
def test_python_on_a_page_runs_and_prints_what_it_says(page, fresh_url, tail_url, erase_url, tmp_path, monkeypatch):
    """Each block is a program of its own, on an empty datastore."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCHEMALESS_URL", fresh_url)
    for block in blocks(page):
        if block.language == "python" and block.not_run is None:
            executed(block, {"app": fresh_url, "tail": tail_url, "erase": erase_url})


def script_of(page: Path, datastore: str) -> str:
    """Return a tutorial as a shell script: its programs saved under the names it gives them, its commands in order."""
    lines = ["set -euo pipefail"]
    created: dict[str, str] = {}
    text = page.read_text(encoding="utf-8")
    for block in blocks(page):
        if block.language in ("python", "toml") and block.not_run is None:
            above = " ".join(text.split("\n")[: block.line - 1][-6:])
            names = re.findall(r"[Ss]ave (?:it|this) as `(\w+\.(?:py|toml))`", above)
            assert names, f"{block}: a tutorial's file has a name"
            lines += [f"cat > {names[-1]} <<'END-OF-FILE'", block.text.rstrip("\n"), "END-OF-FILE"]
        for line in lines_of(block.text) if block.language == "console" else ():
            assert line.startswith("$ "), f"{block}: a tutorial shows commands alone, got {line!r}"
            command = line.removeprefix("$ ")
            if command.startswith((*BEFORE_THE_SUITE, "export SERVER")):
                continue
            for name in re.findall(r"(?<=schemaless create )\w+", command):
                created.setdefault(name, f"{datastore}_{len(created)}" if created else datastore)
                command = command.replace(f"schemaless create {name}", f"schemaless create {created[name]}")
            lines.append(re.sub(r"^python (\w+\.py)$", r"python \1 | tee \1.printed", command))
    return "\n".join([*lines, "wait", ""])


@pytest.mark.mysql
@pytest.mark.parametrize("page", TUTORIALS, ids=relative)
@pytest.mark.long
def test_a_tutorial_runs_from_its_beginning_to_its_end(page, server_urls, new_name, tmp_path):
    """Every program and every command, in order, in one folder; each command exits with 0 and prints what it should."""
    script = script_of(page, new_name)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "SCHEMALESS_URL"))
    }
    environment |= {
        "PATH": f"{Path(sys.executable).parent}:{environment['PATH']}",
        "SERVER": server_urls[0],
        "SERVER2": server_urls[-1],
        "PYTEST_ADDOPTS": f"-p no:cacheprovider --schemaless-server {server_urls[0]}",
        "PYTHONPATH": str(ROOT),
    }

    done = subprocess.run(
        ["bash", "-x", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )

    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    for block in blocks(page):
        if block.language == "text":  # What a command says, with the figures of that day.
            words = re.split(r"[0-9][0-9.,]*", " ".join(block.text.split()))
            said = "[0-9.,]+".join(map(re.escape, words))
            found = [line for line in done.stdout.splitlines() if line.startswith(words[0])]
            assert re.search(said, " ".join(done.stdout.split())), f"{block}: {found}"
    programs = [block for block in blocks(page) if block.language == "python"]
    expected = [line for block in programs for line in re.findall(r"^ *print\(.*\)  # (.*)$", block.text, re.MULTILINE)]
    ran = re.findall(r"^python (\w+\.py) ", script, re.MULTILINE)
    printed = [line for name in ran for line in (tmp_path / f"{name}.printed").read_text().splitlines()]
    assert printed == expected


def commands_of(block: Block) -> Iterator[list[str]]:
    """Yield the words of each ``schemaless`` command in a block, without what a shell makes of the rest."""
    for line in lines_of(block.text):
        if not PROMPT.match(line):
            continue
        lexer = shlex.shlex(PROMPT.sub("", line), posix=True, punctuation_chars="|;&<>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("|;&"):
                if words[:1] == ["schemaless"]:
                    yield words[1:]
                words = []
            else:
                words.append(word)


def parsed(arguments: list[str]) -> None:
    """Parse a command with its options as Click does before it is run; raises what Click raises."""
    cut = next((place for place, word in enumerate(arguments) if set(word) <= set("<>")), len(arguments))
    command: click.Command = cli
    context = cli.make_context("schemaless", arguments[:cut])
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert name is not None
        assert found is not None
        command, context = found, found.make_context(name, rest, parent=context)


@each("page", sorted({block.page for block in ALL}))
def test_commands_on_a_page_exist(page, monkeypatch):
    """Each command, option and value is one that the command line takes."""
    monkeypatch.setenv("SCHEMALESS_URL", OF_THE_README)
    for kind in (click.Path, click.File):  # The files that pages name are not here.
        monkeypatch.setattr(kind, "convert", lambda _, value, *rest: value)
    wrong = []
    for block in blocks(page):
        for words in commands_of(block) if block.language in ("", "console", "sh") and not block.not_run else ():
            try:
                parsed(words)
            except click.exceptions.Exit:
                pass  # --help and --version
            except click.ClickException as error:
                if "does not exist" in error.format_message() or "No such file" in error.format_message():
                    continue  # a file of the reader's
                wrong.append(f"{block}: schemaless {' '.join(words)}: {error.format_message()}")

    assert wrong == []


def test_every_code_block_of_the_pages_is_checked():
    """The patterns above find what is there."""
    assert sum(len(list(commands_of(block))) for block in ALL) > 150
    assert sum(block.language == "python" for block in ALL) >= 10
    assert [str(block) for block in ALL if block.not_run == ""] == []
