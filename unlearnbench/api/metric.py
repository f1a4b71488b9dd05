"""The contract of a metric: it declares what it reads, and turns observations into numbers.

A `Metric` gives each example of one evaluation set a number, and the set their mean:

    class ExactMemorization(Metric):
        label = "Exact memorization"
        reads = frozenset({"tokens"})
        roles = frozenset({"forget", "retain"})

        def per_example(self, seen: SetEvaluation) -> FloatArray:
            hits = seen.tokens.by_answer(seen.tokens.hit, eos=False)
            return np.array([one.mean() if one.size else np.nan for one in hits])

A `Summary` gives named numbers of a whole evaluation, computed from several sets, from the retain
model's evaluation or from other metrics. Both are frozen values whose fields are their settings.
The columns of every table, file and page come from what metrics and summaries declare.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, Literal, cast

import numpy as np

from unlearnbench.api.hyperparameters import HyperParameters
from unlearnbench.api.observation import Observation
from unlearnbench.api.observations import FloatArray, SetEvaluation
from unlearnbench.api.plugin_code import plugin_code, source_file
from unlearnbench.base.errors import PluginError
from unlearnbench.base.hashing import content_hash
from unlearnbench.base.hub import Repository

Role = Literal["forget", "retain", "holdout", "general"]
"""Purpose of an evaluation set: rows to forget, to keep, rows that no model was trained on,
or other knowledge to keep."""
MOMENTS: frozenset[Role] = frozenset({"forget", "retain", "holdout"})
"""Roles of sets for whose answers the moments of log-probabilities are computed (Min-K++)."""
GRADIENTS: frozenset[Role] = frozenset({"forget", "retain", "holdout"})
"""Roles of sets for which gradient norms are computed if a metric reads them."""
ON_REQUEST: frozenset[Role] = frozenset({"forget", "retain"})
"""Roles of the sets on which a metric without roles is reported if a configuration names it, unless
the metric has an `on_request` of its own."""
SCORED_ONLY: frozenset[Role] = frozenset({"holdout"})
"""Roles of sets for which no metric reads generated answers, so no answer is generated."""
Better = Literal["higher", "lower"]
Compared = Literal["retain", "start"]
"""A model with whose evaluation other models are compared."""
Reads = Literal[
    "tokens",
    "moments",
    "paraphrase",
    "perturbed",
    "generated",
    "rouge",
    "grad_norm",
    "start_loss",
    "token_entropy",
    "samples",
]
"""Observations that a metric may read. A metric is undefined for a set without them.

