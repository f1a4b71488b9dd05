"""The contract of a metric: it declares what it reads, and turns observations into numbers.

A `Metric` gives each example of one evaluation set a number, and the set their mean:

    class ExactMemorization(Metric):
        label = "Exact memorization"
        reads = frozenset({"tokens"})
        roles = frozenset({"forget", "retain"})

        def per_example(self, seen: SetEvaluation) -> FloatArray:
            hits = seen.tokens.by_answer(seen.tokens.hit, eos=False)
            return np.array([one.mean() if one.size else np.nan for one in hits])

A `Summary` gives named numbers of a whole evaluation: from several sets, from the retain model's
evaluation, from other metrics. Both are frozen values whose fields are their settings. The columns
of every table, file and page come from what they declare.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Set
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import ClassVar, Literal, cast

import numpy as np

from unlearnbench.api.hyperparameters import HyperParameters
from unlearnbench.api.observation import Observation
from unlearnbench.api.observations import FloatArray, SetEvaluation
from unlearnbench.api.plugin_code import plugin_code, source_file
from unlearnbench.base.errors import PluginError
from unlearnbench.base.hashing import content_hash

Role = Literal["forget", "retain", "holdout", "general"]
"""Purpose of an evaluation set: rows to forget, to keep, rows that no model was trained on,
or other knowledge to keep."""
MOMENTS: frozenset[Role] = frozenset({"forget", "retain", "holdout"})
"""Roles of sets for whose answers the moments of log-probabilities are computed (Min-K++)."""
GRADIENTS: frozenset[Role] = frozenset({"forget", "retain", "holdout"})
"""Roles of sets for which gradient norms are computed, where a metric reads them."""
ON_REQUEST: frozenset[Role] = frozenset({"forget", "retain"})
"""Roles of the sets on which a metric without roles is reported where a configuration names it."""
SCORED_ONLY: frozenset[Role] = frozenset({"holdout"})
"""Roles of sets of which no metric reads generated answers, so that none are generated."""
Better = Literal["higher", "lower"]
Compared = Literal["retain", "start"]
"""A model whose evaluation others are compared with."""
Reads = Literal[
    "tokens",
    "moments",
    "paraphrase",
    "perturbed",
    "generated",
    "rouge",
    "grad_norm",
    "start_loss",
    "samples",
]
EXTRA: frozenset[Reads] = frozenset({"grad_norm", "start_loss"})
"""Observations that are made only where a metric that is reported reads them: they take time."""
UNDER_ATTACK: frozenset[Reads] = frozenset({"samples"})
"""Observations that only an attack makes: a plain evaluation has no column of what reads them."""

_HAS: Mapping[Reads, Callable[[SetEvaluation], bool]] = {
    "tokens": lambda seen: seen.token_columns is not None,
    "moments": lambda seen: seen.token_columns is not None and seen.tokens.mean_logprob is not None,
    "paraphrase": lambda seen: not np.array_equal(seen.base_loss, seen.answer_loss),
    "perturbed": lambda seen: seen.perturbed_loss.shape[1] > 0,
    "generated": lambda seen: len(seen.generated) == len(seen.answer_loss) > 0,
    "rouge": lambda seen: not np.isnan(seen.rouge_l_recall).all(),
    "grad_norm": lambda seen: seen.grad_norm is not None,
    "start_loss": lambda seen: seen.start_loss is not None,
    "samples": lambda seen: seen.samples is not None,
}


@dataclass(frozen=True)
class MetricColumn:
    """One column of numbers: of `results.csv`, of MLflow's metrics, of the page."""

    name: str
    """`rouge_forget`."""
    label: str
    """`ROUGE-L, forget`."""
    better: Better | None = None
    """The end that is wanted of an unlearned model; None where neither is."""
    bounds: tuple[float, float] = (0.0, 1.0)
    set: str = ""
    """The evaluation set whose examples it is the mean of; empty where there is no one set."""

    def __post_init__(self) -> None:
        """Refuse a column that no table could show. Raises: PluginError."""
        low, high = self.bounds
        if not self.label.strip() or not low < high:
            raise PluginError(
                f"column {self.name!r} has label {self.label!r} and bounds {low:g} to {high:g}: "
                "give it words for people, and bounds from low to high"
            )


