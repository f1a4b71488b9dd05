"""Meta-evaluation of metrics: which of them find the models that know the forget rows?

    P, N            start models, which know the forget rows, and retain models, which do not
    faithfulness    area under the ROC curve of a metric that separates P from N; ½: no difference
    threshold τ     the cut with the most models of P above it and of N below it
    R, Q            robustness to relearning and to quantisation, in `stats/relearning.py`: means
                    over the unlearned models that keep 80 % of their start model's utility and are
                    below τ, where a metric says that they have forgotten
    overall         HM(faithfulness, HM(R, Q))

A *variant* is an evaluation under an attack at one of its points, for example `relearning@13`: the
attack `relearning` after 13 steps. R and Q are each computed from one variant.

The source is Dorna et al. 2025, arXiv:2506.12618, section 4, with R and Q in the symmetric form of
arXiv:2605.24614. A metric is oriented so that higher values mean more knowledge. Metrics of rows to
keep are *controls*: if one separates P from N, the models differ by more than the forget rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from unlearnbench.analysis.best_settings import UTILITY_SHARE
from unlearnbench.analysis.lasting import find_variant
from unlearnbench.analysis.results import Results
from unlearnbench.analysis.settings import is_evidence, mean_of
from unlearnbench.api.benchmark import SplitKey, split_order, split_percent
from unlearnbench.api.membership import CONTROL, MembershipInference
from unlearnbench.api.metric import Better, MetricColumn
from unlearnbench.base.errors import RecordError
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema
from unlearnbench.results.asked_rows import NumbersBefore
from unlearnbench.results.attack_variants import (
    asked_part,
    attack_of,
    is_before_attack,
    is_choice,
    is_white_box,
    point_of,
    trial_of,
)
from unlearnbench.results.table import TableRow
from unlearnbench.stats.harmonic_mean import harmonic_mean
from unlearnbench.stats.relearning import (
    symmetric_quantization_robustness,
    symmetric_relearning_robustness,
)
from unlearnbench.stats.roc import auc, auc_score_interval, best_cut

FEWEST = 2
"""Least number of models in each pool (P and N) for a meta-evaluation."""
_LEVEL = 0.05
"""Largest exact p-value at which a separation of the pools counts as more than chance."""

Values = Mapping[str, float | None]
"""Numbers of a model by column; None for a number that is undefined."""


@dataclass(frozen=True)
class AttackedRun:
    """A run before and after an attack, and its retain model, all on the same rows."""

    row: TableRow
    """The run after the epoch at which it was attacked, on all rows."""
    kept_at_start: float | None
    """The start model's number of what is kept, by the headline."""
    variant: str
    before: Values
    """The run's numbers before the attack."""
    after: Values
    """The run's numbers under the attack."""
    retain_before: Values
    """The retain model's numbers before the attack."""
    retain_after: Values
    """The retain model's numbers under it; both are empty if it was not attacked."""


@dataclass(frozen=True)
class Robustness:
    """Mean robustness of a metric to one attack."""

    value: float | None
    """From 0 to 1; None if it cannot be computed, see `reason`."""
    runs: int
    """Number of runs that keep their utility and have forgotten, by the metric."""
    reason: str = ""
    """Why there is no value; empty if there is one."""


_NOT_MEASURED = Robustness(None, 0)
"""Robustness of a metric until it is computed."""


