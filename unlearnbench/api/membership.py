"""The contract of a membership inference attack: a score for each forget and holdout example."""

from abc import abstractmethod
from typing import ClassVar

import numpy as np
from pydantic import Field

from unlearnbench.api.metric import MetricColumn, MetricInputs, Summary, Values
from unlearnbench.api.observations import FloatArray, SetEvaluation
from unlearnbench.stats.roc import auc, true_positive_rate

CONTROL = "_control"
"""Last part of the name of a control's column."""


class MembershipInference(Summary):
    """Base of membership inference attacks: can the forget rows be distinguished from unseen rows?

    The score of an attack is the larger, the less likely an example was trained on. There are three
    columns:

    - `mia_<name>` is the area under the ROC curve. It is 1 if every forget row is recognised, ½ if
      forget rows look like unseen rows, and 0 if they look less familiar than unseen rows.
    - `mia_<name>_tpr` is the fraction of forget rows that are recognised if one unseen row in a
      hundred is taken for a forget row.
    - `mia_<name>_control` is the area for retain rows in place of forget rows. The start model was
      trained on them. An attack that does not recognise them says nothing about forget rows either.

    A value of ½ is not best, because holdout rows may differ from forget rows in their content. The
    aim is the retain model's value.
    """

    label: ClassVar[str]
    """Name for people, for example `LOSS`."""
    key: ClassVar[str]
    """Name in columns, for example `loss`."""

    roles = frozenset({"forget", "holdout"})

    members: str = Field(
        default="forget", description="evaluation set whose rows the start model was trained on"
    )
    others: str = Field(
        default="holdout", description="evaluation set whose rows no model was trained on"
    )
    control: str | None = Field(
        default="retain",
        description="evaluation set that replaces `members` in the control; null: no control",
    )

    @abstractmethod
    def scores(self, seen: SetEvaluation) -> FloatArray | None:
        """Compute a score for each example of a set [n].

        Returns:
            NaN for examples without a score. None if the set lacks an observation.
        """

    def columns(self) -> tuple[MetricColumn, ...]:
        """Return the columns of area, true positive rate at 1 % false positives, and control."""
        name = f"mia_{self.key}"
        label = f"{self.label} attack"
        columns = (
            MetricColumn(name, f"{label}, AUC"),
            MetricColumn(f"{name}_tpr", f"{label}, TPR at 1 % FPR"),
            MetricColumn(f"{name}{CONTROL}", f"{label}, AUC of retain rows (control)"),
        )
        return columns if self.control else columns[:2]

    def pair(self, of: MetricInputs) -> tuple[FloatArray, FloatArray] | None:
        """Return the scores of `members` and `others`. None: a set or observation is missing."""
        return self._pair_of(of, self.members)

    def _pair_of(self, of: MetricInputs, group: str) -> tuple[FloatArray, FloatArray] | None:
        """Return the scores of a set and of the set `others`, or None if one has no scores."""
        members = self.of_set(of, group)
        others = self.of_set(of, self.others)
        if members is None or others is None:
            return None
        return members, others

    def of_set(self, of: MetricInputs, name: str) -> FloatArray | None:
        """Return the scores of a set's examples [n]. They are computed unless a log states them.

        Returns:
            None if the set or an observation is missing.
        """
        seen = of.model.sets.get(name)
        if seen is None:
            return None
        stated = seen.values.get(f"mia_{self.key}")
        if stated is not None:
            return stated
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.scores(seen)

    def compute(self, of: MetricInputs) -> Values:
        """Compute the columns. A number is None if a score is NaN."""
        numbers: dict[str, float | None] = {}
        name = f"mia_{self.key}"
        pair = self.pair(of)
        if pair is not None:
            numbers |= {name: auc(*pair), f"{name}_tpr": true_positive_rate(*pair)}
        control = self._pair_of(of, self.control) if self.control else None
        if control is not None:
            numbers[f"{name}{CONTROL}"] = auc(*control)
        return numbers
