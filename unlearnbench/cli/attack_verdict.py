"""What `attack` prints and writes: numbers under each attack, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from unlearnbench.base.console import Console
from unlearnbench.base.hashing import json_ready
from unlearnbench.cli.model_verdict import numbers_of, question_counts, rounded, rules_line
from unlearnbench.results.attack_variants import (
    attack_of,
    is_before_attack,
    is_choice,
    trial_of,
)
from unlearnbench.results.single import ModelRole

if TYPE_CHECKING:
    from unlearnbench.analysis.lasting import AttackedSetting
    from unlearnbench.analysis.results import Results
    from unlearnbench.api.benchmark import HeadlineMetric
    from unlearnbench.api.metric import MetricColumn
    from unlearnbench.api.observations import Evaluation
    from unlearnbench.config.entries import AttackSpec
    from unlearnbench.results.table import TableRow


class AttackedModel:
    """A model under one attack, beside the models that it is compared with."""

    def __init__(self, results: Results, spec: AttackSpec) -> None:
        from unlearnbench.results.asked_rows import NumbersBefore

        self.spec = spec
        self.plain: Mapping[ModelRole, TableRow] = _plain_rows(results)
        self.rows: dict[str, dict[ModelRole, TableRow]] = {}
        """By variant, the row of each attacked model."""
        for row in results.attacked:
            if attack_of(row.variant) == spec.name:
                self.rows.setdefault(row.variant, {})[ModelRole(row.run_id)] = row
        self._numbers_before = NumbersBefore.of(results.before)
        self.setting: AttackedSetting | None = None
        """The model under the attack; None if nothing can be said about it."""
        self.sentences: tuple[str, ...] = self._judge(results)
        """The verdict."""

    def _judge(self, results: Results) -> tuple[str, ...]:
        """Set `setting` if the attack can be judged, and return the verdict."""
        from unlearnbench.analysis.attack_text import single_attack_sentences, start_fault_sentence

        name = self.spec.name
        fault = results.panels[0].start.fault
        is_attacked = any(ModelRole.MODEL in rows for rows in self.rows.values())
        if is_attacked and fault:
            return (start_fault_sentence(name, fault),)
        if not is_attacked or not results.lasting:
            return (f"{name}: no metric of the forget set could be measured under it",)
        (panel,) = results.lasting
        (setting,) = panel.settings
        self.setting = setting.only(name)
        return single_attack_sentences(panel, name)

    def before(self, model: ModelRole, column: str) -> float | None:
        """Return a model's number without the attack, on the rows that the attack asked."""
        for variant, rows in self.rows.items():
            # An attack that trains has evaluated the model on its rows before the first step.
            is_of_report = is_before_attack(variant) and not is_choice(variant)
            if is_of_report and model in rows:
                return rows[model].metrics.get(column)
        # All points of an attack ask the same rows.
        variant = next(iter(self.rows), "")
        return self._numbers_before(self.plain[model], variant).get(column)

    def columns(self) -> list[MetricColumn]:
        """Return the metrics by set with a number under the attack, the most telling ones first."""
        from unlearnbench.analysis.yardstick import MEMORIZATION

        plan = self.plain[ModelRole.MODEL].schema.plan
        measured = [
            column
            for column in (*plan.columns, *plan.under_attack)
            if column.set and self._has_number(column.name)
        ]
        most_telling = ("expected_best", *MEMORIZATION)

        def rank(column: MetricColumn) -> int:
            metric = column.name.removesuffix(f"_{column.set}")
            return most_telling.index(metric) if metric in most_telling else len(most_telling)

        return sorted(measured, key=rank)

    def _has_number(self, column: str) -> bool:
        """Whether the model has a number under the attack."""
        for rows in self.rows.values():
            if ModelRole.MODEL in rows and rows[ModelRole.MODEL].metrics.get(column) is not None:
                return True
        return False

    @property
    def shown(self) -> dict[str, dict[ModelRole, TableRow]]:
        """The variants that the table shows. Of a search, that of the attacker that was chosen."""
        if not any(map(trial_of, self.rows)):
            return self.rows
        under = None if self.setting is None else self.setting.worst or self.setting.most_gained
        chosen = "" if under is None else under.evaluated
        return {
            variant: rows
            for variant, rows in self.rows.items()
            if variant == chosen or (is_before_attack(variant) and not is_choice(variant))
        }

    def document(self) -> dict[str, Any]:
        """Return the numbers under the attack, and what comes back, as JSON."""
        settings = {key: value for key, value in self.spec.settings.items() if key != "at"}
        variants = {
            variant: {role: _known_numbers(row) for role, row in rows.items()}
            for variant, rows in self.rows.items()
        }
        return {
            "attack": self.spec.name,
            "version": self.spec.version,
            "settings": settings,
            "variants": variants,
            "lasting": None if self.setting is None else _lasting_document(self.setting),
            "verdict": self.sentences,
        }


