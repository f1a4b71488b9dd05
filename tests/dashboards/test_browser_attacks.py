"""The section on attacks in a browser: what is clicked opens the answers under that attack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import expect

from unlearnbench.reporting.report import make_report

from .attacked_records import under_attacks
from .conftest import write_page

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Fabric, Visit


def test_numbers_and_bars_open_the_answers_under_an_attack(
    visit: Visit, fabric: Fabric, tmp_path: Path
) -> None:
    records = [fabric.reference("fine-tuned"), fabric.reference("retain")]
    records += [fabric.run("idk", points=((0.8, -5.0),)), fabric.run("dpo", points=((0.8, -6.0),))]
    page = visit(write_page(make_report(under_attacks(records), name="attacked"), tmp_path))
    first = page.locator("#lasting .findings li").first
    expect(first).to_contain_text("Most comes back of idk at rate 0.0001: extraction strength")
    # Plots that are drawn once they are near move the table below them away from a click.
    page.locator("#lasting-bars-plots").scroll_into_view_if_needed()
    bars = page.locator("#lasting-bars-plots figure").first.locator(".barlayer .point")
    expect(bars.first).to_be_attached()
    line = page.locator("table.lasting tr[data-family=idk]")
    line.get_by_role("button").first.click()
    expect(page.locator("#answer-variant")).to_have_value("relearning@13")
    expect(page.locator("#answer-run")).to_have_value("idk-0.0001-tiny-0.1-0")
    card = page.locator(".qa").first
    expect(card.locator("dt", has_text="relearning@13, epoch 1")).to_be_visible()
    expect(card).to_contain_text("Under relearning@13: Author")
    expect(card.locator("dt", has_text="retain model, relearning@13")).to_be_visible()
    page.locator("#answer-variant").select_option("quantization@nf4")
    expect(card).to_contain_text("Under quantization@nf4: Author")
    page.locator("#lasting-bars-plots").scroll_into_view_if_needed()
    box = bars.nth(1).bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 4, box["y"] + box["height"] / 2)
    expect(page.locator("#answer-variant")).to_have_value("assistant-prefix")
    expect(page.locator("#answer-run")).to_have_value("dpo-0.0001-tiny-0.1-0")
    page.locator(".scorecard .parts").first.click()
    expect(page.locator(".scorecard .behind")).to_contain_text("under relearning, 13 steps")
