"""Distribution functions of the truth ratios of a model, the retain model and the start model."""

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
from unlearnbench.stats.ks_test import LargestGap, largest_gap, sorted_log10

from ..formatting import rate_text
from .marks import SHARE_RANGE, Figure, note, small_layout, trace
from .notebook import fit
from .palette import INK, MUTED, PALETTE, Style, faded, meta

_PALE = 0.25
"""Opacity of the lines after other epochs."""
_GAP_NAME = "D"
"""Name of the bar that marks the largest gap."""


def ratios_of(evaluation: Evaluation | None, profile: str) -> FloatArray | None:
    """Compute the truth ratios [n] on the forget set.

    Args:
        evaluation: Of a model. None if there is none.
        profile: Id of the rules of evaluation, such as `tofu@1a2b3c4d`.

    Returns:
        None if the forget set was not evaluated, if a ratio is NaN, or if the profile is unknown
        here.
    """
    observed = None if evaluation is None else evaluation.sets.get("forget")
    if observed is None or not len(observed.base_loss):
        return None
    try:
        ratios = truth_ratios(observed, profile_of_id(profile))
    except EvaluationError:
        return None
    return None if np.isnan(ratios).any() else ratios


def draw(
    name: str,
    ratios: FloatArray,
    tags: Mapping[str, Any],
    references: Mapping[str, FloatArray | None],
    other_epochs: Mapping[int, FloatArray] | None = None,
    unit: Unit = Unit.EPOCH,
) -> Figure:
    """Draw the fraction of questions up to each truth ratio, with the largest gap D marked.

    Args:
        name: Name of the model.
        ratios: Truth ratios [n] of the model.
        tags: Metadata of its lines, with `slot` for the colour.
        references: Ratios of the `retain model` and the `start model`. None if they are not known.
        other_epochs: Ratios after the model's other epochs, or steps, which are drawn thin.
        unit: Unit that `other_epochs` are counted in.
    """
    colour = PALETTE[tags["slot"] % len(PALETTE)][0]
    lines: list[Figure] = []
    pale_tags = {**tags, "alpha": _PALE}
    for epoch, epoch_ratios in sorted((other_epochs or {}).items()):
        lines.append(_line(epoch_ratios, unit.at(epoch), faded(colour, _PALE), 1, pale_tags))
    start = references.get("start model")
    if start is not None:
        lines.append(_line(start, "start model", faded(MUTED, 0.45), 1.5, meta("reference")))
    retain = references.get("retain model")
    if retain is not None:
        lines.append(_line(retain, "retain model", INK, 2.0, meta("reference")))
    lines.append(_line(ratios, name, colour, 2, tags))

    layout = small_layout("", "truth ratio R", type="log", exponentformat="power")
    layout["yaxis"] |= {"range": SHARE_RANGE, "tickformat": ".0%"}
    layout["yaxis"]["title"] = {"text": "questions up to R"}
    if retain is not None and len(retain) == len(ratios):
        gap = largest_gap(ratios, retain)
        lines.append(_gap_bar(gap))
        layout["annotations"] = [_gap_note(gap)]
    return {"data": lines, "layout": layout}


def _gap_bar(gap: LargestGap) -> Figure:
    """Draw a vertical bar at the largest gap, from one curve to the other."""
    ratio = 10**gap.log10_place
    ends = sorted((gap.share, gap.other_share))
    bar = trace([ratio, ratio], ends, _GAP_NAME, f"D = {gap.statistic:.4f}")
    bar["mode"] = "lines"
    bar["line"] = {"color": INK, "width": 2, "dash": "dot"}
    bar["meta"] = meta("reference")
    return bar


def _gap_note(gap: LargestGap) -> Figure:
    """Write D beside its bar, on a side without a curve.

    Both curves rise from left to right, so no curve is left of and above the bar, or right of and
    below it. The note is on the left unless it would leave the plot at the top.
    """
    low, high = sorted((gap.share, gap.other_share))
    text = f"D = {gap.statistic:.3f}"
    if high < 0.9:
        y, xanchor, yanchor = high, "right", "bottom"
    else:
        y, xanchor, yanchor = low, "left", "top"
    return note(
        "gap", text, gap.log10_place, y, xref="x", yref="y", xanchor=xanchor, yanchor=yanchor
    )


def build(
    record: Record,
    epoch: int,
    retain: Record,
    start: Record | None,
    *,
    every: Sequence[TableRow],
    width: str | float | None,
) -> go.Figure:
    """Draw the truth ratios after an epoch of a run, and pale after its other epochs.

    Args:
        record: Record of the run.
        epoch: Epoch, or step, of the run.
        retain: Record of the retain model, evaluated on the same questions by the same profile.
        start: Record of the start model, which is drawn pale. None if there is none.
        every: All rows of the sweep, whose colours the run keeps.
        width: See `notebook.fit`.

    Raises:
        EvaluationError: If the ratios of the run or of the retain model are missing or NaN.
    """
    ratios_by_epoch: dict[int, FloatArray] = {}
    for evaluated_epoch, evaluation in record.evaluations.items():
        ratios = ratios_of(evaluation, record.profile)
        if ratios is not None:
            ratios_by_epoch[evaluated_epoch] = ratios
    own_ratios = ratios_by_epoch.pop(epoch, None)
    retain_ratios = _only_ratios(retain)
    if own_ratios is None or retain_ratios is None:
        raise EvaluationError(
            f"record {record.id}, {record.unit.at(epoch)}: no truth ratios of the forget set, or "
            f"not all are numbers, so there is nothing to compare; choose another {record.unit}"
        )

    # Epoch 0 is the start model, which has a line of its own.
    ratios_by_epoch.pop(0, None)
    slot = Style.of(every).slots.get(record.method, 0)
    drawn = draw(
        f"{record.method}, {record.unit.at(epoch)}",
        own_ratios,
        meta("own", record.method, record.learning_rate, slot=slot, alpha=1.0),
        {
            "retain model": retain_ratios,
            "start model": None if start is None else _only_ratios(start),
        },
        ratios_by_epoch,
        record.unit,
    )
    for line in drawn["data"]:
        is_other_epoch = line["meta"].get("alpha") == _PALE
        line["showlegend"] = line["name"] != _GAP_NAME and not is_other_epoch
    title = (
        f"Truth ratios on the forget set: {escape(record.method)}, learning rate "
        f"{rate_text(record.learning_rate)}, seed {record.seed}; "
        f"{panel_label(record.model, record.forget_fraction)}"
    )
    return fit({(1, 1): ("", drawn)}, (), width, title)


def _only_ratios(record: Record) -> FloatArray | None:
    """Compute the truth ratios of a start or retain model, which has a single evaluation."""
    return ratios_of(record.evaluations[min(record.evaluations)], record.profile)


def _line(
    ratios: FloatArray, name: str, colour: str, width: float, tags: Mapping[str, Any]
) -> Figure:
    """Draw a distribution function, which rises by 1/n at each of the n ratios."""
    sorted_ratios = (10 ** sorted_log10(ratios)).tolist()
    heights = (np.arange(len(sorted_ratios) + 1) / len(sorted_ratios)).tolist()
    x = [float(f"{ratio:.4g}") for ratio in sorted_ratios]
    return trace(
        # The line begins at the height 0 of the smallest ratio.
        [x[0], *x],
        heights,
        name,
        "R = %{x:.3g}: %{y:.0%} of the questions, %{fullData.name}",
        mode="lines",
        line={"color": colour, "width": width, "shape": "hv"},
        meta=dict(tags),
    )
