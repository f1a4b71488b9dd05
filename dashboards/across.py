"""The page of several benchmarks: mean places of the methods, and a panel of each benchmark."""

from collections.abc import Mapping
from importlib.metadata import version

from unlearnbench.analysis.across import standings
from unlearnbench.analysis.results import Results
from unlearnbench.analysis.settings import panel_label

from .figures.palette import Style
from .figures.tradeoff_data import TradeOffPanel, drawn_panels
from .figures.tradeoff_plot import draw
from .page_data import embedded, joined, plotly, render

HEIGHT = 320
"""Pixels of a panel."""


def build(name: str, sweeps: Mapping[str, Results], pages: Mapping[str, str]) -> str:
    """Build the page.

    sweeps  by name of the benchmark
    pages   address of the page of each
    """
    shown: dict[str, TradeOffPanel] = {}
    faults, of = dict[str, str](), dict[str, str]()
    for benchmark, results in sweeps.items():
        several = drawn_panels(results.panels)
        for panel in several:
            more = f" {panel_label(panel.model, panel.forget_fraction)}" if several[1:] else ""
            shown[benchmark + more], of[benchmark + more] = panel, benchmark
            if not any(best.ranked for best in panel.best):
                faults[benchmark + more] = _why_no_places(panel)
    style = Style.of([row for results in sweeps.values() for row in results.rows])
    valid = {title: panel.best for title, panel in shown.items() if title not in faults}
    figures = [draw(panel, style, HEIGHT) for panel in shown.values()]
    return render(
        "templates/across.html.j2",
        name=name,
        panels=shown,
        pages={title: pages[benchmark] for title, benchmark in of.items()},
        faults=faults,
        ranked=list(valid),
        lines=standings(valid),
        colour=style.colour,
        styles=joined("templates/page.css"),
        figures=embedded(figures),
        plotly=plotly(),
        version=version("unlearnbench"),
    )


def _why_no_places(panel: TradeOffPanel) -> str:
    """Say in short why no method has a place on a panel. The panel's own page says more."""
    if panel.start.fault:
        return panel.start.fault.partition(":")[0]
    if panel.not_judged:
        return "there is no start model"
    # A choice without runs, or a seed that ended early, may hide a setting that keeps enough.
    hidden = [best for best in panel.best if best.choice is not None or best.lost]
    reasons = dict.fromkeys(best.why_not for best in hidden)
    return "; ".join(reasons) or "no setting keeps enough"
