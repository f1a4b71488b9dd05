"""Early stopping: a run ends when a metric has not improved for some evaluated epochs.

Patience is a rule of the run itself and part of its identity. A scheduler, in contrast, compares a
run with others (status `stopped`).

Runs with the same rule may end after different numbers of epochs. For equal budgets leave it out
and choose epochs afterwards. The mean at a late epoch is over the seeds that reached it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import Field

from unlearnbench.config.section import Settings


class Patience(Settings):
    """`{metric: log10_forget_quality, epochs: 2}`."""

    metric: str = Field(description="a column of results.csv")
    epochs: int = Field(ge=1, description="evaluated epochs without improvement that end a run")
    min_delta: float = Field(default=0.0, ge=0, description="least improvement that counts")
    mode: Literal["max", "min"] | None = Field(
        default=None,
        description="direction that is better; default: the metric's own (min for ks_statistic, "
        "rouge_forget and probability_forget), else max",
    )

    def ended(
        self,
        evaluated: Iterable[tuple[int, Mapping[str, float | None]]],
        better: Literal["higher", "lower"] | None,
    ) -> str | None:
        """Return the reason to end a run after these (epoch, metrics); None to continue.

        An epoch without a value counts as one without improvement.

        better  direction of the metric's column, where it has one
        """
        sign = -1.0 if (self.mode or ("min" if better == "lower" else "max")) == "min" else 1.0
        best, best_epoch, without = -math.inf, 0, 0
        epoch = 0
        for epoch, metrics in evaluated:
            value = metrics.get(self.metric)
            score = math.nan if value is None else sign * value
            if score > best and (math.isinf(best) or score - best > self.min_delta):
                best, best_epoch, without = score, epoch, 0
            else:
                without += 1
        if without < self.epochs:
            return None
        since = f"has not improved since epoch {best_epoch} ({sign * best:.4g})"
        what = since if best_epoch else "never had a number"
        more = f" by more than {self.min_delta:g}" if self.min_delta else ""
        return f"epoch {epoch}: {self.metric} {what}{more} (evaluation.patience)"
