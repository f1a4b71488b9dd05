"""The page in words: how far the sweep is, what it found, what would be misread."""

from __future__ import annotations

from unlearnbench.outcomes import tally
from unlearnbench.report import Report
from unlearnbench.rivals import Rivals
from unlearnbench.starts import Conclusion, Leading, conclusion, winner

from .frame import extent
from .palette import rate_text, signed
from .pareto import SIGNIFICANCE, Panel, position


def verdict(panel: Panel, rivals: Rivals | None = None) -> Conclusion:
    """The panel's result in a few sentences; `rivals` of its leading method, where known."""
    if not panel.trajectories and not panel.begins.fault:
        return Conclusion("No run has been evaluated yet.", won=False)
    top = winner(panel.best)
    at = None if top is None or top.setting is None else position(top.setting)
    if top is None or top.setting is None or at is None:
        return conclusion(panel.begins, None)
    rate = top.setting.learning_rate
    at_rate = "" if rate is None else f" at {rate_text(rate)}"
    name = f"{top.method}{at_rate}, epoch {top.setting.epoch}"
    return conclusion(panel.begins, Leading(name, *at), rivals)


def status(report: Report) -> str:
    """How many runs there are, and how they ended."""
    told = tally((r.status for r in report.records if r.kind == "run"), report.planned)
    if not report.strangers:
        return told
    return f"{told}; {report.strangers} in the folder that the present plan does not name left out"


def notes(panel: Panel) -> list[str]:
    """What a reader has to know of a panel beyond what is drawn."""
    told: list[str] = []
    if panel.fine_tuned is None:
        told.append("The fine-tuned model was not evaluated.")
    if panel.retain is None:
        told.append("The retain model was not evaluated.")
    if panel.questions is not None and panel.floor is not None:
        told.append(
            f"Lowest possible log₁₀ Forget Quality with {panel.questions} forget questions: "
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
