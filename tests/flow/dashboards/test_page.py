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

from unlearnbench.results.records import EpochResult

from .conftest import build, metrics, of_poems, report_of

if TYPE_CHECKING:
    from unlearnbench.results.records import Record

    from .conftest import Fabric


class Page(HTMLParser):
    """A parsed page: tags with attributes, text, and the text of scripts by id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.words = ""
        self._open: dict[str, str | None] | None = None
        self.feed(text)
        self.words = " ".join(self.words.split())

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

    @property
    def data(self) -> Any:
        """The data that scripts read at once."""
        return json.loads(self.payload("data"))

    def lazy_data(self, section: str) -> Any:
        """The data that a section loads on demand."""
        return json.loads(self.inflated(f"data-{section}"))


def page_of(*records: Record, **more: Any) -> Page:
    return Page(build(report_of(records, **more)))


@pytest.fixture(scope="module")
def whole(fabric: Fabric) -> Page:
    """The page of a sweep as the quickstart's."""
    return page_of(*fabric.sweep(epochs=3), config={"name": "quick"})


class TestClosed:
    def test_nothing_is_fetched(self, whole: Page) -> None:
        fetching = {"src", "href", "srcset", "data", "action", "poster", "formaction"}
        for tag, attributes in whole.tags:
            for name in fetching & attributes.keys():
                value = attributes[name] or ""
                assert value.startswith(("#", "data:")), f"<{tag} {name}={value!r}>"
        (policy,) = [
            attributes["content"] or ""
            for tag, attributes in whole.tags
            if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
        ]
        assert "default-src 'none'" in policy
        assert "http" not in policy
        own = [text for attributes, text in whole.scripts if not attributes.get("id")]
        assert not any(re.search(r"url\(|@import|https?://(?!www\.w3\.org)", s) for s in own)

    def test_plotly_is_in_it_once(self, whole: Page) -> None:
        assert whole.inflated("plotly") == get_plotlyjs()
        assert not any("plotly.js v" in text for _, text in whole.scripts)

    def test_hostile_text_is_not_markup(self, fabric: Fabric) -> None:
        hostile = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
        run = fabric.run()
        evaluation = run.evaluations[2]
        sets = {
            n: replace(s, questions=(hostile,) * 3, generated=(hostile,) * 3)
            for n, s in evaluation.sets.items()
        }
        both = {**run.evaluations, 2: replace(evaluation, sets=sets)}
        run = replace(run, method=hostile, evaluations=both)
        failed = fabric.run("dpo", points=(), status="failed", error=hostile)
        records = [fabric.reference("fine-tuned"), run, failed]
        page = page_of(*records, name=hostile, description=hostile)
        plain = page_of(fabric.reference("fine-tuned"), fabric.run(), replace(failed, error="x"))
        count = sum(tag == "script" for tag, _ in plain.tags)
        assert sum(tag == "script" for tag, _ in page.tags) == count
        assert not any(tag == "img" for tag, _ in page.tags)
        assert hostile in page.data["rows"][1]
        lists = page.lazy_data("answers")["lists"]
        assert any(hostile in questions and hostile in texts[0] for questions, texts in lists)


