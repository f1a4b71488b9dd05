"""Tuning: what each entry's trials were worth, and what its defaults reach without any."""

from collections.abc import Mapping
from typing import Any

from unlearnbench.analysis.selection import entry_name
from unlearnbench.analysis.settings import PanelKey, panel_label
from unlearnbench.analysis.tuning import EDGE, tuned
from unlearnbench.report.best_table import Column

from ...figures.marks import Figure, small_layout, trace
from ...figures.palette import meta
from ...html_table import HtmlTable, number_column
from ...report_section import PageContext, Section

AT = (1, 3, 6, 12, 24)
"""Numbers of trials of which the table has the expected best."""


class Tuning(Section):
    """Trials, choices and untuned defaults; absent without a choice on some of the seeds."""

    name, title, order, folder = "tuning", "Tuning", 65, "tuning"

    def values(self, context: PageContext) -> Mapping[str, Any] | None:
        """Make the table."""
        lines, headline = tuned(context.report.selection), context.report.headline
        if not lines:
            return None
        most = max(line["tuning"]["trials"] for line in lines)
        columns = [Column("Method", entry_name, align="")]
        if len(context.panels) > 1:
            columns.append(Column("Panel", lambda line: panel_label(*_panel(line)), align=""))
        columns += [
            Column("Trials", lambda line: str(line["tuning"]["trials"])),
            Column("Failed", lambda line: str(line["tuning"]["failed"])),
        ]
        for metric in (headline.forgotten, headline.kept):
            for title, of in ((metric.short, "reported"), (f"{metric.short}, untuned", "untuned")):
                columns.append(
                    number_column(title, _reported(of, metric.column), metric.digits, "num")
                )
        for count in (count for count in AT if count <= most):
            columns.append(number_column(f"best of {count}", _best_of(count), 2, "num"))
        columns += [
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
        headline, style = context.report.headline, context.style
        figures: list[list[Figure]] = []
        for panel in context.panels:
            lines = [
                trace(
                    [*range(1, len(values) + 1)],
                    values,
                    entry_name(line),
                    "%{fullData.name}<br>best of %{x}: %{y:.4g}",
                    # A mark shows an entry of one trial, and tells methods apart in grey.
                    mode="lines+markers",
                    line={"color": style.colour(line["method"]), "width": 1.6},
                    marker={
                        "color": style.colour(line["method"]),
                        "symbol": style.shape(line["method"]),
                        "size": 6,
                        "maxdisplayed": 8,
                    },
                    meta=meta(
                        "own",
                        line["method"],
                        slot=style.slots[line["method"]],
                        alpha=0.9,
                        method=entry_name(line),
                    ),
                )
                for line in tuned(context.report.selection)
                if _panel(line) == panel.panel and (values := line["tuning"]["best_of"])
            ]
            title = f"expected best {headline.forgotten.short} of n trials"
            figures.append([{"data": lines, "layout": small_layout(title, "trials n")}])
        return figures


def _panel(line: Mapping[str, Any]) -> PanelKey:
    return line["model"], line["forget_fraction"]


def _reported(of: str, column: str) -> Any:
    """The mean on the other seeds, of the choice or of the defaults."""

    def value(line: Mapping[str, Any]) -> float | None:
        result: float | None = (line[of] or {}).get(column, {}).get("mean")
        return result

    return value


def _best_of(count: int) -> Any:
    def value(line: Mapping[str, Any]) -> float | None:
        values = line["tuning"]["best_of"]
        return values[count - 1] if count <= len(values) else None

    return value


def _edges(line: Mapping[str, Any]) -> list[str]:
    """Axes of the chosen setting that are near an end of their range, and which."""
    shares = line["tuning"]["edges"].items()
    return [
        f"{name} ({'low' if share < EDGE else 'high'})"
        for name, share in shares
        if not EDGE <= share <= 1 - EDGE
    ]