class Metric(HyperParameters, ABC):
    """Base of metrics that give each example of a set a number."""

    version: ClassVar[int] = 1
    """Raised when the same observations come to give other numbers."""
    label: ClassVar[str]
    """Name for people: `Exact memorization`."""
    reads: ClassVar[frozenset[Reads]] = frozenset()
    """Observations without which the metric is undefined, besides the answers' losses."""
    observes: ClassVar[tuple[Observation, ...]] = ()
    """Further ones by token, which the metric brings along."""
    roles: ClassVar[frozenset[Role]] = frozenset()
    """Sets on which every benchmark reports it; none: only where a benchmark names it, or a
    configuration (`evaluation.metrics`, see `ON_REQUEST`)."""
    knows: ClassVar[Better | None] = "higher"
    """Values of a model that knows the set: `higher` is wanted of a retain set, not of a forget
    set."""
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    greedy: ClassVar[str] = ""
    """Of a metric that reads `samples`: name of the metric that measures the greedy answer on the
    same scale, such as `rouge`. What sampling gives back is the difference of the two. Empty if
    there is no such metric."""

    @abstractmethod
    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """[n] a number for each example; NaN where it is undefined."""

    def value(self, per_example: FloatArray) -> float | None:
        """The set's number: the mean; None where an example has none, or there is no example."""
        if per_example.size == 0 or not np.isfinite(per_example).all():
            return None
        return float(per_example.mean())

    def better(self, role: Role) -> Better | None:
        """The end of the scale that is wanted of a set with this role."""
        if self.knows is None or role == "holdout":
            return None
        wanted = role != "forget"
        return "higher" if (self.knows == "higher") == wanted else "lower"


@dataclass(frozen=True)
class Measure:
    """A metric under the name of its columns, on some sets of a benchmark."""

    name: str
    """Name of the metric; its column of set `forget` is `<name>_forget`."""
    metric: Metric
    sets: tuple[str, ...]

    @property
    def key(self) -> str:
        """Name with a hash of version and settings: `rouge_f1 1a2b3c4d`."""
        kind = type(self.metric)
        settings = self.metric.model_dump(mode="json")
        digest = content_hash([kind.__module__, kind.__qualname__, kind.version, settings])
        return f"{self.name} {digest[:8]}"

    def column(self, name: str, role: Role) -> MetricColumn:
        """The column of a set."""
        metric = self.metric
        label = f"{metric.label}, {name.replace('_', ' ')}"
        better, bounds = metric.better(role), metric.bounds
        return MetricColumn(f"{self.name}_{name}", label, better, bounds, name)

    def lacks(self, seen: SetEvaluation) -> tuple[str, ...]:
        """The observations of a set that the metric reads and that are not there."""
        known = {} if seen.token_columns is None else seen.token_columns.observed
        brought = {observation.name for observation in self.metric.observes} - known.keys()
        return tuple(sorted(brought.union(r for r in self.metric.reads if not _HAS[r](seen))))

    def per_example(self, seen: SetEvaluation) -> FloatArray | None:
        """[n] the values of a set; None where they can neither be read nor computed.

        Raises: PluginError where the metric fails, or gives no numbers.
        """
        if self.name in seen.values:
            return seen.values[self.name]
        if seen.text_values is not None and self.key in seen.text_values:
            return seen.text_values[self.key]
        if self.lacks(seen):
            return None
        with guarded(self.metric, "per_example"):
            # A plug-in may return anything.
            values = cast("object", self.metric.per_example(seen))
        n, source = len(seen.answer_loss), _call(self.metric, "per_example")
        if (
            not isinstance(values, np.ndarray)
            or values.dtype.kind not in "fiu"
            or values.shape != (n,)
        ):
            raise PluginError(f"{source} returned {_brief(values)} for {n} examples{_RULE}")
        return values.astype(np.float64, copy=False)

    def value(self, seen: SetEvaluation) -> float | None:
        """The value of a set; None where it is undefined. Raises: PluginError as `per_example`."""
        values = self.per_example(seen)
        return None if values is None else self.number(values)

    def number(self, per_example: FloatArray) -> float | None:
        """Return the number of rows with these values [n]; None if it is undefined.

        Raises:
            PluginError: If the metric fails, or gives no number.
        """
        with guarded(self.metric, "value"):
            value: object = self.metric.value(per_example)
        return number(value, _call(self.metric, "value"))


