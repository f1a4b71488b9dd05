"""The scorecard: per model and split, what each method's best setting scores on each question.

A score with its question, its parts and the models that it is relative to are declared by metrics
(`Summary.question`). All numbers are those of the records; tests of them read the evaluations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from unlearnbench.analysis.lasting import AttackedPanel, AttackedSetting
from unlearnbench.analysis.text import variant_label
from unlearnbench.api.benchmark import SplitKey
from unlearnbench.api.membership import MembershipInference
from unlearnbench.api.metric import EvaluatedModel, MetricColumn, MetricInputs, Summary
from unlearnbench.api.observations import Evaluation
from unlearnbench.config.metric_plan import MetricPlan
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema
from unlearnbench.results.table import TableRow
from unlearnbench.stats.roc import auc_interval
from unlearnbench.stats.t_interval import Interval, t_interval

from ...figures.tradeoff_data import Panel
from ...formatting import short, signed
from ...metric_columns import set_title
from ...report_section import PageContext, of_place
from ..best_settings.data import SettingsLine, settings_tables
from ..lasting.data import panel_of

_Z = 1.96
"""Quantile of the normal distribution: beyond so many standard errors is beyond chance."""
KINDS = {
    "bypassed": "bypassed: an attack on the weights runs the model without the method",
    "over-forgotten": "over-forgotten: below the retain model, which never saw the forget rows",
    "unfamiliar": "forget rows that look less familiar than rows that no model has seen",
}
"""Kinds of warnings, and their summaries."""
LASTING = "Lasting"
"""Label of the number of the section on attacks."""
Ends = tuple[float, float]


@dataclass(frozen=True)
class Part:
    """A number behind a score."""

    column: MetricColumn
    value: float | None
    """Mean over seeds."""
    interval: Ends | None
    """Of an attack: bootstrap interval of the first seed's area."""
    start: float | None
    retain: float | None


@dataclass(frozen=True)
class Score:
    """A method's answer to one question."""

    label: str
    mean: float | None
    by_seed: Mapping[int, float]
    interval: Interval | None
    """The mean's t interval over seeds; None without one."""
    warnings: Mapping[str, str]
    """Why the number is no success, by kind (`KINDS`)."""
    parts: tuple[Part, ...] = ()

    @property
    def warning(self) -> str:
        """All warnings; empty without one."""
        return "; ".join(self.warnings.values())


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


def questions(schema: BenchmarkSchema) -> tuple[Summary, ...]:
    """List the scores that answer a question; those that need both other models first.

    Without those that are relative to a model, or made of a number, that the benchmark has not.
    """
    columns = {one.name for one in schema.plan.columns}
    found = [
        one
        for one in schema.plan.summaries.values()
        if one.question and one.relative_to <= schema.references and columns.issuperset(one.parts())
    ]
    return tuple(
        sorted(found, key=lambda s: ("retain" not in s.relative_to, "start" not in s.relative_to))
    )


def unknown(schema: BenchmarkSchema) -> list[str]:
    """List the scores that are relative to a model which the benchmark has not."""
    every = (one for one in schema.plan.summaries.values() if one.question)
    return [one.columns()[0].label for one in every if not one.relative_to <= schema.references]


def score_panels(context: PageContext) -> tuple[ScorePanel, ...]:
    """Score the best settings of every panel with a run."""
    scores = questions(context.columns.schema)
    chosen = settings_tables(context.report)[0].lines
    return tuple(
        _Scorer(context, panel, scores).panel(lines)
        for panel in context.panels
        if scores and (lines := of_place(chosen, panel))
    )


