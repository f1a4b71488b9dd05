"""Rules of a configuration that no single key can state: fractions, names, a run planned twice.

They look at the tree, not at validated settings, so that they speak even where something else is
wrong; what is malformed is reported already, and skipped here.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from unlearnbench.document import Entry, Loc, Unread, dotted
from unlearnbench.errors import EvaluationError, Problem, UnlearnbenchError, did_you_mean
from unlearnbench.grid import GridReader
from unlearnbench.recipe import EIGHT_BIT, ONE_PROCESS, TrainingSettings
from unlearnbench.searching import Metric, Range
from unlearnbench.settings import DataSettings, SweepConfig
from unlearnbench.spaces import rates_of

MAX_RUNS = 100_000
"""Of a sweep, all seeds counted."""


def check_across(root: Entry, config: SweepConfig | None, reader: GridReader) -> None:
    """Reports to `reader.problems`; `config` is None where it could not be built."""
    for key in ("forget_fractions", "seeds"):
        entry = root.below(key)
        if entry is not None:
            reader.distinct(entry, (key,))
    report = _Reporter(root, reader.problems)
    _check_fractions(root, report)
    for index, seed in report.items("seeds", int):
        if seed < 0:
            report(("seeds", index), f"must be at least 0, got {seed}")
    _check_models(root, report)
    profile = root.at(("evaluation", "profile"))[0].value
    if isinstance(profile, str):
        from unlearnbench.evaluation.profiles import get_profile

        try:
            get_profile(profile)
        except UnlearnbenchError as error:
            report(("evaluation", "profile"), str(error))
    _check_select(root, report)
    if config is not None:
        _check_methods_distinct(config, report)
        _check_one_training(config, report)
        _check_processes(config, report)
        _check_search(config, report)
        _check_patience(config, report)
        _check_precision(config, report)
        if config.cache is None and config.name == "cache":
            report(("name",), "'cache' is the folder of prepared models; choose another name")


@dataclass(frozen=True)
class _Reporter:
    root: Entry
    problems: list[Problem]

    def __call__(self, loc: Loc, message: str) -> None:
        entry = self.root.at(loc)[0]
        if not isinstance(entry.value, Unread):
            self.problems.append(Problem(entry.place, dotted(loc), message))

    def items(self, key: str, kind: type | tuple[type, ...]) -> list[tuple[int, Any]]:
        """Entries of a top-level list that are of a type, with their positions."""
        entry = self.root.below(key)
        values = [(i, item.value) for i, item in enumerate(entry.items if entry else [])]
        return [(i, v) for i, v in values if isinstance(v, kind) and not isinstance(v, bool)]


def _check_fractions(root: Entry, report: _Reporter) -> None:
    source, authors = (_setting(root, key) for key in ("source", "authors"))
    for index, fraction in report.items("forget_fractions", (int, float)):
        loc = ("forget_fractions", index)
        if not 0 < fraction < 1:
            report(loc, f"must lie between 0 and 1, got {fraction:g}")
        elif source == "tofu":
            nearest = min((0.01, 0.05, 0.1), key=lambda f: abs(f - fraction))
            if abs(nearest - fraction) > 1e-9:
                report(
                    loc,
                    f"TOFU has forget sets of 0.01, 0.05 and 0.10, got {fraction:g}; "
                    f"the nearest is {nearest:.2f}",
                )
        elif isinstance(authors, int) and authors >= 2:
            count = fraction * authors
            whole = min(max(round(count), 1), authors - 1)
            if abs(whole - count) > 1e-6:
                report(
                    loc,
                    f"{fraction:g} of {authors} authors is {count:g} authors, which is not whole; "
                    f"the nearest is {whole / authors:.10g} ({whole})",
                )


def _setting(root: Entry, key: str) -> Any:
    """A setting of the data, or its default."""
    data = root.below("data")
    entry = data.below(key) if data is not None else None
    return DataSettings.model_fields[key].default if entry is None else entry.value


def _check_models(root: Entry, report: _Reporter) -> None:
    entry = root.below("models")
    first: dict[str, int] = {}
    for index, model in enumerate(entry.items if entry is not None else []):
        name = model.below("name")
        if name is not None and isinstance(name.value, str):
            if name.value in first:
                message = f"{name.value!r} is the name of models.{first[name.value]} as well"
                report(("models", index, "name"), message)
            first.setdefault(name.value, index)
        retain = model.below("retain")
        for split in retain.section if retain is not None else ():
            if not re.fullmatch(r"retain\d\d(\.\d+)?", split):
                report(("models", index, "retain", split), "expected a split such as retain90")


def _check_methods_distinct(config: SweepConfig, report: _Reporter) -> None:
    """The same method with the same hyper-parameters and rate in two entries is one run twice."""
    planned: dict[tuple[str, float | None], int] = {}
    for index, grid in enumerate(config.methods):
        if config.search.kind != "grid":  # what is drawn from two entries differs
            first = config.methods.index(grid)
            if first != index and grid.specs[0].name:
                report(("methods", index), f"the same as methods.{first}: all runs twice")
            continue
        for spec in grid.specs:
            # A stand-in for an entry that is wrong, and reported, has no name.
            rates = rates_of(spec, grid, config) if spec.name else ()
            for rate in () if isinstance(rates, Range) else rates:
                run = (repr(spec), rate)
                other = planned.setdefault(run, index)
                if other != index:
                    at = "" if rate is None else f" at {rate:g}"
                    message = f"{spec.label}{at} is in methods.{other} already: a run twice"
                    report(("methods", index), message)


def _check_one_training(config: SweepConfig, report: _Reporter) -> None:
    """Tables tell a method's runs apart by its hyper-parameters and rate, not by its training."""
    first: dict[str, int] = {}
    for index, grid in enumerate(config.methods):
        name = grid.specs[0].name if grid.specs else ""
        other = first.setdefault(name, index)
        own, there = ((config.methods[i].training or config.training) for i in (index, other))
        if name and own != there:
            text = f"{name} trains otherwise in methods.{other}"
            fix = "give all entries of a method the same, or another sweep"
            report(("methods", index, "training"), f"{text}, and tables would mix the two; {fix}")