_RULE = "; it must return a float64 array [n], a number for each example, NaN where undefined"


def guarded(metric: Metric | Summary, name: str) -> AbstractContextManager[object]:
    """Guard a call of a metric's function: what it raises becomes a PluginError with its place."""
    guards = ExitStack()
    guards.enter_context(plugin_code(_call(metric, name), source_file(type(metric))))
    guards.enter_context(np.errstate(over="ignore", divide="ignore", invalid="ignore"))
    return guards


def number(value: object, source: str) -> float | None:
    """A metric's value as a plain number; NaN is None. Raises: PluginError for anything else.

    source  of the value, for the message
    """
    if value is None:
        return None
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number):
        raise PluginError(f"{source} returned {_brief(value)}; it must be a float, or None")
    result = float(value)
    return None if math.isnan(result) else result


def _call(metric: Metric | Summary, name: str) -> str:
    kind = type(metric)
    file = source_file(kind).rpartition("/")[2]
    return f"`{name}` of metric {kind.__name__}" + (f" ({file})" if file else "")


def _brief(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array {list(value.shape)} of {value.dtype}"
    return "None" if value is None else f"a value of type {type(value).__name__}"


Values = Mapping[str, float | None]
"""Numbers by column; None where undefined."""


@dataclass(frozen=True, eq=False)
class EvaluatedModel:
    """The sets of one model, and the numbers that are known of it so far."""

    sets: Mapping[str, SetEvaluation]
    values: Values = field(default_factory=dict[str, float | None])


@dataclass(frozen=True, eq=False)
class MetricInputs:
    """The evaluations that a summary may read: the model's, and those it is compared with."""

    model: EvaluatedModel
    retain: EvaluatedModel | None = None
    """The model that was trained without the forget rows."""
    start: EvaluatedModel | None = None
    """The model that runs begin from."""


class Summary(HyperParameters, ABC):
    """Base of metrics of a whole evaluation."""

    version: ClassVar[int] = 1
    """Raised when the same observations come to give other numbers."""
    after: ClassVar[Set[str]] = frozenset()
    """Names of summaries whose columns this one reads."""
    reads: ClassVar[frozenset[Reads]] = frozenset()
    """Observations among `EXTRA` and `UNDER_ATTACK` that it reads."""
    roles: ClassVar[frozenset[Role]] = frozenset()
    """Roles of the sets that it reads: every benchmark that has them reports it; none: only where a
    benchmark names it, or a configuration (`evaluation.metrics`)."""
    relative_to: ClassVar[frozenset[Compared]] = frozenset()
    """Models without whose evaluation all its numbers are undefined."""
    question: ClassVar[str] = ""
    """Question that its first column answers, on a scorecard: `Is the rest kept?`; or none."""

    @abstractmethod
    def columns(self) -> tuple[MetricColumn, ...]:
        """The columns that `compute` fills."""

    def parts(self) -> tuple[str, ...]:
        """Columns that the first one is made of, the most telling one first; most have none."""
        return ()

    @abstractmethod
    def compute(self, of: MetricInputs) -> Values:
        """The numbers; what is missing or None is undefined."""
