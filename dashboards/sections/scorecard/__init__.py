"""Scorecard: what each method's best setting scores on each question, beside both other models."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import version
from typing import Any

from unlearnbench.analysis.best_settings import OnPanel
from unlearnbench.analysis.lasting import AttackedSetting
from unlearnbench.analysis.results import Results
from unlearnbench.analysis.scorecard import (
    LASTING,
    Score,
    best_beyond_chance,
    lasting_score,
    questions,
)
from unlearnbench.analysis.wording import missing_for_privacy, without_retain_model
from unlearnbench.api.metric import Summary
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema
from unlearnbench.report.best_table import latex, tex

from ...figures.tradeoff_data import TradeOffPanel
from ...formatting import interval_names
from ...report_section import PageContext, Section, of_place
from ..best_settings import SettingsLine, SettingsTable, button, settings_table
from ..lasting import panel_of


@dataclass(frozen=True)
class ScoreLine:
    """A method at its best setting."""

    setting: SettingsLine
    scores: tuple[Score, ...]
    """By the panel's questions; none without a setting."""
    lasting: AttackedSetting | None = None
    """The same setting, on the same seeds, under attacks; None if there were none."""
    is_scored: bool = True
    """False without a setting whose seeds all have numbers."""

    @property
    def numbers(self) -> tuple[Score, ...]:
        """The scores, and behind them what lasts under attacks."""
        if self.lasting is None:
            return self.scores
        return (*self.scores, lasting_score(self.lasting))


@dataclass(frozen=True)
class ScorePanel(OnPanel):
    """A model and split."""

    lines: tuple[ScoreLine, ...]
    references: Mapping[str, tuple[float | None, ...]]
    """Scores of retain and start model, by name."""
    attacked: bool
    """True if settings were attacked."""


@dataclass(frozen=True)
class ScoreTables:
    """The scorecards of all panels, and what they cannot answer."""

    questions: tuple[Summary, ...]
    """Scores that a model of some panel has."""
    panels: tuple[ScorePanel, ...]
    unknown: tuple[str, ...]
    """Labels of the scores that no model has, each with what it lacks."""

    @property
    def drawn(self) -> tuple[ScorePanel, ...]:
        """The panels of which a table is drawn: without a score it would have only dashes."""
        return tuple(panel for panel in self.panels if self.questions or panel.attacked)


@lru_cache(maxsize=1)
def score_tables(context: PageContext) -> ScoreTables:
    """Score the best settings of every panel with a run."""
    schema = context.columns.schema
    asked = questions(schema)
    chosen = settings_table(context).lines
    panels = [
        _panel(context, panel, lines)
        for panel in context.panels
        if asked and (lines := of_place(chosen, panel))
    ]
    # Without any line there is nothing to say about a score.
    has_lines = any(line.is_scored for panel in panels for line in panel.lines)
    known = [i for i, _ in enumerate(asked) if not has_lines or _has_number(panels, i)]
    unknown = [
        _without_number(summary, panels, i) for i, summary in enumerate(asked) if i not in known
    ]
    return ScoreTables(
        tuple(asked[i] for i in known),
        tuple(_only(panel, known) for panel in panels),
        tuple(unknown),
    )


def score_panels(context: PageContext) -> tuple[ScorePanel, ...]:
    """Return the scorecard of every panel, with the scores that have a number."""
    return score_tables(context).panels


def _has_number(panels: Sequence[ScorePanel], i: int) -> bool:
    lines = (line for panel in panels for line in panel.lines if line.is_scored)
    of_settings = (line.scores[i].mean for line in lines)
    of_models = (numbers[i] for panel in panels for numbers in panel.references.values())
    return any(number is not None for number in (*of_settings, *of_models))


def _only(panel: ScorePanel, known: Sequence[int]) -> ScorePanel:
    """Return a panel with some of its scores."""
    lines = tuple(
        replace(line, scores=tuple(line.scores[i] for i in known)) if line.is_scored else line
        for line in panel.lines
    )
    references = {
        name: tuple(numbers[i] for i in known) for name, numbers in panel.references.items()
    }
    return replace(panel, lines=lines, references=references)


def _without_number(summary: Summary, panels: Sequence[ScorePanel], i: int) -> str:
    """Name a score that no model has, and those of its parts that have no number either."""
    lines = (line for panel in panels for line in panel.lines if line.is_scored)
    score = next(lines).scores[i]
    lacking = [
        part.column.label
        for part in score.parts
        if part.column.name in summary.parts() and part.value is None
    ]
    label = summary.columns()[0].label
    return f"{label} (no {', no '.join(lacking)})" if lacking else label


