"""The checks of a benchmark: its declarations, and the rows of every split that it has.

They need the rows, and so the files that a benchmark reads, but no model.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from unlearnbench.api.benchmark import Benchmark, Dataset, references_with
from unlearnbench.base.errors import DataError
from unlearnbench.base.hub import HubError
from unlearnbench.config.benchmark_rules import check_declarations, undefined_metrics
from unlearnbench.config.metric_plan import benchmark_plan
from unlearnbench.config.profiles import TOFU
from unlearnbench.evaluation.metric_trial import try_metrics
from unlearnbench.models import dataset_rules as rules
from unlearnbench.models.rows_loading import load_benchmark
from unlearnbench.testing import declarations
from unlearnbench.testing.check import Outcome, check, fault, not_applicable, passed, unless
from unlearnbench.testing.fresh import begin, end

benchmark_check = partial(check, kind="benchmarks")
settings = benchmark_check(alone=True)(declarations.settings)


class TriedBenchmark:
    """A benchmark with its rows, loaded once."""

    def __init__(self, benchmark: Benchmark, _: str) -> None:
        self.benchmark = benchmark
        self.keys: tuple[Any, ...] = rules.splits_of(benchmark)

    @cached_property
    def rows(self) -> Dataset:
        """The rows of all splits that are tried."""
        return load_benchmark(self.benchmark, self.keys)


@benchmark_check(first=True)
def metrics(tried: TriedBenchmark) -> Outcome:
    """The metrics have values, and what they and the headline name is there: columns and models.

    Ranking, search and the page read the headline's columns; a metric that is misspelt, or relative
    to a model that does not exist, is a column without a number.

    `unlearnbench metrics list` has the names; `MetricUse(name, sets, settings)` the sets of
    `roles`; `references` the models; a headline's column is `<metric>_<set>`, with its direction.
    """
    benchmark = tried.benchmark
    plan = benchmark_plan(TOFU, benchmark)
    check_declarations(benchmark, plan)
    # A sweep may have no retain model, and then other metrics and another headline.
    models_without_retain = references_with(benchmark, has_retain=False)
    if models_without_retain != benchmark.references:
        plan_without_retain = benchmark_plan(TOFU, benchmark, references=models_without_retain)
        check_declarations(benchmark, plan_without_retain, models_without_retain)

    missing_of_metric = undefined_metrics(benchmark, plan, benchmark.references)
    defined = {
        name: summary for name, summary in plan.summaries.items() if name not in missing_of_metric
    }
    try_metrics(replace(plan, summaries=defined), benchmark.set_roles)
    seen = [f"{len(plan.own)} columns"]
    for name, missing in missing_of_metric.items():
        seen.append(f"metric {name!r} has none without {missing}")
    return passed("; ".join(seen))


@benchmark_check(first=True)
def rows(tried: TriedBenchmark) -> Outcome:
    """Every split can be loaded, has rows of its own to forget, and all of its rows are sound.

    A blank answer has no token to score, and its NaN takes the whole column; a row to forget and to
    retain is trained in both directions; one that is not in `full` was never learned; a holdout row
    that a model has seen makes membership inference weaker; a split with the rows of another makes
    two columns of results of one.

    `splits` of the class, without which `load` gets fractions; the same names in `roles` and in
    `Split.sets`; forget and retain rows that are all in `full`; holdout rows drawn apart from
    `full`, `facts` and `pretraining`; `split_problem` returns why there is no such split.
    """
    if not tried.keys:
        listed = ", ".join(f"{fraction:.3g}" for fraction in rules.FRACTIONS)
        return fault(f"it names no split, and none of {listed} is a forget fraction of it")
    try:
        loaded = tried.rows
    except DataError as error:
        # The hub cannot be reached now, which is no fault of the benchmark.
        if isinstance(error.__cause__, HubError):
            return Outcome("not run", str(error))
        raise
    split_of_rows: dict[object, Any] = {}
    for key, split in loaded.splits.items():
        forget_rows = frozenset(rules.words(row) for row in split.forget)
        first_key = split_of_rows.setdefault(forget_rows, key)
        if first_key != key:
            return fault(f"splits {first_key} and {key} forget the same rows")
    counts = ", ".join(f"{split.name} {len(split.forget)}" for split in loaded.splits.values())
    return unless(_faults(tried.benchmark, loaded), f"{len(loaded.full)} rows; {counts}")


def _faults(benchmark: Benchmark, loaded: Dataset) -> Iterator[str]:
    """Yield what is wrong with the rows of each split."""
    plan = benchmark_plan(TOFU, benchmark)
    for split in loaded.splits.values():
        yield from rules.whole_faults(benchmark, loaded, split)
        yield from rules.observation_faults(benchmark, plan, split)


@benchmark_check()
def fingerprint(tried: TriedBenchmark) -> Outcome:
    """In a process with other hash seeds the rows are the same.

    The fingerprint of the rows is part of every run's id: rows in another order, from a set or an
    unseeded draw, would make other runs of the same sweep.

    `random.Random("text")` with a seed of the settings; no iteration over a `set`; no clock.
    """
    if not declarations.is_importable(type(tried.benchmark)):
        return not_applicable("another process cannot import a class of a function")
    digest = tried.rows.fingerprint
    compute_there = partial(fingerprint_of_splits, tried.keys)
    elsewhere = end(begin(compute_there, tried.benchmark))
    if digest != elsewhere:
        return fault(
            f"{digest}, and {elsewhere} in another process: random numbers, or a `set`'s order?"
        )
    return passed(f"{digest} in two processes")


def fingerprint_of_splits(keys: tuple[Any, ...], benchmark: Benchmark) -> str:
    """Return the fingerprint of a benchmark's rows in some of its splits."""
    return load_benchmark(benchmark, keys).fingerprint
