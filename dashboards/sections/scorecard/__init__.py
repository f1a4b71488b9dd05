"""Scorecard: scores of each method's best setting, and of the retain and the start model."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import version
from typing import Any

from unlearnbench.analysis.lasting import AttackedSetting
from unlearnbench.analysis.results import Results
from unlearnbench.analysis.scorecard import (
    LASTING,
    Score,
    best_beyond_chance,
    lasting_score,
    questions,
)
from unlearnbench.analysis.settings import OnPanel
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
    """One for each of `ScoreTables.questions`; empty if `is_scored` is False."""
    lasting: AttackedSetting | None = None
    """The same setting, on the same seeds, under attacks; None if it was not attacked."""
    is_scored: bool = True
    """Whether there is a setting whose seeds all have numbers."""

    @property
    def numbers(self) -> tuple[Score, ...]:
        """The scores, and after them the score of Lasting if the setting was attacked."""
        if self.lasting is None:
            return self.scores
        return (*self.scores, lasting_score(self.lasting))


@dataclass(frozen=True)
class ScorePanel(OnPanel):
    """A model and split."""

    lines: tuple[ScoreLine, ...]
    references: Mapping[str, tuple[float | None, ...]]
    """Scores of the retain and the start model, by name (`retain model`)."""
    attacked: bool
    """Whether settings of the panel were attacked."""


@dataclass(frozen=True)
class ScoreTables:
    """The scorecards of all panels, and what they cannot answer."""

    questions: tuple[Summary, ...]
    """Scores that at least one model has."""
    panels: tuple[ScorePanel, ...]
    unknown: tuple[str, ...]
    """Labels of the scores that no model has, each with the parts that have no number."""

    @property
    def drawn(self) -> tuple[ScorePanel, ...]:
        """The panels that get a table. Without any score, a table would have only dashes."""
        return tuple(panel for panel in self.panels if self.questions or panel.attacked)


@lru_cache(maxsize=1)
def score_tables(context: PageContext) -> ScoreTables:
    """Score the best settings of every panel with a run."""
    asked = questions(context.columns.schema)
    if not asked:
        return ScoreTables((), (), ())
    chosen = settings_table(context).lines
    panels: list[ScorePanel] = []
    for panel in context.panels:
        lines = of_place(chosen, panel)
        if lines:
            panels.append(_panel(context, panel, lines))

    # If no line is scored, there is nothing to say about a single score.
    has_scored_lines = any(line.is_scored for panel in panels for line in panel.lines)
    known: list[int] = []
    unknown: list[str] = []
    for index, summary in enumerate(asked):
        if not has_scored_lines or _has_number(panels, index):
            known.append(index)
        else:
            unknown.append(_without_number(summary, panels, index))
    return ScoreTables(
        tuple(asked[index] for index in known),
        tuple(_with_scores(panel, known) for panel in panels),
        tuple(unknown),
    )


def score_panels(context: PageContext) -> tuple[ScorePanel, ...]:
    """Return the scorecard of every panel, with the scores that have a number."""
    return score_tables(context).panels


def _has_number(panels: Sequence[ScorePanel], index: int) -> bool:
    """Whether any setting or reference of any panel has a number for the score at an index."""
    for panel in panels:
        of_settings = [line.scores[index].mean for line in panel.lines if line.is_scored]
        of_references = [numbers[index] for numbers in panel.references.values()]
        if any(number is not None for number in (*of_settings, *of_references)):
            return True
    return False


def _with_scores(panel: ScorePanel, indices: Sequence[int]) -> ScorePanel:
    """Return a panel that keeps the scores at some indices."""
    lines: list[ScoreLine] = []
    for line in panel.lines:
        if line.is_scored:
            line = replace(line, scores=tuple(line.scores[index] for index in indices))
        lines.append(line)
    references = {
        name: tuple(numbers[index] for index in indices)
        for name, numbers in panel.references.items()
    }
    return replace(panel, lines=tuple(lines), references=references)


def _without_number(summary: Summary, panels: Sequence[ScorePanel], index: int) -> str:
    """Name a score that no model has, and its parts that have no number."""
    # No line has a number for this score. The parts of the first line show what is missing.
    lines = (line for panel in panels for line in panel.lines if line.is_scored)
    score = next(lines).scores[index]
    lacking = [
        part.column.label
        for part in score.parts
        if part.column.name in summary.parts() and part.value is None
    ]
    label = summary.columns()[0].label
    return f"{label} (no {', no '.join(lacking)})" if lacking else label


def _panel(context: PageContext, panel: TradeOffPanel, lines: Sequence[SettingsLine]) -> ScorePanel:
    """Score the best setting of each method of a panel, and the panel's references."""
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

    score_names = [question.columns()[0].name for question in questions(schema)]
    references: dict[str, tuple[float | None, ...]] = {}
    for name, row in (("retain model", panel.retain), ("start model", panel.fine_tuned)):
        if row is not None:
            references[name] = tuple(row.metrics.get(column) for column in score_names)
    return ScorePanel(*panel.panel, tuple(scored), references, attacked is not None)


