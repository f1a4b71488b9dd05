"""Truth ratios of a model, of the retain and of the start model, as distribution functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from unlearnbench.analysis.best_settings import panel_label
from unlearnbench.api.observations import Evaluation, FloatArray
from unlearnbench.base.errors import EvaluationError
from unlearnbench.config.profiles import profile_of_id
from unlearnbench.evaluation.summary import truth_ratios
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow
from unlearnbench.stats.ks_test import KSTest, ks_test

from ..formatting import rate_text, signed
from .marks import SHARE_RANGE, Figure, note, small_layout, trace
from .notebook import Size, fit
from .palette import INK, MUTED, PALETTE, Style, faded, meta


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
    location = int(np.abs(below - below_retain).argmax())
    # Both functions are constant up to the next point; the distance at the last point is 0.
    interval = logarithms(points[location : location + 2])
    return Gap(float(interval.mean()), int(below[location]), int(below_retain[location]), quality)


def logarithms(ratios: FloatArray) -> FloatArray:
    """Sort log10 R [n]; ratios that underflowed or overflowed are put at the last normal float."""
    tiny, huge = np.finfo(np.float64).tiny, np.finfo(np.float64).max
    ascending: FloatArray = np.log10(np.sort(np.clip(ratios, tiny, huge)))
    return ascending


def ratios_of(evaluation: Evaluation | None, profile: str) -> FloatArray | None:
    """Compute the truth ratios [n] on the forget set.

    None if not evaluated, if one is NaN, or by a profile that is unknown here.
    """
    part = None if evaluation is None else evaluation.sets.get("forget")
    if part is None or not len(part.base_loss):
        return None
    try:
        ratios = truth_ratios(part, profile_of_id(profile))
    except EvaluationError:
        return None
    return None if np.isnan(ratios).any() else ratios


def draw(
    name: str,
    array: FloatArray,
    tags: Mapping[str, Any],
    references: Mapping[str, FloatArray | None],
    others: Mapping[int, FloatArray] | None = None,
) -> Figure:
    """Draw the shares of questions up to each truth ratio, with the largest gap D marked.

    own, tags   ratios [n] of the model, and the metadata of its traces
    references  `retain model` and `start model`, if known
    others      ratios of its other epochs, drawn thin
    """
    colour = PALETTE[tags["slot"] % len(PALETTE)][0]
    lines = [
        _line(ratios, f"epoch {epoch}", faded(colour, 0.25), 1, {**tags, "alpha": 0.25})
        for epoch, ratios in sorted((others or {}).items())
    ]
    styles = {"start model": (faded(MUTED, 0.45), 1.5), "retain model": (INK, 2.0)}
    for kind, (shade, width) in styles.items():
        if (ratios := references.get(kind)) is not None:
            lines.append(_line(ratios, kind, shade, width, meta("reference")))
    lines.append(_line(array, name, colour, 2, tags))
    goal = references.get("retain model")
    gap = None if goal is None or len(goal) != len(array) else largest_gap(array, goal)
    layout = small_layout("", "truth ratio R", type="log", exponentformat="power")
    layout["yaxis"] |= {"range": SHARE_RANGE, "tickformat": ".0%"}
    layout["yaxis"]["title"] = {"text": "questions up to R"}
    if gap is not None:
        n, distance = gap.quality.n, gap.quality.statistic
        low, high = sorted((gap.below / n, gap.below_retain / n))
        lines.append(
            trace([10**gap.at] * 2, [low, high], "D", f"D = {distance:.4f}")
            | {"mode": "lines", "line": {"color": INK, "width": 2, "dash": "dot"}}
            | {"meta": meta("reference")}
        )
        # Where no curve passes: left of and above the bar, or right of and below it.
        above = high < 0.9
        side = ("right", "bottom") if above else ("left", "top")
        at = {"xref": "x", "yref": "y", "xanchor": side[0], "yanchor": side[1]}
        text = f"D = {distance:.3f}"
        layout["annotations"] = [note("gap", text, gap.at, high if above else low, **at)]
    return {"data": lines, "layout": layout}


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
    result = {
        e: ratios_of(evaluation, record.profile) for e, evaluation in record.evaluations.items()
    }
    part, goal = result.pop(epoch, None), _only(retain)
    gap = None if part is None or goal is None else largest_gap(part, goal)
    if part is None or gap is None:
        raise EvaluationError(
            f"record {record.id}, epoch {epoch}: a truth ratio is not a number, so there is "
            "nothing to compare; choose another epoch"
        )
    of_size, slot = Size.of(**size), Style.of(every).slots.get(record.method, 0)
    tags = meta("own", record.method, record.learning_rate, slot=slot, alpha=1.0)
    references = {"retain model": goal, "start model": None if start is None else _only(start)}
    others = {e: ratios for e, ratios in result.items() if e > 0 and ratios is not None}
    drawn = draw(f"{record.method}, epoch {epoch}", part, tags, references, others)
    for line in drawn["data"]:
        line["showlegend"] = line["name"] != "D" and line["meta"].get("alpha") != 0.25
    return fit({(1, 1): ("", drawn)}, (), of_size, of_size.title(title, _title(record, gap)))


def _only(record: Record) -> FloatArray | None:
    return ratios_of(record.evaluations[min(record.evaluations)], record.profile)


def _title(record: Record, gap: Gap) -> str:
    where, quality = panel_label(record.model, record.forget_fraction), gap.quality
    return (
        f"Truth ratios on the forget set: {escape(record.method)}, learning rate "
        f"{rate_text(record.learning_rate)}, seed {record.seed}; {where}<br><sup>"
        f"n = {quality.n}, D = {quality.statistic:.4f}, log₁₀ Forget Quality "
        f"{signed(quality.log10_p, 2)} (p = {quality.p_value:.2g})</sup>"
    )


def _line(
    ratios: FloatArray, name: str, colour: str, width: float, tags: Mapping[str, Any]
) -> Figure:
    x = (10 ** logarithms(ratios)).tolist()
    heights = (np.arange(len(x) + 1) / len(x)).tolist()
    hover = "R = %{x:.3g}: %{y:.0%} of the questions, %{fullData.name}"
    line = {"color": colour, "width": width, "shape": "hv"}
    x = [float(f"{value:.4g}") for value in x]
    return trace([x[0], *x], heights, name, hover, mode="lines", line=line, meta=dict(tags))
