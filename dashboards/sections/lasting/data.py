"""Data on what attacks give back: settings under attacks, their table, the answers to be shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

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
from unlearnbench.api.observations import Evaluation
from unlearnbench.api.registry import load
from unlearnbench.errors import PluginError
from unlearnbench.stats.worst_case import worst_case

from ...figures.lasting_plot import RETAIN, START, Worst
from ...figures.tradeoff_data import Panel
from ...report_section import PageContext

Variants = Mapping[tuple[str, str], Evaluation]
"""By record, and by epoch and variant: `5 relearning@13`."""


def lasting_panels(context: PageContext) -> tuple[AttackedPanel, ...]:
    """List the attacked settings of every panel whose start model is valid."""
    return context.report.lasting


def panel_of(context: PageContext, place: Panel) -> AttackedPanel | None:
    """Look the attacked settings of a panel up."""
    where = (place.model, place.forget_fraction)
    found = context.once(lasting_panels)
    return next((one for one in found if (one.model, one.forget_fraction) == where), None)


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
    for panel in context.once(lasting_panels):
        wanted = shown_variants(panel)
        runs = {(row.run_id, row.epoch) for one in panel.best for row in one.setting.rows[:1]}
        place = (panel.model, panel.forget_fraction)
        plain = {
            row.kind: row.run_id
            for row in context.report.rows
            if (row.model, row.forget_fraction) == place and row.kind != "run"
        }
        for row in context.report.attacked:
            own = plain.get(row.kind, row.run_id)
            here = (row.model, row.forget_fraction) == place and row.variant in wanted
            if here and (row.kind != "run" or (row.run_id, row.epoch) in runs):
                stored = records[row.run_id].attacked_evaluations
                if (row.epoch, row.variant) in stored:
                    evaluation = stored[row.epoch, row.variant]
                    found[own, f"{row.epoch} {row.variant}"] = evaluation
    return found


def worst_prompt(context: PageContext, panel: AttackedPanel) -> Worst | None:
    """Take, question by question, the prompt under which a model knows most; None of fewer than 2.

    Of each method's best attacked setting, one seed, and of the start and the retain model.
    """
    measured = context.columns.schema.measure_of(panel.column.name)
    prompts = [v for v in panel.variants if _is_prompt(attack_of(v))]
    if measured is None or len(prompts) < 2:
        return None
    measure, name = measured
    knows = measure.metric.knows
    if knows is None:
        return None
    names = {"retain": RETAIN, "fine-tuned": START}
    kinds = {row.run_id: names.get(row.kind, row.run_id) for row in context.report.rows}
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
