"""Trade-off: what is kept against what is forgotten, a panel per model and forget fraction."""

from collections.abc import Mapping
from typing import Any

from unlearnbench.analysis.best_settings import COLLAPSE_SHARE, UTILITY_SHARE
from unlearnbench.analysis.wording import without_retain_model
from unlearnbench.base.console import format_duration
from unlearnbench.config.unit import Unit
from unlearnbench.evaluation.benchmark_schema import default_headline
from unlearnbench.results.records import Record
from unlearnbench.stats.t_interval import LEVEL

from ...figures.tradeoff_data import TradeOffPanel
from ...figures.tradeoff_plot import extent
from ...formatting import flatten, rate_text, signed
from ...report_section import PageContext, Section
from .answer import answer_of


class TradeOff(Section):
    """The panels, the conclusion beside each, and the card of a point."""

    name, title, order, folder = "trade-off", "Trade-off", 10, "tradeoff"

    def values(self, context: PageContext) -> Mapping[str, Any]:
        """Collect the conclusion and the notes of each panel."""
        conclusions = {
            (conclusion.model, conclusion.split): conclusion
            for conclusion in context.report.conclusions
        }
        panels: list[dict[str, Any]] = []
        for panel in context.panels:
            conclusion = conclusions.get((panel.model, panel.forget_fraction))
            answer = None if conclusion is None else answer_of(panel, conclusion)
            panels.append({"panel": panel, "answer": answer, "notes": notes(panel)})
        question_counts = {
            panel.questions for panel in context.panels if panel.questions is not None
        }
        dashes = context.style.dashes
        headline = context.report.headline
        return {
            "headline": headline,
            "tofu": headline == default_headline(),
            "panels": panels,
            "chooses": any(panel.choices for panel in context.panels),
            "questions": sorted(question_counts),
            "has_dashes": len(set(dashes.values())) > 1 or len(dashes) < 3,
            "level": round(100 * LEVEL),
            "collapse_share": round(100 * COLLAPSE_SHARE),
            "utility_share": round(100 * UTILITY_SHARE),
        }

    def data(self, context: PageContext) -> Any:
        """Collect the configurations of all runs."""
        return {record.id: configuration(record) for record in context.report.records}


def configuration(record: Record) -> list[tuple[str, list[tuple[str, str]]]]:
    """List the parts of a run's configuration that are not empty: titles, with names and values."""
    spec = record.spec
    provenance = record.provenance
    seconds = sum(epoch.training_seconds + epoch.evaluation_seconds for epoch in record.epochs)
    length = Unit.of_spec(spec).plural  # epochs or steps, the unit that the run is planned in
    run: dict[str, Any] = {
        "learning rate": rate_text(record.learning_rate),
        length: spec.get(length),
        "seed": spec.get("seed"),
        "status": record.status,
        "time": format_duration(seconds),
    }
    for name in ("device", "host", "peak_memory_mib", "started"):
        run[name] = provenance.get(name)
    parts: dict[str, Any] = {
        "Method": spec.get("method") if record.kind == "run" else {},
        "Run": run,
        "Training": spec.get("training"),
        "Evaluation": {"profile": record.profile, **(spec.get("evaluation") or {})},
        "Model": spec.get("model"),
        "Data": spec.get("data"),
    }

    configured: list[tuple[str, list[tuple[str, str]]]] = []
    for title, part in parts.items():
        pairs = flatten(part)
        if pairs:
            configured.append((title, pairs))
    return configured


def notes(panel: TradeOffPanel) -> list[str]:
    """List the caveats of a panel that the figure does not show."""
    forgotten = panel.headline.forgotten
    schema = panel.rows[0].schema
    sentences: list[str] = []
    if panel.fine_tuned is None:
        sentences.append("The start model was not evaluated.")
    if panel.retain is None and "retain" in schema.references:
        sentences.append("The retain model was not evaluated.")
    about_retain_model = without_retain_model(schema)
    if about_retain_model:
        sentences.append(about_retain_model)
    if panel.questions is not None and panel.floor is not None:
        sentences.append(
            f"Lowest possible {forgotten.label} with {panel.questions} forget questions: "
            f"{signed(panel.floor, 1)}."
        )
    undrawn = len(panel.settings) - len(panel.drawn)
    if undrawn:
        # A dict, because it keeps the order of the reasons.
        reasons = dict.fromkeys(setting.why_not for setting in panel.settings if setting.why_not)
        because = f" (no mean over seeds: {'; '.join(reasons)})" if reasons else ""
        sentences.append(f"Not drawn, without a number: {undrawn} of the evaluations{because}.")
    above = _collapsed_above_significance(panel)
    if above and forgotten.test is not None:
        sentences.append(
            f"Shaded and above p = {forgotten.test.level:g}: {above}, of models that have "
            "collapsed, not forgotten."
        )
    _, (lowest, _) = extent(panel)
    below = sum((setting.forgotten or 0.0) < lowest for setting in panel.drawn)
    if below:
        sentences.append(f"Further down: {below} of collapsed models; a double click shows them.")
    return sentences


def _collapsed_above_significance(panel: TradeOffPanel) -> int:
    """Count the collapsed settings that the test does not tell from the retain model."""
    level = panel.significance
    if level is None:
        return 0
    collapsed = [setting for setting in panel.drawn if panel.has_collapsed(setting)]
    return sum(setting.forgotten is not None and setting.forgotten > level for setting in collapsed)
