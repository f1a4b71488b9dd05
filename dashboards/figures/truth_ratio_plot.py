"""Truth ratios of a model, of the retain and of the start model, as distribution functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from unlearnbench.analysis.best_settings import panel_label
from unlearnbench.api.observations import Evaluation, FloatArray
from unlearnbench.api.profile import Profile
from unlearnbench.config.profiles import profile_of_id
from unlearnbench.errors import EvaluationError
from unlearnbench.evaluation.summary import truth_ratios
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow
from unlearnbench.stats.ks_test import KSTest, ks_test

from ..formatting import rate_text, short, signed
from .curve_plot import small_layout
from .notebook import Size, fit
from .palette import colours, faded
from .tradeoff_axes import INK, MUTED
from .tradeoff_plot import Style, meta


@dataclass(frozen=True)
class Gap:
    """The largest distance between two empirical distribution functions, and its KS test."""

    at: float
    """log10 R in the middle of the first interval on which the distance is D."""
    below: int
    """Number of the unlearned model's ratios up to there."""
    below_retain: int
    """Number of the retain model's ratios up to there."""
    quality: KSTest


def largest_gap(unlearned: FloatArray, retain: FloatArray) -> Gap | None:
    """Find the gap between two models' truth ratios [n] that the KS test uses; None if one is NaN.

    Exact p-value and D are those of `ks_test`. Raises: EvaluationError if the numbers of
    questions differ.
    """
    quality = ks_test(unlearned, retain)
    if quality is None:
        return None
    points = np.unique(np.concatenate([unlearned, retain]))
    below = np.searchsorted(np.sort(unlearned), points, side="right")
    below_retain = np.searchsorted(np.sort(retain), points, side="right")
    place = int(np.abs(below - below_retain).argmax())
    # Both functions are constant up to the next point; the distance at the last point is 0.
    interval = logarithms(points[place : place + 2])
    return Gap(float(interval.mean()), int(below[place]), int(below_retain[place]), quality)


def logarithms(ratios: FloatArray) -> FloatArray:
    """Sort log10 R [n]; ratios that underflowed or overflowed are put at the last normal float."""
    tiny, huge = np.finfo(np.float64).tiny, np.finfo(np.float64).max
    ascending: FloatArray = np.log10(np.sort(np.clip(ratios, tiny, huge)))
    return ascending


def ratios_of(evaluation: Evaluation, profile: Profile) -> FloatArray | None:
    """Compute the truth ratios [n] on the forget set; None if not evaluated, or one is NaN."""
    part = evaluation.sets.get("forget")
    if part is None or not len(part.base_loss):
        return None
    ratios = truth_ratios(part, profile)
    return None if np.isnan(ratios).any() else ratios


def draw(
    name: str,
    own: FloatArray,
    tags: Mapping[str, Any],
    references: Mapping[str, FloatArray | None],
    others: Mapping[int, FloatArray] | None = None,
) -> dict[str, Any]:
    """Draw the shares of questions up to each truth ratio, with the largest gap D marked.

    own, tags   ratios [n] of the model, and the metadata of its traces
    references  `retain model` and `start model`, if known
    others      ratios of its other epochs, drawn thin
    """
    colour, _ = colours(tags["slot"])
    traces = [
        _line(ratios, f"epoch {epoch}", faded(colour, 0.25), 1, {**tags, "alpha": 0.25})
        | {"showlegend": False}
        for epoch, ratios in sorted((others or {}).items())
    ]
    for kind, shade, width in (
        ("start model", faded(MUTED, 0.45), 1.5),
        ("retain model", INK, 2.0),
    ):
        if (ratios := references.get(kind)) is not None:
            traces.append(_line(ratios, kind, shade, width, meta("reference")))
    traces.append(_line(own, name, colour, 2, tags))
    goal = references.get("retain model")
    gap = None if goal is None or len(goal) != len(own) else largest_gap(own, goal)
    layout = small_layout("", "truth ratio R", type="log", exponentformat="power")
    layout["yaxis"] |= {"range": [-0.02, 1.04], "tickformat": ".0%"}
    layout["yaxis"]["title"] = {"text": "questions up to R"}
    if gap is not None:
        traces.append(_gap(gap))
        layout["annotations"] = [_gap_label(gap)]
    return {"data": traces, "layout": layout}