Each of them has an entry in `OBSERVATIONS`.
"""


@dataclass(frozen=True)
class ObservationKind:
    """What an evaluation has to know of an observation, apart from how it is made."""

    is_in: Callable[[SetEvaluation], bool]
    """Whether a set has the observation."""
    only_if_read: bool = False
    """Whether it is made only if a reported metric reads it, because it takes time."""
    needs_whole_weights: bool = False
    """Whether each process needs all weights of the model. Runs that shard them are refused."""
    of_attacked_models: bool = True
    """Whether it is made of a model under attack, too. If not, a metric that reads it has no value
    in `attacks.csv`."""
    only_under_attack: bool = False
    """Whether only an attack makes it. A metric that reads it has no column in a plain
    evaluation."""


OBSERVATIONS: Mapping[Reads, ObservationKind] = {
    "tokens": ObservationKind(lambda seen: seen.token_columns is not None),
    "moments": ObservationKind(
        lambda seen: seen.token_columns is not None and seen.tokens.mean_logprob is not None
    ),
    "paraphrase": ObservationKind(
        lambda seen: not np.array_equal(seen.base_loss, seen.answer_loss)
    ),
    "perturbed": ObservationKind(lambda seen: seen.perturbed_loss.shape[1] > 0),
    "generated": ObservationKind(lambda seen: len(seen.generated) == len(seen.answer_loss) > 0),
    "rouge": ObservationKind(lambda seen: not np.isnan(seen.rouge_l_recall).all()),
    "grad_norm": ObservationKind(
        lambda seen: seen.grad_norm is not None,
        only_if_read=True,
        needs_whole_weights=True,
        of_attacked_models=False,
    ),
    "start_loss": ObservationKind(
        lambda seen: seen.start_loss is not None,
        only_if_read=True,
        needs_whole_weights=True,
        of_attacked_models=False,
    ),
    "token_entropy": ObservationKind(
        lambda seen: seen.token_entropy is not None, only_if_read=True
    ),
    "samples": ObservationKind(lambda seen: seen.samples is not None, only_under_attack=True),
}
EXTRA: frozenset[Reads] = frozenset(
    name for name, kind in OBSERVATIONS.items() if kind.only_if_read
)
"""Observations that are made only if a reported metric reads them. Each is a field of
`SetEvaluation` with its name, [n], which is None if it was not made."""
UNDER_ATTACK: frozenset[Reads] = frozenset(
    name for name, kind in OBSERVATIONS.items() if kind.only_under_attack
)
"""Observations that only an attack makes."""


@dataclass(frozen=True)
class MetricColumn:
    """One column of numbers in `results.csv`, among MLflow's metrics and on the page."""

    name: str
    """Name in files, for example `rouge_forget`."""
    label: str
    """Name for people, for example `ROUGE-L, forget`."""
    better: Better | None = None
    """Which values are better for an unlearned model; None if neither end is."""
    bounds: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest possible value."""
    set: str = ""
    """Evaluation set of whose examples the number is the mean; empty if there is no single set.

    MLflow groups its charts by it: the column `rouge_forget` of the set `forget` is
    `forget/rouge` there. The oracle of the tests has to know it of a `Summary`
    (`Benchmark.columns_by_set`).
    """

    def __post_init__(self) -> None:
        """Refuse a column that no table could show.

        Raises:
            PluginError: The label is empty, or the bounds are not in order.
        """
        low, high = self.bounds
        if not self.label.strip() or not low < high:
            raise PluginError(
                f"column {self.name!r} has label {self.label!r} and bounds {low:g} to {high:g}: "
                "give it words for people, and bounds from low to high"
            )


class Metric(HyperParameters, ABC):
    """Base of metrics that give each example of a set a number."""

    version: ClassVar[int] = 1
    """To be increased when the same observations give other numbers than before."""
    label: ClassVar[str]
    """Name for people: `Exact memorization`."""
    reads: ClassVar[frozenset[Reads]] = frozenset()
    """Observations without which the metric is undefined. Every set has its answers' losses."""
    observes: ClassVar[tuple[Observation, ...]] = ()
    """Further observations by token, which the metric defines itself."""
    roles: ClassVar[frozenset[Role]] = frozenset()
    """Roles of the sets on which every benchmark reports the metric.

    If there is no role, the metric is reported only if a benchmark names it, or a configuration
    (`evaluation.metrics`, see `on_request`).
    """
    on_request: ClassVar[frozenset[Role]] = ON_REQUEST
    """Roles of the sets on which a metric without `roles` is reported if a configuration names it.
    """
    knows: ClassVar[Better | None] = "higher"
    """Which values a model has that knows the set; None if knowledge moves values in no direction.

    With `higher`, higher values are better on a retain set and lower values on a forget set.
    """
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    """Lowest and highest possible value."""
    greedy: ClassVar[str] = ""
    """Name of the metric that measures the greedy answer on the same scale, such as `rouge`.

    For metrics that read `samples`. Sampling gives back the difference of the two metrics. Empty if
    there is no such metric.
    """

    @abstractmethod
    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """Compute a number for each example of a set [n]; NaN for examples without one.

        Args:
            seen: What the model's outputs were for the examples.
        """

    def value(self, per_example: FloatArray) -> float | None:
        """Return the number of a set, by default the mean over its examples.

        An example without a number is not skipped, because a model whose outputs are NaN would then
        be judged by the few answers that it has. An example may lack a number for another reason,
        such as an answer without words. Let `per_example` give it the number that is right for it,
        such as 0. If no number is right, write a `Summary`, which reads the set itself.

        Args:
            per_example: Numbers of the examples [n].

        Returns:
            None if an example has no number, or if there is no example.
        """
        if per_example.size == 0 or not np.isfinite(per_example).all():
            return None
        return float(per_example.mean())

    @property
    def repositories(self) -> Mapping[str, Repository]:
        """Repositories of the hub that the metric reads, by the setting that names each.

        A plan finds the commit of each one, and every process of a sweep reads that commit.
        """
        return {}

    def for_role(self, role: Role) -> Metric:
        """Return the metric by which sets with a role are measured, by default this metric.

        Override it if the definition depends on whether rows are to be forgotten or kept.
        """
        del role  # A subclass reads it.
        return self

    def better(self, role: Role) -> Better | None:
        """Return which values are better for an unlearned model, on a set with a role."""
        if self.knows is None or role == "holdout":
            return None
        wanted = role != "forget"
        return "higher" if (self.knows == "higher") == wanted else "lower"


