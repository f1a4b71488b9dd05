"""Data on what attacks give back: settings under attacks, their table, the answers to be shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import fmean

import numpy as np

from unlearnbench.analysis.lasting import (
    AttackedPanel,
    AttackedSetting,
    RelearningCurve,
    Shift,
    UnderAttack,
    attack_of,
    step_of,
)
from unlearnbench.api.attack import Attack, PromptAttack
from unlearnbench.api.observations import Evaluation, SetEvaluation
from unlearnbench.api.registry import load
from unlearnbench.errors import PluginError
from unlearnbench.results.table import TableRow
from unlearnbench.stats.sampled_scores import leak_at_k, mean_bound
from unlearnbench.stats.worst_case import worst_case

from ...figures.lasting_plot import RETAIN, START, LeakCurve, Worst
from ...figures.tradeoff_data import Panel
from ...report_section import PageContext, of_place

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
    plan = context.columns.plan
    metric = next((one.metric for one in plan.measures if one.name == LEAK), None)
    threshold = float(getattr(metric, "threshold", THRESHOLD))
    alpha = float(getattr(plan.summaries.get("sampling-bounds"), "alpha", ALPHA))
    names = {row.run_id: _name(row) for row in context.rows_of(panel)}
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
        schema = context.columns.schema
        forget = schema.sets("forget")
        self.column = f"{LEAK}_{forget[0]}" if forget else ""
        metric = next((one.metric for one in schema.plan.measures if one.name == LEAK), None)
        self.label = f"leak@{getattr(metric, 'k', 'k')}"
        self._rows: dict[tuple[str, int], TableRow] = {}
        self._references: dict[str, TableRow] = {}
        for row in of_place(context.report.attacked, panel):
            if row.metrics.get(self.column) is not None:
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


Variants = Mapping[tuple[str, str], Evaluation]
"""By record, and by epoch and variant: `5 relearning@13`."""


def panel_of(context: PageContext, place: Panel) -> AttackedPanel | None:
    """Look the attacked settings of a panel up."""
    return next(iter(of_place(context.report.lasting, place)), None)


@cache
def attack_label(name: str) -> str:
    """Name of an attack for people; its name in records where it is not installed."""
    kind = _attack(name)
    return name if kind is None else kind.label


def _attack(name: str) -> type[Attack] | None:
    try:
        found: type[Attack] = load("attacks", name)
    except PluginError:
        return None
    return found


@dataclass(frozen=True)
class AttackColumn:
    """An attack in the table: of several points, the one at which most comes back."""

    attack: str
    label: str

    def of(self, one: AttackedSetting) -> UnderAttack | None:
        """The setting at its worst point of the attack, else at the last."""
        points = [under for under in one.under if attack_of(under.variant) == self.attack]
        known = [(v, i) for i, under in enumerate(points) if (v := under.lasting) is not None]
        return points[min(known)[1]] if known else points[-1] if points else None

    def reference(self, models: Mapping[str, Shift]) -> Shift | None:
        """The start or retain model at the attack's last point."""
        found = [shift for variant, shift in models.items() if attack_of(variant) == self.attack]
        return found[-1] if found else None

    def curve(self, one: AttackedSetting) -> RelearningCurve | None:
        """The setting's curve over the attack's steps."""
        return next((curve for curve in one.curves if curve.attack == self.attack), None)


def columns(panel: AttackedPanel) -> tuple[AttackColumn, ...]:
    """List the attacks that change the panel's number of any model, in the table's order."""
    moved = {
        attack_of(under.variant)
        for one in panel.settings
        for under in one.under
        if under.after is not None and under.after != under.before
    }
    return tuple(AttackColumn(name, attack_label(name)) for name in panel.attacks if name in moved)


def shown_variants(panel: AttackedPanel) -> tuple[str, ...]:
    """List the variants whose answers the page shows: of an attack with steps, the last."""
    last = {attack: variants[-1] for attack, variants in panel.attacks.items()}
    return tuple(v for v in panel.variants if step_of(v) is None or v == last[attack_of(v)])


def variant_answers(context: PageContext) -> Variants:
    """Read the evaluations under attacks that the page embeds.

    They are those of each method's best attacked setting, of one seed, and of the start and the
    retain model, which have the id of their plain record here.
    """
    records = {record.id: record for record in context.report.records}
    found: dict[tuple[str, str], Evaluation] = {}
    for panel in context.report.lasting:
        wanted = shown_variants(panel)
        runs = {(row.run_id, row.epoch) for one in panel.best for row in one.setting.rows[:1]}
        plain = {row.kind: row.run_id for row in context.rows_of(panel) if row.kind != "run"}
        for row in of_place(context.report.attacked, panel):
            own = plain.get(row.kind, row.run_id)
            if row.variant in wanted and (row.kind != "run" or (row.run_id, row.epoch) in runs):
                stored = records[row.run_id].attacked_evaluations.get((row.epoch, row.variant))
                if stored is not None:
                    found[own, f"{row.epoch} {row.variant}"] = stored
    return found


def worst_prompt(context: PageContext, panel: AttackedPanel) -> Worst | None:
    """Take, question by question, the prompt under which a model knows most; None of fewer than 2.

    Of each method's best attacked setting, one seed, and of the start and the retain model.
    """
    measured = context.columns.schema.measures.get(panel.column.name)
    prompts = [v for v in panel.variants if _is_prompt(attack_of(v))]
    if measured is None or len(prompts) < 2:
        return None
    measure, name = measured
    knows = measure.metric.knows
    if knows is None:
        return None
    kinds = {row.run_id: _name(row) for row in context.report.rows}
    by_model: dict[str, dict[str, dict[str, float]]] = {}
    for (record, key), evaluation in context.once(variant_answers).items():
        variant = key.partition(" ")[2]
        part = evaluation.sets.get(name)
        values = None if part is None or variant not in prompts else measure.per_example(part)
        if part is not None and values is not None:
            found = dict(zip(part.questions, values.tolist(), strict=True))
            by_model.setdefault(kinds[record], {})[variant] = found
    worst = {
        model: worst_case(by_variant, knows).mean
        for model, by_variant in by_model.items()
        if by_variant.keys() == {*prompts}
    }
    return Worst(f"worst of {len(prompts)} prompts", worst) if worst else None


def _is_prompt(name: str) -> bool:
    kind = _attack(name)
    return kind is not None and issubclass(kind, PromptAttack)
