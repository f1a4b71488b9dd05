"""Does it last: what attacks give back of what each method removed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from unlearnbench.analysis.attack_text import attack_sentences
from unlearnbench.analysis.best_settings import Setting
from unlearnbench.analysis.lasting import AttackedPanel, AttackedSetting
from unlearnbench.analysis.recovery import PanelRecovery, Recovery, panel_recovery
from unlearnbench.analysis.relearning_curve import RelearningCurve
from unlearnbench.analysis.sampled_leaks import (
    LEAK,
    LeakCurve,
    MeanLeak,
    leak_columns,
    leak_curve,
    mean_leaks,
)
from unlearnbench.analysis.under_attack import Shift, UnderAttack
from unlearnbench.analysis.wording import variant_label
from unlearnbench.analysis.worst_prompt import worst_prompt
from unlearnbench.analysis.yardstick import Yardstick
from unlearnbench.api.observations import Evaluation
from unlearnbench.results.attack_variants import (
    attack_class,
    attack_of,
    prompt_variants,
    step_of,
)
from unlearnbench.results.table import TableRow
from unlearnbench.stats.t_interval import Interval

from ...figures.tradeoff_data import TradeOffPanel
from ...formatting import interval_names, signed
from ...report_section import PageContext, Section, of_place
from ...strip import Scale, Unmarked, by_reason
from .plot import RETAIN, START, leaks, relearning

REFERENCES: Mapping[Any, str] = {"retain": RETAIN, "fine-tuned": START}
"""Names of the models that runs are compared with, by kind."""
Variants = Mapping[tuple[str, str], Evaluation]
"""By record, and by epoch and variant: `5 relearning@13`."""


def panel_of(context: PageContext, panel: TradeOffPanel) -> AttackedPanel | None:
    """Look the attacked settings of a panel up."""
    return next(iter(of_place(context.report.lasting, panel)), None)


def point_label(variant: str) -> str:
    """Name the point of an attack: `13 steps` of `relearning@13`, `nf4` of `quantization@nf4`."""
    return variant_label(variant).partition(", ")[2]


@dataclass(frozen=True)
class AttackColumn:
    """An attack in the table: of several points, the one at which most comes back."""

    attack: str

    @property
    def label(self) -> str:
        """Name of the attack for people; its name in records where it is not installed."""
        kind = attack_class(self.attack)
        return self.attack if kind is None else kind.label

    def of(self, setting: AttackedSetting) -> UnderAttack | None:
        """The setting at its worst point of the attack, else at the last."""
        return setting.worst_point(self.attack)

    def shown(self, panel: AttackedPanel) -> tuple[str, ...]:
        """List the points at which settings stand in the column, in the order of the attack."""
        of_settings = {
            under.variant
            for setting in panel.settings
            if (under := self.of(setting)) is not None and under.after is not None
        }
        return tuple(variant for variant in panel.variants if variant in of_settings)

    def references(
        self, panel: AttackedPanel, models: Mapping[str, Shift]
    ) -> list[tuple[str, Shift]]:
        """The start or retain model at these points, with the name of each point.

        Settings may be worst at different points, and each is to be compared at its own.
        """
        variants = [variant for variant in self.shown(panel) if variant in models]
        return [
            (point_label(variant) if len(variants) > 1 else "", models[variant])
            for variant in variants
            if models[variant].after is not None
        ]

    def measure(self, panel: AttackedPanel) -> str:
        """Label of the number in the attack's column."""
        measured = (m for v, m in panel.measured.items() if attack_of(v) == self.attack)
        return next((m.after.label for m in measured if m is not None), panel.column.label)

    def curve(self, setting: AttackedSetting) -> RelearningCurve | None:
        """The setting's curve over the attack's steps."""
        return next((curve for curve in setting.curves if curve.attack == self.attack), None)


def columns(panel: AttackedPanel) -> tuple[AttackColumn, ...]:
    """List the attacks that change the panel's number of any setting, in the table's order."""
    moved = {
        attack_of(under.variant)
        for setting in panel.settings
        for under in setting.under
        if under.after is not None and under.after != under.before
    }
    return tuple(AttackColumn(name) for name in panel.attacks if name in moved)


def leaked(context: PageContext, panel: AttackedPanel) -> dict[Any, MeanLeak]:
    """Look up what is leaked, by the key of a setting or the name of a reference."""
    means = mean_leaks(
        context.columns.schema,
        of_place(context.report.attacked, panel),
        panel.variants,
        (item.setting for item in panel.settings),
    )
    return {REFERENCES.get(model, model): mean for model, mean in means.items()}


