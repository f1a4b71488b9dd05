"""What one run and its retain model gain under an attack, question by question. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from unlearnbench.api.metric import Measure
from unlearnbench.api.observations import Evaluation, FloatArray, IntArray
from unlearnbench.base.errors import PluginError
from unlearnbench.results.asked_rows import asked_places, measure_of
from unlearnbench.results.table import TableRow
from unlearnbench.stats.mean_interval import Ends, difference_bounds, mean_interval


class BeforeAndAfter(NamedTuple):
    """The rows of a model before an attack and under it."""

    before: TableRow | None
    after: TableRow | None


@dataclass(frozen=True, eq=False)
class QuestionGains:
    """Gains by question, in the direction of more memorisation."""

    model: FloatArray
    """[n] of the run."""
    retain: FloatArray | None
    """[n] of the retain model on the same rows; None if they are not known."""
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
        """[n] gains less the retain model's on the same rows; None if these are not known.

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


def question_gains(own: "GainsOfModel", null: "GainsOfModel | None", sign: float) -> QuestionGains:
    """Combine the gains of a run with those of the retain model on the same rows.

    Args:
        own: Gains of the run.
        null: Gains of the retain model; None if they are not known.
        sign: −1 if a smaller number means that more is memorised.
    """
    has_same_rows = null is not None and np.array_equal(own.places, null.places)
    retain = sign * null.values if null is not None and has_same_rows else None
    return QuestionGains(sign * own.values, retain, own.bounds)


class GainsOfModel(NamedTuple):
    """The gains of one model under an attack."""

    values: FloatArray
    """[n] by question."""
    places: IntArray
    """[n] places of the rows among all rows of the set."""
    bounds: Ends
    """Least and largest gain."""


def gains_of(
    before_column: str,
    after_column: str,
    rows: BeforeAndAfter,
    observed: Callable[[TableRow], Evaluation | None],
) -> GainsOfModel | None:
    """Compute the gains of one model by question.

    Args:
        before_column: Column that the number before the attack is of.
        after_column: Column that the number under the attack is of.
        rows: Rows of the model.
        observed: Reads the observations behind a row.

    Returns:
        None if the columns are no means over rows of one set, or if observations are missing.
    """
    if rows.before is None or rows.after is None:
        return None
    measure_before = measure_of(rows.after.schema, before_column)
    measure_after = measure_of(rows.after.schema, after_column)
    if measure_before is None or measure_after is None:
        return None
    before, _ = measure_before
    after, set_name = measure_after
    first, last = observed(rows.before), observed(rows.after)
    if first is None or last is None or not (set_name in first.sets and set_name in last.sets):
        return None
    whole, asked = first.sets[set_name], last.sets[set_name]
    try:
        values_before, values_after = before.per_example(whole), after.per_example(asked)
    except PluginError:  # The table warns of a metric that fails.
        return None
    if values_before is None or values_after is None:
        return None
    if rows.before.variant:
        # Before the first step of an attack that trains, the same rows are asked as after it.
        places = np.arange(len(values_after)) if asked.places is None else asked.places
    else:
        asked_of_whole = asked_places(whole, asked)
        if asked_of_whole is None:
            return None
        places = asked_of_whole
        values_before = values_before[places]
    if not (_is_mean(before, values_before) and _is_mean(after, values_after)):
        return None
    return GainsOfModel(
        values_after - values_before, places, difference_bounds(after.metric.bounds)
    )


def _is_mean(measure: Measure, values: FloatArray) -> bool:
    """Whether the metric's number is the mean of these values; False if one is undefined."""
    number = measure.number(values)
    return number is not None and bool(np.isclose(number, values.mean()))
