"""Entries that name plug-ins and give their settings: a list of names, or a section by name.

`metrics: [rouge, fluency]` is short for plug-ins with their own settings; `metrics: {mia-min-k:
{share: 0.2}}` changes them. Each setting is checked by the plug-in's own fields, so that one from
outside gets the messages of a built-in one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import PlainValidator, ValidationError, ValidationInfo

from unlearnbench.api.hyperparameters import HyperParameters
from unlearnbench.api.registry import IN_A_FILE, Kind, load, names
from unlearnbench.config.messages import (
    MISSING,
    Fault,
    describe_value,
    faults_of,
    raise_faults,
)
from unlearnbench.config.yaml_tree import Loc
from unlearnbench.errors import UnlearnbenchError, did_you_mean

_T = TypeVar("_T")

Entry = tuple[Loc, Any, Any]
"""Place, name and settings, none of which has been checked."""


def read_entries(
    entries: list[Entry], kind: Kind, read: Callable[[str, type[Any], Mapping[str, Any]], _T]
) -> list[_T]:
    """Results of `read` for each entry's name, plug-in and settings.

    Raises: ValidationError with the faults of all entries.
    """
    results, faults = list[_T](), list[Fault]()
    for loc, name, settings in entries:
        if wrong := wrong_entry((loc, name, settings), kind):
            faults.append(wrong)
            continue
        try:
            plugin: type[HyperParameters] = load(kind, name)
            results.append(read(name, plugin, settings))
        except ValidationError as error:
            below = faults_of(error, plugin, name)
            faults += [Fault((*loc, *fault.loc), fault.text) for fault in below]
        except UnlearnbenchError as error:
            faults.append(Fault(loc, str(error)))
    raise_faults(faults)
    return results


def entries_of(value: Any, kind: Kind) -> list[Entry]:
    """The entries of a value. Raises: ValueError where it is neither a list nor a section."""
    if isinstance(value, tuple):
        return [((i,), name, {}) for i, name in enumerate(value)]
    if isinstance(value, Mapping):
        return [((name,), name, settings) for name, settings in value.items()]
    one = _one(kind)
    raise ValueError(
        f"expected a list of {kind}, or a section with {one} settings by its name, "
        f"got {describe_value(value)}"
    )


def wrong_entry(entry: Entry, kind: Kind) -> Fault | None:
    """The fault of an entry whose name is unknown, or whose settings are no section; else None."""
    loc, name, settings = entry
    known = names(kind)
    if name not in known:
        near = (did_you_mean(name, known) if isinstance(name, str) else "") or ";"
        got = repr(name) if isinstance(name, str) else describe_value(name)
        word = kind.removesuffix("s")
        return Fault(
            loc, f"unknown {word} {got}{near} known: {', '.join(known) or 'none'}; {IN_A_FILE}"
        )
    if not isinstance(settings, Mapping):
        text = f"the {kind.removesuffix('s')}'s settings, {{}} for none"
        return Fault(loc, f"expected {text}, got {describe_value(settings)}")
    return None


def _one(kind: Kind) -> str:
    word = kind.removesuffix("s")
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}'s"


def _read_metrics(value: Any, info: ValidationInfo) -> Mapping[str, Mapping[str, Any]]:
    entries = entries_of(value, "metrics")
    if info.mode == "json":  # stored ones may be of a metric that is not installed here
        return {name: dict(settings) for _, name, settings in entries}
    return dict(read_entries(entries, "metrics", _metric))


def _metric(
    name: str, plugin: type[HyperParameters], settings: Mapping[str, Any]
) -> tuple[str, Mapping[str, Any]]:
    try:
        plugin.model_validate(settings)
    except ValidationError as error:
        faults = faults_of(error, plugin, name)
        raise_faults(one for one in faults if one.text != MISSING)  # the benchmark may give it
    return name, dict(settings)


MetricEntries = Annotated[Mapping[str, Mapping[str, Any]], PlainValidator(_read_metrics)]
"""Settings by metric, see `metric_plan.MetricChoices`."""
