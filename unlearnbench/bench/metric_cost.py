"""The time that memorisation and membership inference add to an evaluation.

The same rows are evaluated three ways in turn, holdout rows among them: with means of losses and
the metrics that the benchmark itself names; with values by token and what is computed from them;
with the moments of log-probabilities and Min-K++. In one thread, so that the processor's time
counts the work and not the waiting; a shared machine disturbs it less than the wall time.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from unlearnbench.api.benchmark import Benchmark
from unlearnbench.api.metric import MOMENTS, EvaluatedModel, Role
from unlearnbench.api.observations import AnswerTokens
from unlearnbench.bench.evaluation_case import EvaluationCase
from unlearnbench.bench.measurement import ResultTable, now
from unlearnbench.config.metric_plan import MetricPlan
from unlearnbench.data.encoding import Row
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.scoring import QuestionScores
from unlearnbench.evaluation.summary import plan_of
from unlearnbench.stats import text_overlap

BY_TOKEN = (
    *("exact-memorization", "extraction-strength"),
    *("mia-loss", "mia-zlib", "mia-min-k"),
)
"""Metrics of answers' losses and hits by token."""
BY_MOMENTS = (*BY_TOKEN, "mia-min-k-plus-plus")
TIMES = 3


class _Observer(Evaluator):
    """The evaluator; it can leave out values by token, as before there were metrics of them."""

    by_token = True

    def answer_tokens(
        self, rows: Sequence[Row], scores: Sequence[QuestionScores]
    ) -> AnswerTokens | None:
        """None where values by token are left out."""
        return super().answer_tokens(rows, scores) if self.by_token else None


class _Way(NamedTuple):
    label: str
    evaluator: Evaluator
    plan: MetricPlan


class Spread(NamedTuple):
    """The middle of several ratios, and the bounds of six in ten."""

    median: float
    p20: float
    p80: float

    @property
    def text(self) -> str:
        """`+0.8 % (-0.1 to +1.9)`."""
        low, high = 100 * self.p20, 100 * self.p80
        return f"{100 * self.median:+.1f} % ({low:+.1f} to {high:+.1f})"


def metric_cost(
    model: Any, case: EvaluationCase, benchmark: Benchmark, repeats: int
) -> dict[str, Any]:
    """Evaluate `model` every way in turn; returns times, and the share that each way adds.

    repeats  of the other measurements; a small share takes `TIMES` as many
    """
    ways = _ways(case, benchmark)
    before, *others = seconds = [dict[str, list[float]](processor=[], wall=[]) for _ in ways]
    with one_thread():
        for way in _ways(case.warm_up(), benchmark):
            _measure(model, way)
        for i in range(TIMES * repeats):
            # Another one begins each time, so that a drift of the machine favours none.
            for j in sorted(range(len(ways)), key=lambda j: (j + i) % len(ways)):
                for clock, taken in _measure(model, ways[j]).items():
                    seconds[j][clock].append(taken)
    added = [
        {clock: _added(before[clock], one[clock], other[clock]) for clock in before}
        for one, other in pairwise((before, *others))
    ]
    labels = [way.label for way in ways]
    return {
        "seconds": dict(zip(labels, seconds, strict=True)),
        "added": dict(zip(labels[1:], added, strict=True)),
    }


def cost_table(costs: Mapping[str, Mapping[str, Any]]) -> ResultTable:
    """The added time by state of the model."""
    title = (
        "Added by metrics to an evaluation without values by token, whose holdout rows are scored "
        "as well: each line beside the one above, in turn, in one thread; medians (p20 to p80)"
    )
    rows = [
        (state if i == 0 else "", label, Spread(**of["processor"]).text, Spread(**of["wall"]).text)
        for state, cost in costs.items()
        for i, (label, of) in enumerate(cost["added"].items())
    ]
    return ResultTable(("model", "metrics", "processor", "wall"), rows, title)


@contextmanager
def one_thread() -> Generator[None, None, None]:
    """Compute in one thread of torch meanwhile."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def forget_overlap() -> None:
    """Forget compared texts, which an earlier repeat would otherwise make free."""
    for member in vars(text_overlap).values():
        if hasattr(member, "cache_clear"):
            member.cache_clear()


def _ways(case: EvaluationCase, benchmark: Benchmark) -> list[_Way]:
    whole = _with_holdout(case, benchmark.roles)
    plan = plan_of(case.profile, benchmark)

    def way(label: str, metrics: Collection[str], moments: Collection[Role] = ()) -> _Way:
        evaluator = _Observer(
            *whole.arguments, precision=case.precision, roles=benchmark.roles, moments=moments
        )
        evaluator.by_token = bool(metrics)
        return _Way(label, evaluator, _plan_with(plan, metrics))

    return [
        way("means alone", ()),
        way("EM, ES, LOSS, ZLib, Min-K", BY_TOKEN),
        way("Min-K++", BY_MOMENTS, MOMENTS),
    ]


def _with_holdout(case: EvaluationCase, roles: Mapping[str, Role]) -> EvaluationCase:
    """The case with as many holdout rows as forget rows: the same answers, to be scored alone.

    Time does not depend on what a model was trained on, and a folder of TOFU may lack such rows.
    """
    of_role = {role: name for name, role in roles.items()}
    if "holdout" not in of_role:
        return case
    rows = case.sets[of_role["forget"]]
    bare = tuple(replace(row, paraphrased_answer=None, perturbed_answers=()) for row in rows)
    return replace(case, sets={**case.sets, of_role["holdout"]: bare})


def _plan_with(plan: MetricPlan, names: Collection[str]) -> MetricPlan:
    """The benchmark's own metrics, and those called `names`."""
    first = {name.replace("-", "_") for name in names}
    columns = {f"{one.name}_{on}" for one in plan.measures if one.name in first for on in one.sets}
    for name in plan.summaries.keys() & {*names}:
        columns |= {column.name for column in plan.summaries[name].columns()}
    return plan.of_columns(plan.own | columns)


def _measure(model: Any, way: _Way) -> dict[str, float]:
    """Seconds of an evaluation and its metrics by clock."""
    forget_overlap()
    begin, busy = now(model.device), time.process_time()
    sets = way.evaluator(model).sets
    way.plan.values(sets, EvaluatedModel(sets))  # stands in for a retain model
    return {"processor": time.process_time() - busy, "wall": now(model.device) - begin}


def _added(
    before: Sequence[float], one: Sequence[float], other: Sequence[float]
) -> dict[str, float]:
    """Spread of what `other` takes beyond `one`, as a share of `before`, repeat by repeat."""
    shares = [(c - b) / a for a, b, c in zip(before, one, other, strict=True)]
    return Spread(*np.quantile(shares, (0.5, 0.2, 0.8)).tolist())._asdict()
