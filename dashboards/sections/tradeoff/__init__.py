"""Trade-off: what is kept against what is forgotten, a panel per model and forget fraction."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from unlearnbench.analysis.best_settings import COLLAPSE_SHARE, UTILITY_SHARE
from unlearnbench.analysis.conclusion import Conclusion
from unlearnbench.console import format_duration
from unlearnbench.evaluation.benchmark_schema import default_headline
from unlearnbench.results.records import Record
from unlearnbench.stats.t_interval import LEVEL

from ...figures.tradeoff_axes import extent
from ...figures.tradeoff_data import Panel, position
from ...formatting import flatten, rate_text, signed, value_text
from ...report_section import PageContext, ReportSection

Part = tuple[str, tuple[tuple[str, str], ...]]
"""A title, with names and values."""


def run_details(records: Iterable[Record]) -> dict[str, Any]:
    """Collect the distinct parts, and by record id the numbers of its parts, in order."""
    numbers: dict[Part, int] = {}
    runs = {
        record.id: [numbers.setdefault(part, len(numbers)) for part in _parts(record)]
        for record in records
    }
    return {"parts": list(numbers), "runs": runs}


def _parts(record: Record) -> list[Part]:
    spec = record.spec
    method: dict[str, Any] = dict(spec.get("method") or {})
    setting = [
        ("method", method.get("name")),
        ("learning rate", rate_text(record.learning_rate)),
        ("epochs", spec.get("epochs")),
        ("seed", record.seed),
        *flatten(method.get("hyperparameters")),
    ]
    parts: list[tuple[str, list[tuple[str, Any]]]] = [
        ("Method", setting if record.kind == "run" else []),
        ("Retain term", [*flatten(method.get("retain"))]),
        ("Training", [*flatten(spec.get("training"))]),
        ("Evaluation", [("profile", record.profile), *flatten(spec.get("evaluation"))]),
        ("Model", [*flatten(spec.get("model"))]),
        ("Data", [*flatten(spec.get("data"))]),
        ("Run", _run(record)),
    ]
    return [
        (title, tuple((name, value_text(value)) for name, value in pairs if value is not None))
        for title, pairs in parts
        if any(value is not None for _, value in pairs)
    ]


def _run(record: Record) -> list[tuple[str, Any]]:
    provenance = record.provenance
    memory = provenance.get("peak_memory_mib")
    return [
        ("status", record.status),
        ("training", format_duration(sum(e.training_seconds for e in record.epochs))),
        ("evaluation", format_duration(sum(e.evaluation_seconds for e in record.epochs))),
        ("steps", len(record.steps) or None),
        ("device", provenance.get("device")),
        ("host", provenance.get("host")),
        ("peak memory", None if memory is None else f"{memory} MiB"),
        ("started", provenance.get("started")),
    ]


def short(conclusion: Conclusion) -> list[str]:
    """Cut the sentences of a conclusion to their first clauses."""
    return [re.split(r"[:.;] ", one.rstrip("."))[0] + "." for one in conclusion.sentences]


def notes(panel: Panel) -> list[str]:
    """List the caveats of a panel that the figure does not show."""
    sentences: list[str] = []
    if panel.fine_tuned is None:
        sentences.append("The start model was not evaluated.")
    if panel.retain is None and "retain" in panel.references:
        sentences.append("The retain model was not evaluated.")
    if panel.questions is not None and panel.floor is not None:
        sentences.append(
            f"Lowest possible {panel.headline.forgotten.label} with {panel.questions} forget "
            f"questions: {signed(panel.floor, 1)}."
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


def _values(context: PageContext) -> Mapping[str, Any]:
    found = {(one.model, one.split): one for one in context.report.conclusions}
    dashes, headline = context.style.dashes, context.report.headline
    return {
        "headline": headline,
        "tofu": headline == default_headline(),
        "panels": [
            {
                "panel": panel,
                "conclusion": (one := found.get((panel.model, panel.forget_fraction))),
                "short": [] if one is None else short(one),
                "notes": notes(panel),
                "published": published_note(panel),
            }
            for panel in context.panels
        ],
        "height": context.panel_height,
        "questions": sorted({p.questions for p in context.panels if p.questions is not None}),
        "has_dashes": len(set(dashes.values())) > 1 or len(dashes) < 3,
        "level": round(100 * LEVEL),
        "collapse_share": round(100 * COLLAPSE_SHARE),
        "utility_share": round(100 * UTILITY_SHARE),
    }


SECTION = ReportSection(
    "tradeoff", "trade-off", "Trade-off", _values, lazy_data=lambda c: run_details(c.report.records)
)
