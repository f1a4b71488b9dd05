"""The metrics that a configuration names: `evaluation: {metrics: {mia-min-k: {share: 0.2}}}`.

A list of names is short for metrics with their own settings. Each setting is checked by the
metric's own fields, so that a plug-in gets the messages of a built-in one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import PlainValidator, ValidationError, ValidationInfo

from unlearnbench.api.registry import load, names
from unlearnbench.config.messages import Fault, describe_value, faults_of, raise_faults
from unlearnbench.config.yaml_tree import Loc
from unlearnbench.errors import PluginError, did_you_mean

_RULE = "expected a list of metrics, or a section with a metric's settings by its name"


def _read(value: Any, info: ValidationInfo) -> Mapping[str, Mapping[str, Any]]:
    if isinstance(value, tuple):
        places: list[tuple[Loc, Any, Any]] = [((i,), name, {}) for i, name in enumerate(value)]
    elif isinstance(value, Mapping):
        places = [((name,), name, settings) for name, settings in value.items()]
    else:
        raise ValueError(f"{_RULE}, got {describe_value(value)}")
    if info.mode != "json":  # stored ones may be of a metric that is not installed here
        raise_faults(fault for place in places for fault in _faults(*place))
    return {name: dict(settings) for _, name, settings in places}


def _faults(loc: Loc, name: Any, settings: Any) -> Iterator[Fault]:
    known = names("metrics")
    if name not in known:
        near = (did_you_mean(name, known) if isinstance(name, str) else "") or ";"
        got = repr(name) if isinstance(name, str) else describe_value(name)
        yield Fault(loc, f"unknown metric {got}{near} known: {', '.join(known)}")
        return
    if not isinstance(settings, Mapping):
        text = f"expected the metric's settings, {{}} for none, got {describe_value(settings)}"
        yield Fault(loc, text)
        return
    try:
        kind = load("metrics", name)
    except PluginError as error:
        yield Fault(loc, str(error))
        return
    try:
        kind.model_validate(settings)
    except ValidationError as error:
        for fault in faults_of(error, kind, name):
            if not fault.exact:  # a missing value, which the benchmark may give
                yield Fault((*loc, *fault.loc), fault.text)


MetricEntries = Annotated[Mapping[str, Mapping[str, Any]], PlainValidator(_read)]
"""Settings by metric, see `metric_plan.MetricChoices`."""
