"""The contract of a membership inference attack: one score per example, forget against holdout."""

from abc import abstractmethod
from typing import ClassVar

import numpy as np
from pydantic import Field

from unlearnbench.api.metric import MetricColumn, MetricInputs, Summary, Values
from unlearnbench.api.observations import FloatArray, SetEvaluation
from unlearnbench.stats.roc import auc, true_positive_rate

CONTROL = "_control"
"""Ends the name of a control's column."""


class MembershipInference(Summary):
    """Base of membership inference attacks: can the forget rows be distinguished from unseen rows?

    An attack's score is larger, the less likely an example was trained on. Its columns are
    `mia_<name>`, the area under the ROC curve (1: every forget row is recognised; ½: none; 0: they
    look less familiar than unseen rows), and `mia_<name>_tpr`, the share of forget rows that are
    recognised where one unseen row in a hundred is taken for one. `mia_<name>_control` is the area
    of retain rows in place of the forget rows: an attack that does not find those in the start
    model, which was trained on them, says nothing about forget rows either.

    Neither is best at ½: holdout rows may differ from the forget rows in themselves, so the retain
    model's value is the aim.
    """

    label: ClassVar[str]
    """Name for people: `LOSS`."""
    key: ClassVar[str]
    """Name in columns: `loss`."""

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
        """[n] one for each example; NaN where undefined, None where the set lacks what it reads."""

    def columns(self) -> tuple[MetricColumn, ...]:
        """Area, true positive rate at 1 % false positives, and the area of the control."""
        name, label = f"mia_{self.key}", f"{self.label} attack"
        columns = (
            MetricColumn(name, f"{label}, AUC"),
            MetricColumn(f"{name}_tpr", f"{label}, TPR at 1 % FPR"),
            MetricColumn(f"{name}{CONTROL}", f"{label}, AUC of retain rows (control)"),
        )
        return columns if self.control else columns[:2]

    def pair(self, of: MetricInputs) -> tuple[FloatArray, FloatArray] | None:
        """The scores of members and others; None where a set or what is read of it is missing."""
        return self._pair_of(of, self.members)

    def _pair_of(self, of: MetricInputs, group: str) -> tuple[FloatArray, FloatArray] | None:
        members, others = (self.of_set(of, name) for name in (group, self.others))
        return None if members is None or others is None else (members, others)

    def of_set(self, of: MetricInputs, name: str) -> FloatArray | None:
        """[n] of a set's examples, the scores that a log states, or else `scores`."""
        seen = of.model.sets.get(name)
        known = None if seen is None else seen.values.get(f"mia_{self.key}")
        if seen is None or known is not None:
            return known
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.scores(seen)

    def compute(self, of: MetricInputs) -> Values:
        """None where a score is NaN."""
        result: dict[str, float | None] = {}
        name, pair = f"mia_{self.key}", self.pair(of)
        if pair is not None:
            result |= {name: auc(*pair), f"{name}_tpr": true_positive_rate(*pair)}
        control = self._pair_of(of, self.control) if self.control else None
        if control is not None:
            result[f"{name}{CONTROL}"] = auc(*control)
        return result