@lru_cache(maxsize=1)
def variant_answers(context: PageContext) -> Variants:
    """Read the evaluations under attacks that the page embeds: of an attack with steps, the last.

    They are those of `AttackedPanel.shown`, of one seed, and of the start and the retain model,
    which have the id of their plain record here.
    """
    evaluations: dict[tuple[str, str], Evaluation] = {}
    for panel in context.report.lasting:
        last = {attack: variants[-1] for attack, variants in panel.attacks.items()}
        wanted = {v for v in panel.variants if step_of(v) is None or v == last[attack_of(v)]}
        runs = {(row.run_id, row.epoch) for item in panel.shown for row in item.setting.rows[:1]}
        plain = {row.kind: row.run_id for row in context.rows_of(panel) if row.kind != "run"}
        for row in of_place(context.report.attacked, panel):
            record_id = plain.get(row.kind, row.run_id)
            if row.variant in wanted and (row.kind != "run" or (row.run_id, row.epoch) in runs):
                stored = context.report.observed(row)
                if stored is not None:
                    evaluations[record_id, f"{row.epoch} {row.variant}"] = stored
    return evaluations


def _by_model(context: PageContext, panel: AttackedPanel) -> dict[str, dict[str, Evaluation]]:
    """Group the embedded evaluations of a panel by model, and those of a model by variant.

    A model is the id of a run, or the name of a reference.
    """
    names = {row.run_id: _name(row) for row in context.rows_of(panel)}
    by_model: dict[str, dict[str, Evaluation]] = {}
    for (record_id, epoch_and_variant), evaluation in variant_answers(context).items():
        if record_id in names:
            _, _, variant = epoch_and_variant.partition(" ")
            by_model.setdefault(names[record_id], {})[variant] = evaluation
    return by_model


def leak_curves(context: PageContext, panel: AttackedPanel) -> Mapping[str, LeakCurve]:
    """The curves of leak@k, by the id of a run or the name of a reference."""
    result = {
        model: leak_curve(context.columns.schema, by_variant)
        for model, by_variant in _by_model(context, panel).items()
    }
    return {model: curve for model, curve in result.items() if curve is not None}


def worst_of_prompts(
    context: PageContext, panel: AttackedPanel
) -> tuple[str, Mapping[str, float | None]] | None:
    """Compute the worst of several prompts by model, with its label; None without any."""
    prompts = prompt_variants(panel.variants)
    plain_rows = {row.run_id: row for item in panel.shown for row in item.setting.rows[:1]}
    plain_rows |= {_name(row): row for row in context.rows_of(panel) if row.kind != "run"}
    worst: dict[str, float | None] = {}
    for model, by_variant in _by_model(context, panel).items():
        plain = context.report.observed(plain_rows[model]) if len(prompts) > 1 else None
        schema, column = context.columns.schema, panel.column.name
        worst[model] = worst_prompt(schema, column, prompts, by_variant, plain)
    if all(value is None for value in worst.values()):
        return None
    return f"worst of {len(prompts)} prompts", worst


def _name(row: TableRow) -> str:
    return REFERENCES.get(row.kind, row.run_id)


@dataclass(frozen=True)
class Picture:
    """The methods of a panel under attacks, and the axis that they are drawn on."""

    recovery: PanelRecovery
    scale: Scale

    @property
    def unmarked(self) -> Unmarked:
        """Methods without a number, which have no line."""
        return by_reason(
            (line.method, line.family, line.reason, line.why_not)
            for line in self.recovery.methods
            if line.before is None
        )

    @classmethod
    def of(cls, recovery: PanelRecovery) -> "Picture":
        """Choose the axis: the bounds of the number, if it has bounds."""
        values = [recovery.start, recovery.retain]
        for line in recovery.methods:
            values += [line.before, line.after, *(after for _, after in line.others)]
        return cls(recovery, Scale.within(recovery.column.bounds, values))


