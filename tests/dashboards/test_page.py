"""The page as a file: complete, closed, and faithful to its report."""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pytest
from plotly.offline import get_plotlyjs

from unlearnbench.analysis.results import Results
from unlearnbench.api import registry
from unlearnbench.results.records import EpochResult

from .conftest import metrics, of_poems

if TYPE_CHECKING:
    from .conftest import Fabric


def build(report: Results) -> str:
    page: str = registry.load("dashboards", "page")(report)
    return page


class Page(HTMLParser):
    """A parsed page: tags with attributes, text, and the text of scripts by id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.words = ""
        self._open: dict[str, str | None] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = dict(attrs) if tag in ("script", "style") else None

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._open = None

    def handle_data(self, data: str) -> None:
        if self._open is None:
            self.words += data
        else:
            self.scripts.append((self._open, data))

    def payload(self, name: str) -> str:
        """A script's text."""
        return "".join(text for attributes, text in self.scripts if attributes.get("id") == name)

    def inflated(self, name: str) -> str:
        """A packed script's text."""
        packed = base64.b64decode(self.payload(name))
        return zlib.decompress(packed, -zlib.MAX_WBITS).decode()

    def lazy_data(self) -> Any:
        """Read the data loaded on demand."""
        return json.loads(self.inflated("lazy-data"))


@pytest.fixture(scope="module")
def whole(fabric: Fabric) -> Page:
    """The page of a sweep as the quickstart's."""
    report = Results.of(fabric.sweep(epochs=3), name="quick", config={"name": "quick"})
    return Page(build(report))


class TestClosed:
    def test_nothing_is_fetched(self, whole: Page) -> None:
        fetching = {"src", "href", "srcset", "data", "action", "poster", "formaction"}
        for tag, attributes in whole.tags:
            for name in fetching & attributes.keys():
                value = attributes[name] or ""
                assert value.startswith(("#", "data:")), f"<{tag} {name}={value!r}>"

    def test_the_content_policy_forbids_to_fetch(self, whole: Page) -> None:
        (policy,) = [
            attributes["content"] or ""
            for tag, attributes in whole.tags
            if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
        ]
        assert "default-src 'none'" in policy
        assert "http" not in policy

    def test_plotly_is_in_it_once(self, whole: Page) -> None:
        assert whole.inflated("plotly") == get_plotlyjs()
        assert not any("plotly.js v" in text for _, text in whole.scripts)

    def test_own_styles_and_scripts_fetch_nothing(self, whole: Page) -> None:
        own = [text for attributes, text in whole.scripts if not attributes.get("id")]
        assert len(own) == 2  # style and script
        assert not any(re.search(r"url\(|@import|https?://(?!www\.w3\.org)", s) for s in own)

    def test_hostile_text_is_not_markup(self, fabric: Fabric) -> None:
        hostile = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
        run = fabric.run()
        evaluation = run.evaluations[2]
        sets = {
            n: replace(s, questions=(hostile,) * 3, generated=(hostile,) * 3)
            for n, s in evaluation.sets.items()
        }
        run = replace(run, method=hostile, evaluations={2: replace(evaluation, sets=sets)})
        failed = fabric.run("dpo", points=(), status="failed", error=hostile)
        report = Results.of(
            [fabric.reference("fine-tuned"), run, failed], name=hostile, description=hostile
        )
        plain = Page(build(Results.of([fabric.reference("fine-tuned"), fabric.run()], name="x")))
        page = Page(build(report))
        count = sum(tag == "script" for tag, _ in plain.tags)
        assert sum(tag == "script" for tag, _ in page.tags) == count
        assert not any(tag == "img" for tag, _ in page.tags)
        assert hostile in json.loads(page.payload("data"))["rows"][1]
        lists = page.lazy_data()["answers"]["lists"]
        assert any(hostile in questions and hostile in texts[0] for questions, texts in lists)


