"""Check before the first run from a start model that it knows its rows.

A start model that has not learned the forget rows has nothing to forget, and one that cannot answer
retain rows has nothing to keep. All methods would then look alike, or the method that damages most
would look best. That is why a sweep measures two things before such a run, and stops if one of
them is too low:

- extraction strength on the forget rows, compared with the retain model's question by question
- ROUGE on the retain rows

With very few forget rows no interval can exclude chance, whatever the models answer. Such a sweep
goes on if the start model looks as if it has learned them, and says that this is not certain.

The process that evaluates a start model measures both numbers, and the model's record keeps them in
its provenance. Sweep, page and terminal read them from there, so that all say the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from unlearnbench.api.metric import Measure, Role
from unlearnbench.api.metric_engine import MetricPlan
from unlearnbench.api.observations import Evaluation, FloatArray
from unlearnbench.base.number_text import float_text
from unlearnbench.config.schema import ModelSettings
from unlearnbench.stats.mean_interval import difference_bounds, mean_interval

KEY = "start_check"
"""Key in the provenance of a start model's record."""
LEAST_ROUGE = 0.1
"""ROUGE on retain rows below which a start model has nothing to keep."""
FEWEST_ROWS = 6
"""Forget rows from which the comparison with the retain model can exclude chance.

With five rows the 95 % interval of the difference includes 0 even if the start model has memorised
all of every row and the retain model nothing.
"""
LEAST_GAP = 0.1
"""Difference in extraction strength from which the start model looks as if it has learned rows."""
LOW_RATE = 3
"""A learning rate that is lower than the usual one by this factor is the first thing to change."""
_STRENGTH = "extraction_strength"
_ROUGE = "rouge"
Ends = tuple[float, float]
"""Lower and upper end of a 95 % interval."""


@dataclass(frozen=True)
class Memorized:
    """Extraction strength on one set of forget rows: the start model's and the retain model's."""

    set_name: str
    start: float
    retain: float
    interval: Ends
    """Interval over questions of the difference: the start model's less the retain model's."""
    rows: int
    """Number of questions."""

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> Memorized:
        """Read the measurement from its JSON in a record."""
        low, high = entry["interval"]
        values: dict[str, Any] = {**entry, "interval": (low, high)}
        return cls(**values)

    @property
    def is_above(self) -> bool:
        """Whether the start model has memorised more than the retain model, beyond chance."""
        return self.interval[0] > 0

    @property
    def looks_above(self) -> bool:
        """Whether the difference is large, though it may be chance."""
        return not self.is_above and self.start - self.retain >= LEAST_GAP

    @property
    def is_undecided(self) -> bool:
        """Whether the difference is large, and the rows are too few to exclude chance."""
        return self.looks_above and self.rows < FEWEST_ROWS

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"extraction strength on the forget rows is {self.start:.3f}, and {self.retain:.3f} of "
            f"the retain model, which never saw them (difference {self.start - self.retain:+.3f}, "
            f"95 % interval {low:+.3f} to {high:+.3f}, n = {self.rows})"
        )


@dataclass(frozen=True)
class Answered:
    """ROUGE of the start model's answers on one set of retain rows."""

    set_name: str
    start: float
    interval: Ends | None
    """Interval over questions of `start`; None for a single row, whose spread is not known."""
    rows: int
    """Number of questions."""

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> Answered:
        """Read the measurement from its JSON in a record."""
        ends = entry["interval"]
        values: dict[str, Any] = {**entry, "interval": None if ends is None else tuple(ends)}
        return cls(**values)

    @property
    def is_enough(self) -> bool:
        """Whether the answers have enough words of the true ones for something to be kept."""
        return self.start >= LEAST_ROUGE

    def __str__(self) -> str:
        ends = ""
        if self.interval is not None:
            low, high = self.interval
            ends = f"95 % interval {low:.3f} to {high:.3f}, "
        return (
            f"ROUGE on the retain rows is {self.start:.3f}, below {LEAST_ROUGE:g} "
            f"({ends}n = {self.rows})"
        )