@dataclass(frozen=True)
class MetricQuality:
    """One metric as a detector of knowledge."""

    column: MetricColumn
    knows: Better
    """The end of its scale at which a model knows the forget rows; for a control, its own rows."""
    control: bool
    """Whether it is of rows to keep."""
    known: tuple[float, ...]
    """Its value for each model that knows the forget rows."""
    unknown: tuple[float, ...]
    """Its value for each model that does not know them."""
    faithfulness: float
    low: float
    """Low end of the 95 % score interval of the faithfulness."""
    high: float
    """High end of that interval."""
    threshold: float
    """τ, in the metric's own unit and direction."""
    accuracy: float
    """Share of the models on their side of the threshold."""
    quantization: Robustness
    relearning: Robustness

    @property
    def robustness(self) -> float | None:
        """HM(R, Q); None if one of them is unknown."""
        return harmonic_mean((self.relearning.value, self.quantization.value))

    @property
    def overall(self) -> float | None:
        """HM(faithfulness, robustness); None if the robustness is unknown."""
        return harmonic_mean((self.faithfulness, self.robustness))

    @property
    def separates(self) -> bool:
        """Whether the order is more than chance: the interval excludes ½, for enough models."""
        has_enough_models = smallest_p(len(self.known), len(self.unknown)) <= _LEVEL
        return self.low > 0.5 and has_enough_models


@dataclass(frozen=True)
class MetaEvaluation:
    """The metrics of one split, over all models of the records."""

    forget_fraction: SplitKey
    known: tuple[TableRow, ...]
    """The models that know the forget rows."""
    unknown: tuple[TableRow, ...]
    """The models that do not know them."""
    metrics: tuple[MetricQuality, ...]
    """Best first: by overall score, then by faithfulness and the lower end of its interval."""
    controls: tuple[MetricQuality, ...]
    """Metrics of rows to keep, in the same order."""
    left_out: tuple[tuple[str, str], ...]
    """(label, reason) of metrics with a direction that are not evaluated."""

    def warnings(self) -> Iterator[str]:
        """Yield lines on what the numbers do not show."""
        known_count, unknown_count = len(self.known), len(self.unknown)
        p = smallest_p(known_count, unknown_count)
        if p > _LEVEL:
            yield (
                f"{known_count} models that know the forget rows and {unknown_count} that do not: "
                "even a metric that separates them without error may do so by chance "
                f"(p = {p:.2g}, exact); prepare more"
            )
        separating = [control.column.label for control in self.controls if control.separates]
        if separating:
            yield (
                f"controls that separate the models, too: {', '.join(separating)}; the models "
                "differ by more than the forget rows, and a metric may detect that"
            )


def smallest_p(known: int, unknown: int) -> float:
    """Return the exact two-sided p-value of a rank test of two pools that do not overlap.

    Of all ways in which the ranks may fall to the pools, two separate them: 2 / C(n + m, n).
    """
    return min(1.0, 2 / math.comb(known + unknown, known))


def meta_evaluation(
    rows: Iterable[TableRow],
    attacked: Iterable[AttackedRun] = (),
    *,
    relearning: str = "",
    quantization: str = "",
) -> tuple[MetaEvaluation, ...]:
    """Evaluate the metrics, one split after the other.

    Args:
        rows: Rows of the tables of one or several sweeps.
        attacked: Runs under attacks, see `attacked_runs`.
        relearning: The variant from which R is computed.
        quantization: The variant from which Q is computed.

    Raises:
        RecordError: If no split has enough models of both kinds.
    """
    rows = tuple(rows)
    attacked = tuple(attacked)
    splits = sorted({row.forget_fraction for row in rows}, key=split_order)
    evaluations: list[MetaEvaluation] = []
    counts_of_small_pools: list[str] = []
    for split in splits:
        rows_of_split = [row for row in rows if row.forget_fraction == split]
        known = _distinct(rows_of_split, "fine-tuned")
        unknown = _distinct(rows_of_split, "retain")
        if min(len(known), len(unknown)) < FEWEST:
            counts_of_small_pools.append(f"{split_percent(split)}: {len(known)} and {len(unknown)}")
            continue
        runs = [run for run in attacked if run.row.forget_fraction == split]
        evaluations.append(_evaluated(split, known, unknown, runs, relearning, quantization))
    if not evaluations:
        counts = "; ".join(counts_of_small_pools) or "no evaluated model"
        raise RecordError(
            f"a meta-evaluation needs at least {FEWEST} models that know the forget rows and "
            f"{FEWEST} that do not; here are, by split, {counts}: give `models` of several "
            "`preparation.seed` in the configuration, or several folders"
        )
    return tuple(evaluations)


