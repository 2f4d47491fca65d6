"""Hooks that adapt this project's pages to mkdocs, so that the files remain readable in place.

- The navigation comes from docs/README.md: each heading with a list of links is a section.
- Links that lead out of docs (to the format, to a source file) lead to a copy of that file in the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
COPIES = "source"
KINDS = ("Tutorials", "Applications", "Operations", "Reference", "Explanation")
LANGUAGES = {".py": "python", ".sh": "sh", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".cnf": "ini"}
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(#[^)\s]*)?(?=\))")


def sections() -> dict[str, list[tuple[str, str]]]:
    """Return title and file of each page, by the kind under which docs/README.md lists it."""
    text = (DOCS / "README.md").read_text(encoding="utf-8")
    found: dict[str, list[tuple[str, str]]] = {}
    for kind in KINDS:
        part = text.partition(f"\n## {kind}\n")[2].partition("\n## ")[0]
        found[kind] = re.findall(r"^- \[([^\]]+)\]\(([^)#]+\.md)\)", part, re.MULTILINE)
    return found


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Build the navigation from docs/README.md."""
    nav: list[Any] = [{"Start": "README.md"}]
    for kind, pages in sections().items():
        items: list[Any] = []
        for title, file in pages:
            if file.startswith("../"):
                file = f"{COPIES}/{file.removeprefix('../')}"
            items.append({title: file})
        only = next(iter(items[0].values())) if len(items) == 1 else items
        nav.append({kind: only})
    config.nav = nav
    return config


def out_of_docs(page: str, target: str) -> Path | None:
    """Return the file of the project to which a page's link leads, if it is outside docs."""
    here = ROOT / page.removeprefix(f"{COPIES}/") if page.startswith(f"{COPIES}/") else DOCS / page
    file = (here.parent / unquote(target)).resolve()
    return file if file.is_file() and file.is_relative_to(ROOT) and not file.is_relative_to(DOCS) else None


def copy_of(file: Path) -> str:
    """Return the path of the copy of a project file in the site."""
    name = f"{COPIES}/{file.relative_to(ROOT).as_posix()}"
    return name if file.suffix == ".md" else f"{name}.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a copy of each file outside docs that a page links to, and of those that the copies link to."""
    todo = [(page.src_uri, (DOCS / page.src_uri).read_text(encoding="utf-8")) for page in files.documentation_pages()]
    seen: set[Path] = set()
    while todo:
        page, text = todo.pop()
        for target, _ in LINK.findall(text):
            file = out_of_docs(page, target)
            if file is None or file in seen or file == ROOT / "README.md":
                continue
            seen.add(file)
            content = file.read_text(encoding="utf-8")
            if file.suffix == ".md":
                todo.append((copy_of(file), content))
            else:
                language = LANGUAGES.get(file.suffix, "text")
                name = file.relative_to(ROOT).as_posix()
                content = f"# {name}\n\n`````{language}\n{content}\n`````\n"
            files.append(File.generated(config, copy_of(file), content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links out of docs to the copies, and links in the copies back to docs."""
    here = page.file.src_uri
    if here == "README.md":
        page.meta["hide"] = ["navigation"]
    up = "../" * here.count("/")

    def moved(match: re.Match[str]) -> str:
        target, anchor = match.group(1), match.group(2) or ""
        file = out_of_docs(here, target)
        if file == ROOT / "README.md":
            return f"{up}README.md"
        if file is not None:
            return f"{up}{copy_of(file)}{anchor}"
        if here.startswith(f"{COPIES}/"):
            inside = (ROOT / here.removeprefix(f"{COPIES}/")).parent / unquote(target)
            if inside.resolve().is_relative_to(DOCS):
                return f"{up}{inside.resolve().relative_to(DOCS).as_posix()}{anchor}"
        return match.group()

    return LINK.sub(moved, markdown)