@dataclass(frozen=True)
class Trained:
    """How a sweep has trained its start model, by the settings of `preparation`."""

    epochs: int
    learning_rate: float
    batch_size: int
    rows: int
    """Rows of an epoch."""
    usual_rate: float | None = None
    """Learning rate at which models of this size learn rows; None if it is not known."""

    @classmethod
    def of(
        cls, settings: ModelSettings, rows: int, usual_rate: float | None = None
    ) -> Trained | None:
        """Return how a model is trained by its settings; None if they name a start model."""
        if settings.fine_tuned is not None:
            return None
        preparation = settings.preparation
        return cls(
            epochs=preparation.epochs,
            learning_rate=preparation.learning_rate,
            batch_size=preparation.batch_size,
            rows=rows,
            usual_rate=usual_rate,
        )

    @property
    def steps(self) -> int:
        """Optimiser steps of the whole training."""
        return self.epochs * -(-self.rows // self.batch_size)

    @property
    def advice(self) -> str:
        """What was done, and what to change about it."""
        training = (
            f"Its preparation had {self.steps} optimiser step{'s' * (self.steps != 1)} "
            f"(epochs {self.epochs}, {self.rows} rows, batch_size {self.batch_size}) at "
            f"learning_rate {float_text(self.learning_rate)}"
        )
        changes = "raise models.preparation.epochs or models.preparation.learning_rate"
        if self.usual_rate is not None and self.learning_rate < self.usual_rate / LOW_RATE:
            usual = float_text(self.usual_rate)
            changes = (
                f"raise models.preparation.learning_rate (a model of this size learns at {usual}) "
                "or models.preparation.epochs"
            )
        if self.rows <= self.batch_size:
            changes = (
                f"lower models.preparation.batch_size, since an epoch is one step, or {changes}"
            )
        return f"{training}: {changes}, or name a model that has learned the rows (fine_tuned)"


_NAMED = (
    "The configuration names it (models.fine_tuned): name a model that has learned these rows, "
    "check that models.template is the one that it was trained with, or "
)
_WITH_BASE = "leave fine_tuned out, so that a start model is trained from the base"
_WITHOUT_BASE = (
    "name a model that has not learned them as models.base in place of fine_tuned, so that a start "
    "model is trained from it"
)


@dataclass(frozen=True)
class StartCheck:
    """What a start model knew before any unlearning. A measurement is None if it was impossible."""

    memorized: Memorized | None = None
    """None without a retain model, and without extraction strength on forget rows."""
    answered: Answered | None = None
    """None without ROUGE on retain rows."""
    trained: Trained | None = None
    """None if the configuration names the start model."""
    has_base: bool = True
    """Whether the configuration names a base model, or builds one."""

    @classmethod
    def measure(
        cls,
        start: Evaluation,
        retain: Evaluation | None,
        plan: MetricPlan,
        roles: Mapping[str, Role],
        trained: Trained | None = None,
        *,
        has_base: bool = True,
    ) -> StartCheck:
        """Measure a start model.

        If there are several sets of forget or retain rows, the one that shows most counts: a model
        that has learned one of them has something to forget or to keep.

        Args:
            start: The plain evaluation of the start model.
            retain: The retain model's evaluation, if there is one.
            plan: Metrics of the benchmark.
            roles: Role of each set.
            trained: How the start model was made.
            has_base: Whether the configuration has a base model.
        """
        memorized: list[Memorized] = []
        for measure, set_name in _measures(plan, _STRENGTH, roles, "forget"):
            on_set = None if retain is None else _memorized(measure, set_name, start, retain)
            if on_set is not None:
                memorized.append(on_set)
        answered: list[Answered] = []
        for measure, set_name in _measures(plan, _ROUGE, roles, "retain"):
            values = _finite(_values(measure, set_name, start))
            if values.size:
                ends = mean_interval(values, measure.metric.bounds)
                answered.append(Answered(set_name, float(values.mean()), ends, values.size))
        return cls(
            memorized=max(memorized, key=lambda on_set: on_set.interval[0], default=None),
            answered=max(answered, key=lambda on_set: on_set.start, default=None),
            trained=trained,
            has_base=has_base,
        )

    @classmethod
    def read(cls, entry: Mapping[str, Any] | None) -> StartCheck | None:
        """Read what `entry` wrote; None for records of versions that measured nothing."""
        if entry is None:
            return None
        memorized: Mapping[str, Any] | None = entry["memorized"]
        answered: Mapping[str, Any] | None = entry["answered"]
        trained: Mapping[str, Any] | None = entry["trained"]
        return cls(
            None if memorized is None else Memorized.read(memorized),
            None if answered is None else Answered.read(answered),
            None if trained is None else Trained(**trained),
            entry.get("has_base", True),
        )

    @property
    def entry(self) -> dict[str, Any]:
        """The entry in the provenance of the start model's record."""
        return {KEY: asdict(self)}

    @property
    def has_learned(self) -> bool:
        """Whether the forget rows are learned, as far as that was measured and can be decided."""
        memorized = self.memorized
        return memorized is None or memorized.is_above or memorized.is_undecided

    @property
    def has_answers(self) -> bool:
        """Whether the retain rows are answered, as far as that was measured."""
        return self.answered is None or self.answered.is_enough

    @property
    def passes(self) -> bool:
        """Whether runs from this start model can show what a method does."""
        return self.has_learned and self.has_answers

    @property
    def fault(self) -> str:
        """What is wrong, what was measured and what to change; empty if nothing is wrong.

        The text up to the first colon is the reason, the first sentence has the numbers, and the
        others are advice.
        """
        reasons: list[str] = []
        measured: list[str] = []
        if self.memorized is not None and not self.has_learned:
            reasons.append("has not learned the forget rows")
            measured.append(str(self.memorized))
        if self.answered is not None and not self.answered.is_enough:
            reasons.append("does not answer the retain rows")
            measured.append(str(self.answered))
        if not reasons:
            return ""
        return (
            f"the start model {' and '.join(reasons)}: {'; '.join(measured)}. "
            f"{self._advice}{self._few}"
        )

    @property
    def doubt(self) -> str:
        """Why it cannot be decided whether the forget rows are learned; empty if it can."""
        if self.memorized is None or not self.memorized.is_undecided:
            return ""
        rows = self.memorized.rows
        are_few = "1 forget row is" if rows == 1 else f"{rows} forget rows are"
        return (
            f"{are_few} too few to be sure that the start model has learned them: {self.memorized}."
            f" With {FEWEST_ROWS} rows or more it can be decided"
        )

    @property
    def _advice(self) -> str:
        """What to change, by how the start model came to be."""
        if self.trained is not None:
            return self.trained.advice
        return _NAMED + (_WITH_BASE if self.has_base else _WITHOUT_BASE)

    @property
    def _few(self) -> str:
        """Advice if the start model may have learned the rows, and too few of them were asked."""
        memorized = self.memorized
        if memorized is None or self.has_learned or not memorized.looks_above:
            return ""
        return (
            f". With n = {memorized.rows} the difference may be chance: name or evaluate more "
            "forget rows"
        )


def _measures(
    plan: MetricPlan, name: str, roles: Mapping[str, Role], role: Role
) -> Iterator[tuple[Measure, str]]:
    """Yield a metric with each of the sets of a role on which it is reported."""
    for measure in plan.measures:
        if measure.name != name:
            continue
        for set_name in measure.sets:
            if roles[set_name] == role:
                yield measure, set_name


def _values(measure: Measure, set_name: str, evaluation: Evaluation) -> FloatArray | None:
    """Return the values [n] by question.

    The result is None if the evaluation does not have the set, or what the metric reads of it.
    """
    evaluated = evaluation.sets.get(set_name)
    return None if evaluated is None else measure.per_example(evaluated)


def _finite(values: FloatArray | None) -> FloatArray:
    return np.empty(0) if values is None else values[np.isfinite(values)]


def _memorized(
    measure: Measure, set_name: str, start: Evaluation, retain: Evaluation
) -> Memorized | None:
    """Compare both models question by question; None if that is impossible."""
    own = _values(measure, set_name, start)
    other = _values(measure, set_name, retain)
    if own is None or other is None or own.shape != other.shape:
        return None
    # An empty answer has no strength in either model.
    are_known = np.isfinite(own) & np.isfinite(other)
    own = own[are_known]
    other = other[are_known]
    ends = mean_interval(own - other, difference_bounds(measure.metric.bounds))
    if ends is None:
        return None
    return Memorized(set_name, float(own.mean()), float(other.mean()), ends, own.size)
