"""The page in a browser: panels, filters, address and keyboard."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from unlearnbench.analysis.best_settings import average_seeds
from unlearnbench.reporting.report import Report, make_report

from .conftest import RESET, write_page

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from .conftest import Fabric, Visit

VISIBLE = """i => document.querySelector(`.plot[data-panel="${i}"]`).data
    .filter(t => t.visible !== false).map(t => ({...t.meta, x: t.x, y: t.y, name: t.name,
        custom: t.customdata, mode: t.mode, marker: t.marker, bars: Boolean(t.error_x)}))"""
SPOT = """([i, run, epoch]) => {
    const node = document.querySelector(`.plot[data-panel="${i}"]`);
    node.scrollIntoView({block: "center"});
    for (const t of node.data) {
        const k = (t.customdata ?? []).findIndex(c => c[0] === epoch && c[1] === run);
        if (k < 0 || t.meta.role !== "trajectory") continue;
        const {xaxis, yaxis} = node._fullLayout, box = node.getBoundingClientRect();
        return [
            box.x + xaxis._offset + xaxis.l2p(t.x[k]), box.y + yaxis._offset + yaxis.l2p(t.y[k])
        ];
    }
}"""


@pytest.fixture(scope="module")
def report(fabric: Fabric) -> Report:
    """Nine methods, two rates, two fractions, three seeds; one run is in MLflow."""
    report = make_report(fabric.sweep(seeds=(0, 1, 2), epochs=3), name="many")
    run = next(r for r in report.records if r.method == "npo" and r.learning_rate == 1e-4)
    return replace(report, links={run.id: "http://127.0.0.1:5000/#/experiments/1/runs/abc"})


@pytest.fixture(scope="module")
def path(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(report, tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def search_path(fabric: Fabric, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty settings of three methods, on a model and data that the CE-U paper has, too."""
    place: Any = {"model": "Llama-2-7B-chat", "fraction": 0.05}
    runs = [
        fabric.run(
            method,
            rate=1e-5 * (1 + k / 7),
            points=((0.8, -12.0 + k * 7 % 20 / 3), (0.85 - k * 0.015, -8.0 + k * 3 % 20 / 4)),
            hyperparameters={"beta": k / 20},
            source="tofu",
            **place,
        )
        for method in ("npo", "ce-u", "dpo")
        for k in range(20)
    ]
    records = [fabric.reference("fine-tuned", **place), *runs]
    return write_page(make_report(records, name="x"), tmp_path_factory.mktemp("search"))


def lines(page: Page, panel: int = 0) -> list[dict[str, Any]]:
    """Trajectories that panel `panel` shows."""
    return [t for t in page.evaluate(VISIBLE, panel) if t["role"] == "trajectory"]


def click_point(page: Page, run: str, epoch: int, panel: int = 0) -> None:
    x, y = page.evaluate(SPOT, [panel, run, epoch])
    page.mouse.move(x, y)
    page.mouse.click(x, y)


def best_run(report: Report, method: str = "npo", epoch: int = 3) -> str:
    """The run whose id stands for a setting: that of its first seed."""
    return next(
        s.rows[0].run_id
        for s in average_seeds(report.rows)
        if (s.family, s.learning_rate, s.epoch, s.forget_fraction) == (method, 1e-4, epoch, 0.05)
    )


