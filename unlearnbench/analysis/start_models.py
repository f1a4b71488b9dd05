"""Validity of a start model, which page, terminal and MLflow all take from here. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from unlearnbench.analysis.best_settings import (
    Best,
    at_start,
    headline_of_rows,
    merit_of,
    on_panel,
    panel_label,
)
from unlearnbench.api.benchmark import Headline, HeadlineMetric, SplitKey
from unlearnbench.results.table import TableRow


@dataclass(frozen=True)
class Start:
    """Start model of the runs of one model and split: the fine-tuned model."""

    model: str
    forget_fraction: SplitKey
    utility: float | None
    """What it keeps, by the headline; None if it was not evaluated."""
    quality: float | None
    """What it has forgotten, by the headline; None likewise, and where that needs a retain model
    and there is none."""
    headline: Headline
    """Of the benchmark."""

    @property
    def place(self) -> str:
        """`tiny, forget 10 %`."""
        return panel_label(self.model, self.forget_fraction)

    @property
    def fault(self) -> str:
        """Reason why runs from this model show nothing about methods; empty if there is none.

        A model that knows nothing has no utility to keep, so every setting keeps it. A model that
        the test does not distinguish from the retain model passes it without any unlearning.
        """
        least, test = self.headline.least_kept, self.headline.forgotten.test
        if self.utility is not None and least is not None and self.utility < least:
            return (
                f"the start model knows nothing: its {self.headline.kept.plain_label} is "
                f"{self.utility:.2f}, below {least:g}, so that there is nothing to keep "
                "and nothing to forget. Prepare it with more epochs or at another learning "
                "rate (the model's preparation), or name one that has learned the data (fine_tuned)"
            )
        if self.quality is not None and test and self.quality > math.log10(test.level):
            return (
                f"the start model has nothing left to forget: before any unlearning its "
                f"{test.label} is p = {p_value(self.quality)}, above {test.level:g}, as of a model "
                "that never saw the forget set. Train it longer on the data, or evaluate more "
                "forget questions"
            )
        return ""

    def unmoved(self, quality: float | None) -> bool:
        """True if a setting with this number has forgotten no more than the start model."""
        if quality is None or self.quality is None:
            return False
        oriented = self.headline.forgotten.oriented
        return oriented(quality) <= oriented(self.quality)


def start_of(rows: Iterable[TableRow], model: str, forget_fraction: SplitKey) -> Start:
    """The start of one model and split."""
    here = on_panel(rows, (model, forget_fraction))
    headline = headline_of_rows(here)
    utility, quality = (
        at_start(here, model, forget_fraction, one.column)
        for one in (headline.kept, headline.forgotten)
    )
    return Start(model, forget_fraction, utility, quality, headline)


def rows_with_valid_start(rows: Sequence[TableRow]) -> tuple[TableRow, ...]:
    """The rows of panels whose start model has no fault."""
    places = {(row.model, row.forget_fraction) for row in rows}
    faulty = {place for place in places if start_of(rows, *place).fault}
    return tuple(row for row in rows if (row.model, row.forget_fraction) not in faulty)


def winner(best: Iterable[Best]) -> Best | None:
    """The best of several methods' best settings; None if no method has one."""
    merits = [(merit_of(one.setting) or (), one) for one in best if one.setting is not None]
    return max(merits, key=lambda pair: pair[0], default=((), None))[1]


def quality_text(metric: HeadlineMetric, value: float) -> str:
    """Number of what is forgotten, in a sentence: `p = 0.82`, or `0.123` where no test is behind.

    value  by the headline, so that of a test it is the logarithm of p
    """
    return f"p = {p_value(value)}" if metric.test else f"{value:.{metric.digits}f}"


def p_value(log10: float) -> str:
    """A p-value from its logarithm: `0.82`, `1.3e-05`; a power of ten alone below 1e-300."""
    if log10 > -300:
        return f"{10**log10:.2g}"
    return f"1e{math.floor(log10)}"
