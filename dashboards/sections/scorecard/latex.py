r"""The scorecard as a LaTeX table (booktabs) whose caption says how to read it.

The best mean of a column is bold, and every other that is not distinguished from it: whose interval
over seeds overlaps with the best one's. Of two seeds the range stands for it, and of one seed there
is none, so that equal numbers alone share the bold: the caption says that neither proves anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from unlearnbench.analysis.best_settings import panel_label
from unlearnbench.api.metric import Summary
from unlearnbench.reporting.latex import tex
from unlearnbench.reporting.report import Report
from unlearnbench.stats.t_interval import ENOUGH_SEEDS, Interval

from ...report_section import PageContext
from ..best_settings.data import SettingsTable, caveats, settings_tables
from .data import LASTING, ScoreLine, ScorePanel, questions, score_panels


@dataclass(frozen=True)
class LatexTable:
    """A table in parts, so that a page can leave out the lines that its filters hide."""

    head: str
    lines: tuple[str, ...]
    """By the panel's lines."""
    foot: str

    def __str__(self) -> str:
        return "\n".join((self.head, *self.lines, self.foot))


@dataclass(frozen=True)
class _Value:
    """One number of the table."""

    mean: float | None
    interval: Interval | None
    beyond: bool = False
    """True with a warning, that the number is no success."""

    @property
    def ends(self) -> tuple[float, float]:
        """The interval within the scale; the number itself without one."""
        mean = self.mean or 0.0
        if self.interval is None:
            return mean, mean
        return max(0.0, self.interval.low), min(1.0, self.interval.high)


def scorecard_latex(report: Report) -> str:
    """Write the scorecards of all panels of a report, one table each; empty without a panel."""
    return "\n".join(map(str, latex_tables(PageContext.of(report))))


def latex_tables(context: PageContext) -> tuple[LatexTable, ...]:
    """Write the scorecard of every panel."""
    scores = questions(context.columns.schema)
    rule = settings_tables(context.report)[0]
    return tuple(_table(context, one, scores, rule) for one in context.once(score_panels))


def _table(
    context: PageContext, panel: ScorePanel, scores: Sequence[Summary], rule: SettingsTable
) -> LatexTable:
    names = [one.columns()[0].label for one in scores] + ([LASTING] if panel.attacked else [])
    values = [_values(line, len(names)) for line in panel.lines]
    bold = [best_and_ties([line[i] for line in values]) for i in range(len(names))]
    lines = [
        _line(tex(one.setting.method), [_cell(v, bold=k in bold[i]) for i, v in enumerate(found)])
        for k, (one, found) in enumerate(zip(panel.lines, values, strict=True))
    ]
    references = [
        _line(name, ["" if v is None else f"{v:.2f}" for v in found] + [""] * bool(panel.attacked))
        for name, found in panel.references.items()
    ]
    head = [
        f"% unlearnbench {version('unlearnbench')}, profile {context.report.profile}",
        r"% \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{tex(_caption(context, panel, rule, values))}}}",
        rf"\begin{{tabular}}{{l{'r' * len(names)}}}",
        r"\toprule",
        _line("Method", list(map(tex, names))),
        r"\midrule",
    ]
    foot = [r"\midrule", *references] if references else []
    foot += [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    return LatexTable("\n".join(head), tuple(lines), "\n".join(foot))


def _values(line: ScoreLine, count: int) -> list[_Value]:
    """List the numbers of a method, by column."""
    found = [_Value(one.mean, one.interval, bool(one.warnings)) for one in line.scores]
    if line.lasting is not None:
        under, worst = line.lasting, line.lasting.worst
        interval = None if worst is None else worst.lasting_interval
        found.append(_Value(under.lasting, interval, bool(under.bypassed_by)))
    return found + [_Value(None, None)] * (count - len(found))


def best_and_ties(values: Sequence[_Value]) -> set[int]:
    """Find the largest mean and those that are not distinguished from it, by their places."""
    known = {i: one for i, one in enumerate(values) if one.mean is not None}
    if not known:
        return set()
    best = max(known.values(), key=lambda one: one.mean or 0.0)
    low, high = best.ends
    return {
        i
        for i, one in known.items()
        if (one.ends[1] >= low and one.ends[0] <= high)
        or f"{one.mean:.2f}" == f"{best.mean:.2f}"  # they could not be read apart
    }


def _cell(value: _Value, *, bold: bool) -> str:
    if value.mean is None:
        return "--"
    text = rf"\textbf{{{value.mean:.2f}}}" if bold else f"{value.mean:.2f}"
    if value.interval is not None:
        low, high = value.ends
        text += f" [{low:.2f}, {high:.2f}]"
    return text + (r"$^\dagger$" if value.beyond else "")


def _line(name: str, cells: Sequence[str]) -> str:
    return " & ".join((name, *cells)) + r" \\"


def _caption(
    context: PageContext,
    panel: ScorePanel,
    rule: SettingsTable,
    values: Sequence[Sequence[_Value]],
) -> str:
    """Say what the table shows: its rule, seeds, brackets, marks and caveats."""
    every = [one for line in values for one in line]
    intervals = {one.interval.n: one.interval for one in every if one.interval is not None}
    seeds = ", ".join(map(str, rule.seeds))
    several = len(rule.seeds) > 1
    place = (panel.model, panel.forget_fraction)
    claims = [one for one in context.claims.panels if (one.model, one.forget_fraction) == place]
    parts = [
        f"Scorecard, {panel_label(*place)}: scores between 0 and 1 of each method's best setting, "
        f"{rule.rule}.",
        f"{'Means over seeds' if several else 'Seed'} {seeds}.",
        *(f"Brackets: {intervals[n].name}." for n in sorted(intervals)),
        "Bold: the highest mean of a column"
        + (", and those whose brackets overlap with its own." if intervals else "."),
    ]
    if not intervals or min(intervals) < ENOUGH_SEEDS:
        few = "one seed" if not intervals else "two seeds"
        parts.append(f"With {few}, a number that is not bold may still be as good.")
    if any(one.beyond for one in every):
        parts.append("Dagger: beyond the retain model or bypassed, so no success.")
    here = SettingsTable(
        rule.name,
        rule.title,
        rule.rule,
        rule.seeds,
        tuple(one.setting for one in panel.lines),
        rule.headline,
    )
    order = type(context.claims)(tuple(claims), context.claims.ranks)
    return " ".join((*parts, *caveats(here, order)))


def exported_latex(context: PageContext) -> list[dict[str, Any]]:
    """Collect the tables as the page copies them."""
    return [
        {"head": one.head, "lines": list(one.lines), "foot": one.foot}
        for one in latex_tables(context)
    ]
