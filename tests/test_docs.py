"""Documents that would drift: examples in docstrings run, links lead somewhere."""

from __future__ import annotations

import ast
import doctest
import functools
import importlib
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from schemaless import errors
from tests.cases import each
from tests.test_house import ROOT, nodes_of, relative
from tools import reference, wrap

pytestmark = pytest.mark.once

PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/logs/*.md", "schemaless/**/*.md", "migrations/*.md")
    for path in ROOT.glob(pattern)
)
WITH_EXAMPLES = sorted(
    path
    for path in ROOT.glob("schemaless/**/*.py")
    if re.search(r"^\s*>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)
)


def prose(page: Path) -> str:
    """Return a page without its code."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


@functools.cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each("page", PAGES)
def test_blocks_of_code_begin_and_end_on_lines_of_their_own(page):
    """A fence in the middle of a line, or one too many, would show the text after it as code."""
    fences = re.findall(r"^.*```.*$", page.read_text(encoding="utf-8"), re.MULTILINE)

    assert [fence.strip() for fence in fences[1::2]] == ["```"] * (len(fences) // 2)
    assert len(fences) % 2 == 0
    assert all(re.fullmatch(r" *```\w*", fence) for fence in fences[::2]), fences[::2]


@each("path", WITH_EXAMPLES)
def test_examples_in_docstrings_give_the_shown_output(path):
    """Every >>> in the package is run."""
    name = relative(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)

    assert result.attempted
    assert not result.failed


@each("page", PAGES)
def test_links_lead_to_files_that_exist(page):
    """A link to a file of the project, and to a heading in it, leads there."""
    dead = []
    for link in re.findall(r"\]\(<?([^)\s>]+)>?[^)]*\)", prose(page)):
        if re.match(r"[a-z][a-z0-9+.-]*:", link):
            continue
        target, _, anchor = unquote(link).partition("#")
        file = (page.parent / target).resolve() if target else page
        if (
            not file.exists()
            or not file.is_relative_to(ROOT)
            or (anchor and file.suffix == ".md" and anchor not in anchors(file))
        ):
            dead.append(link)

    assert dead == []


@each("page", PAGES)
def test_no_page_sends_people_to_the_other_distribution(page):
    """The name schemaless is taken on the public index: this one is schemaless-store."""
    assert not re.search(r"pip3? install (?:-U |--upgrade )?schemaless(?![\w-])", page.read_text(encoding="utf-8"))


@functools.cache
def defined() -> set[str]:
    """Return the names of all tests."""
    found: set[str] = set()
    for path in ROOT.glob("tests/**/test_*.py"):
        found.update(re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    return found


@each("page", PAGES)
def test_tests_that_a_page_names_exist(page):
    """A promise that names the test behind it names one of the suite."""
    assert set(re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8"))) - defined() == set()


def test_every_promise_has_a_test_and_every_guarantee_is_a_promise():
    """Each promise in docs/guarantees.md begins with the id that tests are marked with."""
    page = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    promised = re.findall(r"^- `([a-z-]+)` \*\*", page, re.MULTILINE)
    guarantee = re.compile(r"^(?:@|pytestmark = .*)pytest\.mark\.guarantee\((.+?)\)", re.MULTILINE)
    tests = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/test_*.py"))
    marked = {name for names in guarantee.findall(tests) for name in re.findall(r'"(.+?)"', names)}

    assert len(promised) == len(set(promised)) > 100
    assert marked == set(promised)


BY_HAND = [page for page in PAGES if reference.FOLDER not in page.parents and page.name != "CHANGELOG.md"]


@each("page", BY_HAND)
def test_lines_of_a_page_are_wrapped(page):
    """At most 120 characters, so that a file can be read where it lies; 'python tools/wrap.py FILE' does it."""
    assert wrap.too_long(page.read_text(encoding="utf-8")) == []


def test_the_reference_matches_docstrings_and_help_texts():
    """Each public name and each command is on its page, as it is today; 'make reference' writes them."""
    assert reference.stale() == [], "run 'make reference'"


def test_the_reference_keeps_continued_lines_and_exceptions_that_share_an_entry():
    """A section with a single entry, and 'Raises' with several names before the colon."""
    docstring = """Wait.

        Args:
            timeout_s: maximum time, in
                seconds.

        Raises:
            InvalidInput, InvalidCell: an argument
                is invalid.
        """
    advice = "../troubleshooting.md#"
    raised = f"[`InvalidInput`]({advice}invalidinput), [`InvalidCell`]({advice}invalidcell)"

    lines = "\n".join(reference.described(docstring)).splitlines()

    assert "| `timeout_s` | maximum time, in seconds. |" in lines
    assert f"| {raised} | an argument is invalid. |" in lines


def test_every_page_is_listed_in_the_overview():
    """docs/README.md leads to each page; the site's navigation is built from it."""
    overview = (ROOT / "docs" / "README.md").read_text(encoding="utf-8").partition("\n## Tutorials\n")[2]
    listed = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)$", overview, re.MULTILINE)
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in ROOT.glob("docs/**/*.md")} - {"README.md"}

    assert sorted(link for link in listed if not link.startswith("../")) == sorted(pages)


