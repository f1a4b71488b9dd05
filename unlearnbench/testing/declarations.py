"""Checks of what a plug-in declares: its settings, and a method's docstring."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import ValidationError

from unlearnbench.api.benchmark import Benchmark
from unlearnbench.api.hyperparameters import HyperParameters
from unlearnbench.config.stored_values import with_tuples
from unlearnbench.testing.check import Outcome, check, fault, passed, warning

_FORMULA = re.compile(r"^\s*\S.{0,40}?\s(=|←|≤|:=)\s.+", re.MULTILINE)
_SYMBOL = re.compile(
    # `β  strength`, two spaces apart; or a section in Google style: `Symbols:`, then `    β: …`.
    r"^\s*\S.*?\S?  +\S|^(Symbols|Attributes):\n\s+\S[^\n]*:\s+\S",
    re.MULTILINE,
)
_SOURCE = re.compile(r"\b(19|20)\d\d\b|arXiv|doi\.org|https?://|\bown work\b")


def settings(plugin: HyperParameters) -> Outcome:
    """Settings survive YAML, and refuse unknown keys.

    What YAML cannot express cannot be configured: open-unlearning's SatImp has two weights swapped
    between class and YAML.

    `Field(default, ge=…, description=…)`: plain values and tuples of them, with bounds and a
    meaning; no `model_config`; a docstring that has the source.
    """
    faults = list(_faults(plugin))
    if faults:
        return fault("; ".join(faults))
    return passed(", ".join(type(plugin).model_fields) or "no settings")


check(name="hyper-parameters", alone=True)(settings)


def _faults(plugin: HyperParameters) -> Iterator[str]:
    """Yield what is wrong with the settings of a plug-in."""
    kind = type(plugin)
    if not (vars(kind).get("__doc__") or "").strip():
        yield "no docstring, which has the source"
    for key, info in kind.model_fields.items():
        if not info.description and key not in Benchmark.model_fields:
            yield f"{key} has no description, from which help is made"
    try:
        text = yaml.safe_dump(plugin.model_dump(mode="json"))
        if kind.model_validate(with_tuples(yaml.safe_load(text))) != plugin:
            yield f"other values come back from YAML: {text!r}"
    except ValidationError as error:
        yield f"values that come back from YAML are refused: {error.errors()[0]['msg']}"
    try:
        kind.model_validate({**plugin.model_dump(), "no_such_key": 1})
        yield "an unknown key is accepted: a misspelt one would do nothing, unseen"
    except ValidationError:
        pass


def is_importable(kind: type[Any]) -> bool:
    """Whether another process can import a class.

    It cannot if the class is defined in a function, or in a notebook or script.
    """
    return "<locals>" not in kind.__qualname__ and kind.__module__ != "__main__"


def docstring(plugin: HyperParameters) -> Outcome:
    """The docstring has the formula, its symbols, and the source.

    The same name stands for different losses in different harnesses (SimNPO's margin, NPO's sign,
    KL's mean): without its equation the name does not identify the method.

    `Name: Author year, arXiv:….`; a line `L = …`; and a line `symbol  its meaning` for each symbol,
    or a section `Symbols:` with lines `symbol: its meaning`.
    """
    text = inspect.cleandoc(type(plugin).__doc__ or "")
    missing: list[str] = []
    if not _FORMULA.search(text):
        missing.append("a formula (`L = …`)")
    if not _SOURCE.search(text):
        missing.append("a source (year, arXiv, or «own work»)")
    if missing:
        return fault(f"without {' and '.join(missing)}")
    if not _SYMBOL.search(text):
        return warning(
            "formula and source, but no list of symbols (`symbol  meaning`, two spaces apart, or "
            "a section `Symbols:`)"
        )
    return passed(f"{len(text.splitlines())} lines with formula, symbols and source")


check(alone=True)(docstring)