class TestContent:
    def test_every_row_and_figure_is_in_the_data(self, whole: Page, fabric: Fabric) -> None:
        data = json.loads(whole.payload("data"))
        report = Results.of(fabric.sweep(epochs=3), name="quick")
        column = data["columns"].index("model_utility")
        shown = [row[column] for row in data["rows"]]
        assert shown == pytest.approx([r.metrics["model_utility"] for r in report.rows], rel=1e-5)
        assert [(p["model"], p["fraction"]) for p in data["panels"]] == [
            ("tiny", 0.05),
            ("tiny", 0.1),
        ]

    def test_curves_and_losses_are_in_the_data_by_panel(self, whole: Page) -> None:
        lazy = whole.lazy_data()
        groups = json.loads(whole.payload("data"))["sections"]["curves"]
        expected = {m for kind in groups.values() for group in kind.values() for m in group}
        assert set(lazy["curves"][0]) == expected
        titles = [figure["layout"]["title"]["text"] for figure in lazy["training"][1]]
        assert titles == ["Loss", "Gradient norm", "Loss term: forget", "Loss term: retain"]

    def test_headings_begin_with_the_names_in_the_navigation(self, fabric: Fabric) -> None:
        failed = fabric.run("dpo", points=(), status="failed", error="no memory")
        text = build(Results.of([*fabric.sweep(fractions=(0.1,), epochs=1), failed], name="x"))
        bar = text.partition("<nav")[2].partition("</nav>")[0]
        headings = re.findall(r'<h2 id="h-([\w-]+)">([^<]+)</h2>', text)
        links = re.findall(r'<a href="#([\w-]+)">([^<]+)</a>', bar)
        assert [name for name, _ in links] == [name for name, _ in headings]
        assert all(
            title.startswith(short) for (_, title), (_, short) in zip(headings, links, strict=True)
        )
        assert ("failures", "Failures") in headings

    def test_the_result_is_a_sentence(self, whole: Page) -> None:
        assert (
            "No method forgot enough: npo+nll at learning rate 0.0001, epoch 3, has the highest "
            "Forget Quality (p = 2.9e-06) among settings that keep at least "
            "80\N{NO-BREAK SPACE}% of the start model's utility (it keeps 99\N{NO-BREAK SPACE}%, "
            "0.877 of 0.883). Up to p = 0.05 the test still distinguishes a model from one that "
            "never saw the forget set."
        ) in whole.words
        assert "fewer than three seeds" in whole.words

    def test_the_best_method_is_named_with_p_and_utility(self, fabric: Fabric) -> None:
        records = [fabric.reference("fine-tuned"), fabric.run(points=((0.8, -0.1),))]
        page = Page(build(Results.of(records, name="x")))
        assert (
            "npo at learning rate 0.0001, epoch 1, has the highest Forget Quality (p = 0.79) among "
            "settings that keep at least 80\N{NO-BREAK SPACE}% of the start model's utility "
            "(it keeps 91\N{NO-BREAK SPACE}%, 0.800 of 0.883)."
        ) in page.words

    def test_an_unfinished_sweep_is_marked(self, fabric: Fabric) -> None:
        run = fabric.run()
        report = Results.of([fabric.reference("retain"), run], name="x", planned=[run.id, "b", "c"])
        assert "1 of 3 runs finished" in Page(build(report)).words

    def test_a_failure_shows_its_reason_and_folds_its_traceback(self, fabric: Fabric) -> None:
        error = "PluginError: `loss` of Odd raised (odd.py:9)\n\nTraceback\n\n  deep in Ray"
        failed = fabric.run("dpo", points=(), status="failed", error=error)
        text = build(Results.of([fabric.reference("retain"), failed], name="x"))
        shown, _, rest = text.partition("PluginError: `loss` of Odd raised (odd.py:9)</pre>")
        assert rest.startswith("<details><summary>Traceback</summary><pre>Traceback\n\n  deep in")
        assert "deep in Ray" not in shown

    def test_failed_and_collapsed_runs_are_counted_and_listed(self, fabric: Fabric) -> None:
        report = Results.of(
            [
                fabric.reference("fine-tuned"),
                fabric.run("gradient-ascent", points=((None, -300.0),), status="collapsed"),
                fabric.run("dpo", points=(), status="failed", error="TrainingError: no memory"),
            ],
            name="x",
        )
        page = Page(build(report))
        assert "0 of 2 runs finished; 1 collapsed; 1 failed" in page.words
        assert ("a", {"href": "#failures"}) in page.tags, "the count leads to the list"
        assert "TrainingError: no memory" in page.words

    def test_a_run_without_any_number_is_named_with_its_reason(self, fabric: Fabric) -> None:
        error = "NaN loss at step 1 (epoch 1): loss nan\nNo learning rate is to blame"
        nan = fabric.run("bad-nan", points=(), status="collapsed", error=error)
        records = [fabric.reference("fine-tuned"), fabric.run(), nan]
        page = Page(build(Results.of(records, name="x", planned=[r.id for r in records[1:]])))
        assert "1 of 2 runs finished; 1 collapsed" in page.words
        assert "no number: collapsed, NaN loss at step 1 (epoch 1)" in page.words
        assert "bad-nan collapsed after 0 evaluated epochs" in page.words
        assert "No learning rate is to blame" in page.words

    def test_a_start_model_without_knowledge_is_the_result(self, fabric: Fabric) -> None:
        start = replace(
            fabric.reference("fine-tuned"), epochs=(EpochResult(0, metrics(0.01, -0.1), 0.0, 1.0),)
        )
        page = Page(build(Results.of([start, fabric.run(points=((0.02, -0.01),))], name="x")))
        assert "No result: the start model knows nothing" in page.words
        assert "highest Forget Quality (p" not in page.words
        assert "not judged: the start model knows nothing" in page.words
        data = json.loads(page.payload("data"))
        roles = [trace["meta"]["role"] for trace in data["panels"][0]["figure"]["data"]]
        assert "best" not in roles, "nothing is ringed"
        assert data["first"] is None
        assert "How sure" not in page.words, "no order that could be sure"

    def test_a_method_that_did_nothing_is_marked(self, fabric: Fabric) -> None:
        records = [fabric.reference("fine-tuned"), fabric.run(points=((0.88, -16.3),))]
        page = Page(build(Results.of(records, name="x")))
        assert "No method forgot: no setting that keeps" in page.words
        assert "npo no better than the start" in " ".join(page.words.split())

    def test_both_thresholds_are_named_with_where_they_are_set(self, whole: Page) -> None:
        words = " ".join(whole.words.split())
        assert "80 % of the start's utility: the minimum that a setting must keep" in words
        assert "select.utility" in words
        assert "50 %: where the shading begins" in words

    def test_extreme_numbers_make_a_page(self, fabric: Fabric) -> None:
        points: Any = [(None, None), (math.nan, math.nan), (0.0, -300.0), (0.8, -300.0), (0.0, 0.0)]
        runs = [fabric.run(f"m{i}", points=(point,)) for i, point in enumerate(points)]
        start, retain = fabric.reference("fine-tuned"), fabric.reference("retain")
        for records in ([start, runs[0]], [start, runs[2]], runs, [retain, *runs]):
            page = Page(build(Results.of(records, name="x")))
            assert json.loads(page.payload("data"))["rows"]

    def test_references_alone_make_a_page(self, fabric: Fabric) -> None:
        page = Page(build(Results.of([fabric.reference("fine-tuned")], name="x", planned=["a"])))
        assert "0 of 1 runs finished" in page.words
        assert "No run has been evaluated yet." in page.words

    def test_the_papers_points_are_offered_for_its_benchmark_only(self, fabric: Fabric) -> None:
        for source, offered in (("tofu", True), ("synthetic", False)):
            run = fabric.run(model="llama2-7b", source=source)
            text = Page(build(Results.of([run], name="x"))).words
            assert ("Show the CE-U paper's points" in text) is offered

    def test_equal_reports_give_equal_pages(self, fabric: Fabric) -> None:
        records = fabric.sweep(fractions=(0.1,), epochs=1)
        first, second = (Results.of(r, name="x") for r in (records, tuple(reversed(records))))
        assert build(first) == build(second)


