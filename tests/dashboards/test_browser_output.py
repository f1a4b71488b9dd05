"""Output of the page: copied tables, saved figures, print; and its fit on any screen."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from unlearnbench.reporting.report import make_report

from .conftest import write_page

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from .conftest import Fabric, Visit

PASTE = """() => {
    const area = document.body.appendChild(document.createElement("textarea"));
    area.id = "paste";
    area.focus();
}"""
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
NO_CLIPBOARD = (
    "Object.defineProperty(navigator, 'clipboard', {value: undefined, configurable: true})"
)


@pytest.fixture(scope="module")
def path(fabric: Fabric, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds, and a method whose name has special characters of every format."""
    report = make_report(fabric.sweep(fractions=(0.1,), seeds=(0, 1, 2), epochs=3), name="many")
    odd = [
        fabric.run('a_b & 50% "x", |y|', points=((0.85, -1.5 - s),), seed=s, rate=3e-5)
        for s in range(3)
    ]
    return write_page(
        make_report([*report.records, *odd], name="many"), tmp_path_factory.mktemp("page")
    )


def copied(page: Page, form: str, table: str = "best") -> str:
    """Click a button of a table, and paste the copied text."""
    page.locator(f'[data-copy="{table}"][data-format="{form}"]').click()
    expect(page.locator(f"#copied-{table}")).to_contain_text(f"copied as {form}.")
    return pasted(page)


def pasted(page: Page) -> str:
    """Paste what was copied."""
    page.evaluate(PASTE)
    page.keyboard.press("Control+V")
    text: str = page.evaluate(
        "(() => { const a = document.getElementById('paste'); a.remove(); return a.value; })()"
    )
    return text