def _distinct(rows: Sequence[TableRow], kind: str) -> tuple[TableRow, ...]:
    """Return the models of a pool, each once: the last row of each record.

    Args:
        rows: Rows of one split.
        kind: `fine-tuned` (start models) or `retain`.
    """
    ordered = sorted(rows, key=lambda row: (*row.place_of_setting, row.seed, row.epoch))
    last_row_of_record = {row.run_id: row for row in ordered if row.kind == kind}
    # Two records of one model, for example from two sweeps, are equal in every number. The first
    # one stays, so the rows are walked backwards: the last assignment to a key wins.
    row_of_numbers: dict[tuple[Any, ...], TableRow] = {}
    for row in reversed(last_row_of_record.values()):
        row_of_numbers[tuple(sorted(row.metrics.items()))] = row
    return tuple(reversed(row_of_numbers.values()))


def _evaluated(
    split: SplitKey,
    known: tuple[TableRow, ...],
    unknown: tuple[TableRow, ...],
    runs: Sequence[AttackedRun],
    relearning: str,
    quantization: str,
) -> MetaEvaluation:
    """Evaluate the metrics of one split.

    Args:
        split: The split.
        known: Rows of the models that know the forget rows.
        unknown: Rows of the models that do not.
        runs: Runs under attacks.
        relearning: As in `meta_evaluation`.
        quantization: As in `meta_evaluation`.
    """
    schema = known[0].schema
    relative = _relative(schema)
    metrics: list[MetricQuality] = []
    left_out: list[tuple[str, str]] = []
    for oriented in _oriented(schema):
        column = oriented.column
        if column.name in relative:
            reason = "compares a model with the retain or start model, which are among those here"
            left_out.append((column.label, reason))
            continue
        values_of_known = _values(known, column)
        values_of_unknown = _values(unknown, column)
        quality = _quality(column, oriented.knows, values_of_known, values_of_unknown)
        if isinstance(quality, str):
            left_out.append((column.label, quality))
            continue
        if oriented.is_control:
            not_measured = Robustness(None, 0, "a control")
            quality = replace(
                quality, control=True, quantization=not_measured, relearning=not_measured
            )
        else:
            quality = replace(
                quality,
                quantization=_robustness("Q", quantization, runs, quality),
                relearning=_robustness("R", relearning, runs, quality),
            )
        metrics.append(quality)
    metrics.sort(key=_order)
    return MetaEvaluation(
        split,
        known,
        unknown,
        metrics=tuple(quality for quality in metrics if not quality.control),
        controls=tuple(quality for quality in metrics if quality.control),
        left_out=tuple(left_out),
    )


def _values(rows: Iterable[TableRow], column: MetricColumn) -> list[float]:
    """List the known numbers of a column."""
    numbers = [row.metrics.get(column.name) for row in rows]
    return [number for number in numbers if number is not None]


def _quality(
    column: MetricColumn, knows: Better, known: Sequence[float], unknown: Sequence[float]
) -> MetricQuality | str:
    """Judge how well a metric separates the models, without its robustness.

    Args:
        column: The metric.
        knows: The end of its scale at which a model knows the rows.
        known: Its values for the models that know the forget rows.
        unknown: Its values for the models that do not.

    Returns:
        The reason if too many values are undefined.
    """
    sign = _sign(knows)
    known_scores = sign * np.array(known, np.float64)
    unknown_scores = sign * np.array(unknown, np.float64)
    area = auc(unknown_scores, known_scores)
    cut = best_cut(unknown_scores, known_scores)
    if min(len(known), len(unknown)) < FEWEST or area is None or cut is None:
        counts = f"{len(known)} and {len(unknown)}"
        return f"undefined for most models: {counts} have a value"
    low, high = auc_score_interval(area, len(unknown), len(known))
    threshold, accuracy = cut
    return MetricQuality(
        column=column,
        knows=knows,
        control=False,
        known=tuple(known),
        unknown=tuple(unknown),
        faithfulness=area,
        low=low,
        high=high,
        threshold=sign * threshold,
        accuracy=accuracy,
        quantization=_NOT_MEASURED,
        relearning=_NOT_MEASURED,
    )