def _check_processes(config: SweepConfig, report: _Reporter) -> None:
    """8-bit optimisers work in one process."""
    several = [model.name for model in config.models if config.resources_of(model.name).world > 1]
    if not several:
        return
    world = config.resources_of(several[0]).world
    entries = [(("methods", i), grid.training) for i, grid in enumerate(config.methods)]
    inherits = any(own is None for _, own in entries)
    default = [((), config.training)] if inherits else list[tuple[Loc, TrainingSettings]]()
    reported: set[str] = set()
    for loc, training in [*default, *entries]:
        if training is None or training.optimizer not in EIGHT_BIT:
            continue
        if training.optimizer in reported and training.optimizer == config.training.optimizer:
            continue  # inherited
        reported.add(training.optimizer)
        text = f"{training.optimizer} works in one process, and a run of {several[0]} has {world}"
        report((*loc, "training", "optimizer"), f"{text}: {ONE_PROCESS}")


def _check_search(config: SweepConfig, report: _Reporter) -> None:
    """A search needs its package; its metrics are columns; halving needs epochs to halve."""
    search = config.search
    if search.kind == "optuna" and find_spec("optuna") is None:
        fix = "pip install 'unlearnbench[search]'"
        report(("search", "kind"), f"optuna is not installed; {fix}, or take kind random")
    if search.metric is not None:
        _check_metric(search.metric, ("search", "metric"), report)
    scheduler = search.scheduler
    if scheduler is None:
        return
    _check_metric(scheduler.metric, ("search", "scheduler", "metric"), report)
    if config.epochs_as == "runs":
        text = "epochs_as: runs evaluates a run once, at its end: there is nothing to stop early"
        report(("search", "scheduler"), f"{text}; take epochs_as: checkpoints")
    elif config.epochs <= scheduler.grace:
        text = f"{scheduler.grace} epochs of grace leave nothing of {config.epochs} to stop"
        report(("search", "scheduler", "grace"), f"{text}; raise epochs")


