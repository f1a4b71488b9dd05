"""What one run and its retain model gain under an attack, question by question.

An interval over questions needs a gain for each question, which no table contains. The gains are
computed from the observations before the attack and under it (`gains_of`), for the run and for the
retain model. Then both are combined (`question_gains`) and give intervals (`QuestionGains`).

A *gain* is the number under the attack less the number before it. The retain model's gain is the
*null*: what the attack teaches a model that never saw the rows. The *excess* is the gain beyond it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from unlearnbench.api.metric import Measure
from unlearnbench.api.observations import Evaluation, FloatArray, IntArray, SetEvaluation
from unlearnbench.base.errors import PluginError
from unlearnbench.results.asked_places import asked_places
from unlearnbench.results.greedy_counterparts import measure_of
from unlearnbench.results.table import TableRow
from unlearnbench.stats.mean_interval import Ends, difference_bounds, mean_interval


class BeforeAndAfter(NamedTuple):
    """The rows of a model before an attack and under it."""

    before: TableRow | None
    after: TableRow | None


class GainsOfModel(NamedTuple):
    """The gains of one model under an attack."""

    values: FloatArray
    """[n] by question."""
    places: IntArray
    """[n] places of the questions among all questions of the set."""
    bounds: Ends
    """Least and largest gain."""

    def zero(self) -> "GainsOfModel":
        """Return gains of 0 on the same questions."""
        return self._replace(values=np.zeros_like(self.values))


@dataclass(frozen=True, eq=False)
class QuestionGains:
    """Gains by question, in the direction of more memorisation."""

    model: FloatArray
    """[n] of the run."""
    retain: FloatArray | None
    """[n] of the retain model on the same questions; None if they are not known."""
    bounds: Ends
    """Least and largest gain."""

    @property
    def count(self) -> int:
        """Number of questions."""
        return self.model.size

    def gain_interval(self, level: float) -> Ends | None:
        """Return an interval of the run's mean gain."""
        return mean_interval(self.model, self.bounds, level=level)

    @property
    def excess(self) -> FloatArray | None:
        """[n] gains − the retain model's gains on the same questions; None if these are not known.

        If the retain model loses on average, nothing is subtracted, as in `UnderAttack.taught`.
        """
        if self.retain is None:
            return None
        return self.model - self.retain if self.retain.mean() > 0 else self.model

    def excess_interval(self, level: float) -> Ends | None:
        """Return an interval of the mean of `excess`."""
        if self.excess is None:
            return None
        return mean_interval(self.excess, difference_bounds(self.bounds), level=level)


def question_gains(own: GainsOfModel, null: GainsOfModel | None, sign: float) -> QuestionGains:
    """Combine the gains of a run with those of the retain model.

    Args:
        own: Gains of the run.
        null: Gains of the retain model; None if they are not known. They are used only if they are
            of the same questions.
        sign: −1 if a smaller number means that more is memorised.
    """
    retain = None
    if null is not None and np.array_equal(own.places, null.places):
        retain = sign * null.values
    return QuestionGains(sign * own.values, retain, own.bounds)


def gains_of(
    before_column: str,
    after_column: str,
    rows: BeforeAndAfter,
    observed: Callable[[TableRow], Evaluation | None],
) -> GainsOfModel | None:
    """Compute the gains of one model by question.

    Args:
        before_column: Column of the number before the attack.
        after_column: Column of the number under the attack. It is another one only if sampled
            answers are compared with greedy ones.
        rows: Rows of the model.
        observed: Reads the observations behind a row.

    Returns:
        None if a column is not the mean over the rows of one set, or if observations are missing.
    """
    if rows.before is None or rows.after is None:
        return None
    known_before = measure_of(rows.after.schema, before_column)
    known_after = measure_of(rows.after.schema, after_column)
    if known_before is None or known_after is None:
        return None
    measure_before, _ = known_before
    measure_after, set_name = known_after

    evaluation_before = observed(rows.before)
    evaluation_after = observed(rows.after)
    if evaluation_before is None or evaluation_after is None:
        return None
    if set_name not in evaluation_before.sets or set_name not in evaluation_after.sets:
        return None
    set_before = evaluation_before.sets[set_name]
    set_after = evaluation_after.sets[set_name]

    try:
        values_before = measure_before.per_example(set_before)
        values_after = measure_after.per_example(set_after)
    except PluginError:  # The table warns of a metric that fails.
        return None
    if values_before is None or values_after is None:
        return None

    is_point_of_attack = bool(rows.before.variant)
    if is_point_of_attack:
        # Before the first step of an attack that trains, the same rows are asked as after it.
        places = _places_in_set(set_after, count=len(values_after))
    else:
        # A plain evaluation asks all rows, and an attack may leave some out.
        asked = asked_places(set_before, set_after)
        if asked is None:
            return None
        places = asked
        values_before = values_before[places]
    if not _is_mean(measure_before, values_before) or not _is_mean(measure_after, values_after):
        return None
    bounds = difference_bounds(measure_after.metric.bounds)
    return GainsOfModel(values_after - values_before, places, bounds)


def _places_in_set(asked: SetEvaluation, count: int) -> IntArray:
    """Return the places [n] of the asked questions among all questions of the set."""
    return np.arange(count) if asked.places is None else asked.places


def _is_mean(measure: Measure, values: FloatArray) -> bool:
    """Whether the metric's number is the mean of these values; False if one is undefined."""
    number = measure.number(values)
    return number is not None and bool(np.isclose(number, values.mean()))
