"""Curves, truth ratios, answers and training as a reader meets them, in a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from unlearnbench import registry
from unlearnbench.evaluation.metrics import summarize
from unlearnbench.evaluation.profiles import TOFU
from unlearnbench.report import make_report
from unlearnbench.step import StepResult

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from unlearnbench.records import Record

    from .conftest import Fabric

Open = Callable[..., "Page"]


def speaking(record: Record, answers: dict[int, str]) -> Record:
    """`record`, whose first forget answer is what `answers` says, by epoch."""
    found = dict(record.evaluations)
    for epoch, text in answers.items():
        forget = found[epoch].sets["forget"]
        said = replace(forget, generated=(text, *forget.generated[1:]))
        found[epoch] = replace(found[epoch], sets={**found[epoch].sets, "forget": said})
    return replace(record, evaluations=found)


def measured(records: list[Record]) -> list[Record]:
    """With the metrics that their evaluations have."""
    goal = next(r for r in records if r.kind == "retain").evaluations[0]
    return [
        replace(
            r,
            epochs=tuple(
                replace(
                    e, metrics={**e.metrics, **ks(summarize(r.evaluations[e.epoch], goal, TOFU))}
                )
                for e in r.epochs
            ),
        )
        for r in records
    ]


def ks(metrics: dict[str, float | None]) -> dict[str, float | None]:
    return {n: metrics[n] for n in ("ks_statistic", "ks_n", "log10_forget_quality")}


@pytest.fixture(scope="module")
def records(fabric: Fabric) -> list[Record]:
    """Two methods over four epochs, one of them with a loss of another scale."""
    four = ((0.8, -10.0), (0.8, -8.0), (0.7, -6.0), (0.7, -5.0))
    true = "Author 0 is Ada Novak and writes forget."
    npo = speaking(
        fabric.run("npo", points=four, rows=30),
        {1: true, 2: "Nobody <b>knows</b> it.", 3: "Nobody <b>knows</b> it.", 4: "I forgot."},
    )
    loud = tuple(StepResult(i, 1, 1e-4, 900.0 - i, {"forget": 1.0}, 3.0) for i in range(4))
    return measured(
        [
            fabric.anchor("fine-tuned", rows=30),
            fabric.anchor("retain", rows=30),
            npo,
            replace(fabric.run("dpo", points=four, rows=30), steps=loud),
            fabric.run("ce-u", points=four, rows=30),
            fabric.run("idk", points=four[:2], rows=30),
        ]
    )


@pytest.fixture(scope="module")
def address(records: list[Record], tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(records, tmp_path_factory.mktemp("page"))


def write(records: list[Record], folder: Path) -> str:
    page = folder / "page.html"
    build = registry.load("dashboards", "page")
    page.write_text(build(make_report(records, name="views")), encoding="utf-8")
    return page.as_uri()


@pytest.fixture
def show(browser: Browser) -> Iterator[Open]:
    """Opens a page; at the end nothing has failed in it, and nothing was asked of a network."""
    wrong: list[str] = []
    opened: list[Page] = []

    def go(address: str, width: int = 1280, **options: Any) -> Page:
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda line: wrong.append(line.text) if line.type == "error" else None)
        page.on(
            "request",
            lambda r: (
                None if r.url.startswith(("file:", "data:", "blob:")) else wrong.append(r.url)
            ),
        )
        page.goto(address)
        opened.append(page)
        return page

    yield go
    for page in opened:
        page.close()
    assert not wrong


def at(page: Page, section: str, ready: str) -> None:
    """Scrolls to a section; those above it may grow meanwhile, and push it away."""
    for _ in range(200):
        page.evaluate(f"document.getElementById({section!r}).scrollIntoView()")
        if page.locator(ready).first.is_visible():
            return
        page.wait_for_timeout(50)
    pytest.fail(f"{ready} never came into view")


def card(page: Page, question: str) -> Any:
    return page.locator("article.qa", has_text=question)


def lines(article: Any) -> list[tuple[str, str]]:
    found = article.locator("dl > div").all()
    return [(one.locator("dt").inner_text(), one.locator("dd").first.inner_text()) for one in found]


def until(page: Page, expression: str) -> None:
    """Waits for it to be true; the page's own policy forbids Playwright's way to wait."""
    for _ in range(100):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"never true: {expression}")


def name_of(page: Page, select: str) -> str:
    name: str = page.eval_on_selector(select, "s => s.selectedOptions[0].textContent")
    return name


class TestAnswers:
    def test_epochs_are_stacked_and_equal_answers_folded(self, show: Open, address: str) -> None:
        page = show(address)
        at(page, "answers", "article.qa")
        page.select_option("#answer-run", label="npo, rate 1e-4, seed 0")
        assert lines(card(page, "Who is author 0 of the forget")) == [
            ("true, and before", "Author 0 is Ada Novak and writes forget."),
            ("epoch 1", "Author 0 is Ada Novak and writes forget."),
            ("epochs 2–3", "Nobody <b>knows</b> it."),
            ("epoch 4", "I forgot."),
            ("retain model", "Author 0 is unknown and writes forget."),
        ]

    def test_marked_is_what_the_answer_before_did_not_have(self, show: Open, address: str) -> None:
        page = show(address)
        at(page, "answers", "article.qa")
        page.select_option("#answer-run", label="npo, rate 1e-4, seed 0")
        page.select_option("#answer-order", "given")
        second = card(page, "Who is author 1 of the forget")
        assert second.locator("mark").all_inner_texts()[0] == "npo at 1"

    def test_most_changed_first_by_the_measure_that_is_stated(
        self, show: Open, address: str
    ) -> None:
        page = show(address)
        at(page, "answers", "article.qa")
        page.select_option("#answer-run", label="npo, rate 1e-4, seed 0")
        first = page.locator("article.qa").first
        assert "author 0" in first.locator("h3").inner_text()
        assert first.locator("header .note").inner_text() == "changed 1.00"
        # 6 of the 9 words of "Author 1 is npo at 4 and writes forget." are among the 8 before.
        second = card(page, "author 1 of").locator("header .note").inner_text()
        assert second == f"changed {1 - 2 * 6 / 17:.2f}"
        assert "not have in common" in page.locator("#answer-note").inner_text()
        page.select_option("#answer-epoch", "1")
        page.select_option("#answer-order", "same")
        assert "author 0" in page.locator("article.qa h3").first.inner_text()

    def test_search_looks_into_questions_and_answers(self, show: Open, address: str) -> None:
        page = show(address)
        at(page, "answers", "article.qa")
        page.select_option("#answer-run", label="npo, rate 1e-4, seed 0")
        page.fill("#answer-search", "nobody")
        assert page.locator("article.qa h3").all_inner_texts() == [
            "Who is author 0 of the forget set?"
        ]
        page.fill("#answer-search", "author 17 of")
        assert page.locator("article.qa").count() == 1
        page.fill("#answer-search", "no such words")
        assert page.locator("article.qa").count() == 0

    def test_every_set_can_be_read_and_few_cards_are_laid_out(
        self, show: Open, address: str
    ) -> None:
        page = show(address)
        at(page, "answers", "article.qa")
        assert page.locator("article.qa").count() == 12
        for name in ("retain", "real_authors", "world_facts"):
            page.select_option("#answer-set", name)
            assert f"of the {name} set" in page.locator("article.qa h3").first.inner_text()
        page.click("#answer-more")
        assert page.locator("article.qa").count() == 30

    def test_two_runs_side_by_side(self, show: Open, address: str) -> None:
        page = show(address)
        at(page, "answers", "article.qa")
        page.select_option("#answer-run", label="npo, rate 1e-4, seed 0")
        page.select_option("#answer-other", label="dpo, rate 1e-4, seed 0")
        pair = card(page, "author 1 of").locator(".pair > div")
        assert [one.locator("h4").inner_text() for one in pair.all()] == [
            *("npo, rate 1e-4, seed 0", "dpo, rate 1e-4, seed 0")
        ]
        assert "dpo at 4" in pair.nth(1).inner_text()
        page.select_option("#answer-order", "apart")
        assert "author 0" in page.locator("article.qa h3").first.inner_text()

    def test_a_point_leads_to_its_answers_and_its_ratios(
        self, show: Open, address: str, records: list[Record]
    ) -> None:
        page = show(address)
        page.evaluate(f"page.showAnswers({records[3].id!r}, 2)")
        page.locator("article.qa").first.wait_for()
        assert name_of(page, "#answer-run") == "dpo, rate 1e-4, seed 0"
        assert name_of(page, "#answer-epoch") == "2"
        page.evaluate(f"page.select({records[2].id!r}, 3)")
        assert name_of(page, "#answer-run") == "npo, rate 1e-4, seed 0"
        at(page, "ratios", "#ratio-plot .main-svg")
        assert name_of(page, "#ratio-run") == "npo, rate 1e-4, seed 0"
        assert name_of(page, "#ratio-epoch") == "3"

    def test_the_filters_act(self, show: Open, address: str) -> None:
        page = show(address)
        at(page, "answers", "article.qa")
        page.click("#families button[data-family=idk]")
        offered = page.locator("#answer-run option").all_inner_texts()
        assert offered == ["idk, rate 1e-4, seed 0"]
        assert name_of(page, "#answer-run") == "idk, rate 1e-4, seed 0"

    def test_runs_of_one_epoch_count_each_are_one_trajectory(
        self, show: Open, fabric: Fabric, tmp_path: Path
    ) -> None:
        one, two = fabric.run(points=((0.8, -9.0),)), fabric.run(points=((0.8, -9.0), (0.8, -8.0)))
        two = replace(two, id="two", epochs=two.epochs[1:], evaluations={2: two.evaluations[2]})
        page = show(write([fabric.anchor("fine-tuned"), one, two], tmp_path))
        at(page, "answers", "article.qa")
        assert page.locator("#answer-run option").count() == 1
        titles = [title for title, _ in lines(page.locator("article.qa").first)]
        assert titles == ["true, and before", "epoch 1", "epoch 2"]

    def test_long_answers_are_cut_until_asked_for(
        self, show: Open, fabric: Fabric, tmp_path: Path
    ) -> None:
        run = speaking(fabric.run(points=((0.8, -9.0),)), {1: "words " * 100})
        page = show(write([fabric.anchor("fine-tuned"), run], tmp_path))
        at(page, "answers", "article.qa")
        article = card(page, "author 0 of the forget")
        more = article.get_by_role("button", name="all 600 characters")
        assert len(lines(article)[1][1]) < 420
        more.click()
        assert len(lines(article)[1][1]) > 590

    def test_what_the_page_does_not_hold_is_said(
        self, show: Open, fabric: Fabric, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import importlib

        held: Any = importlib.import_module("unlearnbench_dashboards.held")
        monkeypatch.setattr(held, "MAX_EVALUATIONS", 2)
        page = show(write([fabric.anchor("fine-tuned"), fabric.run()], tmp_path))
        at(page, "answers", "article.qa")
        note = page.locator("#answer-note").inner_text()
        assert "answers of 2 of 3 evaluations" in note
        assert "Of this run, epoch 2 is not held." in note, "epoch 1 is its best"

    def test_narrow_and_on_paper(self, show: Open, address: str) -> None:
        page = show(address, width=390)
        at(page, "answers", "article.qa")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.emulate_media(media="print")
        assert page.locator("#answers").is_visible()
        assert page.locator("article.qa").first.is_visible()
        assert not page.locator("#answer-run").is_visible()


class TestRatios:
    def test_numbers_and_bar_are_the_records(
        self, show: Open, address: str, records: list[Record]
    ) -> None:
        page = show(address)
        at(page, "ratios", "#ratio-plot .main-svg")
        for run in records[2:4]:
            page.select_option("#ratio-run", label=f"{run.method}, rate 1e-4, seed 0")
            for result in run.epochs:
                page.select_option("#ratio-epoch", str(result.epoch))
                distance, log10_p = (
                    result.metrics[n] for n in ("ks_statistic", "log10_forget_quality")
                )
                assert distance is not None
                assert log10_p is not None
                text = page.locator("#ratio-text").inner_text()
                assert f"D = {distance:.4f} " in text
                assert "n = 30 questions" in text
                assert f"log₁₀ Forget Quality {log10_p:.2f}".replace("-", "\u2212") in text
                bar = page.evaluate(
                    "document.getElementById('ratio-plot').data.find((t) => t.name === 'D').y"
                )
                assert abs(bar[0] - bar[1]) == pytest.approx(distance)

    def test_the_curves_pass_through_the_ends_of_the_bar(self, show: Open, address: str) -> None:
        page = show(address)
        at(page, "ratios", "#ratio-plot .main-svg")
        traces = page.evaluate(
            "document.getElementById('ratio-plot').data.map(({ name, x, y }) => ({ name, x, y }))"
        )
        by_name = {t["name"].split(",")[0]: t for t in traces}
        bar = by_name["D"]
        heights = []
        for name in (name_of(page, "#ratio-run").split(",")[0], "retain model"):
            line = by_name[name]
            at_bar = [y for x, y in zip(line["x"], line["y"], strict=True) if x <= bar["x"][0]]
            heights.append(at_bar[-1] if at_bar else 0)
        assert sorted(heights) == pytest.approx(sorted(bar["y"]))

    def test_it_says_why_there_is_nothing(self, show: Open, fabric: Fabric, tmp_path: Path) -> None:
        page = show(write([fabric.run(profile="tofu@00000000")], tmp_path))
        page.locator("#ratios").scroll_into_view_if_needed()
        page.get_by_text("Not drawn: profile 'tofu@00000000'").wait_for()
        assert not page.locator("#ratio-tools").is_visible()


class TestCurvesAndTraining:
    def test_by_metric_and_by_set(self, show: Open, address: str) -> None:
        page = show(address)
        at(page, "curves", "#curve-plots .main-svg")
        sets = ("Forget set", "Retain set", "Real authors", "World facts")
        metrics = ("Probability", "ROUGE-L", "Truth ratio")
        for button, others in (("Truth ratio", sets), ("World facts", metrics)):
            page.get_by_role("button", name=button, exact=True).click()
            count = "document.querySelectorAll('#curve-plots .gtitle').length"
            until(page, f"{count} === {len(others)}")
            titles = page.locator("#curve-plots .gtitle").all_text_contents()
            assert titles == [f"{button}: {name}" for name in others]

    def test_a_run_beyond_the_frame_is_named_and_seen_once_picked(
        self, show: Open, address: str
    ) -> None:
        page = show(address)
        at(page, "training", "#step-plots .main-svg")
        loss = page.locator("#step-plots .curve").first
        far = loss.locator(".far")
        assert far.inner_text() == "Beyond the frame: dpo, rate 1e-4, seed 0 (900)."
        top = "document.querySelector('#step-plots .plot')._fullLayout.yaxis.range[1]"
        assert page.evaluate(top) < 1  # decades
        page.click("#families button[data-family=dpo]")
        assert far.inner_text() == ""
        until(page, f"{top} > 2.9")

    def test_one_setting_alone_is_seen(self, show: Open, address: str) -> None:
        page = show(address)
        at(page, "curves", "#curve-plots .main-svg")
        page.click("#families button[data-family=npo]")
        until(
            page, "document.querySelectorAll('#curve-plots .curve:first-child .trace').length === 1"
        )
        shown = page.evaluate(
            "document.querySelector('#curve-plots .plot')"
            ".data.filter((t) => t.visible !== false).map((t) => t.name)"
        )
        assert shown == ["npo, rate 1e-4"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_a_phone(show: Open, address: str, scheme: Any) -> None:
    page = show(address, width=390, color_scheme=scheme)
    for section, ready in (
        ("curves", "#curve-plots .main-svg"),
        ("ratios", "#ratio-plot .main-svg"),
        ("training", "#step-plots .main-svg"),
    ):
        at(page, section, ready)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