class TestPanels:
    def test_all_are_drawn_with_their_references_and_fronts(self, visit: Visit, path: Path) -> None:
        page = visit.shared(path)
        assert page.locator(".plot[data-panel]").count() == 2
        for panel in (0, 1):
            page.locator(f'.plot[data-panel="{panel}"]').scroll_into_view_if_needed()
            page.wait_for_selector(f'.plot[data-panel="{panel}"] .scatterlayer .point')
            roles = [t["role"] for t in page.evaluate(VISIBLE, panel)]
            assert roles.count("trajectory") == 18
            assert roles.count("reference") == 2
            assert roles.count("front") == 1
        assert all(t["bars"] for t in lines(page))

    def test_a_click_opens_the_points_card(self, visit: Visit, path: Path, report: Report) -> None:
        page = visit.shared(path)
        run = best_run(report, "npo", 2)
        click_point(page, run, 2)
        card = page.locator("#selected")
        card.wait_for()
        assert card.locator("h3").inner_text() == "npo, rate 1e-4, seed 0, epoch 2"
        table = card.locator("table").first
        row = next(r for r in report.rows if (r.run_id, r.epoch) == (run, 2))
        shown = table.locator("tr", has_text="Model Utility").locator("td").nth(1).inner_text()
        assert shown == f"{row.metrics['model_utility']:.3f}"
        assert table.locator("tbody tr").count() == 15
        card.get_by_text("learning rate", exact=True).wait_for()
        assert card.get_by_role("link", name="Run in MLflow").first.get_attribute("href") == (
            "http://127.0.0.1:5000/#/experiments/1/runs/abc"
        )
        card.get_by_text("is npo at 2 and writes forget").first.wait_for()
        card.locator(".block", has_text="forgetting curves").scroll_into_view_if_needed()
        expect(card.locator(".js-plotly-plot")).to_have_count(3)
        page.locator("#families").get_by_role("button", name="dpo", exact=True).click()
        shown = "[...document.querySelectorAll('#selected .plot')].map("
        shown += "n => n.data.filter(t => t.visible !== false).length)"
        assert page.evaluate(shown) == [4, 4, 4]  # filters do not change the card

    def test_its_answers_and_its_other_seeds(
        self, visit: Visit, path: Path, report: Report
    ) -> None:
        run = best_run(report)
        page = visit.shared(path)
        page.evaluate(f"page.select({run!r}, 3)")
        page.locator("#selected").get_by_role("button", name="All its answers").click()
        expect(page.locator("#answer-run")).to_have_value(run)
        page.locator("#answer-list article").first.wait_for()
        page.locator("#answer-search").fill("author 0")
        assert page.locator("#answer-list article").count() == 1
        page.locator("#selected").get_by_role("button", name="1", exact=True).click()
        assert page.locator("#selected h3").inner_text() == "npo, rate 1e-4, seed 1, epoch 3"

    def test_the_papers_points_can_be_shown(self, visit: Visit, search_path: Path) -> None:
        page = visit.shared(search_path)
        assert "published" not in {t["role"] for t in page.evaluate(VISIBLE, 0)}
        page.get_by_role("button", name="Show the CE-U paper's points").click()
        found = [t for t in page.evaluate(VISIBLE, 0) if t["role"] == "published"]
        assert len(found) == 8
        assert all(t["name"].startswith("published: ") for t in found)
        assert "not measured here" in page.locator("[data-published-note]").inner_text()
        assert "published=0" in page.url


class TestFilters:
    def test_by_method_and_rate(self, visit: Visit, path: Path) -> None:
        page = visit.shared(path)
        page.locator("#families").get_by_role("button", name="ce-u", exact=True).click()
        page.locator("#rates").get_by_role("button", name="1e-4").click()
        assert [(t["family"], t["rate"]) for t in lines(page)] == [("ce-u", "1e-4")]
        assert page.locator("#table-count").inner_text().endswith("of 22 rows")
        assert page.locator("#table-best tbody tr:visible").count() == 2
        assert page.locator("#shown").inner_text() == "Shown: methods ce-u; rates 1e-4."
        page.get_by_role("button", name="Show all", exact=True).click()
        assert len(lines(page)) == 18

    def test_by_epoch(self, visit: Visit, path: Path) -> None:
        page = visit.shared(path)
        page.get_by_label("Epochs").select_option("to1")
        assert {c[0] for t in lines(page) for c in t["custom"]} == {0, 1}
        page.get_by_label("Epochs").select_option("2")
        assert {c[0] for t in lines(page) for c in t["custom"]} == {2}

    def test_by_seed_shows_the_points_of_that_seed(
        self, visit: Visit, path: Path, report: Report
    ) -> None:
        page = visit.shared(path)
        page.get_by_label("Seed", exact=True).select_option("1")
        for line in lines(page):
            (row,) = [r for r in report.rows if [r.epoch, r.run_id] == line["custom"][1]]
            assert row.seed == 1
            assert line["x"][1] == pytest.approx(row.metrics["model_utility"], rel=1e-5)
            assert not line["bars"]
        assert "front" not in {t["role"] for t in page.evaluate(VISIBLE, 0)}

    def test_the_table_is_searched_and_sorted(self, visit: Visit, path: Path) -> None:
        page = visit.shared(path)
        page.locator("#table-search").fill("kl-min")
        assert page.locator("#table-count").inner_text() == "36 of 36 rows"
        page.locator("#table").get_by_role("button", name="Model Utility").click()
        cells = page.locator("#table tbody tr td:nth-child(7)").all_inner_texts()
        values = [float(c) for c in cells]
        assert values == sorted(values, reverse=True)

    def test_many_settings_of_a_search(self, visit: Visit, search_path: Path) -> None:
        page = visit.shared(search_path)
        modes = [t["mode"] for t in lines(page)]
        assert len(modes) == 60
        assert 3 <= modes.count("lines+markers") < 30  # the best and the front
        page.get_by_label("Lines for best settings and the front only").uncheck()
        assert {t["mode"] for t in lines(page)} == {"lines+markers"}
        page.get_by_label("Rate from").select_option(index=15)
        assert len(lines(page)) == 18
        page.locator("#families").get_by_role("button", name="npo").click()
        page.get_by_label("Setting", exact=True).select_option("npo (beta=0.9)")
        assert [t["method"] for t in lines(page)] == ["npo (beta=0.9)"]
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280


