"""Checks of what a plug-in declares: its settings, and a method's docstring."""

from __future__ import annotations

import inspect
import math
import pickle
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from annotated_types import Ge, Gt, Le, Lt
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from unlearnbench.api.benchmark import Benchmark
from unlearnbench.api.hyperparameters import HyperParameters
from unlearnbench.config.entries import with_tuples
from unlearnbench.config.loader import read_yaml
from unlearnbench.config.schema import HyperParameter
from unlearnbench.testing.check import Outcome, check, fault, passed

_FORMULA = re.compile(r"^\s*\S.{0,40}?\s(=|←|≤|:=)\s.+", re.MULTILINE)
_SYMBOL = re.compile(r"^\s*\S.*?\S?  +\S", re.MULTILINE)
_SOURCE = re.compile(r"\b(19|20)\d\d\b|arXiv|doi\.org|https?://|\bown work\b")


def settings(plugin: HyperParameters) -> Outcome:
    """Settings survive YAML and pickle, cannot be changed, and refuse what is out of bounds.

    What YAML cannot express cannot be configured, a value that no bound rejects surfaces after
    hours, and one that changes on the way to a worker process gives other numbers there.

    `Field(default, ge=…, description=…)`: plain values and tuples of them, with bounds and a
    meaning; no `model_config`; the class at the top level of its file, with a docstring that has
    the source.
    """
    kind = type(plugin)
    documented = (vars(kind).get("__doc__") or "").strip()
    faults = [*_faults(plugin), *([] if documented else ["no docstring, which has the source"])]
    names = ", ".join(kind.model_fields) or "no settings"
    return fault("; ".join(faults)) if faults else passed(names)


@check(name="hyper-parameters", alone=True)
def hyper_parameters(method: HyperParameters) -> Outcome:
    """Hyper-parameters survive a round trip through YAML and refuse values out of bounds.

    A value that YAML cannot express, or that no bound rejects, surfaces after hours:
    open-unlearning's SatImp has two weights swapped between class and YAML.

    `Field(default, gt=…, description=…)`: one plain value each, with bounds and a meaning.
    """
    names = ", ".join(type(method).model_fields)
    faults = [
        f"{key} is a {type(value).__name__}; YAML stores numbers, text and true/false"
        for key, value in method
        if not isinstance(value, HyperParameter)
    ]
    faults = faults or [*_faults(method)]
    return fault("; ".join(faults)) if faults else passed(f"{names}: values and bounds survive")


def _faults(plugin: HyperParameters) -> Iterator[str]:
    kind, values = type(plugin), plugin.model_dump()
    for key, info in kind.model_fields.items():
        if not info.description and key not in Benchmark.model_fields:
            yield f"{key} has no description, from which help is made"
        yield from (f"{key} accepts {v!r}" for v in _outside(info) if accepts(plugin, key, v))
        ends = (-math.inf, math.inf) if info.annotation is float else ()
        for value in (values[key], *(v for v in ends if accepts(plugin, key, v))):
            read = read_yaml("a config", yaml.safe_dump({key: value})).values or {}
            back = with_tuples(read).get(key)
            if not accepts(plugin, key, back):
                yield f"{key}: {value!r} comes back from YAML as {back!r}, which is refused"
            elif kind.model_validate({**values, key: back}) != kind.model_validate(
                {**values, key: value}
            ):
                yield f"{key}: {value!r} comes back from YAML as {back!r}"
    if accepts(plugin, "no_such_key", 1):
        yield "an unknown key is accepted: a misspelt one would do nothing, unseen"
    if not kind.model_config.get("frozen"):
        yield "its settings can be changed: remove `frozen` from its `model_config`"
    if is_importable(kind):
        try:
            if pickle.loads(pickle.dumps(plugin)) != plugin:  # its own, of a moment ago
                yield "another one comes back from a copy by pickle"
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            yield f"cannot be sent to another process: {error}"


def is_importable(kind: type[Any]) -> bool:
    """True if another process can import a class: it is of no function, and of no notebook."""
    return "<locals>" not in kind.__qualname__ and kind.__module__ != "__main__"


def _outside(info: FieldInfo) -> Iterator[Any]:
    """Values that a field must refuse."""
    kind: Any = info.annotation
    number = kind is int or kind is float
    for rule in info.metadata if number else ():
        if isinstance(rule, Ge):
            yield _beyond(kind, rule.ge, -1)
        elif isinstance(rule, Gt):
            yield rule.gt
        elif isinstance(rule, Le):
            yield _beyond(kind, rule.le, 1)
        elif isinstance(rule, Lt):
            yield rule.lt
    if kind is float:
        yield math.nan
    if number:
        yield "text"


def _beyond(kind: Any, bound: Any, way: int) -> Any:
    return bound + way if kind is int else math.nextafter(bound, way * math.inf)


def accepts(plugin: HyperParameters, key: str, value: Any) -> bool:
    """True if the plug-in may have this value in place of its own."""
    values: Mapping[str, Any] = {**plugin.model_dump(), key: value}
    try:
        type(plugin).model_validate(values)
    except ValidationError:
        return False
    return True


@check(alone=True)
def docstring(method: HyperParameters) -> Outcome:
    """The docstring has the formula, its symbols, and the source.

    The same name stands for different losses in different harnesses (SimNPO's margin, NPO's sign,
    KL's mean): without its equation the name does not identify the method.

    `Name: Author year, arXiv:….`; a line `L = …`; and a line `symbol  its meaning` for each symbol.
    """
    text = inspect.cleandoc(type(method).__doc__ or "")
    missing = [
        what
        for what, pattern in (
            ("a formula (`L = …`)", _FORMULA),
            ("its symbols (`symbol  meaning`, two spaces apart)", _SYMBOL),
            ("a source (year, arXiv, or «own work»)", _SOURCE),
        )
        if not pattern.search(text)
    ]
    seen = f"{len(text.splitlines())} lines with formula, symbols and source"
    return fault(f"without {' and '.join(missing)}") if missing else passed(seen)
