"""Does it last: how much of the removed knowledge attacks bring back, for each method."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from unlearnbench.analysis.attack_text import attack_sentences
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
from unlearnbench.analysis.settings import Setting
from unlearnbench.analysis.under_attack import Shift, UnderAttack
from unlearnbench.analysis.wording import variant_label
from unlearnbench.analysis.worst_prompt import worst_prompt
from unlearnbench.analysis.yardstick import Yardstick
from unlearnbench.api.observations import Evaluation
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema
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
from .plot import RETAIN, START, Titled, leaks, relearning

REFERENCES: Mapping[Any, str] = {"retain": RETAIN, "fine-tuned": START}
"""Names of the models that runs are compared with, by kind."""
Variants = Mapping[tuple[str, str], Evaluation]
"""By record, and by epoch and variant: `5 relearning@13`."""


def panel_of(context: PageContext, panel: TradeOffPanel) -> AttackedPanel | None:
    """Look up the attacked settings of a panel; None if none was attacked."""
    attacked = of_place(context.report.lasting, panel)
    return attacked[0] if attacked else None


def point_label(variant: str) -> str:
    """Name the point of an attack: `13 steps` of `relearning@13`, `nf4` of `quantization@nf4`."""
    return variant_label(variant).partition(", ")[2]


@dataclass(frozen=True)
class AttackColumn:
    """An attack in the table. Each setting has the number at the point where most comes back."""

    attack: str

    @property
    def label(self) -> str:
        """Label of the attack; its name in records if the attack is not installed."""
        kind = attack_class(self.attack)
        return self.attack if kind is None else kind.label

    def of(self, setting: AttackedSetting) -> UnderAttack | None:
        """Return the setting at its worst point of the attack, or else at the last point."""
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
        """Return the start or the retain model at the points of the column.

        Settings may be worst at different points, and each has to be compared at its own point.

        Returns:
            The label of the point (`13 steps`; empty if there is only one) and the model's shift.
        """
        variants = [variant for variant in self.shown(panel) if variant in models]
        return [
            (point_label(variant) if len(variants) > 1 else "", models[variant])
            for variant in variants
            if models[variant].after is not None
        ]

    def measure(self, panel: AttackedPanel) -> str:
        """Return the label of the number in the attack's column."""
        for variant, yardstick in panel.measured.items():
            if attack_of(variant) == self.attack and yardstick is not None:
                return yardstick.after.label
        return panel.column.label

    def curve(self, setting: AttackedSetting) -> RelearningCurve | None:
        """Return the setting's curve over the attack's steps; None without one."""
        for curve in setting.curves:
            if curve.attack == self.attack:
                return curve
        return None


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
    """Read the evaluations under attacks that the page embeds.

    These are the evaluations of the first seed of each setting in `AttackedPanel.shown`, and of the
    start and the retain model, which have the ids of their plain records here. Only the last
    evaluation of an attack with steps is embedded.
    """
    evaluations: dict[tuple[str, str], Evaluation] = {}
    for panel in context.report.lasting:
        last_of_attack = {attack: variants[-1] for attack, variants in panel.attacks.items()}
        wanted_variants = {
            variant
            for variant in panel.variants
            if step_of(variant) is None or variant == last_of_attack[attack_of(variant)]
        }
        # Of a search, the evaluations are those of the attackers that were chosen.
        wanted_variants |= {
            under.tuned.variant
            for shown in panel.shown
            for under in shown.under
            if under.tuned is not None
        }
        wanted_variants |= {tuned.variant for tuned in panel.attackers_of_retain.values()}
        first_rows = [shown.setting.rows[0] for shown in panel.shown if shown.setting.rows]
        wanted_runs = {(row.run_id, row.epoch) for row in first_rows}
        plain_ids = {row.kind: row.run_id for row in context.rows_of(panel) if row.kind != "run"}
        for row in of_place(context.report.attacked, panel):
            is_shown = row.kind != "run" or (row.run_id, row.epoch) in wanted_runs
            if row.variant not in wanted_variants or not is_shown:
                continue
            evaluation = context.report.observed(row)
            if evaluation is not None:
                record_id = plain_ids.get(row.kind, row.run_id)
                evaluations[record_id, f"{row.epoch} {row.variant}"] = evaluation
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
    """Return the curves of leak@k, by the id of a run or the name of a reference."""
    curves: dict[str, LeakCurve] = {}
    for model, by_variant in _by_model(context, panel).items():
        curve = leak_curve(context.columns.schema, by_variant)
        if curve is not None:
            curves[model] = curve
    return curves


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
        schema = context.columns.schema
        first_panel = panels[0]
        recoveries = [panel_recovery(panel) for panel in panels]
        leaks_of_models = [
            curve for panel in panels for curve in leak_curves(context, panel).values()
        ]
        stepped = {attack for panel in panels for attack in _stepped(panel)}
        lasting_intervals = (
            _interval(panel, setting) for panel in panels for setting in panel.settings
        )
        return {
            "pictures": [Picture.of(recovery) for recovery in recoveries],
            "has_interval": _has_interval,
            "any_interval": any(
                line.interval is not None for recovery in recoveries for line in recovery.methods
            ),
            "percent": _percent,
            "percents": _percents,
            "described": _described,
            "panels": [_tabulated(context, panel) for panel in panels],
            "leaks": leaks_of_models[0] if leaks_of_models else None,
            "leak_label": _leak_label(schema),
            "bounded": bool(leak_columns(schema)[1]),
            "measure": first_panel.column.label,
            "sampled": _sampled(first_panel),
            "all_sample": _all_sample(first_panel),
            "curves": [column.label for column in columns(first_panel) if column.attack in stepped],
            "stepped": stepped,
            "has_retain": schema.has_retain,
            "searched": _least_utility(context),
            "interval": _interval,
            "brackets": interval_names(lasting_intervals),
            "change": _change,
            "steps": _steps,
            "variant": variant_label,
            "point": point_label,
        }

    def data(self, context: PageContext) -> Any:
        """Draw the figures of each panel, by kind; none of a panel without attacks."""
        figures_of_panels: list[dict[str, Any]] = []
        for panel in context.panels:
            attacked = panel_of(context, panel)
            figures_of_panels.append({} if attacked is None else _figures(context, attacked))
        return figures_of_panels


