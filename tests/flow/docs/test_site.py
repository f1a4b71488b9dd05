"""The documentation builds without a warning; its links lead somewhere, and it asks no network."""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
"""Attributes whose address a browser loads by itself."""
POINTERS = {"canonical", "next", "prev"}
"""Relations of a `link` that nothing is loaded for."""


@dataclass
class Page(HTMLParser):
    """Anchors and addresses of a page."""

    anchors: set[str] = field(default_factory=set[str])
    links: set[str] = field(default_factory=set[str])
    loaded: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the addresses and the anchor of a tag."""
        values = {key: value for key, value in attrs if value is not None}
        self.anchors |= {values[key] for key in ("id", "name") if key in values}
        if tag == "a" and "href" in values:
            self.links.add(values["href"])
        if (key := LOADED.get(tag, "")) in values and values.get("rel") not in POINTERS:
            self.loaded.add(values[key])


@cache
def parsed(path: Path) -> Page:
    """Parse a page once."""
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def pages(site: Path) -> list[Path]:
    """Every page of the site."""
    return sorted(site.rglob("*.html"))


def test_every_link_anchor_and_picture_exists(site: Path) -> None:
    broken: list[str] = []
    for path in pages(site):
        page = parsed(path)
        for address in page.links | page.loaded:
            parts = urlsplit(address)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if path.name == "404.html":  # for a server, from its root
                target = site / unquote(parts.path).lstrip("/") if parts.path else path
            there = target.is_file()
            if there and parts.fragment and target.suffix == ".html":
                there = unquote(parts.fragment) in parsed(target).anchors
            if not there:
                broken.append(f"{path.relative_to(site)}: {address}")
    assert broken == []
    assert len(pages(site)) > 40


def test_old_addresses_lead_to_the_pages_that_have_moved(site: Path) -> None:
    for old, new in {
        "study.html": "studies/real-model.html",
        "study/page.html": "tutorials/company.html",
        "studies/page.html": "tutorials/company.html",
        "footguns.html": "concepts/footguns.html",
        "benchmarks.html": "develop/measurements.html",
    }.items():
        [address] = parsed(site / old).links
        assert ((site / old).parent / address).resolve() == site / new
        assert (site / new).is_file()


def test_the_published_page_of_a_sweep_has_its_answers_and_names_no_machine(site: Path) -> None:
    text = (site / "tutorials/company.html").read_text(encoding="utf-8")
    assert '<table class="methods"' in text, "drawn by a version with the list of methods"
    assert 'id="answers"' in text
    assert "<dt>host</dt>" not in text
    assert not re.search(r"(/home/|/root/|/tmp/)[a-z]", text)


def test_pages_form_one_chain_of_previous_and_next(site: Path) -> None:
    visited: list[Path] = []
    current: Path | None = site / "index.html"
    while current is not None:
        before, after = neighbours(current)
        assert before == (visited[-1] if visited else None)
        visited.append(current)
        current = after
    others = {site / "404.html", site / "tutorials/company.html"}
    others |= {page for page in pages(site) if "This page has moved" in page.read_text("utf-8")}
    assert {*visited} == {*pages(site)} - others


def neighbours(page: Path) -> tuple[Path | None, Path | None]:
    """Return the pages that the links at the end of a page lead to."""
    text = page.read_text(encoding="utf-8")
    found: list[Path | None] = []
    for label in ("Previous", "Next"):
        link = re.search(rf'<a href="([^"]+)"[^>]* aria-label="{label}: ', text)
        found.append((page.parent / unquote(link[1])).resolve() if link else None)
    return found[0], found[1]


def test_nothing_is_loaded_from_a_network(site: Path) -> None:
    outside: dict[str, set[str]] = defaultdict(set)
    for path in pages(site):
        page = parsed(path)
        outside[path.name] |= {one for one in page.loaded if "//" in one}
    for path in site.rglob("*.css"):
        text = path.read_text(encoding="utf-8")
        outside[path.name] |= {*re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//[^)]*", text)}
    assert {name: found for name, found in outside.items() if found} == {}


def test_the_index_for_programs_has_every_page_with_its_first_sentence(site: Path) -> None:
    text = (site / "llms.txt").read_text(encoding="utf-8")
    lines = re.findall(r"^- \[([^]]+)\]\(([^)]+)\): (.+)$", text, flags=re.MULTILINE)
    described = [site / address for _, address, _ in lines]
    visited = [site / "index.html"]
    while (after := neighbours(visited[-1])[1]) is not None:
        visited.append(after)
    assert described == visited
    for title, _, sentence in lines:
        assert sentence.endswith((".", "!", "?")), title
    assert ("Footguns", "concepts/footguns.html") in [line[:2] for line in lines]