class TestCopies:
    def test_csv_reads_back(self, visit: Visit, path: Path) -> None:
        page = visit.shared(path)
        rows = list(csv.DictReader(io.StringIO(copied(page, "CSV"))))
        (odd,) = [r for r in rows if r["method"] == 'a_b & 50% "x", |y|']
        assert float(odd["log10_forget_quality"]) == pytest.approx(-2.5)
        assert float(odd["log10_forget_quality_standard_deviation"]) == pytest.approx(1.0)
        assert float(odd["log10_forget_quality_low"]) < -2.5
        assert odd["seeds"] == "0 1 2"
        assert odd["interval"] == "95 % t interval of the mean over 3 seeds"
        assert len(rows) == 10

    def test_markdown_is_a_table(self, visit: Visit, path: Path) -> None:
        text = copied(visit.shared(path), "Markdown")
        heads, rule, *lines = [one for one in text.splitlines() if one.startswith("|")]
        bars = [len(re.findall(r"(?<!\\)\|", one)) for one in (heads, rule, *lines)]
        assert set(bars) == {bars[0]}
        assert any('a_b & 50% "x", \\|y\\|' in one for one in lines)
        assert "Means over seeds 0, 1, 2." in text
        assert "95 % t interval" in text

    def test_latex_is_booktabs_with_nothing_unescaped(self, visit: Visit, path: Path) -> None:
        text = copied(visit.shared(path), "LaTeX")
        for part in ("\\toprule", "\\midrule", "\\bottomrule", "\\begin{tabular}{lrrrrr}"):
            assert part in text
        assert 'a\\_b \\& 50\\% "x", |y|' in text
        assert "the highest $\\log_{10}$ Forget Quality" in text
        assert re.search(r"\$-\d\.\d\d\$ \[\$-\d\.\d\d\$, \$-\d\.\d\d\$\]", text)
        body = text.split("\\midrule")[1].split("\\bottomrule")[0].strip().splitlines()
        assert {len(re.findall(r"(?<!\\)&", line)) for line in body} == {5}
        assert not [c for c in text if ord(c) > 127]

    def test_two_seeds_have_a_range_and_caveats_are_copied(
        self, visit: Visit, fabric: Fabric, tmp_path: Path
    ) -> None:
        runs = [
            fabric.run(method, points=((0.8, quality),), seed=seed, rate=rate)
            for method, quality in (("npo", -6.14), ("dpo", -7.0))
            for seed in (0, 1)
            for rate in (1e-5, 1e-4)
        ]
        page = visit(
            write_page(make_report([fabric.reference("fine-tuned"), *runs], name="x"), tmp_path)
        )
        (line, _) = csv.DictReader(io.StringIO(copied(page, "CSV")))
        assert line["interval"] == "min-max of 2 seeds, which is not an interval of the mean"
        assert line["settings_tried"] == "2"
        few = "Fewer than three seeds stand behind some lines: differences between them may be"
        chosen = "Each line is the best of 2 settings (learning rates x hyper-parameters x epochs)"
        for text in (line["caveats"], copied(page, "Markdown"), copied(page, "LaTeX")):
            assert few in text
            assert chosen in text
            assert "Not tested against npo: dpo." in text
        latex = copied(page, "LaTeX")
        assert "$-6.14$ min-max [$-6.14$, $-6.14$]" in latex
        assert "Brackets: min-max of 2 seeds, which is not an interval of the mean." in latex
        assert "95" not in latex
        assert "−6.14 min-max [−6.14, −6.14]" in copied(page, "Markdown")
        shown = page.locator("#best").inner_text()
        assert "min-max [−6.14, −6.14]" in shown
        assert "95 %" not in shown

    def test_visible_lines_are_copied_in_their_order(self, visit: Visit, path: Path) -> None:
        page = visit.shared(path)
        page.evaluate("location.hash = 'method=npo&method=ce-u'")
        expect(page.locator("#shown")).to_contain_text("ce-u")
        page.locator("#table-best").get_by_role("button", name="Method").click()
        rows = list(csv.DictReader(io.StringIO(copied(page, "CSV"))))
        assert [r["method"] for r in rows] == ["ce-u", "npo"]

    def test_the_scorecard_and_the_citation_are_copied(self, visit: Visit, path: Path) -> None:
        page = visit.shared(path)
        page.evaluate("location.hash = 'method=npo&method=ce-u'")
        expect(page.locator("#shown")).to_contain_text("ce-u")
        page.locator("[data-latex]").click()
        expect(page.locator("#latex-note-0")).to_have_text("2 lines copied as LaTeX.")
        text = pasted(page)
        assert text.startswith("% unlearnbench ")
        lines = text.partition("\\midrule\n")[2].splitlines()
        assert [one.partition(" &")[0] for one in lines[:3]] == ["ce-u", "npo", "\\midrule"]
        page.locator("[data-cite=text]").click()
        expect(page.locator("#cite-note")).to_have_text("Copied.")
        assert pasted(page) == page.locator("#cite-text").text_content()
        page.locator("[data-cite=bibtex]").click()
        expect(page.locator("#cite-bibtex")).to_be_visible()
        assert pasted(page).startswith("@misc{many")

    def test_copying_works_without_a_clipboard(self, visit: Visit, path: Path) -> None:
        page = visit.shared(path)
        page.evaluate(NO_CLIPBOARD)
        assert copied(page, "CSV").startswith("method,model,")
        page.evaluate("document.execCommand = () => false")
        page.locator('[data-copy="best"][data-format="LaTeX"]').click()
        page.locator("#text-best").wait_for()
        assert page.locator("#text-best").input_value().startswith("% \\usepackage{booktabs}")
        page.evaluate("delete navigator.clipboard; delete document.execCommand")

    def test_the_sweeps_own_rule_is_shown_and_copied(
        self, visit: Visit, fabric: Fabric, tmp_path: Path
    ) -> None:
        runs = [fabric.run(points=((0.8, -3.0 - s),), seed=s) for s in range(3)]
        choice = {
            **{"model": "tiny", "forget_fraction": 0.1, "method": "npo", "setting": "npo"},
            **{"candidates": 4, "why_not": "", "epoch": 1, "learning_rate": 1e-4},
            **{"model_utility": 0.81, "log10_forget_quality": -2.0},
            "reported_runs": [r.id for r in runs[1:]],
        }
        selection = {"rule": "the best of all", "choices": [choice]}
        seeds = {"chosen_on_seeds": [0], "reported_on_seeds": [1, 2]}
        report = make_report([fabric.reference("fine-tuned"), *runs], name="x")
        page = visit(write_page(replace(report, selection=selection | seeds), tmp_path))
        titles = page.locator("#best h3").all_inner_texts()
        assert titles[0] == "Best settings by the sweep's own rule, chosen on seeds 0"
        assert titles[1] == "Best setting of each method"
        line = page.locator("#table-declared tbody tr").inner_text()
        assert "−4.50" in line
        assert "−2.00, 0.810" in line
        assert "Means over seeds 1, 2." in copied(page, "Markdown", "declared")