class TestBar:
    """The bar at the top of the window: filters behind a button, the panel, the colours."""

    def test_filters_are_folded_behind_a_button_with_their_number(
        self, visit: Visit, path: Path
    ) -> None:
        page = visit(path)
        filters, opener = page.locator("#filters"), page.locator("#filter-open")
        expect(filters).to_be_hidden()
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 844})
            assert page.evaluate("document.getElementById('bar').offsetHeight") <= 48
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        opener.click()
        page.locator("#families").get_by_role("button", name="dpo", exact=True).click()
        page.get_by_label("Seed", exact=True).select_option("1")
        expect(opener).to_have_text("Filter (2)")
        page.keyboard.press("Escape")
        expect(filters).to_be_hidden()
        expect(opener).to_be_focused()
        # On a phone numbers come before figures, and what scrolls shows it.
        tops = {
            name: page.evaluate(f"document.getElementById({name!r}).getBoundingClientRect().top")
            for name in ("conclusion", "best", "trade-off")
        }
        assert sorted(tops, key=tops.__getitem__) == ["conclusion", "best", "trade-off"]
        table = page.locator("#best .scroll")
        assert table.get_attribute("data-more") == "right"
        table.evaluate("node => { node.scrollLeft = node.scrollWidth; }")
        expect(table).to_have_attribute("data-more", "left")

    def test_a_chosen_panel_hides_the_others(self, visit: Visit, path: Path) -> None:
        page = visit.shared(path)
        page.locator("#panel-only").select_option(label="tiny, forget 10 %")
        assert page.locator(".plot[data-panel]:visible").count() == 1
        assert page.locator("#table-best tbody tr:visible").count() == 9
        assert page.locator("#claims ul:visible").count() == 1
        expect(page.locator("#table-count")).to_have_text("60 of 164 rows")
        expect(page.locator("#curve-panel")).to_have_value("1")
        expect(page.locator("details.result")).to_have_attribute("open", "")
        assert "panel=1" in page.url
        expect(page.locator("#filter-open")).to_have_text("Filter")  # a choice, and no filter

    def test_the_conclusion_leads_to_the_answers_of_the_best(
        self, visit: Visit, path: Path, report: Report
    ) -> None:
        page = visit.shared(path)
        box = page.locator(".result").first
        for one in report.conclusions[0].sentences:
            expect(box).to_contain_text(one.replace("`", ""))
        box.get_by_role("button", name="All its answers").click()
        expect(page.locator("#answer-run")).to_have_value(page.evaluate("page.data.first[0]"))

    def test_dark_can_be_chosen(self, visit: Visit, path: Path) -> None:
        page = visit.shared(path)
        ground = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(ground)
        page.locator("#theme").click()
        dark = page.evaluate(ground)
        assert dark != light
        page.emulate_media(color_scheme="dark")
        page.locator("#theme").click()
        assert page.evaluate(ground) == light
        assert "theme=light" in page.url


