"""The search of the built site finds what a newcomer types, in a browser and opened from disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.long

SHOWN = 3
"""Number of results that a reader looks at."""
READY = """() => document.querySelector(".md-search-result__meta").textContent.trim()
    === 'Type to start searching'"""
RESULTS = """() => [...document.querySelectorAll(".md-search-result__item")].map(
    item => [...item.querySelectorAll("a.md-search-result__link")]
        .filter(link => !link.closest("details:not([open])")).map(link => link.href))"""
"""Links of each result, without those that a reader has to unfold."""
ANSWERS = {
    "my own data": ["start/your-data.html"],
    "csv": ["start/your-data.html"],
    "hyperparameter": ["reference/starting-values.html"],
    "troubleshooting": ["start/troubleshooting.html"],
    "LoRA": ["start/models.html#lora-and-adapters"],
    "out of memory": ["start/troubleshooting.html#out-of-memory-what-do-i-change"],
    "which method": ["start/choosing-a-method.html"],
    "forget quality": ["concepts/forgotten.html#forget-quality"],
    "resume": ["start/troubleshooting.html#resume-what-happens-to-finished-runs"],
    "add a method": ["tutorials/add-a-method.html"],
    "llama 3": ["reference/model-families.html", "start/models.html"],
    "slurm": ["tutorials/run-on-a-cluster.html"],
    "speed": ["concepts/speed.html"],
    "wandb": ["reference/mlflow.html", "tutorials/add-a-tracker.html"],
    "collapsed": ["start/troubleshooting.html#no-method-forgets-or-all-collapsed"],
    "glossary": ["reference/glossary.html"],
}
"""Beginnings of addresses with the answer, by what is typed. One of them must be shown."""


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    """A page of the browser."""
    opened = browser.new_page()
    opened.set_default_timeout(10_000)
    yield opened
    opened.close()


def search(typed: str, page: Page, site: Path) -> None:
    """Type a text into the search of the site, and wait for the results."""
    page.goto((site / "index.html").as_uri())
    field = page.locator(".md-search__input")
    field.click()
    page.wait_for_function(READY)
    # The search listens to keys. One key asks once: for the whole text, and not for its beginnings.
    field.fill(typed[:-1])
    field.press(typed[-1])
    page.wait_for_selector(".md-search-result__item", state="attached")


@pytest.mark.parametrize("typed", ANSWERS)
def test_one_of_the_first_results_has_the_answer(typed: str, page: Page, site: Path) -> None:
    search(typed, page, site)
    results: list[list[str]] = page.evaluate(RESULTS)
    shown = [urlsplit(link) for links in results[:SHOWN] for link in links]
    base = urlsplit(site.as_uri()).path + "/"
    addresses = [f"{link.path.removeprefix(base)}#{link.fragment}" for link in shown]
    assert any(one.startswith(tuple(ANSWERS[typed])) for one in addresses), addresses


def test_search_words_are_hidden_from_results_and_separated(page: Page, site: Path) -> None:
    search("troubleshooting", page, site)
    tags = page.locator(".md-search-result__item .md-tags")
    assert tags.count()
    assert not any(tag.is_visible() for tag in tags.all())
    results = page.locator(".md-search-result__list")
    assert "troubleshootingfaq" not in str(results.text_content())
