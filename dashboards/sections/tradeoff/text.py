"""Sentences about a panel: its caveats, its published points."""

from __future__ import annotations

from ...figures.tradeoff_axes import extent
from ...figures.tradeoff_data import Panel, position
from ...formatting import signed


def notes(panel: Panel) -> list[str]:
    """List the caveats of a panel that the figure does not show."""
    sentences: list[str] = []
    if panel.fine_tuned is None:
        sentences.append("The fine-tuned model was not evaluated.")
    if panel.retain is None and "retain" in panel.references:
        sentences.append("The retain model was not evaluated.")
    if panel.questions is not None and panel.floor is not None:
        sentences.append(
            f"Lowest possible {panel.headline.forgotten.label} with {panel.questions} forget "
            "questions: "
            f"{signed(panel.floor, 1)}."
        )
    if panel.undrawn:
        what = "evaluation" if panel.undrawn == 1 else "evaluations"
        sentences.append(f"Not drawn: {panel.undrawn} {what} without a number.")
    test = panel.headline.forgotten.test
    if test is not None and (count := _collapsed_above(panel)):
        what = "point lies" if count == 1 else "points lie"
        sentences.append(
            f"{count} {what} above p = {test.level:g} in the shaded region: a model that has "
            "collapsed, not one that has forgotten."
        )
    return sentences


def _collapsed_above(panel: Panel) -> int:
    """Count the settings that pass the test because the model has collapsed."""
    if panel.collapse_below is None or panel.significance is None:
        return 0
    drawn = [xy for t in panel.trajectories for s in t.points if (xy := position(s))]
    return sum(u < panel.collapse_below and q > panel.significance for u, q in drawn)


def published_note(panel: Panel) -> str:
    """Describe the paper's points, and count those outside the panel."""
    points = [xy for series in panel.published for xy in series.points]
    (left, right), (low, high) = extent(panel)
    outside = sum(not (left <= u <= right and low <= q <= high) for u, q in points)
    text = (
        "Published: points of the CE-U paper's figure, one seed each, against TOFU's own retain "
        "model; not measured here, and their learning rates differ."
    )
    return text + (f" {outside} of {len(points)} lie outside this panel." if outside else "")
