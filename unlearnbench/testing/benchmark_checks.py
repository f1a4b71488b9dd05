"""The checks of a benchmark: its declarations, and the rows of every split that it has.

They need the rows, and so the files that a benchmark reads, but no model.
"""

from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
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
        """The rows of every split that is tried."""
        return load_benchmark(self.benchmark, self.keys)


@benchmark_check(first=True)
def metrics(tried: TriedBenchmark) -> Outcome:
    """The metrics have values, and what they and the headline name is there: columns and models.

    Ranking, search and the page read the headline's columns; a metric that is misspelt, or relative
    to a model that does not exist, is a column without a number.

    `unlearnbench metrics list` has the names; `MetricUse(name, sets, settings)` the sets of
    `roles`; `references` the models; a headline's column is `<metric>_<set>`, with its direction.
    """
    benchmark, plan = tried.benchmark, benchmark_plan(TOFU, tried.benchmark)
    check_declarations(benchmark, plan)
    without_retain = references_with(benchmark, has_retain=False)
    if without_retain != benchmark.references:
        fewer = benchmark_plan(TOFU, benchmark, references=without_retain)
        check_declarations(benchmark, fewer, without_retain)
    lacking = undefined_metrics(benchmark, plan, benchmark.references)
    usable = {name: summary for name, summary in plan.summaries.items() if name not in lacking}
    try_metrics(replace(plan, summaries=usable), benchmark.set_roles)
    without = (f"metric {name!r} has none without {lack}" for name, lack in lacking.items())
    return passed("; ".join((f"{len(plan.own)} columns", *without)))


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
        if isinstance(error.__cause__, HubError):
            return Outcome("not run", str(error))
        raise
    plan, first = benchmark_plan(TOFU, tried.benchmark), dict[object, Any]()
    for key, split in loaded.splits.items():
        other = first.setdefault(frozenset(map(rules.words, split.forget)), key)
        if other != key:
            return fault(f"splits {other} and {key} forget the same rows")
    faults = (
        chain(
            rules.whole_faults(tried.benchmark, loaded, split),
            rules.observation_faults(tried.benchmark, plan, split),
        )
        for split in loaded.splits.values()
    )
    counts = ", ".join(f"{s.name} {len(s.forget)}" for s in loaded.splits.values())
    return unless(chain.from_iterable(faults), f"{len(loaded.full)} rows; {counts}")


@benchmark_check()
def fingerprint(tried: TriedBenchmark) -> Outcome:
    """In a process with other hash seeds the rows are the same.

    The fingerprint of the rows is part of every run's id: rows in another order, from a set or an
    unseeded draw, would make other runs of the same sweep.

    `random.Random("text")` with a seed of the settings; no iteration over a `set`; no clock.
    """
    if not declarations.is_importable(type(tried.benchmark)):
        return not_applicable("another process cannot import a class of a function")
    loaded_again = partial(fingerprint_of_splits, tried.keys)
    digest, elsewhere = tried.rows.fingerprint, end(begin(loaded_again, tried.benchmark))
    if digest != elsewhere:
        return fault(
            f"{digest}, and {elsewhere} in another process: random numbers, or a `set`'s order?"
        )
    return passed(f"{digest} in two processes")


def fingerprint_of_splits(keys: tuple[Any, ...], benchmark: Benchmark) -> str:
    """The fingerprint of a benchmark's rows."""
    return load_benchmark(benchmark, keys).fingerprint