def build(
    record: Record,
    epoch: int,
    retain: Record,
    start: Record | None = None,
    *,
    every: Sequence[TableRow] = (),
    title: str | None = None,
    **size: Any,
) -> go.Figure:
    """Draw the truth ratios of a run's epoch, its other epochs thin, as a figure for a notebook.

    record  a run
    retain  the retain model, on the same questions, evaluated with the same profile
    start   the fine-tuned model, pale
    every   the rows of the sweep, whose colour the run keeps
    title   default: the run and its numbers; none at a width in print
    size    width, font_size and legend, see `Size.of`

    Raises: EvaluationError if the profiles differ, or a ratio is NaN.
    """
    if retain.profile != record.profile:
        raise EvaluationError(
            f"record {record.id} was evaluated by {record.profile}, the retain model {retain.id} "
            f"by {retain.profile}: give one of the same profile"
        )
    by_epoch = {e: r for e in record.evaluations if (r := _ratios(record, e)) is not None}
    own, goal = by_epoch.pop(epoch, None), _ratios(retain, min(retain.evaluations))
    gap = None if own is None or goal is None else largest_gap(own, goal)
    if own is None or gap is None:
        raise EvaluationError(
            f"record {record.id}, epoch {epoch}: a truth ratio is not a number, so there is "
            "nothing to compare; choose another epoch"
        )
    of_size = Size.of(**size)
    if title is None and of_size.inches is None:
        title = _title(record, gap)
    by_epoch.pop(0, None)
    slot = Style.of(every).slots.get(record.method, 0)
    tags = meta("own", record.method, record.learning_rate, slot=slot, alpha=1.0)
    references = {
        "retain model": goal,
        "start model": None if start is None else _ratios(start, min(start.evaluations)),
    }
    name = f"{record.method}, epoch {epoch}"
    return fit(go.Figure(draw(name, own, tags, references, by_epoch)), of_size, title, 1, 1)


def _title(record: Record, gap: Gap) -> str:
    where, quality = panel_label(record.model, record.forget_fraction), gap.quality
    return (
        f"Truth ratios on the forget set: {escape(record.method)}, learning rate "
        f"{rate_text(record.learning_rate)}, seed {record.seed}; {where}<br><sup>"
        f"n = {quality.n}, D = {quality.statistic:.4f}, log₁₀ Forget Quality "
        f"{signed(quality.log10_p, 2)} (p = {quality.p_value:.2g})</sup>"
    )


def _ratios(record: Record, epoch: int) -> FloatArray | None:
    return ratios_of(record.evaluations[epoch], profile_of_id(record.profile))


def _line(
    ratios: FloatArray, name: str, colour: str, width: float, tags: Mapping[str, Any]
) -> dict[str, Any]:
    x = [short(value, 4) for value in (10 ** logarithms(ratios)).tolist()]
    heights = (np.arange(len(x) + 1) / len(x)).tolist()
    return {
        "type": "scatter",
        "x": [x[0], *x],
        "y": [short(height, 4) for height in heights],
        "mode": "lines",
        "name": escape(name),
        "line": {"color": colour, "width": width, "shape": "hv"},
        "hovertemplate": "R = %{x:.3g}: %{y:.0%} of the questions<extra>%{fullData.name}</extra>",
        "meta": dict(tags),
    }


def _gap(gap: Gap) -> dict[str, Any]:
    at, n = 10**gap.at, gap.quality.n
    return {
        "type": "scatter",
        "x": [at, at],
        "y": sorted((gap.below / n, gap.below_retain / n)),
        "mode": "lines+markers",
        "name": "D",
        "line": {"color": INK, "width": 2, "dash": "dot"},
        "marker": {"symbol": "line-ew-open", "size": 12, "color": INK, "line": {"width": 2}},
        "hovertemplate": f"D = {gap.quality.statistic:.4f}<extra></extra>",
        "showlegend": False,
        "meta": meta("reference"),
    }


def _gap_label(gap: Gap) -> dict[str, Any]:
    """Write D where no curve passes: left of and above the bar, or right of and below it."""
    low, high = sorted((gap.below / gap.quality.n, gap.below_retain / gap.quality.n))
    above = high < 0.9
    return {
        "name": "gap",
        "text": f"D = {gap.quality.statistic:.3f}",
        "x": gap.at,
        "y": high if above else low,
        "xanchor": "right" if above else "left",
        "yanchor": "bottom" if above else "top",
        "showarrow": False,
        "font": {"size": 13, "color": INK},
    }
