"""Stopping by patience: a run ends when a metric has not improved for some evaluated epochs.

A rule of the run itself, and part of its identity: every run of a sweep has the same one, whatever
else is running. A scheduler's stop depends on other runs, and is another thing (status `stopped`).

The same rule is no equal budget: where that is wanted, leave it out and choose epochs afterwards.
A late epoch's mean is over the seeds that reached it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import Field

from unlearnbench.frozen import Settings

LOWER_IS_BETTER = ("ks_statistic", "rouge_forget", "probability_forget")
"""Columns that fall while a model forgets; of all others more is better."""


class Patience(Settings):
    """`{metric: log10_forget_quality, epochs: 2}`."""

    metric: str = Field(description="a column of results.csv")
    epochs: int = Field(ge=1, description="evaluated epochs without improvement that end a run")
    min_delta: float = Field(default=0.0, ge=0, description="what counts as one is more than this")
    mode: Literal["max", "min"] | None = Field(
        default=None,
        description="better is more or less; default: min for ks_statistic, rouge_forget and "
        "probability_forget, else max",
    )

    @property
    def sign(self) -> float:
        """1 where more is better, -1 where less is."""
        mode = self.mode or ("min" if self.metric in LOWER_IS_BETTER else "max")
        return 1.0 if mode == "max" else -1.0

    def ended(self, evaluated: Iterable[tuple[int, Mapping[str, float | None]]]) -> str | None:
        """Why a run with these (epoch, metrics) ends after the last one; None: it goes on.

        An epoch without a number is one without improvement.
        """
        best, best_epoch, without = -math.inf, 0, 0
        epoch = 0
        for epoch, metrics in evaluated:
            value = metrics.get(self.metric)
            score = math.nan if value is None else self.sign * value
            if score > best and (math.isinf(best) or score - best > self.min_delta):
                best, best_epoch, without = score, epoch, 0
            else:
                without += 1
        if without < self.epochs:
            return None
        since = f"has not improved since epoch {best_epoch} ({self.sign * best:.4g})"
        what = since if best_epoch else "never had a number"
        more = f" by more than {self.min_delta:g}" if self.min_delta else ""
        return f"epoch {epoch}: {self.metric} {what}{more} (evaluation.patience)"
