"""Sampled answers: the probability that one of k leaks, with the bound on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from unlearnbench.analysis.lasting import AttackedPanel, AttackedSetting
from unlearnbench.api.observations import SetEvaluation
from unlearnbench.results.table import TableRow
from unlearnbench.stats.sampled_scores import leak_at_k, mean_bound

from ...figures.lasting_plot import RETAIN, START, LeakCurve
from ...report_section import PageContext
from .data import variant_answers

LEAK, BOUND = "leak_at_k", "leak_at_k_bound"
"""The metric, and the column of its bound."""
THRESHOLD, ALPHA = 0.8, 0.01
"""Defaults of both metrics."""


@dataclass(frozen=True)
class Leak:
    """A model's leak@k, as its records have it: means over seeds."""

    value: float
    bound: float | None


def leak_curves(context: PageContext, panel: AttackedPanel) -> Mapping[str, LeakCurve]:
    """Compute leak@k for k = 1, 2, 4 … by the id of a run, or the name of a reference.

    Of each method's best attacked setting, one seed.
    """
    plan, place = context.columns.plan, (panel.model, panel.forget_fraction)
    metric = next((one.metric for one in plan.measures if one.name == LEAK), None)
    threshold = float(getattr(metric, "threshold", THRESHOLD))
    alpha = float(getattr(plan.summaries.get("sampling-bounds"), "alpha", ALPHA))
    rows = [r for r in context.report.rows if (r.model, r.forget_fraction) == place]
    names = {row.run_id: _name(row) for row in rows}
    forget = context.columns.schema.sets("forget")
    found: dict[str, LeakCurve] = {}
    for (record, key), evaluation in context.once(variant_answers).items():
        for part in (evaluation.sets.get(name) for name in forget[:1]):
            if record in names and part is not None and part.samples is not None:
                variant = key.partition(" ")[2]
                found[names[record]] = _curve(part, variant, threshold, alpha)
    return found


def _name(row: TableRow) -> str:
    return {"retain": RETAIN, "fine-tuned": START}.get(row.kind, row.run_id)


def _curve(part: SetEvaluation, variant: str, threshold: float, alpha: float) -> LeakCurve:
    scores = part.sampled_scores()  # [n, s]
    scores = scores[~np.isnan(scores).any(axis=1)]
    count, samples = scores.shape
    ks = [2**i for i in range(samples.bit_length()) if 2**i <= samples]
    leaks = [min(1.0, float(leak_at_k(scores, threshold, k).mean())) for k in ks if count]
    bounds = [mean_bound(leak, count, alpha) for leak in leaks]
    return LeakCurve(variant, tuple(ks), tuple(leaks), tuple(bounds), samples, threshold, alpha)


class LeakColumn:
    """The column of leak@k in the table of settings."""

    def __init__(self, context: PageContext, panel: AttackedPanel) -> None:
        schema, place = context.columns.schema, (panel.model, panel.forget_fraction)
        forget = schema.sets("forget")
        self.column = f"{LEAK}_{forget[0]}" if forget else ""
        metric = next((one.metric for one in schema.plan.measures if one.name == LEAK), None)
        self.label = f"leak@{getattr(metric, 'k', 'k')}"
        self._rows: dict[tuple[str, int], TableRow] = {}
        self._references: dict[str, TableRow] = {}
        for row in context.report.attacked:
            if (row.model, row.forget_fraction) == place and row.metrics.get(
                self.column
            ) is not None:
                self._rows[row.run_id, row.epoch] = row
                self._references[_name(row)] = row

    def __bool__(self) -> bool:
        return bool(self._rows)

    def of(self, one: AttackedSetting) -> Leak | None:
        """A setting's, over its seeds; None if one has none."""
        rows = [self._rows.get((row.run_id, row.epoch)) for row in one.setting.rows]
        known = [row for row in rows if row is not None]
        return self._leak(known) if len(known) == len(rows) else None

    def reference(self, name: str) -> Leak | None:
        """The start or retain model's."""
        return self._leak([self._references[name]]) if name in self._references else None

    def _leak(self, rows: list[TableRow]) -> Leak:
        bounds = [bound for row in rows if (bound := row.metrics.get(BOUND)) is not None]
        values = [row.metrics.get(self.column) or 0.0 for row in rows]
        return Leak(fmean(values), fmean(bounds) if len(bounds) == len(rows) else None)
