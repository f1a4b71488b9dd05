"""Rules that concern several keys of a configuration: fractions, names, a run planned twice.

Most look at the tree, not at validated settings, so that they apply even where another key is
wrong. Malformed values have been reported before, and are skipped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from unlearnbench.api.benchmark import Benchmark, split_name
from unlearnbench.config.benchmark_section import whole_benchmark
from unlearnbench.config.messages import MISSING, Fault
from unlearnbench.config.method_entries import MAX_RUNS, TOO_MANY
from unlearnbench.config.method_specs import rates_of
from unlearnbench.config.metric_plan import benchmark_plan
from unlearnbench.config.precision import resolve_precision
from unlearnbench.config.profiles import TOFU, get_profile
from unlearnbench.config.schema import SweepConfig
from unlearnbench.config.search import Metric, Range
from unlearnbench.config.training_settings import EIGHT_BIT, ONE_PROCESS, TrainingSettings
from unlearnbench.config.yaml_tree import Loc, YamlNode
from unlearnbench.errors import EvaluationError, PluginError, did_you_mean

SPLITS = ("forget_fractions", "splits")
"""Keys of the splits of a benchmark: by fraction, or by name."""


def check_across(root: YamlNode, config: SweepConfig | None) -> Iterator[Fault]:
    """The rules that are broken; `config` is None where it could not be built."""
    data = data_of(root)
    yield from _splits(root, data)
    yield from _models(root, data)
    profile = root.at(("evaluation", "profile"))[0].value
    if isinstance(profile, str):
        try:
            get_profile(profile)
        except EvaluationError as error:
            yield Fault(("evaluation", "profile"), str(error))
    yield from _select(root)
    if config is not None and (runs := _runs(config)) > MAX_RUNS:
        yield Fault(("methods",), f"{runs} runs in all, and {TOO_MANY}")
    elif config is not None:
        yield from _distinct_methods(config)
        yield from _one_training(config)
        yield from _processes(config)
        yield from _metrics(config)
        yield from _search(config)
        yield from _patience(config)
        yield from _precision(config)
        if config.cache is None and config.name == "cache":
            yield Fault(("name",), "'cache' is the folder of prepared models; choose another name")


def data_of(root: YamlNode) -> Benchmark | None:
    """The benchmark of a configuration; None where its section is wrong."""
    return whole_benchmark((root.below("data") or YamlNode({}, root.place)).plain())


def _items(root: YamlNode, key: str, kind: type | tuple[type, ...]) -> list[tuple[int, Any]]:
    """Entries of a top-level list that are of a type, with their positions."""
    values = [(i, item.value) for i, item in enumerate(root.at((key,))[0].items)]
    return [(i, v) for i, v in values if isinstance(v, kind) and not isinstance(v, bool)]


def _splits(root: YamlNode, data: Benchmark | None) -> Iterator[Fault]:
    """Splits by fraction and by name, of which a benchmark has one kind."""
    if data is not None:
        own, other = SPLITS[::-1] if data.splits else SPLITS
        if root.below(other) is not None:
            what = f"names: {', '.join(data.splits)}" if data.splits else "fractions, such as 0.1"
            fix = f"list them in {own} and leave this out (null, where another file has it)"
            yield Fault((other,), f"{data.source} has splits by {what}; {fix}")
        elif root.below(own) is None and not data.splits:
            yield Fault((own,), MISSING)
    for index, fraction in _items(root, "forget_fractions", (int, float)):
        if 0 < fraction < 1 and data and not data.splits and (wrong := data.problem_with(fraction)):
            yield Fault(("forget_fractions", index), wrong)
    for index, name in _items(root, "splits", str):
        if data is not None and data.splits and (wrong := data.problem_with(name)):
            yield Fault(("splits", index), wrong)


def _models(root: YamlNode, data: Benchmark | None) -> Iterator[Fault]:
    first: dict[str, int] = {}
    known = [split_name("retain", name) for name in data.splits] if data is not None else []
    for index, model in enumerate(root.at(("models",))[0].items):
        name = model.at(("name",))[0].value
        if isinstance(name, str) and first.setdefault(name, index) != index:
            message = f"{name!r} is the name of models.{first[name]} as well"
            yield Fault(("models", index, "name"), message)
        retain = model.below("retain")
        for split in retain.section if retain is not None else ():
            if known:
                good, rule = split in known, f"expected one of {', '.join(known)}"
            else:
                good = re.fullmatch(r"retain\d\d(\.\d+)?", split) is not None
                rule = "expected a split such as retain90"
            if not good:
                yield Fault(("models", index, "retain", split), rule)


def _distinct_methods(config: SweepConfig) -> Iterator[Fault]:
    """A method with the same hyper-parameters and rate in two entries."""
    planned: dict[tuple[str, float | None], int] = {}
    for index, grid in enumerate(config.methods):
        if config.search.kind != "grid":  # draws from two entries differ
            first = config.methods.index(grid)
            if first != index:
                yield Fault(("methods", index), f"the same as methods.{first}: duplicate runs")
            continue
        for spec in grid.specs:
            rates = rates_of(spec, grid, config)
            for rate in () if isinstance(rates, Range) else rates:
                other = planned.setdefault((repr(spec), rate), index)
                if other != index:
                    at = "" if rate is None else f" at {rate:g}"
                    message = f"{spec.label}{at} is in methods.{other} already: duplicate run"
                    yield Fault(("methods", index), message)


def _one_training(config: SweepConfig) -> Iterator[Fault]:
    """Entries of a method that differ in `training`, which tables do not distinguish."""
    first: dict[str, int] = {}
    for index, grid in enumerate(config.methods):
        name = grid.specs[0].name
        other = first.setdefault(name, index)
        own, there = ((config.methods[i].training or config.training) for i in (index, other))
        if own != there:
            text = f"{name} has other training settings in methods.{other}"
            fix = "give all entries of a method the same, or another sweep"
            fault = f"{text}, and tables would mix the two; {fix}"
            yield Fault(("methods", index, "training"), fault)


def _processes(config: SweepConfig) -> Iterator[Fault]:
    """8-bit optimisers of runs with several processes."""
    worlds = {model.name: config.resources_of(model.name).world_size for model in config.models}
    several = next((name for name, world in worlds.items() if world > 1), None)
    if several is None:
        return
    sections: list[tuple[Loc, TrainingSettings]] = [
        (("methods", i), grid.training) for i, grid in enumerate(config.methods) if grid.training
    ]
    if len(sections) < len(config.methods):
        sections.insert(0, ((), config.training))
    reported: set[str] = set()
    for loc, training in sections:
        name = training.optimizer
        if name not in EIGHT_BIT or (name in reported and name == config.training.optimizer):
            continue  # the latter is inherited
        reported.add(name)
        text = f"{name} works in one process, and a run of {several} has {worlds[several]}"
        yield Fault((*loc, "training", "optimizer"), f"{text}: {ONE_PROCESS}")


def _search(config: SweepConfig) -> Iterator[Fault]:
    """A search without its package, unknown metrics, and halving without epochs for it."""
    search = config.search
    if search.kind == "optuna" and find_spec("optuna") is None:
        fix = "pip install 'unlearnbench[search]'"
        yield Fault(("search", "kind"), f"optuna is not installed; {fix}, or take kind random")
    if search.metric is not None:
        yield from _metric(search.metric, ("search", "metric"), config)
    scheduler = search.scheduler
    if scheduler is None:
        return
    yield from _metric(scheduler.metric, ("search", "scheduler", "metric"), config)
    if config.epochs_as == "runs":
        yield Fault(("search", "scheduler"), _ONE_EVALUATION.format("stopped"))
    elif config.epochs <= scheduler.grace:
        text = f"{scheduler.grace} epochs of grace leave nothing of {config.epochs} to stop"
        yield Fault(("search", "scheduler", "grace"), f"{text}; raise epochs")


_ONE_EVALUATION = (
    "epochs_as: runs evaluates a run once, at its end: no run can be {} early; take epochs_as: "
    "checkpoints"
)


def _patience(config: SweepConfig) -> Iterator[Fault]:
    """An unknown metric, and patience that cannot end a run."""
    rule = config.evaluation.patience
    if rule is None:
        return
    loc = ("evaluation", "patience")
    yield from _metric(rule.metric, (*loc, "metric"), config)
    if config.epochs_as == "runs":
        yield Fault(loc, _ONE_EVALUATION.format("ended"))
    elif rule.epochs >= len(config.evaluated_epochs):
        text = f"{rule.epochs} epochs of patience end no run of {len(config.evaluated_epochs)}"
        yield Fault((*loc, "epochs"), f"{text}; lower it, or raise epochs")


def _precision(config: SweepConfig) -> Iterator[Fault]:
    """An evaluation precision that a model does not allow."""
    for index, model in enumerate(config.models):
        try:
            resolve_precision("cpu", model.dtype, config.evaluation.precision)
        except EvaluationError as error:
            text = str(error).removeprefix(f"precision {config.evaluation.precision}: ")
            yield Fault(("evaluation", "precision"), f"fp32, but models.{index}: {text}")


def _metrics(config: SweepConfig) -> Iterator[Fault]:
    """Chosen metrics that this benchmark cannot report."""
    for name, settings in config.evaluation.metrics.items():
        try:
            plan = benchmark_plan(TOFU, config.data, {name: settings})
        except PluginError as error:
            yield Fault(("evaluation", "metrics", name), str(error))
            continue
        shared = next((one.name for one in config.models if _is_sharded(config, one.name)), None)
        if plan.extra and shared is not None:
            text = f"needs whole weights in each process, and runs of {shared} shard theirs"
            fix = "set resources.parallel: ddp, or leave the metric out"
            yield Fault(("evaluation", "metrics", name), f"{text}; {fix}")


def _is_sharded(config: SweepConfig, model: str) -> bool:
    resources = config.resources_of(model)
    return resources.world_size > 1 and resources.parallel == "fsdp"


def _metric(metric: Metric, key: Loc, config: SweepConfig) -> Iterator[Fault]:
    names = [metric] if isinstance(metric, str) else list(metric)
    if not names:
        yield Fault(key, "is empty: name a column of results.csv")
    try:  # columns have the same names under every profile
        plan = benchmark_plan(TOFU, config.data, config.evaluation.metrics)
    except PluginError:  # of a chosen metric, which is reported itself
        return
    known = [column.name for column in plan.columns]
    for name in names:
        if name not in known:
            near = did_you_mean(name, known) or ";"
            yield Fault(key, f"unknown metric {name!r}{near} known: {', '.join(known)}")


def _select(root: YamlNode) -> Iterator[Fault]:
    """Seeds of `select` that are not the sweep's, or leave none to report on."""
    select = root.below("select")
    if select is None or not isinstance(select.value, dict):
        return
    seeds, chosen = (_whole_numbers(section.below("seeds")) for section in (root, select))
    if seeds is None or chosen is None:  # reported before
        return
    key = ("select", "seeds") if "seeds" in select.section else ("select",)
    unknown = [seed for seed in chosen if seed not in seeds]
    if unknown:
        listed = ", ".join(map(str, seeds[:20])) + ", …" * (len(seeds) > 20)
        yield Fault(key, f"{unknown[0]} is not one of the sweep's seeds ({listed})")
    elif len(set(chosen)) < len(chosen):
        yield Fault(key, "has a seed twice")
    elif len(chosen) == len(seeds):
        text = "are all of the sweep's: none is left to report the chosen settings on"
        yield Fault(key, f"{text}; add to seeds")


def _whole_numbers(entry: YamlNode | None) -> list[int] | None:
    """The values of a list of seeds, 0 where there is none; None where it is malformed."""
    if entry is None:
        return [0]
    values = [item.value for item in entry.items]
    return values if values and all(type(value) is int for value in values) else None


def _runs(config: SweepConfig) -> int:
    """Number of runs, counted before any is made."""
    settings = 0
    for grid in config.methods:
        axes = [rates_of(spec, grid, config) for spec in grid.specs]
        rates = [len(axis) for axis in axes if not isinstance(axis, Range)]
        settings += config.search.trials or sum(rates)
    counts = len(config.evaluated_epochs) if config.epochs_as == "runs" else 1
    return settings * counts * math.prod(map(len, (config.models, config.split_keys, config.seeds)))
