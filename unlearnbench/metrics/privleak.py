"""Area of Min-K relative to the retain model's."""

import numpy as np

from unlearnbench.api.metric import MetricColumn, MetricInputs, Summary, Values


class PrivLeak(Summary):
    """100 · ((1 − A) − (1 − A_r)) / ((1 − A_r) + 1e-10): Shi et al. 2024, arXiv:2407.06460 (MUSE).

    A, A_r  the Min-K attack's area of the model and of the retain model

    The value is 0 at the retain model, negative if forget rows are still recognised, and positive
    if they look less familiar than unseen rows. Form and sign are open-unlearning's. Without a
    retain model open-unlearning takes A_r = ½. This metric does not, because holdout rows differ
    from forget rows in themselves.
    """

    after = frozenset({"mia-min-k"})
    roles = frozenset({"forget", "holdout"})
    relative_to = frozenset({"retain"})

    def columns(self) -> tuple[MetricColumn, ...]:
        """Return the column `privleak`, in per cent."""
        return (MetricColumn("privleak", "PrivLeak", None, (-100.0, np.inf)),)

    def compute(self, of: MetricInputs) -> Values:
        """Return the number; none without a retain model."""
        area = of.model.values.get("mia_min_k")
        target = None if of.retain is None else of.retain.values.get("mia_min_k")
        if area is None or target is None:
            return {}
        return {"privleak": 100 * ((1 - area) - (1 - target)) / ((1 - target) + 1e-10)}
