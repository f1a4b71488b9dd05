"""Truth ratios of a model, of the retain and of the start model, as distribution functions."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from unlearnbench.analysis.settings import panel_label
from unlearnbench.api.observations import Evaluation, FloatArray
from unlearnbench.base.errors import EvaluationError
from unlearnbench.config.profiles import profile_of_id
from unlearnbench.config.unit import Unit
from unlearnbench.evaluation.summary import truth_ratios
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow
from unlearnbench.stats.ks_test import largest_gap, sorted_log10

from ..formatting import rate_text
from .marks import SHARE_RANGE, Figure, note, small_layout, trace
from .notebook import fit
from .palette import INK, MUTED, PALETTE, Style, faded, meta


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
    unit: Unit = Unit.EPOCH,
) -> Figure:
    """Draw the shares of questions up to each truth ratio, with the largest gap D marked.

    array, tags ratios [n] of the model, and the metadata of its traces
    references  `retain model` and `start model`, if known
    others      ratios of its other epochs, or steps, drawn thin
    unit        what the moments of `others` are counted in
    """
    colour = PALETTE[tags["slot"] % len(PALETTE)][0]
    lines = [
        _line(ratios, unit.at(epoch), faded(colour, 0.25), 1, {**tags, "alpha": 0.25})
        for epoch, ratios in sorted((others or {}).items())
    ]
    styles = {"start model": (faded(MUTED, 0.45), 1.5), "retain model": (INK, 2.0)}
    for kind, (shade, width) in styles.items():
        if (ratios := references.get(kind)) is not None:
            lines.append(_line(ratios, kind, shade, width, meta("reference")))
    lines.append(_line(array, name, colour, 2, tags))
    goal = references.get("retain model")
    layout = small_layout("", "truth ratio R", type="log", exponentformat="power")
    layout["yaxis"] |= {"range": SHARE_RANGE, "tickformat": ".0%"}
    layout["yaxis"]["title"] = {"text": "questions up to R"}
    if goal is not None and len(goal) == len(array):
        gap = largest_gap(array, goal)
        at = gap.log10_place
        low, high = sorted((gap.share, gap.other_share))
        lines.append(
            trace([10**at] * 2, [low, high], "D", f"D = {gap.statistic:.4f}")
            | {"mode": "lines", "line": {"color": INK, "width": 2, "dash": "dot"}}
            | {"meta": meta("reference")}
        )
        # Where no curve passes: left of and above the bar, or right of and below it.
        side = ("right", "bottom") if high < 0.9 else ("left", "top")
        anchors = {"xref": "x", "yref": "y", "xanchor": side[0], "yanchor": side[1]}
        text = f"D = {gap.statistic:.3f}"
        layout["annotations"] = [note("gap", text, at, high if high < 0.9 else low, **anchors)]
    return {"data": lines, "layout": layout}


def build(
    record: Record,
    epoch: int,
    retain: Record,
    start: Record | None,
    *,
    every: Sequence[TableRow],
    width: str | float | None,
) -> go.Figure:
    """Draw the truth ratios of a run's epoch, its other epochs thin, as a figure for a notebook.

    record  a run
    retain  the retain model, on the same questions, evaluated with the same profile
    start   the fine-tuned model, pale
    every   the rows of the sweep, whose colour the run keeps
    width   see `fit`

    Raises: EvaluationError if a ratio is NaN.
    """
    result = {
        e: ratios_of(evaluation, record.profile) for e, evaluation in record.evaluations.items()
    }
    part, goal = result.pop(epoch, None), _only(retain)
    if part is None or goal is None:
        raise EvaluationError(
            f"record {record.id}, {record.unit.at(epoch)}: no truth ratios of the forget set, or "
            f"not all are numbers, so there is nothing to compare; choose another {record.unit}"
        )
    slot = Style.of(every).slots.get(record.method, 0)
    tags = meta("own", record.method, record.learning_rate, slot=slot, alpha=1.0)
    references = {"retain model": goal, "start model": None if start is None else _only(start)}
    others = {e: ratios for e, ratios in result.items() if e > 0 and ratios is not None}
    name = f"{record.method}, {record.unit.at(epoch)}"
    drawn = draw(name, part, tags, references, others, record.unit)
    for line in drawn["data"]:
        line["showlegend"] = line["name"] != "D" and line["meta"].get("alpha") != 0.25
    title = (
        f"Truth ratios on the forget set: {escape(record.method)}, learning rate "
        f"{rate_text(record.learning_rate)}, seed {record.seed}; "
        f"{panel_label(record.model, record.forget_fraction)}"
    )
    return fit({(1, 1): ("", drawn)}, (), width, title)


def _only(record: Record) -> FloatArray | None:
    return ratios_of(record.evaluations[min(record.evaluations)], record.profile)


def _line(
    ratios: FloatArray, name: str, colour: str, width: float, tags: Mapping[str, Any]
) -> Figure:
    x = (10 ** sorted_log10(ratios)).tolist()
    heights = (np.arange(len(x) + 1) / len(x)).tolist()
    hover = "R = %{x:.3g}: %{y:.0%} of the questions, %{fullData.name}"
    line = {"color": colour, "width": width, "shape": "hv"}
    x = [float(f"{value:.4g}") for value in x]
    return trace([x[0], *x], heights, name, hover, mode="lines", line=line, meta=dict(tags))
