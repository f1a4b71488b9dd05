"""The metrics that a configuration names: `evaluation: {metrics: {mia-min-k: {share: 0.2}}}`.

A list of names is short for metrics with their own settings. Each setting is checked by the
metric's own fields, so that a plug-in gets the messages of a built-in one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import PlainValidator, ValidationError, ValidationInfo

from unlearnbench.api.registry import load
from unlearnbench.config.messages import Fault, faults_of, raise_faults
from unlearnbench.config.plugin_entries import Entry, entries_of, wrong_entry
from unlearnbench.errors import PluginError


def _read(value: Any, info: ValidationInfo) -> Mapping[str, Mapping[str, Any]]:
    entries = entries_of(value, "metrics")
    if info.mode != "json":  # stored ones may be of a metric that is not installed here
        raise_faults(fault for entry in entries for fault in _faults(entry))
    return {name: dict(settings) for _, name, settings in entries}


def _faults(entry: Entry) -> Iterator[Fault]:
    if wrong := wrong_entry(entry, "metrics"):
        yield wrong
        return
    loc, name, settings = entry
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
