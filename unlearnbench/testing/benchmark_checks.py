"""The checks of a benchmark: its declarations, and the rows of every split that it has.

They need the rows, and so the files that a benchmark reads, but no model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from typing import Any

from unlearnbench.api.benchmark import Benchmark, Dataset, Question
from unlearnbench.config.benchmark_rules import (
    headline_faults,
    reference_faults,
    undefined_metrics,
)
from unlearnbench.config.metric_plan import MetricPlan, benchmark_plan
from unlearnbench.config.profiles import TOFU
from unlearnbench.data import dataset_rules as rules
from unlearnbench.data.loading import fingerprint as fingerprint_of
from unlearnbench.errors import DataError
from unlearnbench.evaluation.metric_trial import try_metrics
from unlearnbench.files.hub import HubError
from unlearnbench.runtime.fresh_process import FreshError, fresh_process
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
    usable = {name: one for name, one in plan.summaries.items() if name not in lacking}
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
    """Every set has a role and what its metrics read; every row is sound, and there once.

    A blank answer has no token to score, and its NaN takes the whole column; a row that is there
    twice counts twice in every mean; a set without a role is in no table.

    Leave such rows out, or correct the file; the same names in `roles` and in `Split.sets`.
    """
    parts = dict(tried.rows.parts())
    # Rows that are in `full` twice are among the forget rows or the retain rows twice.
    once = ((part, own) for part, own in parts.items() if part != "full")
    faults = [rules.row_faults(tried.rows), *(rules.repeated_faults(*pair) for pair in once)]
    for split in tried.rows.splits.values():
        faults.append(rules.set_faults(tried.benchmark, split))
        faults.append(rules.observation_faults(tried.benchmark, tried.plan, split))
    counts = f"{sum(map(len, parts.values()))} rows in {len(parts)} parts"
    return unless(chain(_other_classes(parts), *faults), counts)


def _other_classes(parts: Any) -> Iterator[str]:
    """Rows with fields of their own, which no fingerprint has."""
    for part, own in parts.items():
        kinds = {type(row).__name__ for row in own if type(row) is not Question}
        yield from (
            f"{part} has rows of class {name}; the fields of Question count" for name in kinds
        )


@benchmark_check()
def disjoint(tried: TriedBenchmark) -> Outcome:
    """Forget and retain rows are the full set and share none; holdout rows are in neither.

    A row that is to be forgotten and kept is trained in both directions; one that is not in `full`
    was never learned; a holdout row that a model has seen makes membership inference weaker.

    Give each row to one side, by question and answer; draw holdout rows apart from `full`, `facts`
    and `pretraining`; take a set's rows from the split's own, or name it in `derived`.
    """
    benchmark, found = tried.benchmark, tried.rows
    faults = (
        (
            *rules.overlap_faults(split),
            *rules.whole_faults(found, split),
            *rules.holdout_faults(benchmark, found, split),
            *rules.origin_faults(benchmark, found, split),
        )
        for split in found.splits.values()
    )
    return unless(chain.from_iterable(faults), f"{len(found.full)} rows at each split")


@benchmark_check()
def fingerprint(tried: TriedBenchmark) -> Outcome:
    """In a process with other hash seeds, and without a network, the rows are the same.

    The fingerprint of the rows is part of every run's id: rows in another order, from a set, an
    unseeded draw or a server of that day, would make other runs of the same sweep.

    `random.Random("text")` with a seed of the settings; no iteration over a `set`; no clock; a
    folder of this machine, or the hub's data set in `repository`, whose commit a sweep pins.
    """
    if not declarations.is_importable(type(tried.benchmark)):
        return not_applicable("another process cannot import a class of a function")
    try:
        found = fresh_process().answer(fresh.begin(tried.benchmark, splits=tried.keys))
    except (FreshError, TypeError) as error:
        return not_applicable(f"no other process could be used: {error}")
    if found.get("tried"):
        return fault(f"opens a connection to {found['tried'][0]}, and declares no `repository`")
    own, other = fingerprint_of(tried.rows), found.get("fingerprint", found.get("error"))
    if own != other:
        return fault(f"{own}, and {other} in another process: random numbers, or a `set`'s order?")
    return passed(f"{own} in two processes")
