"""Scorecard: what each method's best setting scores on each question, beside both other models."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from typing import Any

from unlearnbench.analysis.best_settings import panel_label
from unlearnbench.analysis.lasting import AttackedPanel, AttackedSetting
from unlearnbench.analysis.results import Results
from unlearnbench.analysis.scorecard import Score, Scorer, questions
from unlearnbench.analysis.text import variant_label
from unlearnbench.api.benchmark import SplitKey
from unlearnbench.api.metric import Summary
from unlearnbench.report.best_table import tex
from unlearnbench.stats.t_interval import is_above

from ...figures.tradeoff_data import TradeOffPanel
from ...formatting import interval_names, short
from ...report_section import PageContext, Section, of_place
from ..best_settings import SettingsLine, SettingsTable, settings_tables
from ..lasting import panel_of

KINDS = {
    "bypassed": "bypassed: an attack on the weights runs the model without the method",
    "over-forgotten": "over-forgotten: below the retain model, which never saw the forget rows",
    "unfamiliar": "forget rows that look less familiar than rows that no model has seen",
}
"""Kinds of warnings, and their summaries."""
LASTING = "Lasting"
"""Label of the number of the section on attacks."""


@dataclass(frozen=True)
class ScoreLine:
    """A method at its best setting."""

    setting: SettingsLine
    scores: tuple[Score, ...]
    """By the panel's questions; none without a setting."""
    lasting: AttackedSetting | None = None
    """Its best setting among the attacked ones."""

    @property
    def numbers(self) -> tuple[Score, ...]:
        """The scores, and behind them what lasts under attacks."""
        if (under := self.lasting) is None:
            return self.scores
        shares, interval, warnings = dict[int, float](), None, dict[str, str]()
        if under.worst is not None:
            interval = under.worst.lasting_interval
            pairs = zip(under.setting.rows, under.worst.shares, strict=False)
            shares = {row.seed: share for row, share in pairs if share is not None}
        if by := under.bypassed_by:
            text = f"the model alone answers {' and '.join(by)}, as if nothing were forgotten"
            warnings["bypassed"] = text
        return (*self.scores, Score(LASTING, under.lasting, shares, interval, warnings))


@dataclass(frozen=True)
class ScorePanel:
    """A model and split."""

    model: str
    forget_fraction: SplitKey
    lines: tuple[ScoreLine, ...]
    references: Mapping[str, tuple[float | None, ...]]
    """Scores of retain and start model, by name."""
    missing: tuple[str, ...]
    """Sentences: which score is missing and why."""
    attacked: AttackedPanel | None = None
    """The settings under attacks, if there were any."""

    @property
    def warnings(self) -> Mapping[str, Sequence[tuple[SettingsLine, str, str]]]:
        """The warnings by summary: (setting, label of the score, warning)."""
        linesss: dict[str, list[tuple[SettingsLine, str, str]]] = {}
        for kind, summary in KINDS.items():
            for line in self.lines:
                for number in line.numbers:
                    if kind in number.warnings:
                        entry = (line.setting, number.label, number.warnings[kind])
                        linesss.setdefault(summary, []).append(entry)
        return linesss


@lru_cache(maxsize=1)
def score_panels(context: PageContext) -> tuple[ScorePanel, ...]:
    """Score the best settings of every panel with a run."""
    chosen = settings_tables(context)[0].lines
    return tuple(
        _panel(context, panel, lines)
        for panel in context.panels
        if questions(context.columns.schema) and (lines := of_place(chosen, panel))
    )


def _panel(context: PageContext, panel: TradeOffPanel, lines: Sequence[SettingsLine]) -> ScorePanel:
    schema = context.columns.schema
    scorer = Scorer(
        *(schema, panel.retain, panel.fine_tuned),
        lambda row: context.evaluation(row.run_id, row.epoch),
    )
    attacked = panel_of(context, panel)
    best = {} if attacked is None else {item.setting.family: item for item in attacked.best}
    scored = tuple(
        ScoreLine(line, scorer.scores(line.setting.rows), best.get(line.family))
        if line.setting
        else ScoreLine(line, ())
        for line in lines
    )
    references = {"retain model": panel.retain, "start model": panel.fine_tuned}
    return ScorePanel(
        panel.model,
        panel.forget_fraction,
        scored,
        {
            name: tuple(
                row.metrics.get(question.columns()[0].name) for question in questions(schema)
            )
            for name, row in references.items()
            if row is not None
        },
        tuple(
            f"No {score.columns()[0].label}: {why}."
            for i, score in enumerate(questions(schema))
            if all(item.scores[i].mean is None for item in scored if item.scores)
            and (why := _why_missing(context, panel, score, scored))
        ),
        attacked,
    )


