"""Curves, truth ratios, answers and training in a browser."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from unlearnbench.config.profiles import TOFU
from unlearnbench.evaluation.summary import summarize
from unlearnbench.reporting.report import make_report
from unlearnbench.training.step_result import StepResult

from .conftest import with_tokens, write_page

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

    from unlearnbench.results.records import Record

    from .conftest import Fabric, Visit

NPO, DPO = (f"{method}, rate 1e-4, seed 0" for method in ("npo", "dpo"))


def with_answers(record: Record, answers: dict[int, str]) -> Record:
    """Replace the first forget answer of a record, by epoch."""
    found = dict(record.evaluations)
    for epoch, text in answers.items():
        forget = found[epoch].sets["forget"]
        changed = replace(forget, generated=(text, *forget.generated[1:]))
        found[epoch] = replace(found[epoch], sets={**found[epoch].sets, "forget": changed})
    return replace(record, evaluations=found)


def with_ks_metrics(records: list[Record]) -> list[Record]:
    """Replace the metrics of records by those of their evaluations."""
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
    npo = with_answers(
        fabric.run("npo", points=four, rows=30),
        {1: true, 2: "Nobody <b>knows</b> it.", 3: "Nobody <b>knows</b> it.", 4: "I forgot."},
    )
    loud = tuple(StepResult(i, 1, 1e-4, 900.0 - i, {"forget": 1.0}, 3.0) for i in range(4))
    return with_ks_metrics(
        [
            fabric.reference("fine-tuned", rows=30),
            fabric.reference("retain", rows=30),
            npo,
            replace(fabric.run("dpo", points=four, rows=30), steps=loud),
            fabric.run("ce-u", points=four, rows=30),
            fabric.run("idk", points=four[:2], rows=30),
        ]
    )


@pytest.fixture(scope="module")
def path(records: list[Record], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(make_report(records, name="views"), tmp_path_factory.mktemp("page"))


def small_page(visit: Visit, records: list[Record], folder: Path) -> Page:
    return visit(write_page(make_report(records, name="views"), folder))


@pytest.fixture
def answers(visit: Visit, path: Path) -> Page:
    """The shared page at the answers of npo's last epoch."""
    page = visit.shared(path)
    scroll_to(page, "answers", "article.qa")
    page.select_option("#answer-run", label=NPO)
    page.select_option("#answer-other", "")
    page.select_option("#answer-set", "forget")
    page.select_option("#answer-order", "changed")
    return page


@pytest.fixture
def ratios(visit: Visit, path: Path) -> Page:
    """The shared page at the truth ratios."""
    page = visit.shared(path)
    scroll_to(page, "ratios", "#ratio-plot .main-svg")
    return page


def scroll_to(page: Page, section: str, ready: str) -> None:
    """Scroll to a section; sections above it may grow meanwhile, and move it."""
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
    """Wait until it is true; the page's content policy forbids Playwright's own way."""
    for _ in range(100):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"never true: {expression}")


def selected(page: Page, select: str) -> str:
    name: str = page.eval_on_selector(select, "s => s.selectedOptions[0].textContent")
    return name


