"""The page in words: how far the sweep is, what it found, what would be misread."""

from __future__ import annotations

from unlearnbench.ranking import UTILITY_SHARE, Setting
from unlearnbench.report import Report

from .frame import extent
from .palette import rate_text, signed
from .pareto import SIGNIFICANCE, Panel, position


def _quality(setting: Setting | None) -> float:
    value = None if setting is None else setting.metrics["log10_forget_quality"]
    return float("-inf") if value is None else value


def verdict(panel: Panel) -> str:
    """The panel's result in a sentence."""
    found = [b.setting for b in panel.best if b.setting is not None]
    if not panel.trajectories:
        return "No run has been evaluated yet."
    if panel.collapse_below is None:
        return "Without a fine-tuned model there is no best setting: nothing to keep utility of."
    if not found:
        return f"No method keeps {UTILITY_SHARE:.0%} of the fine-tuned model's utility."
    top = max(found, key=_quality)
    utility, quality = position(top) or (0.0, 0.0)
    start_kept, start_quality = panel.start or (None, None)
    return (
        f"{top.method} at {rate_text(top.learning_rate)}, epoch {top.epoch}, forgets most while "
        f"keeping {UTILITY_SHARE:.0%} of utility: log₁₀ Forget Quality "
        f"{_from(quality, start_quality, 1)}, Model Utility {_from(utility, start_kept, 2)}."
    )


def _from(value: float, start: float | None, digits: int) -> str:
    """A value and, in brackets, where it started."""
    before = "" if start is None else f" (start {signed(start, digits)})"
    return signed(value, digits) + before


def status(report: Report) -> str:
    """How many runs there are, and how they ended."""
    done = report.finished
    total = report.planned if report.planned is not None else done + len(report.failures)
    text = f"{done} of {total} runs finished" if done != total else f"{done} runs, all finished"
    collapsed = sum(r.status == "collapsed" for r in report.records)
    stopped = sum(r.status == "stopped" for r in report.records)
    more = [
        f"{len(report.failures)} failed" if report.failures else "",
        f"{collapsed} collapsed, and ended there" if collapsed else "",
        f"{stopped} stopped early by the search" if stopped else "",
        f"{report.strangers} in the folder that the present plan does not name are left out"
        if report.strangers
        else "",
    ]
    return "; ".join([text, *filter(None, more)])


def notes(panel: Panel) -> list[str]:
    """What a reader has to know of a panel beyond what is drawn."""
    told: list[str] = []
    if panel.fine_tuned is None:
        told.append("The fine-tuned model was not evaluated.")
    if panel.retain is None:
        told.append("The retain model was not evaluated.")
    if panel.questions is not None and panel.floor is not None:
        told.append(
            f"n = {panel.questions} forget questions; log₁₀ Forget Quality cannot fall below "
            f"{signed(panel.floor, 1)}."
        )
    if panel.undrawn:
        what = "evaluation" if panel.undrawn == 1 else "evaluations"
        told.append(f"Not drawn: {panel.undrawn} {what} without a number.")
    if feigned := _feigned(panel):
        what = "point lies" if feigned == 1 else "points lie"
        told.append(
            f"{feigned} {what} above p = 0.05 in the shaded region: a model that has collapsed, "
            "not one that has forgotten."
        )
    return told


def _feigned(panel: Panel) -> int:
    """Settings that pass the test because nothing is left of the model."""
    if panel.collapse_below is None:
        return 0
    drawn = [xy for t in panel.trajectories for s in t.points if (xy := position(s))]
    return sum(u < panel.collapse_below and q > SIGNIFICANCE for u, q in drawn)


def published_note(panel: Panel) -> str:
    """What the paper's points are, and how many of them the panel cannot show."""
    points = [xy for series in panel.published for xy in series.points]
    (left, right), (low, high) = extent(panel)
    outside = sum(not (left <= u <= right and low <= q <= high) for u, q in points)
    text = (
        "Published: points of the CE-U paper's figure, one seed each, against TOFU's own retain "
        "model; not measured here, and their learning rates differ."
    )
    return text + (f" {outside} of {len(points)} lie outside this panel." if outside else "")
