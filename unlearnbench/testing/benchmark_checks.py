"""The checks of a benchmark: its declarations, and the rows of every split that it has.

They need the rows, and so the files that a benchmark reads, but no model.
"""

from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from typing import Any

from unlearnbench.api.benchmark import Benchmark, Dataset
from unlearnbench.base.errors import DataError
from unlearnbench.base.fresh_process import FreshError, fresh_process
from unlearnbench.base.hub import HubError
from unlearnbench.config.benchmark_rules import (
    headline_faults,
    reference_faults,
    undefined_metrics,
)
from unlearnbench.config.metric_plan import MetricPlan, benchmark_plan
from unlearnbench.config.profiles import TOFU
from unlearnbench.evaluation.made_up_sets import try_metrics
from unlearnbench.models import dataset_rules as rules
from unlearnbench.models.rows_loading import fingerprint as fingerprint_of
from unlearnbench.testing import declarations, fresh
from unlearnbench.testing.check import Outcome, check, fault, not_applicable, passed, unless

benchmark_check = partial(check, kind="benchmarks")
settings = benchmark_check(alone=True)(declarations.settings)


class TriedBenchmark:
    """A benchmark with its rows and metrics, each loaded once."""

    def __init__(self, benchmark: Benchmark, _: str) -> None:
        self.benchmark = benchmark
        self.keys: tuple[Any, ...] = rules.splits_of(benchmark)

    @cached_property
    def rows(self) -> Dataset:
        """The rows of every split that is tried."""
        return self.benchmark.load(self.keys)

    @cached_property
    def plan(self) -> MetricPlan:
        """Its metrics under TOFU's rules."""
        return benchmark_plan(TOFU, self.benchmark)


@benchmark_check()
def metrics(tried: TriedBenchmark) -> Outcome:
    """The metrics have values, and what they and the headline name is there: columns and models.

    Ranking, search and the page read the headline's columns; a metric that is misspelt, or relative
    to a model that does not exist, is a column without a number.

    `unlearnbench metrics list` has the names; `MetricUse(name, sets, settings)` the sets of
    `roles`; `references` the models; a headline's column is `<metric>_<set>`, with its direction.
    """
    benchmark, plan = tried.benchmark, tried.plan
    lacking = undefined_metrics(benchmark, plan)
    usable = {name: summary for name, summary in plan.summaries.items() if name not in lacking}
    try_metrics(replace(plan, summaries=usable), benchmark.roles)
    faults = chain(headline_faults(benchmark, plan), reference_faults(benchmark, plan))
    without = (f"{name} has no values without {lack}" for name, lack in lacking.items())
    return unless(faults, "; ".join(without) or f"{len(plan.own)} columns")


@benchmark_check(first=True)
def splits(tried: TriedBenchmark) -> Outcome:
    """Every split that it has can be loaded, and has its own rows to forget.

    A split that is accepted when it is planned and cannot be loaded stops a sweep; one with the
    rows of another makes two columns of results of one.

    `split_problem` returns the reason why there is no such split, and what there is; `load` returns
    a `Split` for each that it is given, under the same key.
    """
    if not tried.keys:
        listed = ", ".join(f"{fraction:.3g}" for fraction in rules.FRACTIONS)
        return fault(f"it names no split, and none of {listed} is a forget fraction of it")
    first: dict[object, Any] = {}
    for key in tried.keys:
        try:
            split = tried.benchmark.load((key,)).splits.get(key)
        except DataError as error:
            out_of_reach = isinstance(error.__cause__, HubError)
            seen = f"it has split {key}, and cannot load it: {error}"
            return Outcome("not run", str(error)) if out_of_reach else fault(seen)
        if split is None or not split.forget:
            return fault(f"it has split {key}, and load(({key!r},)) has no row to forget for it")
        other = first.setdefault(frozenset(map(rules.words, split.forget)), key)
        if other != key:
            return fault(f"splits {other} and {key} forget the same rows")
    counts = ", ".join(f"{s.name} {len(s.forget)}" for s in tried.rows.splits.values())
    return passed(f"{len(tried.rows.full)} rows; {counts}")


@benchmark_check()
def rows(tried: TriedBenchmark) -> Outcome:
    """Every row is sound, its set has a role and what metrics read; no row is on two sides.

    A blank answer has no token to score, and its NaN takes the whole column; a row that is to be
    forgotten and kept is trained in both directions; one that is not in `full` was never learned; a
    holdout row that a model has seen makes membership inference weaker.

    The same names in `roles` and in `Split.sets`; forget and retain rows that are together `full`;
    holdout rows drawn apart from `full`, `facts` and `pretraining`.
    """
    loaded = tried.rows
    further = (
        chain(
            rules.whole_faults(loaded, split),
            rules.observation_faults(tried.benchmark, tried.plan, split),
        )
        for split in loaded.splits.values()
    )
    faults = chain(rules.sound_rows(tried.benchmark, loaded), chain.from_iterable(further))
    return unless(faults, f"{len(loaded.full)} rows at each split")


@benchmark_check()
def fingerprint(tried: TriedBenchmark) -> Outcome:
    """In a process with other hash seeds the rows are the same.

    The fingerprint of the rows is part of every run's id: rows in another order, from a set or an
    unseeded draw, would make other runs of the same sweep.

    `random.Random("text")` with a seed of the settings; no iteration over a `set`; no clock.
    """
    if not declarations.is_importable(type(tried.benchmark)):
        return not_applicable("another process cannot import a class of a function")
    try:
        answer = fresh_process().answer(fresh.begin(tried.benchmark, splits=tried.keys))
    except (FreshError, TypeError) as error:
        return not_applicable(f"no other process could be used: {error}")
    digest, elsewhere = fingerprint_of(tried.rows), answer.get("fingerprint", answer.get("error"))
    if digest != elsewhere:
        return fault(
            f"{digest}, and {elsewhere} in another process: random numbers, or a `set`'s order?"
        )
    return passed(f"{digest} in two processes")