def test_files_that_the_architecture_names_exist():
    """Who reads docs/architecture.md finds each file and package that it follows a call through."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)`", text)
    folders = (ROOT / "schemaless", ROOT)

    assert len(named) > 40
    assert [name for name in named if not any((folder / name).exists() for folder in folders)] == []


# ---- docs/troubleshooting.md

TROUBLE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
ERRORS = [
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.SchemalessError)
]


def sections() -> dict[str, str]:
    """Return the text below each heading of the third level that is one word: a class's name."""
    parts = re.split(r"^(##.+)$", TROUBLE, flags=re.MULTILINE)
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {heading[4:]: text for heading, text in found.items() if re.fullmatch(r"### \w+", heading)}


def said_in(folder: Path) -> set[str]:
    """Return every string in the code but docstrings, and of those with values in them the parts between."""
    found = set()
    for path in folder.glob("**/*.py"):
        nodes = nodes_of(path)
        alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        strings = (node for node in nodes if isinstance(node, ast.Constant) and id(node) not in alone)
        found |= {node.value for node in strings if isinstance(node.value, str)}
    nodes_of.cache_clear()
    return found


def test_every_error_has_a_section_and_every_section_an_error():
    """Who meets an error finds its name as a heading."""
    assert sorted(sections()) == sorted(ERRORS)
    assert [name for name in ERRORS if not re.search(rf"-- {name} |^    {name}$", errors.__doc__, re.MULTILINE)] == []


def paragraphs(text: str) -> tuple[str, list[str]]:
    """Return the messages that a section quotes in its first paragraph, if any, and the other paragraphs."""
    first, *rest = text.strip().split("\n\n")
    return (first, rest) if re.fullmatch(r"(?:`[^`]+`[,\s]*)+", first) else ("", [first, *rest])


@each("name", ERRORS)
def test_a_section_says_what_the_error_means(name):
    """What it means for the data, and what to do, follow unless the page's first paragraph says them."""
    meaning, *rest = paragraphs(sections()[name].partition("\n## ")[0])[1]
    labels = re.findall(r"^\*\*(\w+)\*\* \S", "\n".join(rest), re.MULTILINE)

    assert re.match(r"[A-Z`].+\.$", meaning, re.DOTALL)
    assert labels in ([], ["Data"], ["Do"], ["Data", "Do"])


def test_messages_in_the_sections_are_the_codes_own():
    """What is quoted can be searched for: each part between the dots stands in a message."""
    said = said_in(ROOT / "schemaless")
    quoted = [
        " ".join(quote.split())
        for text in sections().values()
        for quote in re.findall(r"`([^`]+)`", paragraphs(text)[0])
    ]
    parts = [part.strip(" ,;") for quote in quoted for part in quote.split("...") if part.strip(" ,;")]

    assert [part for part in parts if not any(part in string for string in said)] == []
    assert len(parts) > 60