class TestAnswers:
    def test_epochs_are_stacked_and_equal_answers_joined(self, answers: Page) -> None:
        assert lines(card(answers, "Who is author 0 of the forget")) == [
            ("true, and before", "Author 0 is Ada Novak and writes forget."),
            ("epoch 1", "Author 0 is Ada Novak and writes forget."),
            ("epochs 2–3", "Nobody <b>knows</b> it."),
            ("epoch 4", "I forgot."),
            ("retain model", "Author 0 is unknown and writes forget."),
        ]

    def test_words_that_the_answer_before_does_not_have_are_marked(self, answers: Page) -> None:
        answers.select_option("#answer-order", "given")
        second = card(answers, "Who is author 1 of the forget")
        assert second.locator("mark").all_inner_texts()[0] == "npo at 1"

    def test_most_changed_first_by_the_stated_measure(self, answers: Page) -> None:
        first = answers.locator("article.qa").first
        assert "author 0" in first.locator("h3").inner_text()
        assert first.locator("header .note").inner_text() == "changed 1.00"
        # 6 of the 9 words of "Author 1 is npo at 4 and writes forget." are among the 8 before.
        second = card(answers, "author 1 of").locator("header .note").inner_text()
        assert second == f"changed {1 - 2 * 6 / 17:.2f}"
        assert (
            "0 = the same words in the same order, 1 = none in common"
            in answers.locator("#answer-note").inner_text()
        )
        answers.select_option("#answer-epoch", "1")
        answers.select_option("#answer-order", "same")
        assert "author 0" in answers.locator("article.qa h3").first.inner_text()

    def test_search_finds_questions_and_answers(self, answers: Page) -> None:
        answers.fill("#answer-search", "nobody")
        assert answers.locator("article.qa h3").all_inner_texts() == [
            "Who is author 0 of the forget set?"
        ]
        for text, count in (("author 17 of", 1), ("no such words", 0)):
            answers.fill("#answer-search", text)
            assert answers.locator("article.qa").count() == count

    def test_every_set_is_offered_and_few_cards_are_shown_at_first(self, answers: Page) -> None:
        assert answers.locator("article.qa").count() == 12
        for name in ("retain", "real_authors", "world_facts"):
            answers.select_option("#answer-set", name)
            assert f"of the {name} set" in answers.locator("article.qa h3").first.inner_text()
        answers.click("#answer-more")
        assert answers.locator("article.qa").count() == 30

    def test_two_runs_side_by_side(self, answers: Page) -> None:
        answers.select_option("#answer-other", label=DPO)
        pair = card(answers, "author 1 of").locator(".pair > div")
        assert [one.locator("h4").inner_text() for one in pair.all()] == [NPO, DPO]
        assert "dpo at 4" in pair.nth(1).inner_text()
        answers.select_option("#answer-order", "apart")
        assert "author 0" in answers.locator("article.qa h3").first.inner_text()

    def test_a_point_leads_to_its_answers_and_its_ratios(
        self, answers: Page, records: list[Record]
    ) -> None:
        answers.evaluate(f"page.showAnswers({records[3].id!r}, 2)")
        assert selected(answers, "#answer-run") == DPO
        assert selected(answers, "#answer-epoch") == "2"
        answers.evaluate(f"page.select({records[2].id!r}, 3)")
        assert selected(answers, "#answer-run") == NPO
        scroll_to(answers, "ratios", "#ratio-plot .main-svg")
        assert selected(answers, "#ratio-run") == NPO
        assert selected(answers, "#ratio-epoch") == "3"

    def test_filters_apply(self, answers: Page) -> None:
        answers.click("#families button[data-family=idk]")
        offered = answers.locator("#answer-run option").all_inner_texts()
        assert offered == ["idk, rate 1e-4, seed 0"]
        assert selected(answers, "#answer-run") == "idk, rate 1e-4, seed 0"

    def test_runs_of_one_epoch_each_are_one_trajectory_and_long_answers_are_cut(
        self, visit: Visit, fabric: Fabric, tmp_path: Path
    ) -> None:
        one, two = fabric.run(points=((0.8, -9.0),)), fabric.run(points=((0.8, -9.0), (0.8, -8.0)))
        one = with_answers(one, {1: "words " * 100})
        two = replace(two, id="two", epochs=two.epochs[1:], evaluations={2: two.evaluations[2]})
        page = small_page(visit, [fabric.reference("fine-tuned"), one, two], tmp_path)
        scroll_to(page, "answers", "article.qa")
        assert page.locator("#answer-run option").count() == 1
        article = card(page, "author 0 of the forget")
        assert [title for title, _ in lines(article)] == ["true, and before", "epoch 1", "epoch 2"]
        assert len(lines(article)[1][1]) < 420
        article.get_by_role("button", name="all 600 characters").click()
        assert len(lines(article)[1][1]) > 590

    def test_answers_that_are_not_embedded_are_named(
        self, visit: Visit, fabric: Fabric, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        budget = importlib.import_module("unlearnbench_dashboards.page_budget")
        monkeypatch.setattr(budget, "MAX_EVALUATIONS", 2)
        page = small_page(visit, [fabric.reference("fine-tuned"), fabric.run()], tmp_path)
        scroll_to(page, "answers", "article.qa")
        note = page.locator("#answer-note").inner_text()
        assert "answers of 2 of 3 evaluations" in note
        assert "It does not have epoch 2 of this run." in note, "epoch 1 is its best"

    def test_questions_that_are_not_embedded_are_counted(
        self, visit: Visit, fabric: Fabric, tmp_path: Path
    ) -> None:
        runs = [fabric.reference("fine-tuned", rows=410), fabric.run(rows=410)]
        page = small_page(visit, runs, tmp_path)
        scroll_to(page, "answers", "article.qa")
        note = page.locator("#answer-note").inner_text()
        assert "This page has the first 400 of 410 questions of this set." in note

    def test_narrow_and_printed(self, answers: Page) -> None:
        answers.set_viewport_size({"width": 390, "height": 900})
        until(answers, "document.documentElement.scrollWidth <= 390")
        answers.emulate_media(media="print")
        assert answers.locator("#answers").is_visible()
        assert answers.locator("article.qa").first.is_visible()
        assert not answers.locator("#answer-run").is_visible()


class TestRatios:
    def test_numbers_and_bar_are_those_of_the_records(
        self, ratios: Page, records: list[Record]
    ) -> None:
        for run in records[2:4]:
            ratios.select_option("#ratio-run", label=f"{run.method}, rate 1e-4, seed 0")
            for result in run.epochs:
                ratios.select_option("#ratio-epoch", str(result.epoch))
                distance, log10_p = (
                    result.metrics[n] for n in ("ks_statistic", "log10_forget_quality")
                )
                assert distance is not None
                assert log10_p is not None
                text = ratios.locator("#ratio-text").inner_text()
                assert f"D = {distance:.4f} " in text
                assert "n = 30 questions" in text
                assert f"log₁₀ Forget Quality {log10_p:.2f}".replace("-", "\u2212") in text
                bar = ratios.evaluate(
                    "document.getElementById('ratio-plot').data.find((t) => t.name === 'D').y"
                )
                assert abs(bar[0] - bar[1]) == pytest.approx(distance)

    def test_the_curves_pass_through_the_ends_of_the_bar(self, ratios: Page) -> None:
        traces = ratios.evaluate(
            "document.getElementById('ratio-plot').data.map(({ name, x, y }) => ({ name, x, y }))"
        )
        by_name = {t["name"].split(",")[0]: t for t in traces}
        bar = by_name["D"]
        heights = []
        for name in (selected(ratios, "#ratio-run").split(",")[0], "retain model"):
            line = by_name[name]
            at_bar = [y for x, y in zip(line["x"], line["y"], strict=True) if x <= bar["x"][0]]
            heights.append(at_bar[-1] if at_bar else 0)
        assert sorted(heights) == pytest.approx(sorted(bar["y"]))

    def test_the_reason_is_shown_if_there_are_none(
        self, visit: Visit, fabric: Fabric, tmp_path: Path
    ) -> None:
        page = small_page(visit, [fabric.run(profile="tofu@00000000")], tmp_path)
        page.locator("#ratios").scroll_into_view_if_needed()
        page.get_by_text("Not drawn: profile 'tofu@00000000'").wait_for()
        assert not page.locator("#ratio-tools").is_visible()


class TestMetricsOfAnyOrigin:
    def test_scores_with_parts_a_further_column_and_questions_by_memorization(
        self, visit: Visit, fabric: Fabric, tmp_path: Path
    ) -> None:
        destroyed = fabric.run("gradient-ascent", points=((0.8, -5.0),), rows=30)
        first = replace(
            destroyed.epochs[0], metrics={**destroyed.epochs[0].metrics, "mia_loss": 0.25}
        )
        records = [
            with_tokens(fabric.reference("fine-tuned", rows=30), 0.1, ahead=2.0),
            with_tokens(fabric.reference("retain", rows=30), 0.8, ahead=0.0),
            with_tokens(replace(destroyed, epochs=(first,)), 1.0, ahead=-3.0),
            with_tokens(fabric.run(points=((0.8, -4.0),), rows=30), 0.5, ahead=0.0),
        ]
        page = small_page(visit, records, tmp_path)
        table = page.locator("table.scorecard")
        npo = table.locator("tr[data-family=npo]").first
        npo.get_by_role("button", name="parts").click()
        part = table.locator(".behind tr", has_text="Extraction strength, forget")
        expect(part.locator("td")).to_have_count(3)  # read from the page's lazy data
        npo.get_by_role("button", name="parts").click()
        assert table.locator(".behind").count() == 0
        folded, warnings = page.locator(".beyond"), page.locator(".beyond li")
        assert [one.inner_text() for one in folded.locator("summary").all()] == [
            "⚠ 1 × over-forgotten: below the retain model, which never saw the forget rows",
            "⚠ 1 × forget rows that look less familiar than rows that no model has seen",
        ]
        assert not warnings.first.is_visible()
        folded.first.locator("summary").click()
        assert "over-forgotten: extraction strength" in warnings.first.inner_text()
        page.click("#filter-open")
        page.click("#families button[data-family=npo]")
        assert not folded.first.is_visible(), "of another method"
        assert table.locator("tbody").first.locator("tr:visible").count() == 1
        page.set_viewport_size({"width": 390, "height": 900})
        until(page, "document.documentElement.scrollWidth <= 390")
        page.click("#reset")
        page.select_option("#table-further", label="LOSS attack, AUC")
        page.locator("#table").get_by_role("button", name="LOSS attack, AUC").click()
        assert "0.250" in page.locator("#table tbody tr").first.inner_text()
        scroll_to(page, "answers", "article.qa")
        page.select_option("#answer-order", "memorized")
        shown = page.locator("article.qa dl > div", has_text="epoch 1").locator(".scores")
        strengths = [float(t.rpartition("ES ")[2]) for t in shown.all_inner_texts()]
        assert strengths == sorted(strengths, reverse=True)
        assert strengths[0] > strengths[-1]
        page.select_option("#answer-set", "world_facts")
        assert page.locator("#answer-order option[value=memorized]").is_disabled()
        assert "No extraction strength by question" in page.locator("#answer-note").inner_text()


class TestCurvesAndTraining:
    def test_curves_by_metric_and_by_set_and_of_one_method(self, visit: Visit, path: Path) -> None:
        page = visit.shared(path)
        scroll_to(page, "curves", "#curve-plots .main-svg")
        sets = ("Forget set", "Retain set", "Real authors", "World facts")
        metrics = ("ROUGE-L", "Probability", "Truth ratio")
        for button, others in (("Truth ratio", sets), ("World facts", metrics)):
            page.get_by_role("button", name=button, exact=True).click()
            count = "document.querySelectorAll('#curve-plots .gtitle').length"
            until(page, f"{count} === {len(others)}")
            titles = page.locator("#curve-plots .gtitle").all_text_contents()
            assert titles == [f"{button}: {name}" for name in others]
        page.click("#families button[data-family=npo]")
        traces = "document.querySelectorAll('#curve-plots .curve:first-child .trace').length"
        until(page, f"{traces} === 1")
        shown = page.evaluate(
            "document.querySelector('#curve-plots .plot')"
            ".data.filter((t) => t.visible !== false).map((t) => t.name)"
        )
        assert shown == ["npo, rate 1e-4"]

    def test_an_outlier_is_named_and_drawn_once_selected(self, visit: Visit, path: Path) -> None:
        page = visit.shared(path)
        scroll_to(page, "training", "#step-plots .main-svg")
        note = page.locator("#step-plots .curve").first.locator(".far")
        assert note.inner_text() == "Beyond the frame: dpo, rate 1e-4, seed 0 (900)."
        top = "document.querySelector('#step-plots .plot')._fullLayout.yaxis.range[1]"
        assert page.evaluate(top) < 1  # decades
        page.click("#families button[data-family=dpo]")
        assert note.inner_text() == ""
        until(page, f"{top} > 2.9")

    def test_nothing_is_wider_than_a_phone(self, visit: Visit, path: Path) -> None:
        page = visit.shared(path)
        page.set_viewport_size({"width": 390, "height": 900})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            for section, ready in (
                ("curves", "#curve-plots .main-svg"),
                ("ratios", "#ratio-plot .main-svg"),
                ("training", "#step-plots .main-svg"),
            ):
                scroll_to(page, section, ready)
            until(page, "document.documentElement.scrollWidth <= 390")
