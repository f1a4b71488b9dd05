"""Scores of one setting by question, their parts, and why a score is no success.

A *score* answers one question about a model, for example whether it has forgotten, by one number.
It is a `Summary`: a metric that is computed from other numbers of the same model,
the score's *parts*, and possibly *relative to* the retain or start model. The summary declares the
question, the parts and the models. All numbers are taken from the table; tests of them read the
evaluations.
"""

from collections.abc import Collection, Mapping, Sequence
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
    """Mean over seeds; None if a seed has no number."""
    by_seed: Mapping[int, float]
    """The number of each seed that has one."""
    interval: Interval | None
    """The mean's t interval over seeds; None without one."""
    warnings: Mapping[str, str]
    """Why the number is no success, by kind: `over-forgotten`, `unfamiliar`, `repetitive`,
    `bypassed`."""
    parts: tuple[Part, ...] = ()
    """Its own parts, then other numbers that are made of some of the same parts."""
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
        seeds = [row.seed for row in attacked.setting.rows]
        if attacked.worst.tuned is not None:
            # The other seeds have chosen the attacker.
            seeds = list(attacked.worst.tuned.reporting_seeds)
        for seed, share in zip(seeds, attacked.worst.shares, strict=False):
            if share is not None:
                by_seed[seed] = share
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
    by_seed_of_position = {
        position: score.by_seed for position, score in enumerate(scores) if score.mean is not None
    }
    for position, by_seed in by_seed_of_position.items():
        others = [
            other
            for other_position, other in by_seed_of_position.items()
            if other_position != position
        ]
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
        """Cache of `scores`, by the run and epoch of each row."""

    def scores(self, rows: Sequence[TableRow]) -> tuple[Score, ...]:
        """Score a setting, given as the rows of its seeds.

        Warnings are found in observations, which take long to read. That is why the scores of a
        setting are kept: several views ask for them.
        """
        key = tuple((row.run_id, row.epoch) for row in rows)
        if key not in self._scores_of_rows:
            summaries = questions(self._schema)
            self._scores_of_rows[key] = tuple(self._score(summary, rows) for summary in summaries)
        return self._scores_of_rows[key]

    def _score(self, score: Summary, rows: Sequence[TableRow]) -> Score:
        """Return the answer of a setting to the question of one score."""
        # The first column of a summary is its number. Further columns explain it.
        column = score.columns()[0]
        own_parts = {*score.parts()}
        # Such a number may count as a success what the score does not, see `_over_forgotten`.
        sharing_parts = [
            summary.columns()[0].name
            for summary in self._schema.plan.summaries.values()
            if not summary.question and own_parts.intersection(summary.parts())
        ]
        parts = [self._part(name, rows) for name in (*score.parts(), *sharing_parts)]
        mean = mean_of([row.metrics.get(column.name) for row in rows])
        by_seed: dict[int, float] = {}
        for row in rows:
            value = row.metrics.get(column.name)
            if value is not None:
                by_seed[row.seed] = value
        interval = None
        if mean is not None:
            interval = interval_of_all([*by_seed.values()], column.bounds)
        warnings = self._warnings(own_parts, parts, rows)
        return Score(column.label, mean, by_seed, interval, warnings, tuple(parts))

    def _part(self, name: str, rows: Sequence[TableRow]) -> Part:
        """Return a number that a score is made of, with the other models' numbers."""
        value = mean_of([row.metrics.get(name) for row in rows])
        interval = None if value is None else self._over_questions.area_interval(rows, name)
        return Part(
            self._schema.column(name),
            value,
            interval,
            start=self._numbers_of_start.get(name),
            retain=self._numbers_of_retain.get(name),
        )

    # Warnings

    def _warnings(
        self, made_of: set[str], parts: Sequence[Part], rows: Sequence[TableRow]
    ) -> dict[str, str]:
        """Return a sentence for each reason why the number is no success, by kind of reason.

        Args:
            made_of: Columns that the score is made of.
            parts: The numbers of these columns, then other numbers made of some of the same parts.
            rows: Rows of the setting's seeds.
        """
        own_parts = [part for part in parts if part.column.name in made_of]
        other_numbers = [part for part in parts if part.column.name not in made_of]
        sentences = {
            OVER_FORGOTTEN: self._over_forgotten(own_parts, other_numbers, rows),
            "unfamiliar": _unfamiliar(parts),
            "repetitive": self._repetitive(parts, made_of),
        }
        return {kind: sentence for kind, sentence in sentences.items() if sentence}

    def _over_forgotten(
        self, own_parts: Sequence[Part], other_numbers: Sequence[Part], rows: Sequence[TableRow]
    ) -> str:
        """Say that a setting knows less than the retain model; empty if it does not.

        Args:
            own_parts: Parts of the score.
            other_numbers: Numbers that are made of some of the same parts. Those that rate the
                setting above the retain model are named.
            rows: Rows of the setting's seeds.
        """
        beyond = self._part_beyond_retain(own_parts, rows)
        if beyond is None:
            return ""
        measure, set_name = self._schema.measures[beyond.column.name]
        clauses = [
            "over-forgotten: it knows less of the forget rows than the retain model, which "
            f"never saw them ({measure.metric.label.lower()} on the {set_title(set_name)} is "
            f"{beyond.value:.3f}, the retain model's is {beyond.retain:.3f})"
        ]
        for number in other_numbers:
            if number.value is None or number.retain is None:
                continue
            if number.value > number.retain:
                clauses.append(
                    f"{number.column.label} counts this as a success: {number.value:.2f}, the "
                    f"retain model has {number.retain:.2f}"
                )
        return "; ".join(clauses)

    def _repetitive(self, parts: Sequence[Part], made_of: Collection[str]) -> str:
        """Say that answers repeat themselves; empty if they do not, or the score does not count it.

        Args:
            parts: The score's parts, then other numbers.
            made_of: Columns that the score is made of.
        """
        repetitive = next((part for part in parts if self._is_repetitive(part)), None)
        if repetitive is None or repetitive.column.name not in made_of:
            return ""
        return (
            f"repetitive answers: {repetitive.column.label.lower()} "
            f"{repetitive.value:.3f} (start model {repetitive.start:.3f})"
        )

    def _is_repetitive(self, part: Part) -> bool:
        """Whether a part shows that answers repeat themselves much more than the start model's."""
        measure_and_set = self._schema.measures.get(part.column.name)
        if measure_and_set is None:
            return False
        measure, _ = measure_and_set
        if measure.name != REPETITION:
            return False
        if part.value is None or part.start is None:
            return False
        return part.value < REPETITIVE_SHARE * part.start

    def _part_beyond_retain(self, parts: Sequence[Part], rows: Sequence[TableRow]) -> Part | None:
        """Return a part that is below the retain model's value beyond chance.

        Only parts for which lower is better count. The most telling part comes first. The retain
        model may have next to nothing of it, so that no model can be below. Then the other parts
        count, at a level that allows for their number (Bonferroni).

        Args:
            parts: Parts of the score, in the order in which it declares them.
            rows: Rows of the setting's seeds.

        Returns:
            None if no part is below.
        """
        for position, part in enumerate(parts):
            if part.column.better != "lower" or part.value is None or part.retain is None:
                continue
            level = LEVEL if position == 0 else 1 - (1 - LEVEL) / (len(parts) - 1)
            difference = self._over_questions.difference(rows, part.column.name, level=level)
            if difference is not None and difference.is_below:
                return part
        return None


def _unfamiliar(parts: Sequence[Part]) -> str:
    """Say that the forget rows look less familiar than unseen rows; empty if they do not.

    The upper end of a membership attack's interval is then below the retain model's area, so that
    an attacker recognises the forget rows by the opposite sign.
    """
    below: list[str] = []
    for part in parts:
        if part.value is None or part.interval is None or part.retain is None:
            continue
        _, high = part.interval
        if high < part.retain:
            below.append(f"{part.column.label} {part.value:.3f} (retain model {part.retain:.3f})")
    if not below:
        return ""
    return (
        "the forget rows look less familiar than rows that no model has seen, which gives "
        f"them away as well: {', '.join(below)}"
    )