@dataclass(frozen=True)
class Measure:
    """A metric under the name of its columns, on some sets of a benchmark."""

    name: str
    """First part of the columns' names: the column of the set `forget` is `<name>_forget`."""
    metric: Metric
    sets: tuple[str, ...]

    @property
    def key(self) -> str:
        """The name with a hash of version and settings: `rouge_f1 1a2b3c4d`."""
        kind = type(self.metric)
        settings = self.metric.model_dump(mode="json")
        digest = content_hash([kind.__module__, kind.__qualname__, kind.version, settings])
        return f"{self.name} {digest[:8]}"

    def column(self, name: str, role: Role) -> MetricColumn:
        """Return the column of a set.

        Args:
            name: Name of the set.
            role: Role of the set.
        """
        metric = self.metric
        label = f"{metric.label}, {name.replace('_', ' ')}"
        better, bounds = metric.better(role), metric.bounds
        return MetricColumn(f"{self.name}_{name}", label, better, bounds, name)

    def lacks(self, seen: SetEvaluation) -> tuple[str, ...]:
        """Return the observations that the metric reads and a set does not have, sorted."""
        known = {} if seen.token_columns is None else seen.token_columns.observed
        brought = {observation.name for observation in self.metric.observes} - known.keys()
        return tuple(
            sorted(brought.union(r for r in self.metric.reads if not OBSERVATIONS[r].is_in(seen)))
        )

    def per_example(self, seen: SetEvaluation) -> FloatArray | None:
        """Read or compute the values of a set [n].

        Returns:
            None if the values are not stored and an observation is missing.

        Raises:
            PluginError: The metric fails, or gives no numbers.
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
        """Return the number of a set; None if it is undefined.

        Raises:
            PluginError: The metric fails, or gives no numbers.
        """
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


@contextmanager
def guarded(metric: Metric | Summary, name: str) -> Generator[None, None, None]:
    """Turn exceptions of a metric inside the `with` into a PluginError with their place.

    Args:
        metric: The metric.
        name: The function that is called, for the message.
    """
    of_plugin = plugin_code(_call(metric, name), source_file(type(metric)))
    with of_plugin, np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        yield


def number(value: object, source: str) -> float | None:
    """Return a metric's value as a plain number; None for NaN.

    Args:
        value: What the metric has returned.
        source: Where the value comes from, for the message.

    Raises:
        PluginError: The value is neither a number nor None.
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
"""Numbers by column; None for a number that is undefined."""


@dataclass(frozen=True, eq=False)
class EvaluatedModel:
    """The evaluation of one model."""

    sets: Mapping[str, SetEvaluation]
    """Evaluation sets by name."""
    values: Values = field(default_factory=dict[str, float | None])
    """Numbers that have been computed so far, by column."""


@dataclass(frozen=True, eq=False)
class MetricInputs:
    """The evaluations that a summary may read: the model's, and those of its baselines."""

    model: EvaluatedModel
    retain: EvaluatedModel | None = None
    """The retain model, which was trained without the forget rows; None if it is not evaluated."""
    start: EvaluatedModel | None = None
    """The start model, which runs begin from; None if it is not evaluated."""


class Summary(HyperParameters, ABC):
    """Base of metrics of a whole evaluation."""

    version: ClassVar[int] = 1
    """To be increased when the same observations give other numbers than before."""
    after: ClassVar[Set[str]] = frozenset()
    """Names of the summaries whose columns this summary reads."""
    reads: ClassVar[frozenset[Reads]] = frozenset()
    """Observations among `EXTRA` and `UNDER_ATTACK` that the summary reads."""
    roles: ClassVar[frozenset[Role]] = frozenset()
    """Roles of the sets that the summary reads. Every benchmark with these roles reports it.

    If there is no role, the summary is reported only if a benchmark names it, or a configuration
    (`evaluation.metrics`).
    """
    relative_to: ClassVar[frozenset[Compared]] = frozenset()
    """Models without whose evaluation all numbers are undefined."""
    question: ClassVar[str] = ""
    """Question that the first column answers on a scorecard: `Is the rest kept?`; empty if none."""

    @abstractmethod
    def columns(self) -> tuple[MetricColumn, ...]:
        """Return the columns that `compute` fills, the most important column first."""

    def parts(self) -> tuple[str, ...]:
        """Name the columns that the first column is computed from, the most telling one first."""
        return ()

    @abstractmethod
    def compute(self, of: MetricInputs) -> Values:
        """Compute the numbers by column. A number that is missing or None is undefined.

        Args:
            of: The evaluations of the model and of its baselines.
        """
