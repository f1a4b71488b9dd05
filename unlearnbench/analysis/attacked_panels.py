"""From rows of a table to settings under attacks: which numbers are compared with which.

For each panel (a model and split), numbers under each variant are paired with numbers before the
attack: of every setting by seed, of the retain model and of the start model. `under_attack` and
`lasting` compute from these pairs what comes back. Observations are read only for intervals over
questions, and only when such an interval is asked for.

A *variant* is an attack at one of its points: `relearning@13` is the attack `relearning` after 13
steps. An attack that trains also has a *first point*, `relearning@0`, at which nothing was trained
yet. It is no variant here: it only gives numbers before the attack. A white-box attack runs the
bare weights, so a method that works at inference time is *bypassed*.

An attack that searches for the strongest attacker has one variant here, `relearning@tuned`. The
module `attacker_choice` describes how its attacker is chosen for each setting.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial

from unlearnbench.analysis.attacker_choice import AttackedModel, Search, seeds_of_choice
from unlearnbench.analysis.best_settings import Panel
from unlearnbench.analysis.lasting import AttackedPanel, AttackedSetting
from unlearnbench.analysis.question_gains import (
    BeforeAndAfter,
    GainsOfModel,
    QuestionGains,
    gains_of,
    question_gains,
)
from unlearnbench.analysis.relearning_curve import RelearningCurve
from unlearnbench.analysis.settings import Setting, is_evidence, mean_of
from unlearnbench.analysis.tuned_attacker import TunedAttacker
from unlearnbench.analysis.under_attack import Shift, UnderAttack
from unlearnbench.analysis.yardstick import Yardstick, memorization_column, yardstick
from unlearnbench.api.attack import Attack
from unlearnbench.results.asked_rows import NumbersBefore, Observed
from unlearnbench.results.attack_variants import (
    asked_part,
    attack_of,
    is_before_attack,
    point_of,
    step_of,
    trial_of,
    trial_points,
    tuned_variant,
)
from unlearnbench.results.table import TableRow

NO_PLUGINS: Mapping[str, Attack] = {}
_RowsByVariant = Mapping[str, TableRow]
"""Rows of one model under attacks, by variant, with points before the first step."""


def attacked_panels(
    panels: Sequence[Panel],
    attacked: Sequence[TableRow],
    white_box: Callable[[str], bool] = lambda _: False,
    column: str | None = None,
    before: Iterable[TableRow] = (),
    observed: Observed = lambda _: None,
    plugins: Mapping[str, Attack] = NO_PLUGINS,
) -> tuple[AttackedPanel, ...]:
    """Compare every attacked setting with the start and the retain model, by panel.

    Args:
        panels: Panels of the table of plain evaluations, with rows of the start and retain models.
        attacked: `Table.attacked`.
        white_box: Tells by name whether an attack runs the bare weights, without a method at
            inference time.
        column: Memorisation number; defaults to `memorization_column`.
        before: `Table.before`.
        observed: Reads the observations behind a row, for intervals over questions.
        plugins: The attacks with their settings, by name, as far as they are known.

    Returns:
        One value for each panel that has an attacked setting.
    """
    # What a failed run was attacked by says nothing about settings, as in `is_evidence`.
    attacked = [row for row in attacked if row.kind != "run" or is_evidence(row)]
    plain_rows = [row for panel in panels for row in panel.rows]
    column = column or memorization_column(plain_rows, attacked)
    if column is None:
        return ()
    numbers_before = NumbersBefore.of(before)
    compared: list[AttackedPanel] = []
    for panel in panels:
        rows = [row for row in attacked if row.panel == panel.panel]
        if any(row.kind == "run" for row in rows):
            comparison = _PanelUnderAttack(
                panel, rows, white_box, column, numbers_before, observed, plugins
            )
            compared.append(comparison.result())
    return tuple(panel for panel in compared if panel.settings)


class _PanelUnderAttack:
    """Compares the settings of one panel under attacks with the start and the retain model."""

    def __init__(
        self,
        panel: Panel,
        attacked: Sequence[TableRow],
        white_box: Callable[[str], bool],
        column: str,
        numbers_before: NumbersBefore,
        observed: Observed,
        plugins: Mapping[str, Attack],
    ) -> None:
        """Order the rows of one panel.

        Args:
            panel: Model and split, with the rows of plain evaluations.
            attacked: Rows of the panel under attacks, with first points; at least one.
            white_box: As in `attacked_panels`.
            column: Memorisation number.
            numbers_before: Finds a model's plain number on the rows that an attack asked.
            observed: As in `attacked_panels`.
            plugins: As in `attacked_panels`.
        """
        self.panel = panel
        self.white_box = white_box
        self.column = column
        self.numbers_before = numbers_before
        self.observed = observed
        self.schema = attacked[0].schema

        # Variants are shown in the order in which runs have them. Start and retain models have a
        # record for each attack, so their order says nothing, and their rows come last.
        runs_first = sorted(attacked, key=lambda row: row.kind != "run")
        names = dict.fromkeys(row.variant for row in runs_first)
        self.first_points = {asked_part(name): name for name in names if is_before_attack(name)}
        """The variant before the first step, by attack and part of the rows, see `asked_part`."""
        first_points = set(self.first_points.values())
        others = [name for name in names if name not in first_points]
        self.trial_points = trial_points(others)
        """By attack that searches, the points of its attackers on the rows of the report."""
        untuned = [name for name in others if trial_of(name) is None]
        self.variants = (*untuned, *map(tuned_variant, self.trial_points))
        """All variants without first points. A search has one variant."""
        variants_of_runs = {row.variant for row in attacked if row.kind == "run"}
        self.variants_of_runs = tuple(name for name in untuned if name in variants_of_runs)
        """The variants without a search under which a run was evaluated, not only the start or
        retain model."""

        # Looking up what an attack declares takes too long to repeat it for each setting.
        self.steps = {variant: step_of(variant) for variant in self.variants}
        """The optimiser step of each variant; None for a point that is not a step."""
        self.measured = {
            variant: yardstick(self.schema, column, variant, attacked) for variant in others
        }
        """What each variant is measured by; None if it can move no number."""
        self.searches: dict[str, Search] = {}
        """The searches, by the variant that stands for each."""
        for attack, points in self.trial_points.items():
            measured = self.measured[points[0]]
            self.measured[tuned_variant(attack)] = measured
            search = Search(attack, plugins.get(attack), points, measured)
            self.searches[tuned_variant(attack)] = search

        self.gains_of_retain: dict[str, GainsOfModel | None] = {}
        """The retain model's gains by question, by variant. Filled when they are asked for."""
        self.rows_of_kind: dict[str, dict[str, TableRow]] = defaultdict(dict)
        """Rows by kind (`retain`, `fine-tuned`) and variant."""
        self.rows_of_run: dict[tuple[str, int], dict[str, TableRow]] = defaultdict(dict)
        """Rows by (run, epoch) and variant."""
        for row in attacked:
            self.rows_of_kind[row.kind][row.variant] = row
            self.rows_of_run[row.run_id, row.epoch][row.variant] = row

        self.attackers_of: dict[str, dict[str, TunedAttacker]] = {"retain": {}, "fine-tuned": {}}
        """By kind of model and by variant of a search, the strongest attacker of the retain and of
        the start model."""
        for variant, search in self.searches.items():
            for kind, attackers in self.attackers_of.items():
                model = self._reference(kind, search)
                if model is None:
                    continue
                strongest = search.strongest([model])
                if strongest is not None:
                    attackers[variant] = search.describe(strongest, [model])

    def result(self) -> AttackedPanel:
        """Compare all settings."""
        retain_row = self.panel.row("retain")
        best = [
            self._best(best.family, best.setting)
            for best in self.panel.best
            if best.setting is not None
        ]
        settings = [self._attacked(setting) for setting in self.panel.settings]
        if self.panel.choices:
            # A choice is shown on its reporting seeds in every view.
            on_reporting_seeds = {attacked.setting: attacked for attacked in best}
            settings = [on_reporting_seeds.get(attacked.setting, attacked) for attacked in settings]
        return AttackedPanel(
            *self.panel.panel,
            column=self.schema.column(self.column),
            variants=self.variants,
            settings=tuple(attacked for attacked in settings if attacked.under),
            best=tuple(best),
            without_best=tuple(best for best in self.panel.best if best.setting is None),
            retain={variant: self.retain[variant] for variant in self.variants},
            start={variant: self.start[variant] for variant in self.variants},
            measured={variant: self.measured[variant] for variant in self.variants},
            attackers_of_retain=self.attackers_of["retain"],
            retain_plain=None if retain_row is None else retain_row.metrics.get(self.column),
            start_plain=self.panel.at_start(self.column),
            chosen_families=frozenset(choice.family for choice in self.panel.choices),
            has_retain=self.schema.has_retain,
        )

    # Numbers before and under a variant

    @cached_property
    def retain(self) -> dict[str, Shift]:
        """The retain model by variant; under a search, by its own strongest attacker."""
        return self._of_reference("retain")

    @cached_property
    def start(self) -> dict[str, Shift]:
        """The start model by variant; under a search, by its own strongest attacker."""
        return self._of_reference("fine-tuned")

    def _of_reference(self, kind: str) -> dict[str, Shift]:
        """Return the shifts of the retain model or the start model by variant, in all orders."""
        shifts: dict[str, Shift] = {}
        for variant in self.measured:
            if variant not in self.searches:
                shifts[variant] = self._shift_of_reference(kind, variant)
        for variant in self.searches:
            attacker = self.attackers_of[kind].get(variant)
            shifts[variant] = Shift(None, None) if attacker is None else shifts[attacker.variant]
        return shifts

    def _shift_of_reference(self, kind: str, variant: str) -> Shift:
        """Return the numbers of the retain model or the start model before and under a variant."""
        plain = self.panel.row(kind)
        measured = self.measured[variant]
        if kind == "fine-tuned" and measured is not None:
            # A sweep may have the start model's numbers only in epoch 0 of a run.
            plain = self.panel.start_row(measured.before.name) or plain
        return self._shift(plain, self.rows_of_kind[kind], variant)

    def _reference(self, kind: str, search: Search) -> AttackedModel | None:
        """Return the retain or the start model as a search sees it; None if it was not attacked."""
        rows = self.rows_of_kind.get(kind, {})
        if self.first_points.get(search.attack, "") not in rows:
            return None
        return self._searched_model(search, rows, partial(self._shift_of_reference, kind))

    def _searched_model(
        self, search: Search, rows: _RowsByVariant, shift: Callable[[str], Shift]
    ) -> AttackedModel:
        """Return one model as a search sees it.

        Args:
            search: The search.
            rows: The model's rows under attacks.
            shift: Returns its numbers before and under a variant.
        """
        kept = self.panel.headline.kept.column
        before = rows.get(self.first_points.get(search.attack, ""))
        return AttackedModel(
            utility_before=None if before is None else before.metrics.get(kept),
            utility_after={
                point: rows[point].metrics.get(kept) for point in search.points if point in rows
            },
            shift=shift,
        )

    def _shift(
        self,
        plain: TableRow | None,
        attacked: _RowsByVariant,
        variant: str,
        *,
        bypassed: bool = False,
    ) -> Shift:
        """Pair a model's number under a variant with its number before the attack.

        Args:
            plain: Row of the model without an attack.
            attacked: Its rows under attacks.
            variant: Name of the variant.
            bypassed: Whether the attack runs the model without the method.
        """
        measured = self.measured[variant]
        if measured is None:
            return Shift(None, None)
        rows = self._rows(plain, attacked, variant, bypassed=bypassed)
        after = None if rows.after is None else rows.after.metrics.get(measured.after.name)
        if rows.before is None:
            return Shift(None, after)
        numbers = rows.before.metrics
        is_plain = not rows.before.variant
        if is_plain:
            # An attack may ask only a part of the rows. The plain number has to be of this part.
            numbers = self.numbers_before(rows.before, variant)
        return Shift(numbers.get(measured.before.name), after)

    def _rows(
        self,
        plain: TableRow | None,
        attacked: _RowsByVariant,
        variant: str,
        *,
        bypassed: bool,
    ) -> BeforeAndAfter:
        """Find a model's rows before an attack and under it, as in `_shift`."""
        first_point = self.first_points.get(asked_part(variant), "")
        at_first_point = attacked.get(first_point)
        # A method at inference time is gone at the attack's first point already.
        before = plain if at_first_point is None or bypassed else at_first_point
        return BeforeAndAfter(before, attacked.get(variant))

    # Settings

    def _best(self, family: str, setting: Setting) -> AttackedSetting:
        """Return a method's best setting under attacks, on the seeds that its numbers are of.

        If it was not attacked, the result has no variants, and a reason.

        Args:
            family: The method with its retain term, without hyperparameters.
            setting: Its best setting.
        """
        attacked = self._attacked(setting)
        if attacked.under:
            return attacked
        attacked_settings = [
            other
            for other in self.panel.settings
            if other.family == family and self._was_attacked(other)
        ]
        attacked_epochs = {other.epoch for other in attacked_settings}
        reason = f"it was not attacked at {setting.when}"
        if setting in attacked_settings:
            reason += " (only other seeds of it were)"
        elif setting.epoch in attacked_epochs:
            reason += f" (only other settings of {family} were)"
        elif attacked_epochs:
            listed = ", ".join(map(str, sorted(attacked_epochs)))
            reason += f" (settings of {family} were attacked at {setting.unit.at(listed)})"
        return replace(attacked, not_attacked=reason)

    def _was_attacked(self, setting: Setting) -> bool:
        """Whether a seed of a setting has rows under an attack."""
        return any(self.rows_of_run.get((row.run_id, row.epoch)) for row in setting.rows)

    def _attacked(self, setting: Setting) -> AttackedSetting:
        """Return a setting under all variants that it was evaluated under."""
        attacked_of_seed = [
            self.rows_of_run.get((row.run_id, row.epoch), {}) for row in setting.rows
        ]
        evaluated = {variant for rows in attacked_of_seed for variant in rows}
        under = [
            self._under(setting, attacked_of_seed, variant)
            for variant in self.variants
            if variant in evaluated
        ]
        under += [
            self._under_search(setting, attacked_of_seed, variant)
            for variant, search in self.searches.items()
            if self.first_points.get(search.attack) in evaluated
        ]
        kept = setting.kept
        least_kept = self.panel.least_kept
        keeps_utility = kept is not None and least_kept is not None and kept >= least_kept
        # A mean over the other seeds would hide the seed that ended early.
        curves = [] if setting.why_not else _relearning_curves(under, self.steps)
        return AttackedSetting(
            setting,
            tuple(under),
            keeps_utility=keeps_utility,
            curves=tuple(curves),
            not_attacked=self._not_attacked(setting, evaluated) if evaluated else "",
            utility_unknown=self._utility_unknown(setting),
        )

    def _utility_unknown(self, setting: Setting) -> str:
        """Return why it is not known whether a setting keeps utility; empty if it is known."""
        if self.panel.least_kept is None:
            return "the start model was not evaluated"
        if setting.why_not:
            return setting.why_not
        if setting.kept is None:
            return f"{setting.headline.kept.plain_label} is undefined at {setting.when}"
        return ""

    def _not_attacked(self, setting: Setting, evaluated: set[str]) -> str:
        """Name what other settings were attacked by and this one was not; empty if nothing.

        Args:
            setting: The setting.
            evaluated: The variants that it was evaluated under.
        """
        attacks = {attack_of(variant) for variant in evaluated}
        reasons: list[str] = []
        for variant, search in self.searches.items():
            if attack_of(variant) not in attacks and self._was_made_on_runs(search):
                reasons.append(f"{search.attack} did not attack it at {setting.when}")
        for variant in self.variants_of_runs:
            if variant in evaluated:
                continue
            attack = attack_of(variant)
            if attack in attacks:
                reasons.append(f"{attack} did not reach {point_of(variant)} at {setting.when}")
            else:
                reasons.append(f"{attack} did not attack it at {setting.when}")
        return "; ".join(dict.fromkeys(reasons))

    def _was_made_on_runs(self, search: Search) -> bool:
        """Whether any run was attacked by a search."""
        first_point = self.first_points.get(search.attack)
        rows = self.rows_of_run.values()
        return any(first_point in of_run and of_run[first_point].kind == "run" for of_run in rows)

    def _under_search(
        self, setting: Setting, attacked_of_seed: Sequence[_RowsByVariant], variant: str
    ) -> UnderAttack:
        """Return a setting under its strongest attacker, on the rows and seeds of the report.

        Args:
            setting: The setting.
            attacked_of_seed: For each of its rows, the rows of the same run and epoch under attack.
            variant: The variant that stands for the search.
        """
        search = self.searches[variant]
        seed_count = len(setting.rows)
        choice_count = seeds_of_choice(seed_count)
        choosing = slice(None, choice_count)
        # A single seed both chooses and is reported; then only the rows are divided.
        reporting = slice(choice_count if seed_count > 1 else 0, None)

        bypassed = setting.rows[0].at_inference and self.white_box(search.attack)
        seeds: list[AttackedModel] = []
        for row, rows in zip(setting.rows, attacked_of_seed, strict=True):
            shift = partial(self._shift, row, rows, bypassed=bypassed)
            seeds.append(self._searched_model(search, rows, shift))
        choosing_seeds = seeds[choosing]
        references = {kind: self._reference(kind, search) for kind in self.attackers_of}
        others = [model for model in references.values() if model is not None]
        retain = references["retain"]
        missing = search.problem(choosing_seeds, others, retain)
        strongest = None if missing else search.strongest(choosing_seeds, retain)
        # Without an attacker, the numbers before the attack are known, and none under it.
        point = strongest or search.points[-1]
        reported = replace(setting, rows=setting.rows[reporting])
        under = self._under(reported, attacked_of_seed[reporting], point)
        if missing:
            shifts = tuple(Shift(shift.before, None) for shift in under.shifts)
            under = replace(under, shifts=shifts)
        attacker = replace(
            search.describe(point, choosing_seeds),
            choosing_seeds=tuple(row.seed for row in setting.rows[choosing]),
            reporting_seeds=tuple(row.seed for row in reported.rows),
            utility_kept=mean_of([model.keeps(point) for model in seeds[reporting]]),
            retain_after=self.retain[variant].after,
        )
        return replace(under, variant=variant, missing=missing or under.missing, tuned=attacker)

    def _under(
        self, setting: Setting, attacked_of_seed: Sequence[_RowsByVariant], variant: str
    ) -> UnderAttack:
        """Return a setting under one variant.

        Args:
            setting: The setting.
            attacked_of_seed: For each of its rows, the rows of the same run and epoch under attack.
            variant: Name of the variant.
        """
        measured = self.measured[variant]
        bypassed = setting.rows[0].at_inference and self.white_box(attack_of(variant))
        shifts = tuple(
            self._shift(plain, rows, variant, bypassed=bypassed)
            for plain, rows in zip(setting.rows, attacked_of_seed, strict=True)
        )
        read_questions: Callable[[], QuestionGains | None] = _no_questions
        if measured is not None and len(shifts) == 1 and not setting.why_not:
            rows = self._rows(setting.rows[0], attacked_of_seed[0], variant, bypassed=bypassed)
            read_questions = partial(self._questions, variant, measured, rows)
        return UnderAttack(
            variant,
            shifts,
            self.retain[variant],
            self.start[variant],
            bypassed,
            sign=1.0 if measured is None else measured.sign,
            measured=measured,
            floor=None if measured is None else self._floor(measured),
            missing=self._missing(variant, setting, attacked_of_seed, shifts),
            lacks_seeds=bool(setting.why_not),
            read_questions=read_questions,
        )

    def _floor(self, measured: Yardstick) -> float | None:
        """Return the number of a model that has memorised nothing, if there is no retain model."""
        if self.schema.has_retain:
            return None
        least, most = measured.before.bounds
        nothing = least if measured.sign > 0 else most
        return nothing if math.isfinite(nothing) else None

    def _missing(
        self,
        variant: str,
        setting: Setting,
        attacked_of_seed: Sequence[_RowsByVariant],
        shifts: Sequence[Shift],
    ) -> str:
        """Return the reason why a setting has no number under a variant; empty if none is known.

        Args:
            variant: Name of the variant.
            setting: The setting.
            attacked_of_seed: For each of its rows, the rows of the same run and epoch under attack.
            shifts: The setting's numbers before and under the variant, by seed.
        """
        attack = attack_of(variant)
        measured = self.measured[variant]
        if measured is None:
            return (
                f"{attack} leaves greedy answers as they are, and no metric compares sampled "
                "answers with them"
            )
        for row, attacked in zip(setting.rows, attacked_of_seed, strict=True):
            if variant in attacked:
                continue
            if any(attack_of(other) == attack for other in attacked):
                return (
                    f"{attack} did not reach {point_of(variant)} with seed {row.seed} at {row.when}"
                )
            return f"{attack} did not attack seed {row.seed} at {row.when}"
        plain = [row.metrics.get(measured.before.name) for row in setting.rows]
        if None not in plain and any(shift.before is None for shift in shifts):
            label = measured.before.label.lower()
            return f"{attack} may leave rows out, and {label} without it is known only for all rows"
        return ""

    # Gains by question

    def _questions(
        self, variant: str, measured: Yardstick, rows: BeforeAndAfter
    ) -> QuestionGains | None:
        """Compute the gains by question of one run under a variant.

        Args:
            variant: Name of the variant.
            measured: What it is measured by.
            rows: Rows of the run.

        Returns:
            None if they are unknown.
        """
        before = measured.before.name
        after = measured.after.name
        own = gains_of(before, after, rows, self.observed)
        if own is None:
            return None
        if self._floor(measured) is not None:
            # Without a retain model nothing is subtracted, as in `UnderAttack.taught`.
            return question_gains(own, own.zero(), measured.sign)
        if variant not in self.gains_of_retain:
            retain_rows = self._rows(
                self.panel.row("retain"), self.rows_of_kind["retain"], variant, bypassed=False
            )
            self.gains_of_retain[variant] = gains_of(before, after, retain_rows, self.observed)
        return question_gains(own, self.gains_of_retain[variant], measured.sign)