@pytest.fixture(scope="module")
def poems(fabric: Fabric) -> Page:
    """The page of a benchmark that is not TOFU's."""
    records = of_poems(fabric.sweep(fractions=(0.1,), seeds=(0, 1, 2), epochs=2))
    return Page(build(Results.of(records, name="poems", config={"name": "poems"})))


class TestOtherBenchmark:
    """A benchmark with its own sets and numbers, without a test, a retain model and its plug-in."""

    def test_its_numbers_are_on_the_axes_and_the_lowest_is_best(self, poems: Page) -> None:
        data = json.loads(poems.payload("data"))
        (panel,) = data["panels"]
        layout = panel["figure"]["layout"]
        titles = [layout[axis]["title"]["text"] for axis in ("xaxis", "yaxis")]
        assert titles == ["Known poems", "Recited"]
        notes = {note["name"]: note["text"] for note in layout["annotations"]}
        assert notes["better"] == "better ↘"
        assert "significance" not in notes
        assert [shape["name"] for shape in layout["shapes"]] == ["collapse"]
        assert panel["low"] is None
        names = [one["column"] for one in data["headline"]]
        assert names == ["rouge_known", "exact_memorization_gone"]
        run, epoch = data["first"]
        at = {name: i for i, name in enumerate(data["columns"])}
        kept, left = (at[name] for name in names)
        (start,) = (row for row in data["rows"] if row[at["kind"]] == "fine-tuned")
        by_setting: dict[tuple[Any, ...], list[Any]] = {}
        for row in data["rows"]:
            key = tuple(row[at[name]] for name in ("method", "learning_rate", "epoch"))
            by_setting.setdefault(key, []).append(row)
        means = {
            key: fmean(row[left] for row in rows)
            for key, rows in by_setting.items()
            if rows != [start] and fmean(row[kept] for row in rows) >= 0.8 * start[kept]
        }
        best = min(means, key=lambda key: means[key])
        run, epoch = data["first"]
        assert epoch == best[-1]
        assert run in {row[at["run_id"]] for row in by_setting[best]}

    def test_it_has_no_word_of_tofu_and_no_empty_section(self, poems: Page) -> None:
        words = " ".join(poems.words.split())
        for foreign in ("Forget Quality", "Model Utility", "FQ", "p = ", "NaN", "nan", "None"):
            assert foreign not in words
        for of_retain in ("the retain model", "Truth ratios", "Scorecard", "KS D", "CE-U paper"):
            assert of_retain not in words
        assert "Down and to the right is better" in words
        assert "the lowest Recited of those that keep at least 80% of the start model" in words
        links = [of["href"] for tag, of in poems.tags if tag == "a"]
        assert "#curves" in links
        assert not {"#ratios", "#scorecard"} & {*links}
        shown = {of["id"] for tag, of in poems.tags if tag == "section"}
        assert shown == {link[1:] for link in links if link and link != "#trade-off"} | {
            "trade-off"
        }

    def test_its_sets_have_readable_names_in_order(self, poems: Page) -> None:
        data = json.loads(poems.payload("data"))
        assert data["sets"] == {"gone": "gone", "known": "known", "unseen_lines": "unseen lines"}
        assert next(iter(data["sets"])) == "gone", "the forget rows come first"
        assert data["forget"] == ["gone"]
        evaluations = poems.lazy_data()["answers"]["answers"]
        for by_epoch in evaluations.values():
            for sets in by_epoch.values():
                assert sets["unseen_lines"][1] == [], "it is only scored"
                assert sets["unseen_lines"][2] == [None] * 3
                assert all(0 <= p <= 100 for p in sets["unseen_lines"][3])

    def test_the_missing_plug_in_is_a_folded_warning(self, poems: Page) -> None:
        words = " ".join(poems.words.split())
        known = "passages, synthetic, tofu"
        assert f"1 warning unknown benchmark 'poems'. Available: {known}; one in" in words
        assert words.count("unknown benchmark") == 1


def test_every_warning_is_on_the_page_once(fabric: Fabric) -> None:
    weak = {"mia_loss_control": 0.5, "mia_zlib_control": 0.5}
    start = fabric.reference("fine-tuned")
    epoch = replace(start.epochs[0], metrics={**start.epochs[0].metrics, **weak})
    later = {"metric_versions": {"rouge_forget": 2}}
    runs = [fabric.run(), replace(fabric.run(seed=1), provenance=later)]
    report = Results.of([replace(start, epochs=(epoch,)), *runs], name="x")
    words = " ".join(Page(build(report)).words.split())
    assert "2 warnings" in words
    assert len(report.warnings) == 2
    for line in report.warnings:
        assert words.count(line) == 1