class _Scorer:
    """Scores the rows of one panel."""

    def __init__(self, context: PageContext, panel: Panel, scores: Sequence[Summary]) -> None:
        self.context, self.place, self.scores = context, panel, scores
        plan = context.columns.plan
        self.plan = plan
        self.measures = {
            f"{one.name}_{name}": (one, name) for one in plan.measures for name in one.sets
        }
        self.attacks = {
            _first(one).name: one
            for one in plan.summaries.values()
            if isinstance(one, MembershipInference)
        }
        self.records = {record.id: record for record in context.records_of(panel)}
        self.retain, self.start = map(self._model, (panel.retain, panel.fine_tuned))
        self.of_retain, self.of_start = (
            {} if row is None else row.metrics for row in (panel.retain, panel.fine_tuned)
        )

    def panel(self, lines: Sequence[SettingsLine]) -> ScorePanel:
        """Score all methods."""
        attacked = panel_of(self.context, self.place)
        best = {} if attacked is None else {one.setting.family: one for one in attacked.best}
        scored = tuple(
            ScoreLine(one, self._scores(one), best.get(one.family) if one.setting else None)
            for one in lines
        )
        references = {"retain model": self.of_retain, "start model": self.of_start}
        return ScorePanel(
            self.place.model,
            self.place.forget_fraction,
            scored,
            {
                name: tuple(values.get(_first(one).name) for one in self.scores)
                for name, values in references.items()
                if values
            },
            tuple(
                f"No {_first(score).label}: {why}."
                for i, score in enumerate(self.scores)
                if all(one.scores[i].mean is None for one in scored if one.scores)
                and (why := self._why_missing(score, scored))
            ),
            attacked,
        )

    def _model(self, row: TableRow | None) -> EvaluatedModel | None:
        evaluation = None if row is None else self._evaluation(row)
        if row is None or evaluation is None:
            return None
        return EvaluatedModel(evaluation.sets, row.metrics)

    def _evaluation(self, row: TableRow) -> Evaluation | None:
        embedded = self.context.evaluations.evaluations.get((row.run_id, row.epoch))
        stored = self.records[row.run_id].evaluations
        return stored.get(row.epoch) if embedded is None else embedded

    def _scores(self, line: SettingsLine) -> tuple[Score, ...]:
        if line.setting is None:
            return ()
        rows = line.setting.rows
        of_seeds = {row.seed: row.metrics for row in rows}
        evaluations = [e for row in rows if (e := self._evaluation(row)) is not None]
        return tuple(self._score(one, of_seeds, evaluations) for one in self.scores)

    def _score(
        self,
        score: Summary,
        of_seeds: Mapping[int, Mapping[str, float | None]],
        evaluations: Sequence[Evaluation],
    ) -> Score:
        name, rows = _first(score).name, of_seeds.values()
        beside = [_first(one).name for one in _rivals(self.plan, score)]
        parts = tuple(
            Part(
                self.context.columns.schema.column(part),
                _mean([row.get(part) for row in rows]),
                self._interval(part, evaluations),
                self.of_start.get(part),
                self.of_retain.get(part),
            )
            for part in (*score.parts(), *beside)
        )
        mean = _mean([row.get(name) for row in rows])
        by_seed = {seed: v for seed, row in of_seeds.items() if (v := row.get(name)) is not None}
        interval = None if mean is None else t_interval([*by_seed.values()])
        warnings = self._warnings(score, parts, evaluations)
        return Score(_first(score).label, mean, by_seed, interval, warnings, parts)

    def _interval(self, part: str, evaluations: Sequence[Evaluation]) -> Ends | None:
        attack = self.attacks.get(part)
        if attack is None or not evaluations:
            return None
        pair = attack.pair(
            MetricInputs(EvaluatedModel(evaluations[0].sets), self.retain, self.start)
        )
        return None if pair is None else auc_interval(*pair)

    def _warnings(
        self, score: Summary, parts: Sequence[Part], evaluations: Sequence[Evaluation]
    ) -> dict[str, str]:
        """Describe where the model is beyond the retain model; see the section's text."""
        lead = parts[0]
        found: dict[str, str] = {}
        if self._is_beyond(lead, evaluations):
            measure, name = self.measures[lead.column.name]
            sentences = [
                f"over-forgotten: {measure.metric.label.lower()} on the {set_title(name)} is "
                f"{signed(lead.value, 3)}, below the retain model's {signed(lead.retain, 3)}"
            ]
            made_of = score.parts()
            sentences += [
                f"{one.column.label} rewards it: {signed(one.value, 2)}, the retain model has "
                f"{signed(one.retain, 2)}"
                for one in parts
                if one.column.name not in made_of
                and one.value is not None
                and one.retain is not None
                and one.value > one.retain
            ]
            found["over-forgotten"] = "; ".join(sentences)
        below = [
            f"{one.column.label} {signed(one.value, 3)} (retain model {signed(one.retain, 3)})"
            for one in parts
            if one.interval and one.retain is not None and one.interval[1] < one.retain
        ]
        if below:
            found["unfamiliar"] = (
                "the forget rows look less familiar than rows that no model has seen, which gives "
                f"them away as well: {', '.join(below)}"
            )
        return found

    def _is_beyond(self, part: Part, evaluations: Sequence[Evaluation]) -> bool:
        """True if a low value is wanted, and it is below the retain model's by more than chance.

        Question by question: mean over seeds minus the retain model's value, against the standard
        error of the mean difference.
        """
        if part.column.better != "lower" or self.retain is None or not evaluations:
            return False
        if part.column.name not in self.measures:
            return False
        measure, name = self.measures[part.column.name]
        models = [*(one.sets for one in evaluations), self.retain.sets]
        seen = [sets.get(name) for sets in models]
        values = [None if one is None else measure.per_example(one) for one in seen]
        known = [one for one in values if one is not None]
        if len(known) < len(values) or len({one.shape for one in known}) > 1:
            return False
        *own, aim = known
        differences = np.mean(own, axis=0) - aim  # [n]
        if differences.size < 2 or not np.isfinite(differences).all():
            return False
        error = differences.std(ddof=1) / np.sqrt(differences.size)
        return bool(differences.mean() < -_Z * error)

    def _why_missing(self, score: Summary, lines: Iterable[ScoreLine]) -> str:
        """Name what a score lacks, in words that follow a colon; empty without a run."""
        for kind, row in (("retain", self.place.retain), ("start", self.place.fine_tuned)):
            if kind in score.relative_to and row is None:
                return f"the {kind} model was not evaluated"
        if not any(one.scores for one in lines):
            return ""
        lacking = [part for part in score.parts() if self._is_unknown(part, lines)]
        labels = ", ".join(self.context.columns.schema.column(part).label for part in lacking)
        return (
            f"{labels or 'it'} is not in the records; evaluate again, in a new folder, to have it"
        )

    def _is_unknown(self, part: str, lines: Iterable[ScoreLine]) -> bool:
        settings = [one.setting.setting for one in lines if one.setting.setting]
        return all(row.metrics.get(part) is None for one in settings for row in one.rows)


