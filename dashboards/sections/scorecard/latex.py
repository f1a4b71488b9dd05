r"""The scorecard as a LaTeX table (booktabs) ; comments in it say how to read it.

The number of a column that is better than every other beyond chance is bold: by the differences
over the seeds that two methods share (`is_above`), of which there have to be three.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from unlearnbench.analysis.best_settings import panel_label
from unlearnbench.analysis.results import Results
from unlearnbench.api.metric import Summary
from unlearnbench.reporting.latex import tex
from unlearnbench.stats.t_interval import is_above

from ...formatting import interval_names
from ...report_section import PageContext
from ..best_settings.data import SettingsTable, settings_tables
from .data import LASTING, Score, ScorePanel, questions, score_panels


def scorecard_latex(report: Results) -> str:
    """Write the scorecards of all panels of a report, one table each; empty without a panel."""
    return "\n".join(latex_tables(PageContext.of(report)))


def latex_tables(context: PageContext) -> tuple[str, ...]:
    """Write the scorecard of every panel."""
    scores = questions(context.columns.schema)
    rule = settings_tables(context.report)[0]
    return tuple(_table(context, one, scores, rule) for one in context.once(score_panels))


def _table(
    context: PageContext, panel: ScorePanel, scores: Sequence[Summary], rule: SettingsTable
) -> str:
    names = [one.columns()[0].label for one in scores] + ([LASTING] if panel.attacked else [])
    none = Score("", None, {}, None, {})
    values = [[*one.numbers, *[none] * (len(names) - len(one.numbers))] for one in panel.lines]
    bold = [best_of([line[i] for line in values]) for i in range(len(names))]
    lines = [
        _line(tex(one.setting.method), [_cell(v, bold=k == bold[i]) for i, v in enumerate(found)])
        for k, (one, found) in enumerate(zip(panel.lines, values, strict=True))
    ]
    references = [
        _line(name, ["" if v is None else f"{v:.2f}" for v in found] + [""] * bool(panel.attacked))
        for name, found in panel.references.items()
    ]
    place = panel_label(panel.model, panel.forget_fraction)
    caption = f"Scores of each method's best setting, {place}: 0 to 1, higher is better."
    head = [
        f"% unlearnbench {version('unlearnbench')}, profile {context.report.profile}",
        *(f"% {tex(line)}" for line in _notes(rule, values)),
        r"% \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{tex(caption)}}}",
        rf"\begin{{tabular}}{{l{'r' * len(names)}}}",
        r"\toprule",
        _line("Method", list(map(tex, names))),
        r"\midrule",
    ]
    foot = [r"\midrule", *references] if references else []
    foot += [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    return "\n".join([*head, *lines, *foot])


def best_of(values: Sequence[Score]) -> int | None:
    """Find the place of the number that is better than every other beyond chance, if any is."""
    known = {i: one.by_seed for i, one in enumerate(values) if one.mean is not None}
    for i, own in known.items():
        others = [one for k, one in known.items() if k != i]
        if others and all(is_above(own, one) for one in others):
            return i
    return None


def _cell(value: Score, *, bold: bool) -> str:
    if value.mean is None:
        return "--"
    text = rf"\textbf{{{value.mean:.2f}}}" if bold else f"{value.mean:.2f}"
    if value.interval is not None:
        text += f" [{value.interval.low:.2f}, {value.interval.high:.2f}]"
    return text + (r"$^\dagger$" if value.warnings else "")


def _line(name: str, cells: Sequence[str]) -> str:
    return " & ".join((name, *cells)) + r" \\"


def _notes(rule: SettingsTable, values: Sequence[Sequence[Score]]) -> list[str]:
    """List what the table shows, as comments: its rule, seeds, brackets and marks."""
    every = [one for line in values for one in line]
    seeds = ", ".join(map(str, rule.seeds))
    found = [
        f"Setting: {rule.rule}.",
        f"{'Means over seeds' if len(rule.seeds) > 1 else 'Seed'} {seeds}.",
        *(f"Brackets: {name}." for name in interval_names(one.interval for one in every)),
        "Bold: better than every other method's beyond chance, by the t interval of the "
        "differences over the seeds of both, three or more.",
    ]
    if any(one.warnings for one in every):
        found.append("Dagger: beyond the retain model or bypassed, so no success.")
    return found