def _panel(context: PageContext, panel: TradeOffPanel, lines: Sequence[SettingsLine]) -> ScorePanel:
    schema = context.columns.schema
    scorer = context.report.scorers[panel.panel]
    attacked = panel_of(context, panel)
    scored: list[ScoreLine] = []
    for line in lines:
        if line.setting is None or line.setting.why_not:
            # A mean over the other seeds would hide a seed that ended early.
            scored.append(ScoreLine(line, (), is_scored=False))
        else:
            lasting = None if attacked is None else attacked.of(line.setting)
            scored.append(ScoreLine(line, scorer.scores(line.setting.rows), lasting))
    names = [question.columns()[0].name for question in questions(schema)]
    references = {
        name: tuple(row.metrics.get(column) for column in names)
        for name, row in (("retain model", panel.retain), ("start model", panel.fine_tuned))
        if row is not None
    }
    return ScorePanel(*panel.panel, tuple(scored), references, attacked is not None)


class ScorecardSection(Section):
    """The scores of each panel, the numbers behind them, and warnings."""

    name, title, order, folder = "scorecard", "Scorecard", 30, "scorecard"

    def values(self, context: PageContext) -> Mapping[str, Any] | None:
        """Score the best settings of each panel."""
        tables, schema = score_tables(context), context.columns.schema
        panels = tables.drawn
        if not panels and not tables.unknown:
            return None
        scores = {score.columns()[0].name: score for score in tables.questions}
        every = [summary for summary in schema.plan.summaries.values() if summary.question]
        kept = scores["kept"].parts() if "kept" in scores else ()
        return {
            "panels": panels,
            "questions": scores,
            "kept_parts": [schema.column(part).label for part in kept],
            "unknown": [
                item.columns()[0].label
                for item in every
                if not item.relative_to <= schema.references
            ],
            "without_number": tables.unknown,
            "notes": [*filter(None, (without_retain_model(schema), missing_for_privacy(schema)))],
            "forgotten_parts": _labels_of_parts(schema, scores.get("forgotten")),
            "removed_parts": _labels_of_parts(schema, scores.get("removed")),
            "retain": schema.has_retain,
            "attacked": any(panel.attacked for panel in panels),
            "lasting": LASTING,
            "button": button,
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


def _labels_of_parts(schema: BenchmarkSchema, summary: Summary | None) -> list[str]:
    return [] if summary is None else [schema.column(part).label for part in summary.parts()]


def scorecard_latex(report: Results) -> str:
    """Write the scorecards of all panels of a report, one table each; empty without a panel."""
    return "\n".join(latex_tables(PageContext.of(report)))


def latex_tables(context: PageContext) -> tuple[str, ...]:
    """Write the scorecard of every panel."""
    rule = settings_table(context)
    return tuple(_table(context, panel, rule) for panel in score_tables(context).drawn)


def _table(context: PageContext, panel: ScorePanel, rule: SettingsTable) -> str:
    names = [question.columns()[0].label for question in score_tables(context).questions]
    names += [LASTING] * panel.attacked
    none = Score("", None, {}, None, {})
    values = [[*item.numbers, *[none] * (len(names) - len(item.numbers))] for item in panel.lines]
    bold = [best_beyond_chance(column) for column in zip(*values, strict=True)]
    lines = [["Method", *map(tex, names)]]
    lines += [
        [
            tex(item.setting.method),
            *(_cell(v, bold=k == best) for v, best in zip(value, bold, strict=True)),
        ]
        for k, (item, value) in enumerate(zip(panel.lines, values, strict=True))
    ]
    rule_before = len(lines) if panel.references else -1
    lines += [
        [name, *("" if v is None else f"{v:.2f}" for v in numbers), *[""] * panel.attacked]
        for name, numbers in panel.references.items()
    ]
    caption = f"Scores of each method's best setting, {panel.place}: 0 to 1, higher is better."
    notes = [
        f"unlearnbench {version('unlearnbench')}, profile {context.report.profile}",
        *_notes(rule, [item for line in values for item in line]),
        *(
            f"{score.label}, {line.setting.method}: no number, because {score.why_not}."
            for line in panel.lines
            for score in line.numbers
            if score.why_not
        ),
        *(
            f"{line.setting.method}: {line.setting.why_not}."
            for line in panel.lines
            if line.setting.setting is None and line.setting.why_not
        ),
    ]
    return latex(caption, notes, lines, 1, rule_before)


def _cell(value: Score, *, bold: bool) -> str:
    if value.mean is None:
        return "--"
    text = rf"\textbf{{{value.mean:.2f}}}" if bold else f"{value.mean:.2f}"
    if value.interval is not None:
        text += f" [{value.interval.low:.2f}, {value.interval.high:.2f}]"
    return text + (r"$^\dagger$" if value.warnings else "")


def _notes(rule: SettingsTable, values: Sequence[Score]) -> Iterable[str]:
    """List what the table shows, as comments: its rule, seeds, brackets and marks."""
    seeds = ", ".join(map(str, rule.seeds))
    yield f"Setting: {rule.rule}."
    many = len(rule.seeds) > 1
    yield f"Means over seeds {seeds}, or those that a setting has." if many else f"Seed {seeds}."
    for name in interval_names(item.interval for item in values):
        yield f"Brackets: {name}."
    yield (
        "Bold: better than every other method's beyond chance, by the t interval of the "
        "differences over the seeds of both, three or more."
    )
    if any(item.warnings for item in values):
        yield "Dagger: beyond the retain model, repetitive or bypassed, so no success."