def _least_utility(context: PageContext) -> str:
    """Return the share of utility that an attacked model keeps, `90 %`; empty without a search."""
    shares = [
        attack.least_utility
        for attack in context.report.attack_plugins.values()
        if attack.least_utility is not None
    ]
    return " or ".join(dict.fromkeys(map(_percent, shares)))


class TabulatedPanel(NamedTuple):
    """What the template reads to write the sentences and the table of a panel."""

    panel: AttackedPanel
    sentences: Sequence[str]
    attacks: tuple[AttackColumn, ...]
    leaked: Mapping[Any, MeanLeak]
    """By the key of a setting, or the name of a reference."""
    worst_of_prompts: tuple[str, Mapping[str, float | None]] | None
    """Label, and numbers by model; None without several prompts."""


def _tabulated(context: PageContext, panel: AttackedPanel) -> TabulatedPanel:
    return TabulatedPanel(
        panel,
        attack_sentences(panel),
        columns(panel),
        leaked(context, panel),
        worst_of_prompts(context, panel),
    )


def _leak_label(schema: BenchmarkSchema) -> str:
    """Name the column of leaks: `leak@8`, or `leak@k` if no metric says how many are sampled."""
    for measure in schema.plan.measures:
        if measure.name == LEAK:
            return f"leak@{getattr(measure.metric, 'k', 'k')}"
    return "leak@k"


def _all_sample(panel: AttackedPanel) -> bool:
    """Whether all attacks only sample: their yardstick is another number than the plain one."""
    return all(
        yardstick is not None and yardstick.before != yardstick.after
        for yardstick in panel.measured.values()
    )


def _figures(context: PageContext, panel: AttackedPanel) -> dict[str, Any]:
    """Draw the curves of all attacks with steps, and the leaks."""
    stepped = _stepped(panel)
    curves: Titled = []
    for column in columns(panel):
        if column.attack in stepped:
            # Without a second attack, the heading of the figures names the only one.
            prefix = f"{column.label}: " if len(stepped) > 1 else ""
            for title, figure in relearning(panel, column.attack, context.style):
                curves.append((f"{prefix}{title}", figure))
    return {"curves": curves, "leaks": leaks(panel, leak_curves(context, panel), context.style)}


def _stepped(panel: AttackedPanel) -> set[str]:
    """Return the names of the attacks that have curves over steps."""
    return {curve.attack for setting in panel.settings for curve in setting.curves}


def _sampled(panel: AttackedPanel) -> Yardstick | None:
    """Return the yardstick of attacks that only sample; None without such an attack."""
    for yardstick in panel.measured.values():
        if yardstick is not None and yardstick.before != yardstick.after:
            return yardstick
    return None


def _interval(panel: AttackedPanel, setting: AttackedSetting) -> Interval | None:
    """Return the interval of Lasting in the table; None if it is not shown.

    Intervals over questions are read from files, which would take long for all settings of a large
    sweep. Only settings whose details are shown have them.
    """
    if len(setting.setting.rows) == 1 and setting not in panel.shown:
        return None
    return setting.lasting_interval


def _has_interval(panel: AttackedPanel, setting: Setting) -> bool:
    """Whether the interval of a best setting is shown, see `_interval`."""
    attacked = panel.of(setting)
    return attacked is not None and (len(setting.rows) > 1 or attacked in panel.shown)


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
