"""The page of several benchmarks: mean places of the methods, and a panel of each benchmark."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import NamedTuple

from unlearnbench.analysis.across import standings
from unlearnbench.analysis.results import Results
from unlearnbench.analysis.settings import panel_label
from unlearnbench.results.table import TableRow

from .figures.palette import Style
from .figures.tradeoff_data import TradeOffPanel, drawn_panels
from .figures.tradeoff_plot import draw
from .page_data import embedded, joined, plotly, render

HEIGHT = 320
"""Pixels of a panel."""


class BenchmarkPanel(NamedTuple):
    """A panel of one benchmark's sweep."""

    benchmark: str
    title: str
    """The benchmark, followed by model and split if its sweep has several panels."""
    panel: TradeOffPanel
    fault: str | None
    """Why no method has a place on the panel; None if a method has one."""


def build(name: str, sweeps: Mapping[str, Results], pages: Mapping[str, str]) -> str:
    """Build the page.

    Args:
        name: Title of the page.
        sweeps: Results by name of the benchmark.
        pages: Addresses of the benchmarks' own pages, by name of the benchmark.
    """
    shown: list[BenchmarkPanel] = []
    all_rows: list[TableRow] = []
    for benchmark, results in sweeps.items():
        shown += _panels_of(benchmark, results)
        all_rows += results.rows
    style = Style.of(all_rows)
    ranked = {entry.title: entry.panel.best for entry in shown if entry.fault is None}
    figures = [draw(entry.panel, style, HEIGHT) for entry in shown]
    return render(
        "templates/across.html.j2",
        name=name,
        panels={entry.title: entry.panel for entry in shown},
        pages={entry.title: pages[entry.benchmark] for entry in shown},
        faults={entry.title: entry.fault for entry in shown if entry.fault is not None},
        ranked=list(ranked),
        lines=standings(ranked),
        colour=style.colour,
        styles=joined("templates/page.css"),
        figures=embedded(figures),
        plotly=plotly(),
        version=version("unlearnbench"),
    )


def _panels_of(benchmark: str, results: Results) -> list[BenchmarkPanel]:
    """Make the panels of one benchmark's sweep, with their titles."""
    panels = drawn_panels(results.panels)
    entries: list[BenchmarkPanel] = []
    for panel in panels:
        title = benchmark
        if len(panels) > 1:
            title += f" {panel_label(panel.model, panel.forget_fraction)}"
        has_places = any(best.ranked for best in panel.best)
        fault = None if has_places else _why_no_places(panel)
        entries.append(BenchmarkPanel(benchmark, title, panel, fault))
    return entries


def _why_no_places(panel: TradeOffPanel) -> str:
    """Say in a few words why no method has a place on a panel. The sweep's own page says more."""
    if panel.start.fault:
        return panel.start.fault.partition(":")[0]
    if panel.not_judged:
        return "there is no start model"
    # A choice without runs, or a seed that ended early, may hide a setting that keeps enough.
    hidden = [best for best in panel.best if best.choice is not None or best.lost]
    reasons = dict.fromkeys(best.why_not for best in hidden)
    return "; ".join(reasons) or "no setting keeps enough"
