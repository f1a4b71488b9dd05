"""Scores of one setting by question, their parts, and why a score is no success.

A score with its question, its parts and the models that it is relative to are declared by metrics
(`Summary.question`). All numbers are those of the records; tests of them read the evaluations.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from unlearnbench.analysis.lasting import AttackedSetting
from unlearnbench.analysis.over_questions import Ends, OverQuestions
from unlearnbench.analysis.settings import mean_of
from unlearnbench.api.metric import MetricColumn, Role, Summary
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema
from unlearnbench.results.asked_rows import Observed
from unlearnbench.results.table import TableRow
from unlearnbench.stats.t_interval import LEVEL, Interval, interval_of_all, is_above

LASTING = "Lasting"
"""Label of the score under attacks, which stands next to the benchmark's own scores."""
OVER_FORGOTTEN = "over-forgotten"
"""Kind of the warning that a setting knows less of the forget rows than the retain model."""
REPETITION = "repetition"
"""Name of the metric that counts distinct 4-grams."""
REPETITIVE_SHARE = 0.9
"""Share of the start model's distinct 4-grams below which answers count as repetitive. A convention
of this project: the number is a mean over answers, so that one endless loop in ten is at 0.9."""


@dataclass(frozen=True)
class Part:
    """A number that a score is made of."""

    column: MetricColumn
    value: float | None
    """Mean over seeds."""
    interval: Ends | None
    """Bootstrap interval of `value` over questions, for an attack's area."""
    start: float | None
    """The start model's number."""
    retain: float | None
    """The retain model's number."""


@dataclass(frozen=True)
class Score:
    """A setting's answer to one question."""

    label: str
    mean: float | None
    by_seed: Mapping[int, float]
    interval: Interval | None
    """The mean's t interval over seeds; None without one."""
    warnings: Mapping[str, str]
    """Why the number is no success, by kind: `over-forgotten`, `unfamiliar`, `repetitive`,
    `bypassed`."""
    parts: tuple[Part, ...] = ()
    why_not: str = ""
    """Reason why there is no number; empty if there is one, and if no reason is known."""

    @property
    def warning(self) -> str:
        """All warnings; empty without one."""
        return "; ".join(self.warnings.values())


def lasting_score(attacked: AttackedSetting) -> Score:
    """Return what lasts of a setting under its worst attack, in the form of the other scores."""
    by_seed: dict[int, float] = {}
    if attacked.worst is not None:
        for row, share in zip(attacked.setting.rows, attacked.worst.shares, strict=False):
            if share is not None:
                by_seed[row.seed] = share
    warnings: dict[str, str] = {}
    if attacked.bypassed_by:
        names = " and ".join(attacked.bypassed_by)
        warnings["bypassed"] = (
            f"bypassed, no robustness: the model alone answers {names}, as if nothing were "
            "forgotten"
        )
    return Score(
        LASTING,
        attacked.lasting,
        by_seed,
        attacked.lasting_interval,
        warnings,
        why_not=attacked.why_not,
    )


def best_beyond_chance(scores: Sequence[Score]) -> int | None:
    """Return the position of the score that is better than every other one beyond chance.

    Returns:
        None if no score is, or if fewer than two have a mean.
    """
    known = {i: score.by_seed for i, score in enumerate(scores) if score.mean is not None}
    for position, by_seed in known.items():
        others = [other for i, other in known.items() if i != position]
        if others and all(is_above(by_seed, other) for other in others):
            return position
    return None


def set_title(name: str) -> str:
    """Name an evaluation set in a sentence: `forget set`, `real authors`."""
    return f"{name} set" if name in get_args(Role) else name.replace("_", " ")


def questions(schema: BenchmarkSchema) -> tuple[Summary, ...]:
    """List the scores that answer a question, the ones that need both other models first.

    A score is left out if the benchmark lacks a model that it is relative to, or a number that it
    is made of.
    """
    columns = {column.name for column in schema.plan.columns}
    answerable: list[Summary] = []
    for summary in schema.plan.summaries.values():
        has_models = summary.relative_to <= schema.references
        has_parts = columns.issuperset(summary.parts())
        if summary.question and has_models and has_parts:
            answerable.append(summary)
    answerable.sort(
        key=lambda score: ("retain" not in score.relative_to, "start" not in score.relative_to)
    )
    return tuple(answerable)