def _plain_rows(results: Results) -> dict[ModelRole, TableRow]:
    """Return the rows without an attack: of the model, and of its retain and start model."""
    row_of_model = {row.run_id: row for row in results.rows}
    return {role: row_of_model[role] for role in ModelRole if role in row_of_model}


def attack_document(results: Results, attacked: Sequence[AttackedModel]) -> dict[str, Any]:
    """Return everything about attacks as JSON: the numbers of each evaluation, what comes back."""
    from unlearnbench.analysis.attack_text import unknown_under_attack

    plain = _plain_rows(results)
    evaluation = results.observed(plain[ModelRole.MODEL])
    document: dict[str, Any] = {
        "profile": results.profile,
        "precision": None if evaluation is None else evaluation.precision,
        "questions": {} if evaluation is None else question_counts(evaluation),
        "plain": {role: _known_numbers(row) for role, row in plain.items()},
        "attacks": [model.document() for model in attacked],
        "unknown": unknown_under_attack(
            has_retain=ModelRole.RETAIN in plain, has_start=ModelRole.START in plain
        ),
    }
    # JSON has no NaN and no infinity.
    ready: dict[str, Any] = json_ready(document, lambda _: None)
    return ready


def _known_numbers(row: TableRow) -> dict[str, float]:
    return {name: value for name, value in numbers_of(row).items() if value is not None}


def _lasting_document(setting: AttackedSetting) -> dict[str, Any] | None:
    """Return what comes back at the worst point of an attack, as JSON; None if nothing is measured.

    Gains are in the direction of more memorisation.
    """
    from unlearnbench.analysis.under_attack import worst_of_level

    under = setting.worst or setting.most_gained
    if under is None or under.measured is None:
        return None

    def oriented(gain: float | None) -> float | None:
        return None if gain is None else under.sign * gain

    points = sum(point.gain is not None for point in setting.under)
    level = worst_of_level(points)
    questions = under.questions
    interval = setting.lasting_interval
    return {
        "variant": under.variant,
        "points": points,
        "column": under.measured.after.name,
        "column_before": under.measured.before.name,
        "before": under.before,
        "after": under.after,
        "retain_before": under.retain.before,
        "retain_after": under.retain.after,
        "start": under.start.before,
        "gain": oriented(under.gain),
        "retain_gain": oriented(under.null),
        "excess": oriented(under.excess),
        "n": None if questions is None else questions.count,
        "level": level,
        "interval": None if questions is None else questions.gain_interval(level),
        "excess_interval": None if questions is None else questions.excess_interval(level),
        "removed": under.removed,
        "lasting": setting.lasting,
        "lasting_interval": None if interval is None else (interval.low, interval.high),
        "comes_back": None if setting.lasting is None else setting.comes_back,
        "why_not": setting.why_not or None,
        "attacker": None if under.tuned is None else asdict(under.tuned),
    }


def print_attacks(
    evaluation: Evaluation,
    attacked: Sequence[AttackedModel],
    document: Mapping[str, Any],
    kept: HeadlineMetric,
    console: Console,
) -> None:
    """Print the rules, a table and a verdict for each attack, and what is not known.

    Args:
        evaluation: Of the model without an attack.
        attacked: The model under each attack.
        document: What `attack_document` returns.
        kept: The benchmark's metric of what a model keeps.
        console: Where to print.
    """
    value = document["plain"][ModelRole.MODEL].get(kept.column)
    console.paragraph(rules_line(evaluation))
    console.print(f"{kept.plain_label} without an attack: {kept.text(value)}")
    for model in attacked:
        _print_attack(model, console)
    if document["unknown"]:
        console.print()
    for line in document["unknown"]:
        console.paragraph(line)


def _print_attack(attacked: AttackedModel, console: Console) -> None:
    """Print a table of one attack and its verdict."""
    name = attacked.spec.name
    shown = attacked.shown
    lines: list[tuple[Any, ...]] = []
    for column in attacked.columns():
        for role in attacked.plain:
            cells = [rounded(attacked.before(role, column.name))]
            for rows in shown.values():
                row = rows.get(role)
                cells.append(None if row is None else rounded(row.metrics.get(column.name)))
            if role is ModelRole.MODEL:
                lines.append((column.label, "model", *cells))
            else:
                # The metric's name stands above, in the line of the model.
                lines.append(("", f"{role} model", *cells))
    # The table's title names the attack: `@13` is left of `relearning@13`.
    points = [variant.removeprefix(name) or variant for variant in shown]
    console.print()
    console.table(("metric", "of", "plain", *points), lines, title=name, keys=2)
    console.print()
    for sentence in attacked.sentences:
        console.paragraph(sentence)
