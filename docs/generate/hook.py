"""Pages that are made from the code while the site is built; links to papers on all pages."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import command_line_page
import configuration_page
import file_tree_page
import index_for_programs
import method_pages
import moved_pages
import search_words
import speed_chart
import starting_values_page
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

_PAPER = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
_made: dict[str, str] = {}
"""Their texts by path; the code does not change while `make docs-serve` runs."""
_navigation: list[Navigation] = []
"""The navigation of the current build."""
_descriptions: dict[str, str] = {}
"""First sentences of pages, by path."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, and those of the methods to the navigation."""
    if not _made:
        _made.update(_pages())
    for path, text in _made.items():
        files.append(File.generated(config, path, content=text))
    methods = [path for path in _made if path.startswith("methods/")]
    _section(config.nav, "Methods")[:] = methods
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Add search words, and draw the chart of the page on speed."""
    search_words.add(page.file.src_uri, page.meta)
    return speed_chart.with_chart(markdown)


def on_nav(nav: Navigation, **_: Any) -> Navigation:
    """Remember the navigation for the index."""
    _navigation[:] = [nav]
    return nav


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Link papers, outside of code and links. Remember the page's first sentence."""
    _descriptions[page.file.src_uri] = index_for_programs.description(html)
    parts = re.split(r"(<(pre|code|a)\b.*?</\2>)", html, flags=re.DOTALL)
    parts[::3] = [
        _PAPER.sub(r'<a href="https://arxiv.org/abs/\1">\g<0></a>', p) for p in parts[::3]
    ]
    return "".join(p for i, p in enumerate(parts) if i % 3 != 2)


def on_post_build(config: MkDocsConfig) -> None:
    """Keep the addresses that pages had before, and write the index for programs."""
    site = Path(config.site_dir)
    moved_pages.write(site)
    index = index_for_programs.text(_navigation[0], config, _descriptions)
    (site / index_for_programs.NAME).write_text(index, encoding="utf-8")


def _pages() -> Iterator[tuple[str, str]]:
    yield from method_pages.pages()
    yield "reference/configuration.md", configuration_page.page()
    yield "reference/command-line.md", command_line_page.page()
    yield "reference/starting-values.md", starting_values_page.page()
    yield "develop/files.md", file_tree_page.page()


def _section(nav: Any, title: str) -> list[str]:
    """The entries of a section of the navigation."""
    section: list[str] = next(entry[title] for entry in nav if title in entry)
    return section
