"""The page of several benchmarks."""

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest

from unlearnbench.analysis.results import Results
from unlearnbench.api import registry
from unlearnbench.base.errors import RecordError
from unlearnbench.report.report import write_across

from ...numbers.analysis.conftest import choosing
from .conftest import Fabric, of_poems, report_of

METHODS = ("npo", "ce-u", "idk")


@pytest.fixture(scope="module")
def page(fabric: Fabric) -> str:
    """The page of TOFU at two splits, of a benchmark without a test, and of one with no result."""
    records = fabric.sweep(fractions=(0.1,), methods=METHODS)
    ignorant = [fabric.run(points=((0.8, -0.2),)), fabric.reference("retain")]
    start = fabric.reference("retain")
    faulty = [*ignorant, replace(start, kind="fine-tuned", id="start")]
    lost = [fabric.run(points=((0.1, -0.2),)), fabric.reference("fine-tuned")]
    sweeps: dict[str, Results] = {
        "tofu": report_of(fabric.sweep(methods=METHODS)),
        "poems": report_of(of_poems(records)),
        "faulty": report_of(faulty),
        "lost": report_of(lost),
    }
    pages = {name: f"{name}/report.html" for name in sweeps}
    return str(registry.load("dashboards", "across")("several", sweeps, pages))


def test_every_panel_is_there_and_leads_to_its_page(page: str) -> None:
    links = re.findall(r'<h3><a href="([^"]+)">([^<]+)</a></h3>', page)
    assert [(address, html.unescape(title)) for address, title in links] == [
        ("tofu/report.html", "tofu tiny, forget 5 %"),
        ("tofu/report.html", "tofu tiny, forget 10 %"),
        ("poems/report.html", "poems"),
        ("faulty/report.html", "faulty"),
        ("lost/report.html", "lost"),
    ]
    assert page.count('<div class="figure">') == 5


def test_places_are_of_panels_that_show_something(page: str) -> None:
    table = page[page.index("<thead>") : page.index("</tbody>")]
    assert [html.unescape(t) for t in re.findall(r'scope="col"[^>]*>([^<]+)', table)] == [
        *("method", "mean place", "tofu tiny, forget 5 %", "tofu tiny, forget 10 %", "poems"),
    ]
    assert sorted(re.findall(r"</span>([^<]+)</th>", table)) == sorted(METHODS)
    assert "<b>faulty</b> has no places: the start model has nothing left to forget" in page
    assert "<b>lost</b> has no places: no setting keeps enough." in page


def test_a_panel_without_places_has_its_true_reason(fabric: Fabric) -> None:
    start = fabric.reference("fine-tuned")
    lost = [
        fabric.run(points=((0.8, -5.0),), seed=0),
        fabric.run(points=(), seed=1, status="collapsed"),
    ]
    sweeps: dict[str, Results] = {
        "unreported": choosing([start, fabric.run(seed=0)], seeds=(0, 1, 2)),
        "ended early": report_of([start, *lost]),
        "without a start": report_of([fabric.run()]),
    }
    pages = {name: f"{name}/report.html" for name in sweeps}
    page = html.unescape(registry.load("dashboards", "across")("several", sweeps, pages))
    for reason in (
        "<b>unreported</b> has no places: chosen; it has not been run on seeds 1, 2 yet.",
        "<b>ended early</b> has no places: no setting with a mean over its seeds keeps at least "
        "80 % of the start model's utility (seed 1 collapsed at epoch 1).",
        "<b>without a start</b> has no places: there is no start model.",
    ):
        assert reason in page


def test_a_folder_without_sweeps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no sweep in it to report"):
        write_across(tmp_path)