def warnings_by_kind(
    panel: ScorePanel,
) -> Mapping[str, Sequence[tuple[SettingsLine, str, str]]]:
    """Group the warnings of a panel by summary: (setting, label of the score, warning)."""
    found: dict[str, list[tuple[SettingsLine, str, str]]] = {}
    for kind, summary in KINDS.items():
        for line in panel.lines:
            for one in line.numbers:
                if kind in one.warnings:
                    entry = (line.setting, one.label, one.warnings[kind])
                    found.setdefault(summary, []).append(entry)
    return found


def _first(score: Summary) -> MetricColumn:
    return score.columns()[0]


def _rivals(plan: MetricPlan, score: Summary) -> list[Summary]:
    """List other scores that share a part with this one."""
    return [
        one
        for one in plan.summaries.values()
        if not one.question and {*one.parts()} & {*score.parts()}
    ]


def _mean(values: Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return fmean(found) if found and len(found) == len(values) else None


def exported(panels: Iterable[ScorePanel]) -> list[list[Any]]:
    """Collect the parts that a reader may open: by panel, line and score.

    A part is [label, mean, [low, high] or null, start model's, retain model's value].
    """

    def numbers(part: Part) -> list[Any]:
        ends = None if part.interval is None else [*map(short, part.interval)]
        value, start, retain = map(short, (part.value, part.start, part.retain))
        return [part.column.label, value, ends, start, retain]

    def under(panel: ScorePanel, line: ScoreLine) -> list[list[Any]]:
        """The measure of memorisation without an attack and under each."""
        found = panel.attacked
        if found is None or line.lasting is None or not line.lasting.under:
            return []
        first = line.lasting.under[0]
        models = [one[first.variant].before for one in (found.start, found.retain)]
        label = f"{found.column.label}, before"
        lines: list[list[Any]] = [[label, short(first.before), None, *map(short, models)]]
        for one in line.lasting.under:
            models = [each[one.variant].after for each in (found.start, found.retain)]
            ends = one.after_interval
            interval = None if ends is None else [short(ends.low), short(ends.high)]
            name = f"under {variant_label(one.variant)}"
            lines.append([name, short(one.after), interval, *map(short, models)])
        return lines

    return [
        [
            [
                *([numbers(part) for part in score.parts] for score in line.scores),
                *([under(panel, line)] if panel.attacked and line.scores else []),
            ]
            for line in panel.lines
        ]
        for panel in panels
    ]