class Scorer:
    """Scores of the settings of one model and split."""

    def __init__(
        self,
        schema: BenchmarkSchema,
        retain: TableRow | None,
        start: TableRow | None,
        observed: Observed,
    ) -> None:
        """Take the models that settings are compared with.

        Args:
            schema: Schema of the benchmark.
            retain: Row of the retain model, if it was evaluated.
            start: Row of the start model, if it was evaluated.
            observed: Reads the evaluation behind a row.
        """
        self._schema = schema
        self._over_questions = OverQuestions(schema, observed, retain=retain, start=start)
        self._numbers_of_retain = {} if retain is None else retain.metrics
        self._numbers_of_start = {} if start is None else start.metrics
        self._scores_of_rows: dict[tuple[tuple[str, int], ...], tuple[Score, ...]] = {}

    def scores(self, rows: Sequence[TableRow]) -> tuple[Score, ...]:
        """Score a setting, given as the rows of its seeds.

        Warnings are found in observations, which take long to read. That is why the scores of a
        setting are kept: several views ask for them.
        """
        key = tuple((row.run_id, row.epoch) for row in rows)
        if key not in self._scores_of_rows:
            asked = questions(self._schema)
            self._scores_of_rows[key] = tuple(self._score(question, rows) for question in asked)
        return self._scores_of_rows[key]

    def _score(self, score: Summary, rows: Sequence[TableRow]) -> Score:
        """Return the answer of a setting to one question."""
        column = score.columns()[0]
        # Other numbers that are made of some of the same parts.
        rivals = [
            summary.columns()[0].name
            for summary in self._schema.plan.summaries.values()
            if not summary.question and {*summary.parts()} & {*score.parts()}
        ]
        parts = [self._part(name, rows) for name in (*score.parts(), *rivals)]
        mean = mean_of([row.metrics.get(column.name) for row in rows])
        by_seed: dict[int, float] = {}
        for row in rows:
            value = row.metrics.get(column.name)
            if value is not None:
                by_seed[row.seed] = value
        interval = None
        if mean is not None:
            interval = interval_of_all([*by_seed.values()], column.bounds)
        warnings = dict(self._warnings({*score.parts()}, parts, rows))
        return Score(column.label, mean, by_seed, interval, warnings, tuple(parts))

    def _part(self, name: str, rows: Sequence[TableRow]) -> Part:
        """Return a number that a score is made of, with the other models' numbers."""
        value = mean_of([row.metrics.get(name) for row in rows])
        return Part(
            self._schema.column(name),
            value,
            None if value is None else self._over_questions.area_interval(rows, name),
            self._numbers_of_start.get(name),
            self._numbers_of_retain.get(name),
        )

    def _warnings(
        self, made_of: set[str], parts: Sequence[Part], rows: Sequence[TableRow]
    ) -> Iterator[tuple[str, str]]:
        """Yield the kind and the sentence of each reason why the number is no success.

        Args:
            made_of: Columns that the score is made of.
            parts: The numbers of these columns, then other numbers made of some of the same parts.
            rows: Rows of the setting's seeds.
        """
        own_parts = [part for part in parts if part.column.name in made_of]
        beyond = self._part_beyond_retain(own_parts, rows)
        if beyond is not None:
            measure, name = self._schema.measures[beyond.column.name]
            sentences = [
                "over-forgotten: it knows less of the forget rows than the retain model, which "
                f"never saw them ({measure.metric.label.lower()} on the {set_title(name)} is "
                f"{beyond.value:.3f}, the retain model's is {beyond.retain:.3f})"
            ]
            sentences += [
                f"{part.column.label} counts this as a success: {part.value:.2f}, the retain "
                f"model has {part.retain:.2f}"
                for part in parts
                if part.column.name not in made_of
                and part.value is not None
                and part.retain is not None
                and part.value > part.retain
            ]
            yield OVER_FORGOTTEN, "; ".join(sentences)
        below = [
            f"{part.column.label} {part.value:.3f} (retain model {part.retain:.3f})"
            for part in parts
            if part.value is not None
            and part.interval is not None
            and part.retain is not None
            and part.interval[1] < part.retain
        ]
        if below:
            yield (
                "unfamiliar",
                "the forget rows look less familiar than rows that no model has seen, which gives "
                f"them away as well: {', '.join(below)}",
            )
        repetitive = next((part for part in parts if self._is_repetitive(part)), None)
        if repetitive is not None and repetitive.column.name in made_of:
            yield (
                "repetitive",
                f"repetitive answers: {repetitive.column.label.lower()} "
                f"{repetitive.value:.3f} (start model {repetitive.start:.3f})",
            )

    def _is_repetitive(self, part: Part) -> bool:
        """Whether a part shows that answers repeat themselves much more than the start model's."""
        measure = self._schema.measures.get(part.column.name)
        if measure is None or measure[0].name != REPETITION:
            return False
        if part.value is None or part.start is None:
            return False
        return part.value < REPETITIVE_SHARE * part.start

    def _part_beyond_retain(self, parts: Sequence[Part], rows: Sequence[TableRow]) -> Part | None:
        """Return a part that is below the retain model's value beyond chance, if low is wanted.

        The most telling part comes first. The retain model may have next to nothing of it, so that
        no model can be below. Then the other parts count, at a level that allows for their number
        (Bonferroni).
        """
        for number, part in enumerate(parts):
            if part.column.better != "lower" or part.value is None or part.retain is None:
                continue
            level = LEVEL if number == 0 else 1 - (1 - LEVEL) / (len(parts) - 1)
            difference = self._over_questions.difference(rows, part.column.name, level=level)
            if difference is not None and difference.is_below:
                return part
        return None
