"""Pages that are made from the code while the site is built, and their place in the navigation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import command_line_page
import configuration_page
import method_pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_made: dict[str, str] = {}
"""Their texts by path; the code does not change while `make docs-serve` runs."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, and those of the methods to the navigation."""
    if not _made:
        _made.update(_pages())
    for path, text in _made.items():
        files.append(File.generated(config, path, content=text))
    methods = [path for path in _made if path.startswith("methods/")]
    _section(config.nav, "Methods")[:] = methods
    return files


def _pages() -> Iterator[tuple[str, str]]:
    yield from method_pages.pages()
    yield "reference/configuration.md", configuration_page.page()
    yield "reference/command-line.md", command_line_page.page()


def _section(nav: Any, title: str) -> list[str]:
    """The entries of a section of the navigation."""
    section: list[str] = next(entry[title] for entry in nav if title in entry)
    return section