class ScorecardSection(Section):
    """The scores of each panel, the numbers behind them, and warnings."""

    name, title, order, folder = "scorecard", "Scorecard", 30, "scorecard"

    def values(self, context: PageContext) -> Mapping[str, Any] | None:
        """Score the best settings of each panel."""
        tables = score_tables(context)
        panels = tables.drawn
        if not panels and not tables.unknown:
            return None

        schema = context.columns.schema
        scores = {score.columns()[0].name: score for score in tables.questions}
        notes = (without_retain_model(schema), missing_for_privacy(schema))
        intervals = (
            number.interval for panel in panels for line in panel.lines for number in line.numbers
        )
        return {
            "panels": panels,
            "questions": scores,
            "kept_parts": _labels_of_parts(schema, scores.get("kept")),
            "unknown": _without_reference(schema),
            "without_number": tables.unknown,
            "notes": [note for note in notes if note],
            "forgotten_parts": _labels_of_parts(schema, scores.get("forgotten")),
            "removed_parts": _labels_of_parts(schema, scores.get("removed")),
            "retain": schema.has_retain,
            "attacked": any(panel.attacked for panel in panels),
            "lasting": LASTING,
            "button": button,
            "brackets": interval_names(intervals),
        }

    def data(self, context: PageContext) -> Any:
        """Write the table of each panel, by the panel's number."""
        return {str(i): {"LaTeX": text} for i, text in enumerate(latex_tables(context))}


def _labels_of_parts(schema: BenchmarkSchema, summary: Summary | None) -> list[str]:
    """Label the columns that a score is computed from; none without the score."""
    return [] if summary is None else [schema.column(part).label for part in summary.parts()]


def _without_reference(schema: BenchmarkSchema) -> list[str]:
    """Label the scores that are relative to a model that the sweep does not have."""
    scores = [summary for summary in schema.plan.summaries.values() if summary.question]
    return [
        score.columns()[0].label for score in scores if not score.relative_to <= schema.references
    ]


def scorecard_latex(report: Results) -> str:
    """Write the scorecards of all panels of a report, one table each; empty without a panel."""
    return "\n".join(latex_tables(PageContext.of(report)))


def latex_tables(context: PageContext) -> tuple[str, ...]:
    """Write the scorecard of every panel."""
    rule = settings_table(context)
    return tuple(_latex_table(context, panel, rule) for panel in score_tables(context).drawn)


def _latex_table(context: PageContext, panel: ScorePanel, rule: SettingsTable) -> str:
    """Write the scorecard of a panel: a line per method, then the references below a rule."""
    titles = [question.columns()[0].label for question in score_tables(context).questions]
    if panel.attacked:
        titles.append(LASTING)
    scores_of_lines = [_filled(line.numbers, len(titles)) for line in panel.lines]
    # For each column the index of the line that is better than all others; None if none is.
    best_of_columns = [best_beyond_chance(column) for column in zip(*scores_of_lines, strict=True)]

    lines = [["Method", *map(tex, titles)]]
    for index, (line, scores) in enumerate(zip(panel.lines, scores_of_lines, strict=True)):
        cells = [
            _cell(score, bold=index == best)
            for score, best in zip(scores, best_of_columns, strict=True)
        ]
        lines.append([tex(line.setting.method), *cells])
    first_reference = len(lines) if panel.references else -1
    for name, numbers in panel.references.items():
        cells = ["" if number is None else f"{number:.2f}" for number in numbers]
        if panel.attacked:
            # What lasts is relative to the references, so they have no such score themselves.
            cells.append("")
        lines.append([name, *cells])

    caption = f"Scores of each method's best setting, {panel.place}: 0 to 1, higher is better."
    notes = [
        f"unlearnbench {version('unlearnbench')}, profile {context.report.profile}",
        *_notes(rule, [score for scores in scores_of_lines for score in scores]),
        *_attackers(panel),
        *_reasons(panel),
    ]
    return latex(caption, notes, lines, 1, first_reference)


def _filled(scores: Sequence[Score], count: int) -> list[Score]:
    """Append scores without a number, as a method without a setting has, up to a count."""
    without_number = Score("", None, {}, None, {})
    return [*scores, *[without_number] * (count - len(scores))]


def _attackers(panel: ScorePanel) -> Iterable[str]:
    """Say which attacker a search has chosen for each method, and which seeds it is scored on."""
    for line in panel.lines:
        worst = None if line.lasting is None else line.lasting.worst
        if worst is not None and worst.tuned is not None:
            yield (
                f"{LASTING}, {line.setting.method}: {worst.label} ({worst.tuned.settings}; "
                f"{worst.tuned.seeds_text})."
            )


def _reasons(panel: ScorePanel) -> Iterable[str]:
    """Say why scores have no number, and then why methods have no setting."""
    for line in panel.lines:
        for score in line.numbers:
            if score.why_not:
                yield f"{score.label}, {line.setting.method}: no number, because {score.why_not}."
    for line in panel.lines:
        if line.setting.setting is None and line.setting.why_not:
            yield f"{line.setting.method}: {line.setting.why_not}."


def _cell(score: Score, *, bold: bool) -> str:
    """Write a mean with its interval, and a dagger if a warning says that it is no success."""
    if score.mean is None:
        return "--"
    text = rf"\textbf{{{score.mean:.2f}}}" if bold else f"{score.mean:.2f}"
    if score.interval is not None:
        text += f" [{score.interval.low:.2f}, {score.interval.high:.2f}]"
    return text + (r"$^\dagger$" if score.warnings else "")


def _notes(rule: SettingsTable, scores: Sequence[Score]) -> Iterable[str]:
    """Explain the table in comments: its rule, seeds, brackets and marks."""
    yield f"Setting: {rule.rule}."
    seeds = ", ".join(map(str, rule.seeds))
    if len(rule.seeds) > 1:
        yield f"Means over seeds {seeds}, or those that a setting has."
    else:
        yield f"Seed {seeds}."
    for name in interval_names(score.interval for score in scores):
        yield f"Brackets: {name}."
    yield (
        "Bold: better than every other method's beyond chance, by the t interval of the "
        "differences over the seeds of both, three or more."
    )
    if any(score.warnings for score in scores):
        yield "Dagger: beyond the retain model, repetitive or bypassed, so no success."
