"""The columns of every table: their labels, directions, bounds and order, as metrics declare them.

A column whose metric is no longer installed keeps its numbers, under its name in words.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache

from pydantic import ValidationError

from unlearnbench.api.metric import MetricColumn
from unlearnbench.api.registry import Offer, offers
from unlearnbench.config.benchmark_section import benchmark_named
from unlearnbench.config.metric_plan import MetricPlan, columns_on_request
from unlearnbench.config.profiles import TOFU
from unlearnbench.errors import PluginError
from unlearnbench.evaluation.summary import plan_of


def column(name: str) -> MetricColumn:
    """The column of a name; of an unknown one its name in words, without direction and bounds."""
    known = known_columns().get(name)
    if known is not None:
        return known
    words = name.replace("_", " ")
    return MetricColumn(name, words[:1].upper() + words[1:], None, (-math.inf, math.inf))


def known_columns() -> Mapping[str, MetricColumn]:
    """The columns of all installed benchmarks and metrics by name, in the order of a table."""
    return _known(offers("metrics"), offers("benchmarks"))


def own_columns() -> frozenset[str]:
    """Names of the columns that TOFU names itself."""
    return plan_of(TOFU).own


@lru_cache(maxsize=8)
def _known(metrics: tuple[Offer, ...], benchmarks: tuple[Offer, ...]) -> Mapping[str, MetricColumn]:
    """All columns, TOFU's first."""
    del metrics  # a key of the cache: a plan has those on offer
    plans: list[MetricPlan] = []
    further: list[MetricColumn] = []
    for name in dict.fromkeys(["tofu", *sorted(one.name for one in benchmarks)]):
        with suppress(PluginError, ValidationError):  # it is broken, or needs settings
            benchmark = benchmark_named(name)  # names are the same under every profile
            plans.append(plan_of(TOFU, benchmark))
            further += columns_on_request(TOFU, benchmark)
            further += plans[-1].under_attack
    listed = [*(one for plan in plans for one in plan.columns), *further]
    columns = {one.name: one for one in reversed(listed)}
    return {one.name: columns[one.name] for one in listed}


def filled_columns(
    metrics: Iterable[Mapping[str, float | None]], plan: MetricPlan | None = None
) -> tuple[str, ...]:
    """The columns worth showing: those with a number in any row, and the benchmark's own.

    Those of the plan come first, then those of other installed benchmarks and metrics, others
    behind them by name. Without rows they are the benchmark's own.

    plan  the benchmark's; TOFU's if not given
    """
    plan = plan or plan_of(TOFU)
    rows = list(metrics) or [dict.fromkeys(plan.own)]
    names = {name for keys in {tuple(row) for row in rows} for name in keys}
    shown = names & plan.own
    empty = names - shown
    for row in rows:
        if found := [name for name in empty if row.get(name) is not None]:
            shown.update(found)
            empty.difference_update(found)
    known = dict.fromkeys((*(one.name for one in plan.columns), *known_columns()))
    return (*(name for name in known if name in shown), *sorted(shown - known.keys()))