def _no_questions() -> None:
    """Return no gains by question, as `UnderAttack.read_questions` of a setting without them."""
    return


def _relearning_curves(
    under: Iterable[UnderAttack], steps: Mapping[str, int | None]
) -> list[RelearningCurve]:
    """Return a setting's curve for each attack that is evaluated after two steps or more.

    Args:
        under: The setting under its variants.
        steps: Steps of the attack by variant; None for a point that is not a step.
    """
    by_attack: dict[str, dict[int, UnderAttack]] = defaultdict(dict)
    for at_point in under:
        step = steps.get(at_point.variant)
        if step is not None:
            by_attack[attack_of(at_point.variant)][step] = at_point
    return [
        _relearning_curve(attack, by_step)
        for attack, by_step in by_attack.items()
        if len(by_step) >= 2
    ]


def _relearning_curve(attack: str, by_step: Mapping[int, UnderAttack]) -> RelearningCurve:
    """Return a setting's curve under one attack, from before it to its last step.

    Args:
        attack: Name of the attack.
        by_step: The setting under the attack, by optimiser step of the attack; at least two.
    """
    steps = sorted(by_step)
    points = [by_step[step] for step in steps]
    seed_count = len(points[0].shifts)
    measured = points[0].measured
    bounds = (-math.inf, math.inf) if measured is None else measured.after.bounds
    return RelearningCurve(
        attack,
        steps=(0, *steps),
        seeds=tuple(
            _along([point.shifts[position] for point in points]) for position in range(seed_count)
        ),
        retain=_along([point.retain for point in points]),
        start=_along([point.start for point in points]),
        sign=points[0].sign,
        bounds=bounds,
    )


def _along(shifts: Sequence[Shift]) -> tuple[float | None, ...]:
    """Return a model's number before the attack, followed by its numbers at the attack's points."""
    return (shifts[0].before, *(shift.after for shift in shifts))
