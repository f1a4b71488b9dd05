"""Meta-evaluation of metrics: which of them tell models apart that know the forget rows. Pure.

    P, N            start models, which know the forget rows, and retain models, which do not
    faithfulness    area under the ROC curve of a metric that separates P from N; ½: no difference
    threshold τ     the cut with the most models of P above it and of N below it
    R, Q            robustness to relearning and to quantisation, in `stats/relearning.py`: means
                    over the unlearned models that keep 80 % of their start model's utility and are
                    below τ, which is where a metric says that they have forgotten
    overall         HM(faithfulness, HM(R, Q))

Dorna et al. 2025, arXiv:2506.12618, section 4, with R and Q in the symmetric form of
arXiv:2605.24614. A metric is oriented so that higher values mean more knowledge. Metrics of rows to
keep are controls: where one separates P from N, the models differ by more than the forget rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from unlearnbench.analysis.best_settings import UTILITY_SHARE, is_evidence
from unlearnbench.analysis.lasting import find_variant
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

if TYPE_CHECKING:
    from unlearnbench.analysis.results import Results

FEWEST = 2
"""Models of each pool without which there is no meta-evaluation."""
_LEVEL = 0.05

Values = Mapping[str, float | None]


@dataclass(frozen=True)
class AttackedRun:
    """A run before and after an attack, and its retain model under the same; of the same rows."""

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


@dataclass(frozen=True)
class MetricQuality:
    """One metric as a detector of knowledge."""

    column: MetricColumn
    knows: Better
    """The end of its scale at which a model knows the forget rows; of a control, its own rows."""
    control: bool
    known: tuple[float, ...]
    """Its value for each model that knows the forget rows."""
    unknown: tuple[float, ...]
    """The same for each that does not."""
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
        """True if chance does not explain the order: the interval excludes ½, for enough models."""
        return self.low > 0.5 and smallest_p(len(self.known), len(self.unknown)) <= _LEVEL


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
        counts = len(self.known), len(self.unknown)
        if (p := smallest_p(*counts)) > _LEVEL:
            yield (
                f"{counts[0]} models that know the forget rows and {counts[1]} that do not: even a "
                f"metric that separates them without error may do so by chance (p = {p:.2g}, "
                "exact); prepare more"
            )
        if apart := [control.column.label for control in self.controls if control.separates]:
            yield (
                f"controls that separate the models, too: {', '.join(apart)}; the models differ by "
                "more than the forget rows, and a metric may detect that"
            )


def smallest_p(known: int, unknown: int) -> float:
    """The two-sided p-value of a rank test of two pools that are wholly apart, exact."""
    return min(1.0, 2 / math.comb(known + unknown, known))


def meta_evaluation(
    rows: Iterable[TableRow],
    attacked: Iterable[AttackedRun] = (),
    *,
    relearning: str = "",
    quantization: str = "",
) -> tuple[MetaEvaluation, ...]:
    """Evaluate the metrics, one split after the other.

    rows          of the table, of one or several sweeps
    relearning    the variant from which R is computed; quantization: Q

    Raises: RecordError where no split has enough models of both kinds.
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
    """The models of a pool, each once: a row of each record, unless another is equal."""
    ordered = sorted(rows, key=lambda row: (*row.place_of_setting, row.seed, row.epoch))
    last = {row.run_id: row for row in ordered if row.kind == kind}
    # Two records of one model, of two sweeps for example, are equal in every number.
    by_numbers = {tuple(sorted(row.metrics.items())): row for row in reversed(last.values())}
    return tuple(reversed(by_numbers.values()))


