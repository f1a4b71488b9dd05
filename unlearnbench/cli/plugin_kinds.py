"""Facts about plug-ins for `list` and `show`, by kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from unlearnbench.api import registry
from unlearnbench.api.registry import Kind
from unlearnbench.base.errors import DataError

if TYPE_CHECKING:
    from unlearnbench.api.attack import Attack
    from unlearnbench.api.benchmark import Benchmark
    from unlearnbench.api.inference_method import Wrapper
    from unlearnbench.api.method import Method
    from unlearnbench.api.metric import Metric, Role, Summary
    from unlearnbench.api.modifier import Modifier

LISTED: Mapping[Kind, tuple[str, ...]] = {
    "methods": ("needs",),
    "modifiers": ("kind",),
    "metrics": ("reads", "sets", "better"),
    "benchmarks": ("rows", "sets", "splits", "references"),
    "attacks": ("changes", "sets", "points"),
}
"""The kinds of plug-ins that have commands, each with the facts that are columns of `list`."""


def facts(kind: Kind, name: str, plugin: type[Any]) -> dict[str, Any]:
    """Facts about a plug-in, ready for JSON; `config`, if any, is the YAML that names it."""
    return _FACTS[kind](name, plugin)


def _method(name: str, method: type[Method | Wrapper]) -> dict[str, Any]:
    """The parts of a batch that the loss reads; what it reads of the start model in brackets."""
    from unlearnbench.api.inference_method import Wrapper
    from unlearnbench.api.method import PARTS

    fields = method.model_fields.items()
    floats = (key for key, f in fields if f.annotation is float and not f.is_required())
    grid = [f", {key}: [{method.model_fields[key].default}]" for key in floats][:1]
    rates = ", learning_rates: [1.0e-5]" if registry.trains(name) else ""
    config = f"- {{method: {name}{''.join(grid)}{rates}}}"
    if issubclass(method, Wrapper):
        return {"needs": ["questions (trains nothing)"], "config": config}
    needs = method.needs
    parts = [part for part in PARTS if part in needs.parts | needs.statistics]
    references = (f"reference({part})" for part in sorted(needs.reference))
    return {"needs": [*parts, *references], "config": config}


def _modifier(name: str, modifier: type[Modifier]) -> dict[str, Any]:
    return {"kind": modifier.kind, "config": f"- {{method: npo, modifiers: [{name}]}}"}


def _metric(name: str, metric: type[Metric | Summary]) -> dict[str, Any]:
    from unlearnbench.api.metric import Measure, Metric

    made: Metric | Summary = _example(name, metric)
    reads: list[str] = [*sorted(metric.reads)]
    if isinstance(made, Metric):
        roles: list[Role] = [*sorted(made.roles)] or ["forget"]
        measure = Measure(name.replace("-", "_"), made, ())
        columns = tuple(measure.column(role, role) for role in roles)
    else:
        columns = made.columns()
        reads += [f"{model} model" for model in sorted(made.relative_to)]
        reads += [f"columns of {other}" for other in sorted(made.after)]
    return {
        "reads": reads or (["losses"] if isinstance(made, Metric) else ["sets, columns"]),
        "sets": [*map(str, sorted(metric.roles))] or ["where it is named"],
        "better": [*dict.fromkeys(column.better or "neither" for column in columns)],
        "version": metric.version,
        "columns": [
            {"name": c.name, "label": c.label, "better": c.better, "bounds": c.bounds}
            for c in columns
        ],
    }


def _benchmark(name: str, kind: type[Benchmark]) -> dict[str, Any]:
    import yaml

    from unlearnbench.api.benchmark import guarded_call, split_text
    from unlearnbench.config.profiles import TOFU
    from unlearnbench.models.dataset_rules import splits_of

    benchmark: Benchmark = _example(name, kind, source=name)
    splits, headline, rows = splits_of(benchmark), benchmark.headline, None
    if benchmark.repository is None:  # else they are the hub's
        with suppress(DataError), guarded_call(benchmark, "load"):
            rows = len(benchmark.load(splits[:1]).full)
    values = benchmark.model_dump(mode="json").items()
    section = {key: value for key, value in values if value is not None}
    flow = yaml.safe_dump(section, default_flow_style=True, sort_keys=False, width=10_000)
    return {
        "rows": rows,
        "sets": [*benchmark.roles],
        "splits": [*map(split_text, splits)],
        "references": [*map(str, sorted(benchmark.references))],
        "headline": [asdict(headline.kept), asdict(headline.forgotten)],
        "roles": [{"set": name, "role": role} for name, role in benchmark.roles.items()],
        "metrics": [
            {"metric": use.metric, "sets": use.sets, "settings": use.settings}
            for use in benchmark.metrics(TOFU)
        ],
        "config": f"data: {flow.strip()}",
    }


def _attack(name: str, kind: type[Attack]) -> dict[str, Any]:
    from unlearnbench.api.attack import PromptAttack, WeightAttack, variant

    points = _example(name, kind).points()
    changes = "questions" if issubclass(kind, PromptAttack) else "number of answers"
    return {
        "changes": "weights" if issubclass(kind, WeightAttack) else changes,
        "sets": [*map(str, sorted(kind.roles))],
        "points": [point for point in points if point] or None,
        "variants": [variant(name, point) for point in points],
        "version": kind.version,
        "label": kind.label,
        "white_box": kind.white_box,
        "reads_answers": kind.reads_answers,
        "config": f"attacks: [{name}]",
    }


def _example(name: str, kind: type[Any], **values: Any) -> Any:
    """A plug-in with its defaults."""
    from unlearnbench.config.entries import example

    return example(kind, values, name)


_FACTS: Mapping[Kind, Callable[[str, Any], dict[str, Any]]] = {
    "methods": _method,
    "modifiers": _modifier,
    "metrics": _metric,
    "benchmarks": _benchmark,
    "attacks": _attack,
}