def _sign(knows: Better) -> int:
    """Return the factor by which a metric is multiplied, so that higher means more knowledge."""
    return 1 if knows == "higher" else -1


def _order(quality: MetricQuality) -> tuple[Any, ...]:
    """Return a sort key of metrics, smallest for the best one."""
    return (
        quality.overall is None,
        -(quality.overall or 0.0),
        -quality.faithfulness,
        -quality.low,
        quality.column.label,
    )


class _OrientedColumn(NamedTuple):
    """A column with the direction in which it shows knowledge."""

    column: MetricColumn
    knows: Better
    """The end of its scale at which a model knows the rows."""
    is_control: bool
    """Whether these rows are rows to keep."""


def _oriented(schema: BenchmarkSchema) -> Iterator[_OrientedColumn]:
    """Yield the columns with a direction, in the order of the schema."""
    forget_sets = schema.sets("forget")
    summary_of_column = {
        column.name: summary
        for summary in schema.plan.summaries.values()
        for column in summary.columns()
    }
    for column in schema.plan.columns:
        summary = summary_of_column.get(column.name)
        if isinstance(summary, MembershipInference):
            # An area of ½ is wanted, but a larger area means more knowledge.
            yield _OrientedColumn(column, "higher", is_control=column.name.endswith(CONTROL))
            continue
        if column.better is None:
            continue
        is_of_forget = column.set in forget_sets or "forget" in getattr(summary, "roles", ())
        if is_of_forget:
            # What is better for forgetting is the end at which a model does not know the rows.
            knows: Better = "lower" if column.better == "higher" else "higher"
            yield _OrientedColumn(column, knows, is_control=False)
        else:
            yield _OrientedColumn(column, column.better, is_control=True)


def _relative(schema: BenchmarkSchema) -> frozenset[str]:
    """Return the columns that compare a model with the retain model or the start model."""
    compared = {name for name, summary in schema.plan.summaries.items() if summary.relative_to}
    return schema.plan.affected(compared)


def _robustness(
    symbol: Literal["R", "Q"], variant: str, runs: Sequence[AttackedRun], quality: MetricQuality
) -> Robustness:
    """Compute the mean robustness of a metric to one attack.

    Args:
        symbol: Which robustness: to relearning (R) or to quantisation (Q).
        variant: The attack.
        runs: Runs under all attacks.
        quality: The metric.
    """
    under_variant = [run for run in runs if run.variant == variant]
    if not under_variant:
        return Robustness(None, 0, f"no run was evaluated under {variant or 'the attack'}")
    forgetful = [run for run in under_variant if _has_forgotten(run, quality)]
    if not forgetful:
        return Robustness(None, 0, "no run keeps its utility and has forgotten, by this metric")
    mean = mean_of([_robustness_of_run(symbol, run, quality.column.name) for run in forgetful])
    if mean is None:
        return Robustness(None, len(forgetful), f"undefined under {variant}")
    return Robustness(mean, len(forgetful))


def _has_forgotten(run: AttackedRun, quality: MetricQuality) -> bool:
    """Whether a run keeps its utility, and has forgotten by the metric's threshold."""
    value = run.row.metrics.get(quality.column.name)
    kept = run.row.kept
    if value is None or kept is None or run.kept_at_start is None:
        return False
    sign = _sign(quality.knows)
    is_below = sign * value <= sign * quality.threshold
    return is_below and kept >= UTILITY_SHARE * run.kept_at_start


def _robustness_of_run(symbol: Literal["R", "Q"], run: AttackedRun, name: str) -> float | None:
    """Compute R or Q of one run by the metric with column `name`; None if a number is undefined."""
    before = run.before.get(name)
    after = run.after.get(name)
    if symbol == "Q":
        return symmetric_quantization_robustness(before, after)
    retain_before = run.retain_before.get(name)
    retain_after = run.retain_after.get(name)
    return symmetric_relearning_robustness(before, after, retain_before, retain_after)