class TestContent:
    def test_every_row_and_figure_is_in_the_data(self, whole: Page, fabric: Fabric) -> None:
        column = whole.data["columns"].index("model_utility")
        shown = [row[column] for row in whole.data["rows"]]
        rows = report_of(fabric.sweep(epochs=3)).rows
        assert shown == pytest.approx([r.metrics["model_utility"] for r in rows], rel=1e-5)
        places = [(p["model"], p["fraction"]) for p in whole.data["panels"]]
        assert places == [("tiny", 0.05), ("tiny", 0.1)]
        curves = whole.lazy_data("curves")
        assert {name for group in curves["groups"].values() for name in group} == set(
            curves["panels"][0]
        )
        titles = [figure["layout"]["title"]["text"] for figure in whole.lazy_data("training")[1]]
        assert titles == ["Loss", "Gradient norm", "Loss term: forget", "Loss term: retain"]
        parts = dict(next(iter(whole.lazy_data("trade-off").values())))
        assert ["profile", report_of(fabric.sweep(epochs=1)).profile] in parts["Evaluation"]

    def test_a_filter_finds_the_rows_of_learning_rates_that_look_alike(
        self, fabric: Fabric
    ) -> None:
        """Scripts look up the text of a rate by its number, which six digits do not tell."""
        rates = {2e-5, 2.0000001e-5, 1.23456789e-4}
        runs = [fabric.run(rate=rate) for rate in rates]
        data = Page(build(report_of([fabric.reference("fine-tuned"), *runs]))).data
        column = data["columns"].index("learning_rate")
        assert {row[column] for row in data["rows"]} == {None, *rates}
        assert {float(text) for text in data["rates"]} == rates

    def test_the_means_of_settings_are_those_of_the_analysis(self, fabric: Fabric) -> None:
        """Scripts look means up: they must not average rows of equal labels by themselves."""
        report = report_of(fabric.sweep(seeds=(0, 1, 2), epochs=2))
        data = Page(build(report)).data
        names, rows = data["means"], data["rows"]
        run, epoch = (data["columns"].index(name) for name in ("run_id", "epoch"))
        shown = {
            frozenset((rows[place][run], rows[place][epoch]) for place in places): means
            for places, means in data["settings"]
        }
        settings = [setting for panel in report.panels for setting in panel.settings]
        assert len(shown) == len(settings) == len(data["settings"])
        for setting in settings:
            means = shown[frozenset((row.run_id, row.epoch) for row in setting.rows)]
            expected = [setting.metrics[name] for name in names]
            assert means == pytest.approx(expected, rel=1e-5)

    def test_headings_are_the_names_in_the_navigation(self, fabric: Fabric) -> None:
        failed = fabric.run("dpo", points=(), status="failed", error="no memory")
        text = build(report_of([*fabric.sweep(fractions=(0.1,), epochs=1), failed]))
        bar = text.partition("<nav")[2].partition("</nav>")[0]
        headings = re.findall(r'<h2 id="h-([\w-]+)">([^<]+)</h2>', text)
        assert re.findall(r'<a href="#([\w-]+)">([^<]+)</a>', bar) == headings
        assert headings[0] == ("trade-off", "Trade-off")
        assert ("failures", "Failures") in headings

    def test_runs_without_a_result_are_counted_and_listed(self, fabric: Fabric) -> None:
        error = "PluginError: `loss` of Odd raised (odd.py:9)\n\nTraceback\n\n  deep in Ray"
        runs = [
            fabric.run("gradient-ascent", points=((None, -300.0),), status="collapsed"),
            fabric.run("bad-nan", points=(), status="collapsed", error="NaN loss at step 1"),
            fabric.run("dpo", points=(), status="failed", error=error),
        ]
        report = report_of([fabric.reference("fine-tuned"), *runs])
        page = Page(build(report))
        assert "0 of 3 runs finished; 2 collapsed; 1 failed" in page.words
        assert ("a", {"href": "#failures"}) in page.tags, "the count leads to the list"
        assert "no number: collapsed, NaN loss at step 1" in page.words
        assert "bad-nan collapsed after 0 evaluated epochs" in page.words
        shown, _, rest = build(report).partition("raised (odd.py:9)</pre>")
        assert rest.startswith("<details><summary>Traceback</summary><pre>Traceback\n\n  deep in")
        assert "deep in Ray" not in shown

    def test_a_start_model_without_knowledge_is_the_result(self, fabric: Fabric) -> None:
        blank = (EpochResult(0, metrics(0.01, -0.1), 0.0, 1.0),)
        start = replace(fabric.reference("fine-tuned"), epochs=blank)
        page = page_of(start, fabric.run(points=((0.02, -0.01),)))
        assert "not judged: the start model knows nothing" in page.words
        roles = [trace["meta"]["role"] for trace in page.data["panels"][0]["figure"]["data"]]
        assert "best" not in roles, "nothing is ringed"
        assert page.data["first"] is None
        assert "How sure" not in page.words, "no order that could be sure"

    def test_extreme_numbers_and_references_alone_make_a_page(self, fabric: Fabric) -> None:
        points: Any = [(None, None), (math.nan, math.nan), (0.0, -300.0), (0.8, -300.0), (0.0, 0.0)]
        runs = [fabric.run(f"m{i}", points=(point,)) for i, point in enumerate(points)]
        start, retain = fabric.reference("fine-tuned"), fabric.reference("retain")
        for records in ([start, runs[0]], [start, runs[2]], runs, [retain, *runs]):
            assert page_of(*records).data["rows"]
        alone = page_of(start, planned=["a"])
        assert "0 of 1 runs finished" in alone.words
        assert "No run has been evaluated yet." in alone.words

    def test_equal_reports_give_equal_pages(self, fabric: Fabric) -> None:
        records = fabric.sweep(fractions=(0.1,), epochs=1)
        assert build(report_of(records)) == build(report_of(tuple(reversed(records))))


@pytest.fixture(scope="module")
def poems(fabric: Fabric) -> Page:
    """The page of a benchmark that is not TOFU's."""
    records = of_poems(fabric.sweep(fractions=(0.1,), seeds=(0, 1, 2), epochs=2))
    return page_of(*records, name="poems", config={"name": "poems"})


class TestOtherBenchmark:
    """A benchmark with its own sets and numbers, without a test, a retain model and its plug-in."""

    def test_its_numbers_are_on_the_axes_and_the_lowest_is_best(self, poems: Page) -> None:
        data = poems.data
        (panel,) = data["panels"]
        layout = panel["figure"]["layout"]
        titles = [layout[axis]["title"]["text"] for axis in ("xaxis", "yaxis")]
        assert titles == ["Known poems", "Recited"]
        notes = {note["name"]: note["text"] for note in layout["annotations"]}
        assert notes["better"] == "better ↘"
        assert [shape["name"] for shape in layout["shapes"]] == ["collapse"]
        names = [one["column"] for one in data["headline"]]
        assert names == ["rouge_known", "exact_memorization_gone"]
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
        for foreign in ("Forget Quality", "Model Utility", "FQ", "p = ", "NaN", "nan", "None"):
            assert foreign not in poems.words
        for of_retain in ("the retain model", "Truth ratios", "Scorecard", "KS D", "CE-U paper"):
            assert of_retain not in poems.words
        links = {of["href"] for tag, of in poems.tags if tag == "a"}
        assert "#curves" in links
        assert not {"#ratios", "#scorecard"} & links
        assert {f"#{of['id']}" for tag, of in poems.tags if tag == "section"} == links

    def test_the_missing_plug_in_is_a_folded_warning(self, poems: Page) -> None:
        assert "1 warning unknown benchmark 'poems'; " in poems.words
        assert poems.words.count("unknown benchmark") == 1


def test_every_warning_is_on_the_page_once(fabric: Fabric) -> None:
    weak = {"mia_loss_control": 0.5, "mia_zlib_control": 0.5}
    start = fabric.reference("fine-tuned")
    epoch = replace(start.epochs[0], metrics={**start.epochs[0].metrics, **weak})
    starts = [replace(start, id=id_, epochs=(epoch,)) for id_ in ("first", "second")]
    report = report_of([*starts, fabric.run()])
    page = Page(build(report))
    assert len(report.warnings) == 2
    assert [page.words.count(line) for line in report.warnings] == [1, 1]
