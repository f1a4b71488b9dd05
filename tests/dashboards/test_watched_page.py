"""The served page in a browser: it reloads by itself, and the scroll position is restored.

The browser's clock is moved forward instead of waiting for the page's next question.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from unlearnbench.reporting.http_server import serve_page
from unlearnbench.reporting.watch import Watch
from unlearnbench.results.sweep_folder import lock_folder

from .conftest import store

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from .conftest import Fabric

ASKED = 2000
"""Milliseconds until the page asks again; also enough for it to count as idle."""


def test_a_newer_page_is_loaded_and_the_place_restored(
    tmp_path: Path, fabric: Fabric, browser: Browser
) -> None:
    watched = Watch(tmp_path, None, print)
    with lock_folder(tmp_path), serve_page(lambda: watched.served, None) as address:
        watched.refresh(5.0)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        wrong: list[str] = []
        requested: list[str] = []
        page.clock.install()
        page.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: requested.append(request.url))
        page.goto(address)
        page.wait_for_selector("h1:has-text('" + tmp_path.name + "')")
        assert "Nothing is recorded yet" in page.inner_text("body")

        store(fabric.reference("fine-tuned"), tmp_path)
        store(fabric.reference("retain"), tmp_path)
        store(fabric.run("npo", 1e-5), tmp_path)
        watched.refresh(5.0, last=True)
        page.clock.fast_forward(ASKED)
        page.wait_for_selector("#trade-off", timeout=15_000)
        page.wait_for_selector("#live:has-text('live, 1 of 1 runs, updated at')")

        page.evaluate("location.hash = 'method=npo'")
        page.evaluate("scrollTo(0, document.getElementById('best').offsetTop + 40)")
        before = page.evaluate("document.getElementById('best').getBoundingClientRect().top")
        store(fabric.run("ce-u", 1e-5), tmp_path)
        watched.refresh(5.0, last=True)
        page.wait_for_timeout(200)  # for the event of the scrolling, which counts as input
        page.clock.fast_forward(ASKED)
        page.wait_for_selector("th:has-text('ce-u')", timeout=15_000, state="attached")
        page.wait_for_timeout(1500)
        after = page.evaluate("document.getElementById('best').getBoundingClientRect().top")
        assert abs(after - before) <= 2
        assert page.url.endswith("#method=npo")

        # A typed text is not in the address, so the page asks before it reloads.
        page.locator("#answers").scroll_into_view_if_needed()
        page.wait_for_selector("#answers .qa")
        page.fill("#answer-search", "Ada")
        store(fabric.run("idk", 1e-5), tmp_path)
        watched.refresh(5.0, last=True)
        page.clock.fast_forward(ASKED)
        page.wait_for_selector("#live button:visible", timeout=15_000)
        with page.expect_response("**/state"):
            page.clock.fast_forward(ASKED)
        page.wait_for_timeout(300)  # a reload would begin here
        assert page.input_value("#answer-search") == "Ada"
        page.click("#live button")
        page.wait_for_selector("th:has-text('idk')", timeout=15_000, state="attached")
    watched.refresh(5.0)
    page.clock.fast_forward(ASKED)
    page.wait_for_selector("#live:has-text('not live: the watching command has ended')")
    page.close()
    assert {url.removeprefix(address).partition("#")[0] for url in requested} == {"", "state"}
    assert [text for text in wrong if "ERR_CONNECTION_REFUSED" not in text] == []