def _evaluated(
    split: SplitKey,
    known: tuple[TableRow, ...],
    unknown: tuple[TableRow, ...],
    runs: Sequence[AttackedRun],
    relearning: str,
    quantization: str,
) -> MetaEvaluation:
    schema = known[0].schema
    metrics: list[MetricQuality] = []
    left_out: list[tuple[str, str]] = []
    for column, knows, control in _oriented(schema):
        if column.name in _relative(schema):
            reason = "compares a model with the retain or start model, which are among those here"
            left_out.append((column.label, reason))
            continue
        sign = 1 if knows == "higher" else -1
        pools = [
            [v for row in pool if (v := row.metrics.get(column.name)) is not None]
            for pool in (known, unknown)
        ]
        scores = [sign * np.array(values, np.float64) for values in pools]
        area, cut = auc(scores[1], scores[0]), best_cut(scores[1], scores[0])
        if min(map(len, pools)) < FEWEST or area is None or cut is None:
            numbers = f"{len(pools[0])} and {len(pools[1])}"
            left_out.append((column.label, f"undefined for most models: {numbers} have a value"))
            continue
        low, high = auc_score_interval(area, len(pools[1]), len(pools[0]))
        threshold = sign * cut[0]
        quantized, relearned = (
            Robustness(None, 0, "a control")
            if control
            else _robustness(symbol, variant, runs, column.name, sign, threshold)
            for symbol, variant in (("Q", quantization), ("R", relearning))
        )
        metrics.append(
            MetricQuality(
                column=column,
                knows=knows,
                control=control,
                known=tuple(pools[0]),
                unknown=tuple(pools[1]),
                faithfulness=area,
                low=low,
                high=high,
                threshold=threshold,
                accuracy=cut[1],
                quantization=quantized,
                relearning=relearned,
            )
        )
    metrics.sort(key=_order)
    judged, controls = (tuple(o for o in metrics if o.control is c) for c in (False, True))
    return MetaEvaluation(split, known, unknown, judged, controls, tuple(left_out))


def _order(quality: MetricQuality) -> tuple[Any, ...]:
    known = quality.overall is None, -(quality.overall or 0.0)
    return *known, -quality.faithfulness, -quality.low, quality.column.label


def _oriented(schema: BenchmarkSchema) -> Iterator[tuple[MetricColumn, Better, bool]]:
    """(column, end at which a model knows, whether it is a control) of columns with a direction."""
    forget = schema.sets("forget")
    summaries = {
        column.name: summary
        for summary in schema.plan.summaries.values()
        for column in summary.columns()
    }
    for column in schema.plan.columns:
        summary = summaries.get(column.name)
        if isinstance(summary, MembershipInference):  # ½ is wanted, but more is more knowledge
            yield column, "higher", column.name.endswith(CONTROL)
        elif column.better is not None:
            of_forget = column.set in forget or "forget" in getattr(summary, "roles", ())
            opposite: Better = "lower" if column.better == "higher" else "higher"
            yield column, opposite if of_forget else column.better, not of_forget


def _relative(schema: BenchmarkSchema) -> frozenset[str]:
    """Columns that compare a model with the retain model or the start model."""
    compared = {name for name, summary in schema.plan.summaries.items() if summary.relative_to}
    return schema.plan.affected(compared)


def _robustness(
    symbol: str, variant: str, every: Sequence[AttackedRun], name: str, sign: int, threshold: float
) -> Robustness:
    runs = [item for item in every if item.variant == variant]
    if not runs:
        return Robustness(None, 0, f"no run was evaluated under {variant or 'the attack'}")
    believed = [run for run in runs if _is_forgotten(run, name, sign, threshold)]
    if not believed:
        return Robustness(None, 0, "no run keeps its utility and has forgotten, by this metric")
    values = [_robust(symbol, item, name) for item in believed]
    if (numbers := [v for v in values if v is not None]) and len(numbers) == len(values):
        return Robustness(fmean(numbers), len(numbers))
    return Robustness(None, len(believed), f"undefined under {variant}")


def _is_forgotten(run: AttackedRun, name: str, sign: int, threshold: float) -> bool:
    value, kept = run.row.metrics.get(name), run.row.kept
    if value is None or kept is None or run.kept_at_start is None:
        return False
    return kept >= UTILITY_SHARE * run.kept_at_start and sign * value <= sign * threshold


def _robust(symbol: str, run: AttackedRun, name: str) -> float | None:
    part = run.before.get(name), run.after.get(name)
    if symbol == "Q":
        return symmetric_quantization_robustness(*part)
    retain = run.retain_before.get(name), run.retain_after.get(name)
    return symmetric_relearning_robustness(*part, *retain)


def chosen_variant(chosen: str | None, attack: str, variants: Sequence[str]) -> str:
    """The variant of an attack from which its robustness is computed; its name if there is none.

    chosen    by the user; default: NF4 where it is there, or else the last point
    variants  that there are, in the table's order

    Raises: RecordError for a chosen one that no run was evaluated under.
    """
    if chosen is not None:
        return find_variant(chosen, variants)
    part = [variant for variant in variants if attack_of(variant) == attack]
    preferred = [variant for variant in part if point_of(variant) == "nf4"]
    return (preferred or part or [attack])[-1]


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