class Lasting(Section):
    """Sentences, figures and a table of the attacked settings."""

    name, title, order, folder = "lasting", "Does it last?", 60, "lasting"
    needs = ("lasting",)

    def values(self, context: PageContext) -> Mapping[str, Any]:
        """Collect the settings under attacks of each panel."""
        panels = context.report.lasting
        sampled = [curve for panel in panels for curve in leak_curves(context, panel).values()]
        stepped = {name for panel in panels for name in _stepped(panel)}
        k = "k"  # stands in the label if no metric says how many samples leak
        for measure in context.columns.schema.plan.measures:
            if measure.name == LEAK:
                k = getattr(measure.metric, "k", k)
                break
        recoveries = [panel_recovery(panel) for panel in panels]
        return {
            "pictures": [Picture.of(recovery) for recovery in recoveries],
            "has_interval": _has_interval,
            "any_interval": any(
                line.interval is not None for recovery in recoveries for line in recovery.methods
            ),
            "percent": _percent,
            "percents": _percents,
            "described": _described,
            "panels": [
                (
                    panel,
                    attack_sentences(panel),
                    columns(panel),
                    leaked(context, panel),
                    worst_of_prompts(context, panel),
                )
                for panel in panels
            ],
            "leaks": next(iter(sampled), None),
            "leak_label": f"leak@{k}",
            "bounded": bool(leak_columns(context.columns.schema)[1]),
            "measure": panels[0].column.label,
            "sampled": _sampled(panels[0]),
            "all_sample": all(
                item is not None and item.before != item.after
                for item in panels[0].measured.values()
            ),
            "curves": [item.label for item in columns(panels[0]) if item.attack in stepped],
            "stepped": stepped,
            "has_retain": context.columns.schema.has_retain,
            "interval": _interval,
            "brackets": interval_names(
                _interval(panel, setting) for panel in panels for setting in panel.settings
            ),
            "change": _change,
            "steps": _steps,
            "variant": variant_label,
            "point": point_label,
        }

    def data(self, context: PageContext) -> Any:
        """Draw the figures of each panel, by kind; none of a panel without attacks."""
        result: list[dict[str, Any]] = []
        for location in context.panels:
            panel = panel_of(context, location)
            result.append({} if panel is None else _figures(context, panel))
        return result


def _figures(context: PageContext, panel: AttackedPanel) -> dict[str, Any]:
    labels, stepped = {column.attack: column.label for column in columns(panel)}, _stepped(panel)
    curves = [
        (f"{labels[name]}: {title}" if len(stepped) > 1 else title, figure)
        for name in labels
        if name in stepped
        for title, figure in relearning(panel, name, context.style)
    ]
    return {"curves": curves, "leaks": leaks(panel, leak_curves(context, panel), context.style)}


def _stepped(panel: AttackedPanel) -> set[str]:
    """List the attacks that have curves."""
    return {curve.attack for setting in panel.settings for curve in setting.curves}


def _sampled(panel: AttackedPanel) -> Yardstick | None:
    """What attacks that only sample are measured by; None without one."""
    measured = (item for item in panel.measured.values() if item is not None)
    return next((item for item in measured if item.before != item.after), None)


def _interval(panel: AttackedPanel, setting: AttackedSetting) -> Interval | None:
    """The interval of Lasting in the table.

    Intervals over questions are read from files, which would take long for all settings of a large
    sweep. Only settings whose details are shown have them.
    """
    if len(setting.setting.rows) == 1 and setting not in panel.shown:
        return None
    return setting.lasting_interval


def _has_interval(panel: AttackedPanel, setting: Setting) -> bool:
    """Whether the interval of a best setting is shown, see `_interval`."""
    item = panel.of(setting)
    return item is not None and (len(setting.rows) > 1 or item in panel.shown)


def _percent(share: float) -> str:
    """Format a share: `31 %`."""
    return f"{100 * share:.0f}\N{NO-BREAK SPACE}%"


def _percents(interval: Interval) -> str:
    """Format the interval of a share: `[14, 48 %]`; of two seeds, their range."""
    name = "min-max " if interval.is_range else ""
    return f"{name}[{100 * interval.low:.0f}, {_percent(interval.high)}]"


def _described(line: Recovery) -> str:
    """Describe the marks of a method in words."""
    if line.before is None:
        return line.why_not
    text = f"before: {signed(line.before, 3)}"
    if line.after is not None:
        text += f"; {variant_label(line.drawn)}: {signed(line.after, 3)}"
    for variant, after in line.others:
        text += f"; {variant_label(variant)}: {signed(after, 3)}"
    return text


def _change(gain: float | None) -> str:
    """Format a gain with its sign."""
    return "" if gain is None else ("+" if gain >= 0 else "") + signed(gain, 2)


def _steps(value: float | None) -> str:
    """Format the steps to half, which may never be reached."""
    return "" if value is None else "never" if math.isinf(value) else signed(value, 1)