class TestFiles:
    def test_svg_has_the_points_in_light_colours(
        self, visit: Visit, path: Path, tmp_path: Path
    ) -> None:
        page = visit.shared(path)
        page.emulate_media(color_scheme="dark")
        with page.expect_download() as download:
            page.locator("#trade-off").get_by_role("button", name="SVG").click()
        download.value.save_as(tmp_path / "figure.svg")
        text = (tmp_path / "figure.svg").read_text()
        assert download.value.suggested_filename == "pareto-1.svg"
        assert text.startswith("<svg")
        shown = page.evaluate(
            "document.querySelectorAll('.plot[data-panel=\"0\"] .scatterlayer .point').length"
        )
        assert len(re.findall(r'class="point[ "]', text)) == shown > 60
        assert "tiny, forget 10 %" in text
        assert "rgb(28, 32, 36)" in text  # the light page's ink

    def test_png_is_a_picture(self, visit: Visit, path: Path, tmp_path: Path) -> None:
        page = visit.shared(path)
        with page.expect_download() as download:
            page.locator("#trade-off").get_by_role("button", name="PNG").click()
        download.value.save_as(tmp_path / "figure.png")
        head = (tmp_path / "figure.png").read_bytes()[:24]
        assert head[:8] == b"\x89PNG\r\n\x1a\n"
        assert (int.from_bytes(head[16:20]), int.from_bytes(head[20:])) == (2700, 1860)


class TestFit:
    def test_nothing_is_wider_than_the_screen(self, visit: Visit, path: Path) -> None:
        page = visit(path, "#card=3@npo-0.0001-tiny-0.1-0", width=390, dark=True)
        for name in ("curves", "answers", "training", "numbers", "origin"):
            page.locator(f"#{name}").scroll_into_view_if_needed()
            page.wait_for_timeout(150)
        for width in (390, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            for scheme, ground in (("dark", "rgb(18, 20, 23)"), ("light", "rgb(251, 251, 250)")):
                page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
                assert page.evaluate(OVERFLOW) <= 0
                shown = page.evaluate("getComputedStyle(document.body).backgroundColor")
                assert shown == ground

    def test_print_is_light_and_complete(self, visit: Visit, path: Path) -> None:
        page = visit.shared(path)
        page.emulate_media(color_scheme="dark")
        page.evaluate("page.select('npo-0.0001-tiny-0.1-0', 3)")
        page.set_viewport_size({"width": 703, "height": 900})  # of A4 between our margins
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")
        assert page.evaluate(OVERFLOW) <= 0
        assert page.evaluate("getComputedStyle(document.body).color") == "rgb(28, 32, 36)"
        for shown in (".plot[data-panel]", "#table-best", "#selected", ".legend ul", "#families"):
            assert page.locator(shown).first.is_visible(), shown
        for hidden in ("nav", "#filter-open", "#selects", ".save", "[data-copy]"):
            assert not page.locator(hidden).first.is_visible(), hidden
        assert "Loading" not in page.locator("body").inner_text(), (
            "sections that are not loaded are left out"
        )
        names = page.locator('.plot[data-panel="0"] .textpoint text')
        assert names.first.is_visible()
        for box in page.evaluate(
            "[...document.querySelectorAll('.scroll table, svg.main-svg, .card')].filter("
            "n => n.checkVisibility()).map(n => n.getBoundingClientRect().right)"
        ):
            assert box <= 704
        page.emulate_media(media="screen")
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.evaluate("getComputedStyle(document.body).color") == "rgb(231, 234, 237)"
        assert page.pdf()[:5] == b"%PDF-"


def test_in_a_sandboxed_frame_it_works_and_names_the_limits(
    visit: Visit, path: Path, tmp_path: Path
) -> None:
    """MLflow shows an artifact so: scripts run, downloads and new windows are ignored."""
    frame = f'<iframe sandbox="allow-scripts" src="{path.as_uri()}" width="1200" height="800">'
    outer = tmp_path / "outer.html"
    outer.write_text(f"{frame}</iframe>", encoding="utf-8")
    with visit.browser.new_context() as context:
        page = context.new_page()
        page.goto(outer.as_uri())
        inner = page.frame_locator("iframe")
        expect(inner.locator("#framed")).to_be_visible()
        inner.locator(".plot").first.scroll_into_view_if_needed()
        inner.locator(".plot .scatterlayer .point").first.wait_for(state="attached")
        inner.locator("#filter-open").click()
        inner.locator("#families button").first.click()
        expect(inner.locator("#shown")).to_contain_text("Shown: methods")


def test_outside_a_frame_there_is_no_note(visit: Visit, path: Path) -> None:
    expect(visit.shared(path).locator("#framed")).to_be_hidden()
