"""The page in a browser: a smoke test of each section, filters, keyboard and any width."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
from playwright.sync_api import expect

from unlearnbench.analysis.settings import average_seeds

from .attacked_records import under_attacks
from .conftest import METHODS, build, report_of

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from unlearnbench.analysis.results import Results
    from unlearnbench.api.observations import Evaluation, FloatArray
    from unlearnbench.results.records import Record

    from .conftest import Fabric, Visit

VISIBLE = """i => document.querySelector(`.plot[data-panel="${i}"]`).data
    .filter(t => t.visible !== false).map(t => ({...t.meta, x: t.x, y: t.y, name: t.name,
        mode: t.mode, bars: Boolean(t.error_x)}))"""
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
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
AXES = """() => {
    const middle = e => {
        const box = e.getBoundingClientRect();
        return (box.left + box.right) / 2;
    };
    const value = text => Number(text.replace("\u2212", "-").match(/-?[0-9.]+$/)[0]);
    return [...document.querySelectorAll("table.stripes .ticks")].map(axis => {
        const table = axis.closest("table"), column = axis.closest("td").cellIndex;
        const cells = [...table.querySelectorAll("tbody td:has(> .strip)")].filter(
            td => td.cellIndex === column);
        const head = table.querySelectorAll("thead .axis td")[column];
        return {
            name: table.ariaLabel,
            ticks: [...axis.children].map(e => [value(e.textContent), middle(e)]),
            marks: cells.map(td => [
                Number(td.dataset.value), middle([...td.querySelectorAll("circle")].at(-1))
            ]),
            models: [...head.querySelectorAll(".names > span")].map(e => ({
                value: value(e.textContent), sign: middle(e.querySelector("i")),
                line: middle(cells[0].querySelector(`line.${e.classList[0]}`)),
            })),
        };
    });
}"""
"""Axes of strips: values with the middles of their texts, marks and lines, in pixels."""
NO_CLIPBOARD = (
    "Object.defineProperty(navigator, 'clipboard', {value: undefined, configurable: true})"
)


@pytest.fixture(scope="module")
def report(fabric: Fabric) -> Results:
    """Five methods, two learning rates, two fractions, three seeds; one run is in MLflow."""
    records = under_attacks(fabric.sweep(seeds=(0, 1, 2), epochs=3, methods=[*METHODS][-5:]))
    report = report_of(records, "many")
    run = next(r for r in report.records if r.method == "npo" and r.learning_rate == 1e-4)
    return replace(report, links={run.id: "http://127.0.0.1:5000/#/experiments/1/runs/abc"})


@pytest.fixture(scope="module")
def path(report: Results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(build(report), encoding="utf-8")
    return path


def lines(page: Page, panel: int = 0) -> list[dict[str, Any]]:
    """Trajectories that panel `panel` shows."""
    return [t for t in page.evaluate(VISIBLE, panel) if t["role"] == "trajectory"]


def setting(report: Results, epoch: int = 3) -> Any:
    """A setting of npo on the first panel."""
    return next(
        s
        for s in average_seeds(report.rows)
        if (s.family, s.learning_rate, s.epoch, s.forget_fraction) == ("npo", 1e-4, epoch, 0.05)
    )


SECTIONS = {
    "trade-off": ".plot[data-panel='0'] .main-svg",
    "examples": "article.qa .chosen",
    "scorecard": "table.scorecard tbody .score-bar",
    "best": "#table-best tbody td",
    "claims": ".pairs-table td.same",
    "lasting": "table.stripes tbody circle",
    "sensitivity": "#strip-plots .main-svg",
    "curves": "#curve-plots .main-svg",
    "ratios": "[data-figures] .main-svg",
    "answers": "article.qa .scores",
    "training": "#training-plots .main-svg",
    "numbers": "#table tbody td",
    "origin": "dl.pairs",
}


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_is_drawn_without_an_error(visit: Visit, path: Path, section: str) -> None:
    page = visit.shared(path)
    inside = page.locator(f"#{section} {SECTIONS[section]}")
    for _ in range(200):  # sections above it may grow meanwhile, and move it
        page.evaluate(f"document.getElementById({section!r}).scrollIntoView()")
        if inside.first.is_visible():
            return
        page.wait_for_timeout(50)
    pytest.fail(f"{section} was never drawn")


def test_the_plot_is_on_the_first_screen_with_the_methods_names(visit: Visit, path: Path) -> None:
    for width in (1280, 390):
        page = visit(path, width=width)
        plot = page.locator('.plot[data-panel="0"]').bounding_box()
        names = page.locator("#families").bounding_box()
        assert plot is not None
        assert names is not None
        assert names["y"] < plot["y"] < 420
    assert page.locator("#families button").count() == 5


def test_the_list_of_nine_methods_is_on_the_first_screen(
    visit: Visit, fabric: Fabric, tmp_path: Path
) -> None:
    """Also what would make the answer surer, which readers did not find further down."""
    records = [fabric.reference("fine-tuned"), fabric.reference("retain")]
    for number in range(9):
        for seed in range(3):
            points = ((0.8, -0.1 - number),)
            records.append(fabric.run(f"method-{number}", points=points, seed=seed))
    path = tmp_path / "nine.html"
    path.write_text(build(report_of(records, "nine")), encoding="utf-8")
    page = visit(path)
    page.set_viewport_size({"width": 1280, "height": 800})
    lines = page.locator(".result .methods tbody tr")
    assert lines.count() == 9
    box = lines.last.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= 800
    answer = page.locator(".result")
    for text in ("More seeds (now 3)", "Places: by Forget Quality"):
        expect(answer.get_by_text(text)).to_be_in_viewport()
    narrow = visit(path, width=390)
    table = narrow.locator(".result .methods").bounding_box()
    around = narrow.locator(".result").bounding_box()
    assert table is not None
    assert around is not None
    assert table["x"] + table["width"] <= around["x"] + around["width"] + 1


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("media", ["screen", "print"])
def test_marks_stand_where_the_numbers_of_their_axis_say(
    visit: Visit, path: Path, width: int, media: Literal["screen", "print"]
) -> None:
    page = visit(path, width=width)
    page.emulate_media(media=media)
    axes = [axis for axis in page.evaluate(AXES) if axis["marks"]]
    assert len({axis["name"].partition(",")[0] for axis in axes}) == 2  # How sure, Does it last?
    for axis in axes:
        (low, left), (high, right) = axis["ticks"][0], axis["ticks"][-1]
        pixels = (right - left) / (high - low)

        def place(value: float, low: float = low, left: float = left, scale: float = pixels) -> Any:
            return left + (value - low) * scale

        for value, middle in [*axis["ticks"], *axis["marks"]]:
            assert middle == pytest.approx(place(value), abs=1), axis
        for model in axis["models"]:
            assert model["sign"] == pytest.approx(model["line"], abs=1), axis
            assert model["line"] == pytest.approx(place(model["value"]), abs=1 + 0.006 * pixels)


def test_a_click_shows_the_mean_beside_the_plot(visit: Visit, path: Path, report: Results) -> None:
    page = visit.shared(path)
    chosen = setting(report, 2)
    x, y = page.evaluate(SPOT, [0, chosen.rows[0].run_id, 2])
    before = page.evaluate("scrollY")
    page.mouse.move(x, y)
    page.mouse.click(x, y)
    card = page.locator("#selected")
    card.wait_for()
    assert page.evaluate("scrollY") == before
    assert card.locator("h3").inner_text() == "npo, learning rate 1e-4, epoch 2"
    assert "mean of 3 seeds" in card.inner_text()
    row = card.locator("table").first.locator("tr", has_text="Model Utility")
    assert row.locator("td").nth(1).inner_text() == f"{chosen.metrics['model_utility']:.3f}"
    card.locator(".block", has_text="Forgetting curves").locator(
        ".plot"
    ).first.scroll_into_view_if_needed()
    expect(card.locator(".js-plotly-plot").first).to_be_attached()
    card.get_by_role("button", name="1", exact=True).click()
    assert card.locator("h3").inner_text() == "npo, learning rate 1e-4, seed 1, epoch 2"
    (one,) = (r for r in chosen.rows if r.seed == 1)
    assert row.locator("td").nth(1).inner_text() == f"{one.metrics['model_utility']:.3f}"
    card.get_by_role("button", name="All its answers").click()
    expect(page.locator("#answer-run option:checked")).to_have_text(
        "npo, learning rate 1e-4, seed 1"
    )
    page.locator("#answer-list article").first.wait_for()
    page.locator("#answer-search").fill("author 0")
    assert page.locator("#answer-list article").count() == 1
    assert page.locator("#answer-list mark").count()


def test_filters_by_method_learning_rate_epoch_seed_and_panel(
    visit: Visit, path: Path, report: Results
) -> None:
    page = visit.shared(path)
    assert {t["mode"] for t in lines(page) if not t["leading"]} == {"markers"}
    page.get_by_label("Lines for best settings and the front only").uncheck()
    page.locator("#filter-open").click()
    assert {t["mode"] for t in lines(page)} == {"lines+markers"}
    page.locator("#families").get_by_role("button", name="npo", exact=True).click()
    page.locator("#filter-open").click()
    page.locator("#rates").get_by_role("button", name="1e-4").click()
    page.get_by_label("Epochs").select_option("2")
    page.get_by_label("Seed", exact=True).select_option("2")
    (line,) = lines(page)
    row = next(r for r in setting(report, 2).rows if r.seed == 2)
    assert (line["family"], line["rate"], line["bars"]) == ("npo", "1e-4", False)
    assert line["x"][-1] == pytest.approx(row.kept, rel=1e-4)
    assert line["y"][-1] == pytest.approx(row.forgotten, rel=1e-4)
    page.evaluate(f"page.select({row.run_id!r}, 2, true)")
    # The address has the whole view.
    other = visit(path, "#" + page.url.partition("#")[2])
    assert lines(other) == lines(page)
    heading = "npo, learning rate 1e-4, seed 2, epoch 2"
    assert other.locator("#selected h3").inner_text() == heading
    page.evaluate("location.hash = 'method=nobody&rate=7&epoch=soon&seed=x&card=3@none'")
    expect(page.locator("#shown")).to_be_empty()
    page.get_by_label("Panel").select_option("1")
    assert page.locator('.plot[data-panel="0"]').is_hidden()
    assert page.locator('.plot[data-panel="1"]').is_visible()


def test_the_front_is_hidden_with_a_setting_on_it(
    visit: Visit, path: Path, report: Results
) -> None:
    page = visit.shared(path)
    front = report.panels[0].front
    members = {setting.family for setting in front}
    outside = sorted({row.family for row in report.rows if row.kind == "run"} - members)
    assert outside, "a method that has nothing on the front"

    def shows_front(families: list[str], epoch: int | None = None) -> bool:
        page.evaluate(
            """async ([families, epoch]) => {
                Object.assign(page.filters, {families: new Set(families), epoch});
                page.changed();
                await Promise.all(page.panels.map(page.refresh));
            }""",
            [families, epoch],
        )
        return any(trace["role"] == "front" for trace in page.evaluate(VISIBLE, 0))

    assert shows_front([])
    assert shows_front(sorted(members))
    assert not shows_front([sorted(members)[0]]) or len(members) == 1
    assert not shows_front([outside[0]])
    assert not shows_front([], epoch=1)


OPACITIES = """() => [...document.querySelectorAll("#curve-plots .plot")].filter(node => node.data)
    .map(node => node.data.map(trace => [trace.meta.family, trace.opacity ?? 1]))"""


def test_a_name_in_the_legend_shows_its_lines_alone(visit: Visit, path: Path) -> None:
    page = visit.shared(path)
    page.evaluate("document.getElementById('curves').scrollIntoView()")
    page.locator("#curve-plots .main-svg").first.wait_for()
    legend = page.locator("#curve-lines button")
    assert legend.count() == 5
    name = page.locator("#curve-lines button[data-family=npo]")
    assert "best at 3e-5" in name.inner_text()

    def alone() -> set[str]:
        page.wait_for_timeout(300)
        plots = page.evaluate(OPACITIES)
        assert plots
        return {family for lines in plots for family, opacity in lines if opacity == 1}

    assert len(alone()) == 5
    name.hover()
    assert alone() == {"npo"}
    page.mouse.move(2, 2)
    assert len(alone()) == 5
    name.click()
    page.mouse.move(2, 2)
    assert alone() == {"npo"}, "a click keeps it"
    assert name.get_attribute("aria-pressed") == "true"
    name.click()
    page.mouse.move(2, 2)
    name.blur()
    assert len(alone()) == 5
    assert name.get_attribute("aria-pressed") == "false"


def test_tables_are_sorted_searched_and_copied(visit: Visit, path: Path) -> None:
    page = visit.shared(path)
    cells = "#table-best tbody tr[data-family]:not([hidden]) td:nth-child(5)"
    page.locator("#table-best").get_by_role("button", name="Model Utility").click()
    values = [float(text.split()[0]) for text in page.locator(cells).all_inner_texts() if text]
    assert values == sorted(values, reverse=True)
    names = page.locator("#table-best tbody tr:not([hidden]) th").all_inner_texts()
    others = [name for name in names if name in ("retain model", "start model")]
    assert others, "the models that methods are compared with"
    assert names[-len(others) :] == others, "which stay below the methods"
    page.locator("#table-search").fill("npo 3e-5 nothing")
    assert page.locator("#table tbody tr").count() == 0
    page.evaluate(NO_CLIPBOARD)
    for section, format, start in (
        ("best", "CSV", "method,model"),
        ("best", "LaTeX", "%"),
        ("scorecard", "LaTeX", "% unlearnbench"),
    ):
        page.locator(f"#{section} [data-copy][data-format={format}]").first.click()
        shown = page.locator(f"#{section} textarea.copied").first
        expect(shown).to_be_visible()
        assert shown.input_value().startswith(start)


def test_the_keyboard_reaches_points_and_tables(visit: Visit, path: Path) -> None:
    page = visit(path)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "trade-off", "the skip link"
    page.locator('.plot[data-panel="0"]').focus()
    page.keyboard.press("ArrowRight")
    first = page.locator("#point-text").inner_text()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert page.locator("#point-text").inner_text() != first
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "selected"
    page.keyboard.press("Escape")
    assert page.locator("#selected").is_hidden()
    assert page.evaluate("document.activeElement.dataset.panel") == "0"
    page.locator("#table-best").get_by_role("button", name="npo", exact=True).first.focus()
    page.keyboard.press(" ")
    assert page.locator("#selected").is_visible()


def test_the_keyboard_opens_a_point_that_filters_left(visit: Visit, path: Path) -> None:
    page = visit(path)
    page.locator('.plot[data-panel="0"]').focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    # The line has now fewer points than the number of the present one.
    page.evaluate(
        """async () => {
            page.filters.epoch = 1;
            page.changed();
            await Promise.all(page.panels.map(page.refresh));
        }"""
    )
    page.keyboard.press("Enter")
    expect(page.locator("#selected h3")).to_contain_text("epoch 1")


def test_nothing_is_wider_than_the_screen_in_any_colours(visit: Visit, path: Path) -> None:
    page = visit(path, width=390, dark=True)
    for name in SECTIONS:
        page.locator(f"#{name}").scroll_into_view_if_needed()
        page.wait_for_timeout(100)
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        for _ in range(50):  # plots are drawn again, and are too wide until then
            if page.evaluate(OVERFLOW) <= 0:
                break
            page.wait_for_timeout(100)
        for scheme, ground in (("dark", "rgb(18, 20, 23)"), ("light", "rgb(251, 251, 250)")):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            assert page.evaluate(OVERFLOW) <= 0, (width, scheme)
            shown = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert shown == ground
    assert (
        page.evaluate("(nav => nav.scrollWidth - nav.clientWidth)(document.querySelector('nav'))")
        <= 0
    )


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
        inner.locator(".plot .scatterlayer .point").first.wait_for(state="attached")
        inner.locator("#families button").first.click()
        expect(inner.locator("#shown")).to_contain_text("Shown: methods")


def test_answers_are_ordered_by_defined_numbers_of_one_metric(
    fabric: Fabric, tmp_path: Path, visit: Visit
) -> None:
    """A missing probability is no 0, and gains compare the same metric at the same epoch."""
    loss = -np.log(np.array([0.5, 0.2, 0.9, 0.1]))
    under = -np.log(np.array([0.6, 0.9, 0.95, 0.15]))
    missing = {0: "before", 3: "under"}

    def with_loss(evaluation: Evaluation, values: FloatArray, side: str) -> Evaluation:
        values = values.copy()
        for question, undefined in missing.items():
            if undefined == side:
                values[question] = np.nan
        forget = replace(evaluation.sets["forget"], answer_loss=values)
        return replace(evaluation, sets={**evaluation.sets, "forget": forget})

    def changed(record: Record) -> Record:
        if record.kind != "run":
            return record
        plain = {k: with_loss(e, loss, "before") for k, e in record.evaluations.items()}
        attacked = {k: with_loss(e, under, "under") for k, e in record.attacked_evaluations.items()}
        return replace(record, evaluations=plain, attacked_evaluations=attacked)

    sources = [fabric.reference("fine-tuned", rows=4), fabric.reference("retain", rows=4)]
    sources.append(fabric.run("npo", points=((0.8, -5.0),), rows=4))
    file = tmp_path / "report.html"
    records = [changed(record) for record in under_attacks(sources)]
    file.write_text(build(report_of(records, "mine")), encoding="utf-8")
    page = visit(file)
    page.locator("#answers").scroll_into_view_if_needed()
    articles = page.locator("#answer-list article")
    articles.first.wait_for()
    page.locator("#answer-variant").select_option("relearning@13")
    page.locator("#answer-order").select_option("back")
    # Gains of 0.7 and 0.05; two questions have none.
    questions = [article.locator("h3").inner_text() for article in articles.all()]
    assert [text.split()[3] for text in questions] == ["1", "2", "0", "3"]
    scores = " ".join(articles.locator(".scores").all_inner_texts())
    assert "p –" in scores
    assert "p 0.00" not in scores


def test_the_first_column_of_a_table_stays_on_a_phone(visit: Visit, path: Path) -> None:
    page = visit(path, width=390)
    for table in ("#table-best", "table.scorecard"):
        name = page.locator(f"{table} tbody tr[data-family] th").first
        name.scroll_into_view_if_needed()
        before = name.bounding_box()
        number = page.locator(f"{table} tbody tr[data-family] td").first.bounding_box()
        assert before is not None
        assert number is not None
        assert number["x"] + number["width"] < 390, "at least one number without scrolling"
        page.locator(table).first.evaluate("node => { node.parentNode.scrollLeft = 1000; }")
        assert name.bounding_box() == before


def test_two_models_answer_the_same_question_side_by_side(
    visit: Visit, path: Path, report: Results
) -> None:
    page = visit(path)
    page.evaluate("document.getElementById('answers').scrollIntoView()")
    articles = page.locator("#answer-list article")
    articles.first.wait_for()
    # At first, the best setting and that of the runner-up.
    ranked = [best.setting for best in report.panels[0].best if best.ranked]
    names = [f"{s.rows[0].method}, learning rate {s.learning_rate:.0e}" for s in ranked if s]
    expected = [name.replace("e-0", "e-") + ", seed 0" for name in names[:2]]
    heads = articles.first.locator(".sides h4")
    assert heads.all_inner_texts() == expected
    page.locator("#answer-run").select_option(label="npo, learning rate 1e-4, seed 1")
    page.locator("#answer-beside").select_option(label="npo, learning rate 3e-5, seed 2")
    page.locator("#answer-beside-at").select_option("2")
    page.locator("#answer-question").select_option("1")
    assert articles.count() == 1
    question = articles.first.locator("h3").inner_text()
    assert heads.all_inner_texts() == [
        "npo, learning rate 1e-4, seed 1",
        "npo, learning rate 3e-5, seed 2",
    ]
    for side, rate, seed, epoch in ((0, 1e-4, 1, 3), (1, 3e-5, 2, 2)):
        (record,) = (
            record
            for record in report.records
            if (record.method, record.learning_rate, record.seed) == ("npo", rate, seed)
            and record.forget_fraction == 0.05
        )
        part = record.evaluations[epoch].sets["forget"]
        lines = articles.first.locator(".sides > div").nth(side).locator("dl > div")
        texts = [line.locator("dd").first.inner_text() for line in lines.all()]
        at = part.questions.index(question)
        chosen = lines.locator("xpath=self::div[@class='chosen']/dd[1]")
        assert chosen.inner_text() == part.generated[at]
        assert len(texts) == 3, "epochs stay beside each other"
    known = articles.first.locator(":scope > dl").all_inner_texts()
    assert "before" in known[0]
    assert "retain model" in known[1]
    page.locator("#answer-beside").select_option("")
    assert articles.first.locator(".sides").count() == 0
    assert page.locator("#answer-beside-at").is_hidden()