class TestAddress:
    def test_a_copied_link_restores_filters_point_section_and_colours(
        self, visit: Visit, path: Path, report: Report
    ) -> None:
        page = visit.shared(path)
        page.locator("#families").get_by_role("button", name="npo", exact=True).click()
        page.locator("#panel-only").select_option("0")
        page.locator("#theme").click()
        run = best_run(report)
        page.evaluate(f"page.select({run!r}, 3)")
        page.locator("#numbers").evaluate("node => node.scrollIntoView()")
        page.locator("#copy-link").click()
        expect(page.locator("#copy-link")).to_have_text("Copied")
        link = page.url
        assert link == page.evaluate("page.link()")
        page.evaluate(RESET)
        page.evaluate("fragment => { location.hash = fragment; }", link.partition("#")[2])
        expect(page.locator("#selected h3")).to_have_text("npo, rate 1e-4, seed 0, epoch 3")
        assert page.locator("#families [aria-pressed=true]").all_inner_texts() == ["npo"]
        assert page.locator("#panel-only").input_value() == "0"
        assert page.evaluate("document.documentElement.className") == "dark"
        expect(page.locator("#numbers h2")).to_be_in_viewport()

    def test_a_link_shows_the_same_view(self, visit: Visit, path: Path, report: Report) -> None:
        page = visit.shared(path)
        page.locator("#families").get_by_role("button", name="npo", exact=True).click()
        page.get_by_label("Epochs").select_option("to2")
        page.get_by_label("Seed", exact=True).select_option("2")
        run = best_run(report).removesuffix("0") + "2"
        page.evaluate(f"page.select({run!r}, 2)")
        fragment = "#" + page.url.partition("#")[2]
        other = visit(path, fragment)
        assert [t["family"] for t in lines(other)] == ["npo", "npo"]
        assert other.get_by_label("Epochs").input_value() == "to2"
        assert other.get_by_label("Seed", exact=True).input_value() == "2"
        heading = "npo, rate 1e-4, seed 2, epoch 2"
        assert other.locator("#selected h3").inner_text() == heading
        assert lines(other) == lines(page)

    def test_links_within_the_page_leave_the_address(self, visit: Visit, path: Path) -> None:
        page = visit.shared(path)
        page.evaluate("location.hash = 'method=npo'")
        page.get_by_role("link", name="Origin").click()
        assert page.url.endswith("#method=npo")
        assert page.evaluate("document.getElementById('origin').getBoundingClientRect().y < 900")

    def test_unknown_values_are_dropped(self, visit: Visit, path: Path) -> None:
        page = visit.shared(path)
        page.evaluate("location.hash = 'method=dpo'")
        expect(page.locator("#shown")).not_to_be_empty()
        unknown = "method=nobody&rate=7&epoch=soon&seed=x&card=3@none&whole=9&setting=q"
        page.evaluate(f"location.hash = '{unknown}'")
        expect(page.locator("#shown")).to_be_empty()
        assert len(lines(page)) == 18
        assert page.locator("#selected").is_hidden()

    def test_a_changed_address_is_followed(self, visit: Visit, path: Path) -> None:
        page = visit.shared(path)
        page.evaluate("location.hash = 'method=dpo'")
        expect(page.locator("#shown")).to_have_text("Shown: methods dpo.")
        assert {t["family"] for t in lines(page)} == {"dpo"}


class TestKeyboard:
    def test_arrow_keys_move_between_points_and_enter_opens_one(
        self, visit: Visit, path: Path
    ) -> None:
        page = visit.shared(path)
        page.locator('.plot[data-panel="0"]').focus()
        page.keyboard.press("ArrowRight")
        first = page.locator("#point-text").inner_text()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        assert page.locator("#point-text").inner_text() != first
        page.keyboard.press("Enter")
        assert page.locator("#selected").is_visible()
        assert page.evaluate("document.activeElement.id") == "selected"
        page.keyboard.press("Escape")
        assert page.locator("#selected").is_hidden()
        assert page.evaluate("document.activeElement.dataset.panel") == "0"

    def test_tab_reaches_all_controls_and_the_skip_link_moves_the_focus(
        self, visit: Visit, path: Path
    ) -> None:
        page = visit(path)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "conclusion"
        focused: list[str] = []
        for _ in range(16):
            page.keyboard.press("Tab")
            focused.append(page.evaluate("document.activeElement.className"))
        assert any("plot" in name for name in focused)
        page.locator("#table-best").get_by_role("button", name="npo", exact=True).first.focus()
        page.keyboard.press(" ")
        assert page.locator("#selected").is_visible()