def _check_patience(config: SweepConfig, report: _Reporter) -> None:
    """Its metric is a column, and there are epochs that it can leave out."""
    rule = config.evaluation.patience
    if rule is None:
        return
    _check_metric(rule.metric, ("evaluation", "patience", "metric"), report)
    if config.epochs_as == "runs":
        text = "epochs_as: runs evaluates a run once, at its end: there is nothing to end early"
        report(("evaluation", "patience"), f"{text}; take epochs_as: checkpoints")
    elif rule.epochs >= config.epochs:
        text = f"{rule.epochs} epochs of patience end no run of {config.epochs}"
        report(("evaluation", "patience", "epochs"), f"{text}; lower it, or raise epochs")


def _check_precision(config: SweepConfig, report: _Reporter) -> None:
    """Every model can be evaluated in it."""
    from unlearnbench.evaluation.precision import precision_on

    for index, model in enumerate(config.models):
        try:
            precision_on("cpu", model.dtype, config.evaluation.precision)
        except EvaluationError as error:
            text = str(error).removeprefix(f"precision {config.evaluation.precision}: ")
            report(("evaluation", "precision"), f"fp32, but models.{index}: {text}")


def _check_metric(metric: Metric, key: Loc, report: _Reporter) -> None:
    from unlearnbench.table import METRICS

    names = [metric] if isinstance(metric, str) else list(metric)
    if not names:
        report(key, "is empty: name a column of results.csv")
    for name in names:
        if name not in METRICS:
            near = did_you_mean(name, METRICS) or ";"
            report(key, f"unknown metric {name!r}{near} known: {', '.join(METRICS)}")


def _check_select(root: Entry, report: _Reporter) -> None:
    """Chosen on some of the seeds, reported on the others: there must be both."""
    select = root.below("select")
    if select is None or not isinstance(select.value, dict):
        return
    seeds, chosen = (_whole_numbers(section.below("seeds")) for section in (root, select))
    if seeds is None or chosen is None:  # reported already
        return
    key = ("select", "seeds") if "seeds" in select.section else ("select",)
    strangers = [seed for seed in chosen if seed not in seeds]
    if strangers:
        listed = ", ".join(map(str, seeds[:20])) + ", …" * (len(seeds) > 20)
        report(key, f"{strangers[0]} is none of the sweep's seeds ({listed})")
    elif len(set(chosen)) < len(chosen):
        report(key, "has a seed twice")
    elif len(chosen) == len(seeds):
        text = "are all of the sweep's: none is left to report the chosen settings on"
        report(key, f"{text}; add to seeds")


def _whole_numbers(entry: Entry | None) -> list[int] | None:
    """The values of a list of seeds, by default 0; None where it is not one."""
    if entry is None:
        return [0]
    values = [item.value for item in entry.items]
    return values if values and all(type(value) is int for value in values) else None


def too_many_runs(root: Entry) -> Problem | None:
    """The report that a grid has more than MAX_RUNS runs, counted before any is made."""
    search = root.at(("search", "kind"))[0].value
    trials = root.at(("search", "trials"))[0].value
    methods = root.below("methods")
    epochs, as_what = (root.at((key,))[0].value for key in ("epochs", "epochs_as"))
    others = math.prod(_count(root.below(key)) for key in ("models", "forget_fractions", "seeds"))
    if as_what == "runs" and isinstance(epochs, int):
        others *= max(epochs, 1)
    runs = 0
    for entry in methods.items if methods is not None else ():
        settings = 1
        for key, item in entry.section.items():
            if key == "retain":
                terms = item.items or [item]
                settings *= sum(math.prod(map(_count, term.section.values())) for term in terms)
            elif key not in ("method", "learning_rates"):
                settings *= _count(item)
        rates = _count(entry.below("learning_rates") or root.below("learning_rates"))
        if settings > MAX_RUNS or search in (None, "grid") or not isinstance(trials, int):
            runs += settings * rates
        else:
            runs += max(trials, 1)
    if methods is None or runs * others <= MAX_RUNS:
        return None
    return Problem(
        methods.place,
        "methods",
        f"{runs * others} runs in all, and a sweep has at most {MAX_RUNS}; shorten the lists, or "
        "search: {kind: random, trials: …}",
    )


def _count(entry: Entry | None) -> int:
    return max(len(entry.items), 1) if entry is not None else 1
