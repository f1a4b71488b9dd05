"""Mean ranks of methods by their best settings, over models and splits. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unlearnbench.analysis.best_settings import Best, Panel, panel_order, split_kind
from unlearnbench.api.observations import FloatArray
from unlearnbench.stats.t_interval import LEVEL

RESAMPLES = 2_000


@dataclass(frozen=True)
class Rank:
    """Mean rank of a method; 1 is the best."""

    method: str
    """Label without hyper-parameters."""
    mean: float
    low: float | None
    """Interval of the mean; None for one panel with one seed, which cannot be resampled."""
    high: float | None
    places: tuple[float, ...]
    """Rank on each of `Ranks.panels`; two methods that tie share the mean of their ranks."""
    without: int
    """Number of panels on which no setting keeps its utility; the method ranks last there."""


@dataclass(frozen=True)
class Ranks:
    """Mean ranks of the methods that ran on every panel, best first."""

    panels: tuple[Panel, ...]
    ranks: tuple[Rank, ...]
    left_out: tuple[str, ...]
    """Methods that did not run on every panel, whose ranks are not comparable."""
    level: float = LEVEL

    @property
    def summary(self) -> str:
        """Sentences on the data behind the ranks."""
        count, kind = len(self.panels), split_kind(self.panels)
        what = f"{count} panels (models × {kind}s)"
        if count < 2:
            what = f"one panel: they hold for this model and {kind} only"
        text = f"Ranks of {len(self.ranks)} methods by their best settings, from {what}."
        last = [one for one in self.ranks if one.without]
        if last:
            named = ", ".join(
                one.method + (f" ({one.without} of {count})" if count > 1 else "") for one in last
            )
            text += f" Last because no setting keeps its utility: {named}."
        if self.left_out:
            text += f" Left out because not run on every panel: {', '.join(self.left_out)}."
        return text


def mid_ranks(values: Sequence[float | None]) -> tuple[float, ...]:
    """Ranks from 1 for the largest; equal values share the mean of their ranks, None is last."""
    finite = np.array([-np.inf if v is None else v for v in values], dtype=np.float64)
    return tuple(_places(finite).tolist())


def _places(values: FloatArray) -> FloatArray:
    """[..., k] mid-ranks of [..., k] values, 1 for the largest."""
    higher = (values[..., None, :] > values[..., :, None]).sum(axis=-1)
    equal = (values[..., None, :] == values[..., :, None]).sum(axis=-1)
    places: FloatArray = higher + (equal + 1) / 2
    return places


def rank_methods(best: Sequence[Best], level: float = LEVEL) -> Ranks:
    """Rank the methods by what their best settings (`best_per_method`) have forgotten.

    The interval resamples panels, and in each panel the seeds of every setting, if there are
    several (percentiles of 2,000 resamples with a fixed seed; Efron 1979, Ann. Statist. 7, 1-26).
    The settings are fixed, so that it does not include the uncertainty of choosing them. Own code:
    `scipy.stats.bootstrap` has no nested resampling.
    """
    by_panel: dict[Panel, dict[str, Best]] = defaultdict(dict)
    for one in best:
        by_panel[one.model, one.forget_fraction][one.family] = one
    panels = tuple(sorted(by_panel, key=panel_order))
    everyone = sorted({one.family for one in best})
    methods = [m for m in everyone if all(m in by_panel[panel] for panel in panels)]
    left_out = tuple(m for m in everyone if m not in methods)
    if not methods:
        return Ranks(panels, (), left_out, level)
    cells = [[_values(by_panel[panel][m]) for m in methods] for panel in panels]
    places = np.array(
        [mid_ranks([float(np.mean(v)) if len(v) else None for v in row]) for row in cells]
    )
    low, high = _interval(cells, level)
    ranks = [
        Rank(
            method=method,
            mean=float(places[:, i].mean()),
            low=None if low is None else float(low[i]),
            high=None if high is None else float(high[i]),
            places=tuple(places[:, i].tolist()),
            without=sum(len(row[i]) == 0 for row in cells),
        )
        for i, method in enumerate(methods)
    ]
    return Ranks(panels, tuple(sorted(ranks, key=lambda r: (r.mean, r.method))), left_out, level)


def _values(best: Best) -> FloatArray:
    """[seeds] what is forgotten, larger is better; empty without a setting."""
    rows = () if best.setting is None else best.setting.rows
    return np.array(
        [row.headline.forgotten.oriented(v) for row in rows if (v := row.forgotten) is not None]
    )


def _interval(
    cells: Sequence[Sequence[FloatArray]], level: float
) -> tuple[FloatArray, FloatArray] | tuple[None, None]:
    """[k] lower and upper ends of the mean ranks; None if there is nothing to resample."""
    if len(cells) < 2 and all(len(values) < 2 for row in cells for values in row):
        return None, None
    rng = np.random.default_rng(0)
    by_panel = np.stack([_drawn_places(row, rng) for row in cells])  # [panels, RESAMPLES, k]
    picks = rng.integers(0, len(cells), (len(cells), RESAMPLES))
    means = by_panel[picks, np.arange(RESAMPLES)].mean(axis=0)  # [RESAMPLES, k]
    low, high = np.quantile(
        means, [(1 - level) / 2, (1 + level) / 2], axis=0, method="inverted_cdf"
    )
    return low, high


def _drawn_places(row: Sequence[FloatArray], rng: np.random.Generator) -> FloatArray:
    """[RESAMPLES, k] ranks on one panel, with seeds drawn with replacement."""
    drawn = [
        values[rng.integers(0, len(values), (RESAMPLES, len(values)))].mean(axis=1)
        if len(values)
        else np.full(RESAMPLES, -np.inf)
        for values in row
    ]
    return _places(np.stack(drawn, axis=1))
