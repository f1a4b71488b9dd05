"""Meta-evaluation of metrics: which of them find the models that know the forget rows?

    P, N            start models, which know the forget rows, and retain models, which do not
    faithfulness    area under the ROC curve of a metric that separates P from N; ½: no difference
    threshold τ     the cut with the most models of P above it and of N below it
    R, Q            robustness to relearning and to quantisation, in `stats/relearning.py`: means
                    over the unlearned models that keep 80 % of their start model's utility and are
                    below τ, where a metric says that they have forgotten
    overall         HM(faithfulness, HM(R, Q))

The source is Dorna et al. 2025, arXiv:2506.12618, section 4, with R and Q in the symmetric form of
arXiv:2605.24614. A metric is oriented so that higher values mean more knowledge. Metrics of rows to
keep are *controls*: if one separates P from N, the models differ by more than the forget rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

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
from unlearnbench.results.attack_variants import attack_of, is_before_attack, is_white_box, point_of
from unlearnbench.results.table import TableRow
from unlearnbench.stats.harmonic_mean import harmonic_mean
from unlearnbench.stats.relearning import (
    symmetric_quantization_robustness,
    symmetric_relearning_robustness,
)
from unlearnbench.stats.roc import auc, auc_score_interval, best_cut

FEWEST = 2
"""Models of each pool without which there is no meta-evaluation."""
_LEVEL = 0.05

Values = Mapping[str, float | None]


@dataclass(frozen=True)
class AttackedRun:
    """A run before and after an attack, and its retain model, all on the same rows."""

    row: TableRow
    """The run after the epoch at which it was attacked, on all rows."""
    kept_at_start: float | None
    """The start model's number of what is kept, by the headline."""
    variant: str
    before: Values
    after: Values
    retain_before: Values
    retain_after: Values


@dataclass(frozen=True)
class Robustness:
    """Mean robustness of a metric to one attack."""

    value: float | None
    runs: int
    """Number of runs that keep their utility and have forgotten, by the metric."""
    reason: str = ""
    """Why there is no value."""


_NOT_MEASURED = Robustness(None, 0)


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
    high: float
    """95 % score interval of the faithfulness."""
    threshold: float
    accuracy: float
    """Share of the models on their side of the threshold."""
    quantization: Robustness
    relearning: Robustness

    @property
    def robustness(self) -> float | None:
        """HM(R, Q)."""
        return harmonic_mean((self.relearning.value, self.quantization.value))

    @property
    def overall(self) -> float | None:
        """HM(faithfulness, robustness)."""
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
    metrics: tuple[MetricQuality, ...]
    """Best first: by overall score, then by faithfulness and the lower end of its interval."""
    controls: tuple[MetricQuality, ...]
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
    rows, attacked = tuple(rows), tuple(attacked)
    splits = sorted({row.forget_fraction for row in rows}, key=split_order)
    evaluations: list[MetaEvaluation] = []
    few: list[str] = []
    for split in splits:
        current = [row for row in rows if row.forget_fraction == split]
        known, unknown = (_distinct(current, kind) for kind in ("fine-tuned", "retain"))
        if min(len(known), len(unknown)) < FEWEST:
            few.append(f"{split_percent(split)}: {len(known)} and {len(unknown)}")
            continue
        runs = [run for run in attacked if run.row.forget_fraction == split]
        evaluations.append(_evaluated(split, known, unknown, runs, relearning, quantization))
    if not evaluations:
        counts = "; ".join(few) or "no evaluated model"
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
    last = {row.run_id: row for row in ordered if row.kind == kind}
    # Two records of one model, for example from two sweeps, are equal in every number. The first
    # one stays.
    row_of_numbers = {tuple(sorted(row.metrics.items())): row for row in reversed(last.values())}
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
    for column, knows, is_control in _oriented(schema):
        if column.name in relative:
            reason = "compares a model with the retain or start model, which are among those here"
            left_out.append((column.label, reason))
            continue
        quality = _quality(column, knows, _values(known, column), _values(unknown, column))
        if isinstance(quality, str):
            left_out.append((column.label, quality))
            continue
        if is_control:
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


def _oriented(schema: BenchmarkSchema) -> Iterator[tuple[MetricColumn, Better, bool]]:
    """Yield the columns with a direction.

    Yields:
        The column, the end of its scale at which a model knows the rows, and whether it is a
        control.
    """
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
            yield column, "higher", column.name.endswith(CONTROL)
            continue
        if column.better is None:
            continue
        is_of_forget = column.set in forget_sets or "forget" in getattr(summary, "roles", ())
        if is_of_forget:
            # What is better for forgetting is the end at which a model does not know the rows.
            yield column, "lower" if column.better == "higher" else "higher", False
        else:
            yield column, column.better, True


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
    value, kept = run.row.metrics.get(quality.column.name), run.row.kept
    if value is None or kept is None or run.kept_at_start is None:
        return False
    sign = _sign(quality.knows)
    is_below = sign * value <= sign * quality.threshold
    return is_below and kept >= UTILITY_SHARE * run.kept_at_start


def _robustness_of_run(symbol: Literal["R", "Q"], run: AttackedRun, name: str) -> float | None:
    """Compute R or Q of one run by a metric; None if a number is undefined."""
    before, after = run.before.get(name), run.after.get(name)
    if symbol == "Q":
        return symmetric_quantization_robustness(before, after)
    retain_before, retain_after = run.retain_before.get(name), run.retain_after.get(name)
    return symmetric_relearning_robustness(before, after, retain_before, retain_after)


def chosen_variant(chosen: str | None, attack: str, variants: Sequence[str]) -> str:
    """Return the variant of an attack from which its robustness is computed.

    Args:
        chosen: Name given by the user. Defaults to NF4 if it was evaluated, and else to the last
            point.
        attack: Name of the attack.
        variants: The variants that were evaluated, in the table's order.

    Returns:
        The attack's name if it has no variant.

    Raises:
        RecordError: If no run was evaluated under the chosen variant.
    """
    if chosen is not None:
        return find_variant(chosen, variants)
    of_attack = [variant for variant in variants if attack_of(variant) == attack]
    preferred = [variant for variant in of_attack if point_of(variant) == "nf4"]
    return (preferred or of_attack or [attack])[-1]


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
    last = {
        (row.run_id, row.variant): row
        for row in sorted(results.attacked, key=lambda row: row.epoch)
        if is_evidence(row) and (row.run_id, row.epoch) in plain
    }
    numbers_before = NumbersBefore.of(results.before)
    first_points = {
        (row.run_id, row.epoch, attack_of(row.variant)): row
        for row in results.attacked
        if is_before_attack(row.variant)
    }

    def pair(before: TableRow | None, after: TableRow | None) -> tuple[Values, Values]:
        if before is None or after is None:
            return {}, {}
        attack = attack_of(after.variant)
        first = first_points.get((after.run_id, after.epoch, attack))
        # A method at inference time is gone at the attack's first point already.
        is_bypassed = before.at_inference and is_white_box(attack)
        if first is not None and not is_bypassed:
            return first.metrics, after.metrics
        return numbers_before(before, after.variant), after.metrics

    attacked: list[AttackedRun] = []
    for row in last.values():
        before, panel = plain[row.run_id, row.epoch], panels[row.panel]
        retain_after = retain_rows.get((row.panel, row.variant))
        attacked.append(
            AttackedRun(
                before,
                panel.start.utility,
                row.variant,
                *pair(before, row),
                *pair(panel.row("retain"), retain_after),
            )
        )
    return tuple(attacked)