def chosen_variant(chosen: str | None, attack: str, variants: Sequence[str]) -> str:
    """Return the variant of an attack from which its robustness is computed.

    Args:
        chosen: Name given by the user. Defaults to NF4 (4-bit weights) if it was evaluated, and
            otherwise to the attack's last point.
        attack: Name of the attack.
        variants: The variants that were evaluated, in the table's order.

    Returns:
        The attack's name if it has no variant.

    Raises:
        RecordError: If no run was evaluated under the chosen variant.
    """
    if chosen is not None:
        return find_variant(chosen, variants)
    points = [variant for variant in variants if attack_of(variant) == attack]
    # Of a search, the first attacker is the attack as it is stated.
    points = [variant for variant in points if _is_stated_attacker(variant)]
    for variant in reversed(points):
        if point_of(variant) == "nf4":
            return variant
    return points[-1] if points else attack


def _is_stated_attacker(variant: str) -> bool:
    """Whether a variant is of an attack without a search, or of a search's first attacker."""
    trial = trial_of(variant)
    return not is_choice(variant) and (trial is None or trial.number == 1)


def attacked_runs(results: Results) -> tuple[AttackedRun, ...]:
    """Return the runs of a sweep under each attack, after the last epoch that was attacked.

    Raises:
        DamagedError: If an evaluation cannot be read.
    """
    plain = {(row.run_id, row.epoch): row for row in results.rows}
    panels = {panel.panel: panel for panel in results.panels}
    retain_rows = {
        (row.panel, row.variant): row for row in results.attacked if row.kind == "retain"
    }
    # Rows come by ascending epochs, so that the last one stays.
    last_attacked_rows: dict[tuple[str, str], TableRow] = {}
    for row in sorted(results.attacked, key=lambda row: row.epoch):
        if is_evidence(row) and (row.run_id, row.epoch) in plain:
            last_attacked_rows[row.run_id, row.variant] = row

    numbers_before = _NumbersBeforeAttack(results)
    attacked: list[AttackedRun] = []
    for row in last_attacked_rows.values():
        plain_row = plain[row.run_id, row.epoch]
        panel = panels[row.panel]
        run = AttackedRun(
            plain_row,
            kept_at_start=panel.start.utility,
            variant=row.variant,
            before=numbers_before(plain_row, row),
            after=row.metrics,
            retain_before={},
            retain_after={},
        )
        plain_retain = panel.row("retain")
        attacked_retain = retain_rows.get((row.panel, row.variant))
        if plain_retain is not None and attacked_retain is not None:
            run = replace(
                run,
                retain_before=numbers_before(plain_retain, attacked_retain),
                retain_after=attacked_retain.metrics,
            )
        attacked.append(run)
    return tuple(attacked)


class _NumbersBeforeAttack:
    """Finds the numbers with which a model's numbers under an attack are compared."""

    def __init__(self, results: Results) -> None:
        self._plain_numbers = NumbersBefore.of(results.before)
        self._first_points: dict[tuple[str, int, str], TableRow] = {}
        """Rows before the first step of an attack that trains, by run, epoch and attack."""
        for row in results.attacked:
            if is_before_attack(row.variant):
                self._first_points[row.run_id, row.epoch, asked_part(row.variant)] = row

    def __call__(self, plain: TableRow, attacked: TableRow) -> Values:
        """Return a model's numbers before an attack, on the rows that the attack asked.

        Args:
            plain: The model without an attack.
            attacked: The same model under the attack.
        """
        part = asked_part(attacked.variant)
        first = self._first_points.get((attacked.run_id, attacked.epoch, part))
        # A method at inference time is gone at the attack's first point already.
        is_bypassed = plain.at_inference and is_white_box(attack_of(attacked.variant))
        if first is not None and not is_bypassed:
            return first.metrics
        return self._plain_numbers(plain, attacked.variant)
