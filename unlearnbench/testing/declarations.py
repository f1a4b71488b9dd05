"""Checks of a method's declarations: needs, hyper-parameters, docstring."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from typing import Any

import yaml
from annotated_types import Ge, Gt, Le, Lt
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from unlearnbench.api.hyperparameters import HyperParameters
from unlearnbench.api.method import Method, Needs
from unlearnbench.config.schema import HyperParameter
from unlearnbench.config.yaml_tree import YamlReader
from unlearnbench.testing.check import Outcome, check, fault, passed
from unlearnbench.testing.read_recorder import Reads, recording
from unlearnbench.testing.tiny_lab import TinyLab
from unlearnbench.training.objective import called


@check(
    "needs",
    why="open-unlearning keeps a copy of the model for methods that never read it (WGA, SatImp), "
    "and pays a forward pass for retain rows with weight 0.",
    fix="Declare in `needs` what `loss` and `statistics` read, and nothing else.",
)
def needs(lab: TinyLab) -> Outcome:
    """The declared needs are exactly what the loss reads."""
    own = lab.needs
    found = _inconsistent(lab.method, own)
    if found:
        return fault(found)
    undeclared: list[str] = []
    unread: list[str] = []
    for what, declared, read in _compared(own, *_reads(lab)):
        undeclared += [f"reads undeclared {what} {one!r}" for one in sorted(read - declared)]
        unread += [
            f"declares {what} {one!r}, which it never reads" for one in sorted(declared - read)
        ]
    parts = sorted(own.parts | own.statistics)
    reads = [*parts, *(f"reference({part})" for part in sorted(own.reference))]
    faults = "; ".join(undeclared + unread)
    return fault(faults) if faults else passed(f"reads {', '.join(reads)}, as declared")


def _reads(lab: TinyLab) -> tuple[Reads, Reads]:
    """Record the reads of `loss` and `statistics` in every state the method passes through."""
    loss, statistics = Reads(), Reads()
    for state in lab.states():
        batch = lab.batch(state)
        found = lab.statistics(recording(batch, lab.needs.statistics, statistics))
        batch = recording(replace(batch, statistics=found), lab.needs.parts, loss)
        with called(lab.method, "loss"):
            lab.method.loss(batch)
    return loss, statistics


def _compared(own: Needs, loss: Reads, more: Reads) -> Iterator[tuple[str, Set[Any], Set[Any]]]:
    """(what, declared, read)"""
    yield "the part", own.parts, loss.parts
    yield "statistics of", own.statistics, more.parts
    yield "log-probabilities of", own.logprobs, loss.logprobs | more.logprobs
    yield "distributions of", own.distributions, loss.distributions | more.distributions
    yield "start states of", own.states, loss.states | more.states
    yield "layer", own.layers, loss.layers | more.layers
    yield "scores of", own.scores, loss.scores | more.scores
    if own.samples is not None:
        yield "", {"rewards"}, {"rewards"} if loss.rewards or more.rewards else set[str]()


def _inconsistent(method: Method, own: Needs) -> str:
    """Describe a contradiction within the declarations; empty if there is none."""
    most = type(method).needs
    for one in ("parts", "logprobs", "distributions", "states", "statistics", "scores"):
        beyond = sorted(set(getattr(own, one)) - set(getattr(most, one)))
        if beyond:
            return f"needed() asks for {one} {beyond}, which the class's `needs` does not name"
    for part, how in (("alternative", own.alternatives), ("sample", own.samples)):
        if (part in own.parts | own.statistics) != (how is not None):
            return f"the part {part!r} and its settings belong together: declare both or neither"
    if own.samples is not None:
        reward = method.reward("an answer", "the truth")
        if not math.isfinite(reward):
            return f"reward('an answer', 'the truth') is {reward}"
    return ""


@check(
    "hyper-parameters",
    why="A value that YAML cannot express, or that no bound rejects, surfaces after hours: "
    "open-unlearning's SatImp has two weights swapped between class and YAML.",
    fix="`Field(default, gt=…, description=…)`: one plain value each, with bounds and a meaning.",
    alone=True,
)
def hyper_parameters(one: HyperParameters) -> Outcome:
    """Hyper-parameters survive a round trip through YAML and refuse values out of bounds."""
    method, values = type(one), one.model_dump()
    faults = list(_unwritable(method, values))
    for key, info in method.model_fields.items():
        if not info.description:
            faults.append(f"{key} has no description, from which help and documentation are made")
        for wrong in outside(info):
            if accepts(method, values, key, wrong):
                faults.append(f"{key} accepts {wrong!r}")
    if accepts(method, values, "no_such_key", 1):
        faults.append("an unknown key is accepted: a misspelt one would do nothing, unseen")
    names = ", ".join(method.model_fields)
    return fault("; ".join(faults)) if faults else passed(f"{names}: values and bounds survive")


def _unwritable(method: type[HyperParameters], values: Mapping[str, Any]) -> Iterator[str]:
    """Values that a YAML file changes, infinities included where they are allowed."""
    for key, value in values.items():
        tried = [value]
        if method.model_fields[key].annotation is float:
            tried += [v for v in (math.inf, -math.inf) if accepts(method, values, key, v)]
        for one in tried:
            if not isinstance(one, HyperParameter):
                yield f"{key} is a {type(one).__name__}; YAML stores numbers, text and true/false"
                continue
            entry = YamlReader("a config").read(yaml.safe_dump({key: one}))
            back = entry.plain() if entry is not None else {}
            loaded = method.model_validate({**values, **back})
            if getattr(loaded, key) != getattr(method.model_validate({**values, key: one}), key):
                yield f"{key}: {one!r} comes back from YAML as {getattr(loaded, key)!r}"


def outside(info: FieldInfo) -> Iterator[Any]:
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
    if info.annotation is float:
        yield math.nan
    if number:
        yield "text"


def _beyond(kind: Any, bound: Any, way: int) -> Any:
    return bound + way if kind is int else math.nextafter(bound, way * math.inf)


def accepts(method: type[HyperParameters], values: Mapping[str, Any], key: str, value: Any) -> bool:
    try:
        method.model_validate({**values, key: value})
    except ValidationError:
        return False
    return True


_FORMULA = re.compile(r"^\s*\S.{0,40}?\s(=|←|≤|:=)\s.+", re.MULTILINE)
_SYMBOL = re.compile(r"^\s*\S.*?\S?  +\S", re.MULTILINE)
_SOURCE = re.compile(r"\b(19|20)\d\d\b|arXiv|doi\.org|https?://|\bown work\b")


@check(
    "docstring",
    why="The same name stands for different losses in different harnesses (SimNPO's margin, NPO's "
    "sign, KL's mean): without its equation the name does not identify the method.",
    fix='"""Name: Author year, arXiv:….\n\n    L = …\n\n    symbol  its meaning\n    """',
    alone=True,
)
def docstring(one: HyperParameters) -> Outcome:
    """The docstring has the formula, its symbols, and the source."""
    text = inspect.cleandoc(type(one).__doc__ or "")
    missing = [
        what
        for what, pattern in (
            ("a formula (`L = …`)", _FORMULA),
            ("its symbols (`symbol  meaning`, two spaces apart)", _SYMBOL),
            ("a source (year, arXiv, or «own work»)", _SOURCE),
        )
        if not pattern.search(text)
    ]
    summary = f"{len(text.splitlines())} lines with formula, symbols and source"
    return fault(f"without {' and '.join(missing)}") if missing else passed(summary)