def _why_missing(
    context: PageContext, panel: TradeOffPanel, score: Summary, lines: Iterable[ScoreLine]
) -> str:
    """Name what a score lacks, in words that follow a colon; empty without a run."""
    for kind, row in (("retain", panel.retain), ("start", panel.fine_tuned)):
        if kind in score.relative_to and row is None:
            return f"the {kind} model was not evaluated"
    rows = [row for line in lines if line.setting.setting for row in line.setting.setting.rows]
    if not rows:
        return ""
    lacking = [part for part in score.parts() if all(r.metrics.get(part) is None for r in rows)]
    labels = ", ".join(context.columns.schema.column(part).label for part in lacking)
    return f"{labels or 'it'} is not in the records; evaluate again, in a new folder, to have it"


def parts_behind(panel: ScorePanel, line: ScoreLine) -> list[tuple[str, list[Any]]]:
    """List the numbers behind each score: its label, and [label, mean, ends, start, retain]."""

    def numbers(label: str, value: float | None, ends: Any, *models: float | None) -> list[Any]:
        return [label, short(value), [*map(short, ends)] if ends else None, *map(short, models)]

    result = [
        (
            score.label,
            [numbers(p.column.label, p.value, p.interval, p.start, p.retain) for p in score.parts],
        )
        for score in line.scores
    ]
    attacked, of = panel.attacked, line.lasting
    if attacked is None or of is None or not of.under or not line.scores:
        return result
    first = of.under[0]
    models = [item[first.variant].before for item in (attacked.start, attacked.retain)]
    under = [numbers(f"{attacked.column.label}, before", first.before, None, *models)]
    for item in of.under:
        models = [each[item.variant].after for each in (attacked.start, attacked.retain)]
        ends = item.after_interval and (item.after_interval.low, item.after_interval.high)
        under.append(numbers(f"under {variant_label(item.variant)}", item.after, ends, *models))
    return [*result, (LASTING, under)]


class ScorecardSection(Section):
    """The scores of each panel, the numbers behind them, and warnings."""

    name, title, order, folder = "scorecard", "Scorecard", 30, "scorecard"

    def values(self, context: PageContext) -> Mapping[str, Any] | None:
        """Score the best settings of each panel."""
        panels, schema = score_panels(context), context.columns.schema
        if not panels:
            return None
        scores = questions(schema)
        every = [summary for summary in schema.plan.summaries.values() if summary.question]
        return {
            "panels": panels,
            "questions": scores,
            "parts": parts_behind,
            "scored": {score.columns()[0].name for score in scores},
            "kept_parts": [
                schema.column(part).label
                for score in scores
                if score.columns()[0].name == "kept"
                for part in score.parts()
            ],
            "unknown": [
                item.columns()[0].label
                for item in every
                if not item.relative_to <= schema.references
            ],
            "retain": "retain" in schema.references,
            "attacked": any(panel.attacked for panel in panels),
            "lasting": LASTING,
            "brackets": interval_names(
                number.interval
                for panel in panels
                for line in panel.lines
                for number in line.numbers
            ),
        }

    def data(self, context: PageContext) -> Any:
        """Write the table of each panel, by the panel's number."""
        return {str(i): {"LaTeX": text} for i, text in enumerate(latex_tables(context))}


def scorecard_latex(report: Results) -> str:
    """Write the scorecards of all panels of a report, one table each; empty without a panel."""
    return "\n".join(latex_tables(PageContext.of(report)))


def latex_tables(context: PageContext) -> tuple[str, ...]:
    """Write the scorecard of every panel."""
    rule = settings_tables(context)[0]
    return tuple(_table(context, panel, rule) for panel in score_panels(context))


def _table(context: PageContext, panel: ScorePanel, rule: SettingsTable) -> str:
    names = [question.columns()[0].label for question in questions(context.columns.schema)]
    names += [LASTING] if panel.attacked else []
    none = Score("", None, {}, None, {})
    values = [[*item.numbers, *[none] * (len(names) - len(item.numbers))] for item in panel.lines]
    bold = [best_of([line[i] for line in values]) for i in range(len(names))]
    lines = [
        _line(tex(item.setting.method), [_cell(v, bold=k == bold[i]) for i, v in enumerate(value)])
        for k, (item, value) in enumerate(zip(panel.lines, values, strict=True))
    ]
    references = [
        _line(
            name, ["" if v is None else f"{v:.2f}" for v in reference] + [""] * bool(panel.attacked)
        )
        for name, reference in panel.references.items()
    ]
    location = panel_label(panel.model, panel.forget_fraction)
    caption = f"Scores of each method's best setting, {location}: 0 to 1, higher is better."
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
    known = {i: value.by_seed for i, value in enumerate(values) if value.mean is not None}
    for i, part in known.items():
        others = [item for k, item in known.items() if k != i]
        if others and all(is_above(part, other) for other in others):
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
    every = [item for line in values for item in line]
    seeds = ", ".join(map(str, rule.seeds))
    result = [
        f"Setting: {rule.rule}.",
        f"{'Means over seeds' if len(rule.seeds) > 1 else 'Seed'} {seeds}.",
        *(f"Brackets: {name}." for name in interval_names(item.interval for item in every)),
        "Bold: better than every other method's beyond chance, by the t interval of the "
        "differences over the seeds of both, three or more.",
    ]
    if any(item.warnings for item in every):
        result.append("Dagger: beyond the retain model or bypassed, so no success.")
    return result
