"""Tuning: what each entry's trials were worth, and what its untuned defaults reach.

A line is one choice in `selection.json`: a mapping with the keys `method`, `entry`, `model`,
`forget_fraction`, `reported` and `untuned` (numbers of the choice and of the defaults on the other
seeds) and `tuning` (the counted trials, see `analysis/tuning.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unlearnbench.analysis.selection import entry_name
from unlearnbench.analysis.settings import PanelKey, panel_label
from unlearnbench.analysis.tuning import EDGE, tuned
from unlearnbench.api.benchmark import Headline
from unlearnbench.report.best_table import Column

from ...figures.marks import Figure, small_layout, trace
from ...figures.palette import Style, meta
from ...html_table import HtmlTable, number_column
from ...report_section import PageContext, Section

AT = (1, 3, 6, 12, 24)
"""Numbers of trials of which the table has the expected best."""

Line = Mapping[str, Any]
"""A choice in `selection.json` whose trials were counted."""


class Tuning(Section):
    """Trials, choices and untuned defaults. Absent without a choice on some of the seeds."""

    name, title, order, folder = "tuning", "Tuning", 65, "tuning"

    def values(self, context: PageContext) -> Mapping[str, Any] | None:
        """Make the table."""
        lines = tuned(context.report.selection)
        if not lines:
            return None
        headline = context.report.headline
        columns = [Column("Method", entry_name, align="")]
        if len(context.panels) > 1:
            columns.append(Column("Panel", lambda line: panel_label(*_panel(line)), align=""))
        columns += [
            Column("Trials", lambda line: str(line["tuning"]["trials"])),
            Column("Failed", lambda line: str(line["tuning"]["failed"])),
            *_headline_columns(headline),
            *_best_of_columns(lines),
            Column("At an edge", lambda line: ", ".join(_edges(line)) or "–", align=""),
            Column("Tokens back", lambda line: f"{line['tuning']['tokens_back']:,}"),
        ]
        table = HtmlTable(
            id="tuning-table",
            label="Trials of each entry",
            columns=columns,
            lines=lines,
            family=lambda line: line["method"],
            panel=lambda line: context.panel_number(*_panel(line)),
        )
        # Only quasi-random searches, as of `tune`, begin with the defaults.
        has_defaults = any(line["untuned"] for line in lines)
        return {"table": table, "headline": headline, "edge": EDGE, "has_defaults": has_defaults}

    def data(self, context: PageContext) -> Any:
        """Draw the expected best of n trials of each entry, by panel."""
        lines = tuned(context.report.selection)
        title = f"expected best {context.report.headline.forgotten.short} of n trials"
        figures: list[list[Figure]] = []
        for panel in context.panels:
            curves: list[Figure] = []
            for line in lines:
                # An entry whose trials all failed has no curve.
                if _panel(line) == panel.panel and line["tuning"]["best_of"]:
                    curves.append(_curve(line, context.style))
            figures.append([{"data": curves, "layout": small_layout(title, "trials n")}])
        return figures


def _panel(line: Line) -> PanelKey:
    return line["model"], line["forget_fraction"]


# ---- Columns of the table ----


def _headline_columns(headline: Headline) -> list[Column]:
    """Make the columns with the headline of the choice and of the untuned defaults."""
    columns: list[Column] = []
    for metric in (headline.forgotten, headline.kept):
        for title, kind in ((metric.short, "reported"), (f"{metric.short}, untuned", "untuned")):
            value = _mean_on_other_seeds(kind, metric.column)
            columns.append(number_column(title, value, metric.digits, "num"))
    return columns


def _mean_on_other_seeds(kind: str, column: str) -> Callable[[Line], float | None]:
    """Return a function that looks up the mean of a line over the seeds without the choice.

    Args:
        kind: `reported` for the choice, or `untuned` for the defaults.
        column: Column of the metric.
    """

    def mean(line: Line) -> float | None:
        numbers = line[kind] or {}
        value: float | None = numbers.get(column, {}).get("mean")
        return value

    return mean


def _best_of_columns(lines: Sequence[Line]) -> list[Column]:
    """Make the columns with the expected best of several numbers of trials."""
    most_trials = max(line["tuning"]["trials"] for line in lines)
    return [
        number_column(f"best of {count}", _best_of(count), 2, "num")
        for count in AT
        if count <= most_trials
    ]


def _best_of(count: int) -> Callable[[Line], float | None]:
    """Return a function that looks up the expected best of so many trials of a line."""

    def value(line: Line) -> float | None:
        by_count: Sequence[float] = line["tuning"]["best_of"]
        return by_count[count - 1] if count <= len(by_count) else None

    return value


def _edges(line: Line) -> list[str]:
    """Name the axes on which the chosen setting is near an end of the searched range.

    Returns:
        Texts such as `beta (low)`.
    """
    near: list[str] = []
    for name, position in line["tuning"]["edges"].items():
        # The position in the range, from 0 to 1.
        if position < EDGE:
            near.append(f"{name} (low)")
        elif position > 1 - EDGE:
            near.append(f"{name} (high)")
    return near


# ---- The figure ----


def _curve(line: Line, style: Style) -> Figure:
    """Draw the expected best of n trials of an entry."""
    values = line["tuning"]["best_of"]
    method = line["method"]
    colour = style.colour(method)
    trial_counts = range(1, len(values) + 1)
    return trace(
        trial_counts,
        values,
        entry_name(line),
        "%{fullData.name}<br>best of %{x}: %{y:.4g}",
        # A mark shows an entry of one trial, and tells methods apart in grey.
        mode="lines+markers",
        line={"color": colour, "width": 1.6},
        marker={"color": colour, "symbol": style.shape(method), "size": 6, "maxdisplayed": 8},
        meta=meta("own", method, slot=style.slots[method], alpha=0.9, method=entry_name(line)),
    )
