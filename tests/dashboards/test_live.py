"""The served page in a browser: it comes anew by itself, and the reader stays where he was."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from unlearnbench.folder import locked
from unlearnbench.live import Watch
from unlearnbench.plan import content_hash
from unlearnbench.records import Record, write_record
from unlearnbench.serving import serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from .conftest import Fabric


def store(record: Record, folder: Path) -> None:
    object.__setattr__(record, "id", content_hash(record.id))  # a dot would end a folder's name
    write_record(record, folder)


@pytest.mark.slow
def test_a_newer_page_comes_by_itself_and_the_place_is_kept(
    tmp_path: Path, fabric: Fabric, browser: Browser
) -> None:
    watched = Watch(tmp_path, None, print)
    with locked(tmp_path), serving(lambda: watched.served, None) as address:
        watched.look(5.0)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        wrong: list[str] = []
        asked: list[str] = []
        page.on("console", lambda told: wrong.append(told.text) if told.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        page.wait_for_selector("h1:has-text('" + tmp_path.name + "')")
        assert "Nothing is recorded yet" in page.inner_text("body")

        store(fabric.anchor("fine-tuned"), tmp_path)
        store(fabric.anchor("retain"), tmp_path)
        store(fabric.run("npo", 1e-5), tmp_path)
        watched.look(5.0, last=True)
        page.wait_for_selector("#trade-off", timeout=15_000)
        page.wait_for_selector("#live:has-text('live, 1 of 1 runs, updated at')")

        page.evaluate("location.hash = 'method=npo'")
        page.evaluate("scrollTo(0, document.getElementById('best').offsetTop + 40)")
        before = page.evaluate("document.getElementById('best').getBoundingClientRect().top")
        store(fabric.run("ce-u", 1e-5), tmp_path)
        watched.look(5.0, last=True)
        page.wait_for_selector("th:has-text('ce-u')", timeout=15_000, state="attached")
        page.wait_for_timeout(1500)
        after = page.evaluate("document.getElementById('best').getBoundingClientRect().top")
        assert abs(after - before) <= 2
        assert page.url.endswith("#method=npo")

        # Whoever has typed something is asked first: the address does not keep it.
        page.locator("#answers").scroll_into_view_if_needed()
        page.wait_for_selector("#answers .qa")
        page.fill("#answer-search", "Ada")
        store(fabric.run("idk", 1e-5), tmp_path)
        watched.look(5.0, last=True)
        page.wait_for_selector("#live button:visible", timeout=15_000)
        page.wait_for_timeout(3000)
        assert page.input_value("#answer-search") == "Ada"
        page.click("#live button")
        page.wait_for_selector("th:has-text('idk')", timeout=15_000, state="attached")
    watched.look(5.0)
    page.wait_for_selector("#live:has-text('not live: the watching command has ended')")
    page.close()
    assert {url.removeprefix(address).partition("#")[0] for url in asked} == {"", "state"}
    assert [text for text in wrong if "ERR_CONNECTION_REFUSED" not in text] == []
