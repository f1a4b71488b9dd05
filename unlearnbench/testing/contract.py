"""Checks of what a method says of itself: needs, hyper-parameters, docstring."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import torch
import yaml
from annotated_types import Ge, Gt, Le, Lt
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from unlearnbench.document import Reading
from unlearnbench.method import HyperParameters, Method, Needs
from unlearnbench.retain import called
from unlearnbench.settings import HyperParameter
from unlearnbench.testing.check import Outcome, check, fault, passed
from unlearnbench.testing.laboratory import Laboratory
from unlearnbench.testing.watching import Reads, watched

_EPOCHS = 12
"""A method with a state may read more once it has left its warm-up."""


@check(
    "needs",
    why="open-unlearning keeps a copy of the model for methods that never read it (WGA, SatImp), "
    "and pays a forward pass for retain rows with weight 0.",
    mend="Declare in `needs` what `loss` and `statistics` read, and nothing else.",
)
def needs(lab: Laboratory) -> Outcome:
    """The declared needs are exactly what the loss reads."""
    own = lab.needs
    found = _inconsistent(lab.method, own)
    if found:
        return fault(found)
    try:
        loss, statistics = _reads(lab)
    except LookupError as error:
        return fault(f"{error.args[0]}" if error.args else repr(error))
    unread: list[str] = []
    undeclared: list[str] = []
    for what, declared, read in _compared(own, loss, statistics):
        unread += [f"{what} {one!r}" for one in sorted(set(declared) - set(read), key=str)]
        undeclared += [f"{what} {one!r}" for one in sorted(set(read) - set(declared), key=str)]
    told = [f"reads undeclared {one}" for one in undeclared]
    told += [f"declares {one}, which it never reads" for one in unread]
    return fault("; ".join(told)) if told else passed(f"reads {_told(own)}, as declared")


def _reads(lab: Laboratory) -> tuple[Reads, Reads]:
    """What `loss` and `statistics` read in the states that the method goes through."""
    loss, statistics = Reads(), Reads()
    state: Mapping[str, float] = lab.method.start()
    for epoch in range(1, _EPOCHS + 1 if state else 2):
        batch = lab.batch(state)
        if lab.needs.statistics:
            counted, reads = watched(batch, lab.needs.statistics)
            with torch.no_grad(), called(lab.method, "statistics"):
                found = lab.method.statistics(counted)
            batch = replace(batch, statistics=found)
            _merge(statistics, reads)
        shown, reads = watched(batch, lab.needs.parts)
        with called(lab.method, "loss"):
            lab.method.loss(shown)
        _merge(loss, reads)
        reported = {name: value.item() for name, value in batch.reported.items()}
        with called(lab.method, "advance"):
            state = lab.method.advance(state, reported, epoch)
    return loss, statistics


def _merge(into: Reads, more: Reads) -> None:
    for one in fields(Reads):
        known, new = getattr(into, one.name), getattr(more, one.name)
        setattr(into, one.name, known | new)


def _compared(own: Needs, loss: Reads, more: Reads) -> Iterator[tuple[str, Any, Any]]:
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
    """What contradicts itself in the declarations alone."""
    most = type(method).needs
    for one in ("parts", "logprobs", "distributions", "states", "statistics", "scores"):
        beyond = sorted(set(getattr(own, one)) - set(getattr(most, one)))
        if beyond:
            return f"needed() asks for {one} {beyond}, which the class's `needs` does not name"
    for part, how in (("alternative", own.alternatives), ("sample", own.samples)):
        if (part in own.parts | own.statistics) != (how is not None):
            return f"the part {part!r} and how it is made go together: declare both or neither"
    if own.samples is not None:
        reward = method.reward("an answer", "the truth")
        if not math.isfinite(reward):
            return f"reward('an answer', 'the truth') is {reward}"
    return ""


def _told(own: Needs) -> str:
    parts = sorted(own.parts | own.statistics)
    return ", ".join([*parts, *(f"reference({part})" for part in sorted(own.reference))])


@check(
    "hyper-parameters",
    why="A value that a file cannot hold or a bound does not stop is found out after hours: "
    "open-unlearning's SatImp has two weights swapped between class and YAML.",
    mend="`Field(default, gt=…, description=…)`: one plain value each, with bounds and a meaning.",
    alone=True,
)
def hyper_parameters(one: HyperParameters) -> Outcome:
    """Hyper-parameters come back from YAML as they were, and refuse what is out of bounds."""
    method, values = type(one), one.model_dump()
    told = list(_unwritable(method, values))
    known = method.model_fields
    for key, info in known.items():
        if not info.description:
            told.append(f"{key} has no description, which help and documentation are made of")
        for wrong in _outside(info):
            if _accepts(method, values, key, wrong):
                told.append(f"{key} accepts {wrong!r}")
    if _accepts(method, values, "no_such_key", 1):
        told.append("an unknown key is accepted: a misspelt one would do nothing, unseen")
    names = ", ".join(known)
    return fault("; ".join(told)) if told else passed(f"{names} come back and keep their bounds")


def _unwritable(method: type[HyperParameters], values: Mapping[str, Any]) -> Iterator[str]:
    """What does not survive a YAML file, infinities included where they are allowed."""
    for key, value in values.items():
        tried = [value]
        if method.model_fields[key].annotation is float:
            tried += [v for v in (math.inf, -math.inf) if _accepts(method, values, key, v)]
        for one in tried:
            if not isinstance(one, HyperParameter):
                yield f"{key} is a {type(one).__name__}; numbers, text and true/false can be kept"
                continue
            entry = Reading("a config").read(yaml.safe_dump({key: one}))
            back = entry.plain() if entry is not None else {}
            made = method.model_validate({**values, **back})
            if getattr(made, key) != getattr(method.model_validate({**values, key: one}), key):
                yield f"{key}: {one!r} comes back from YAML as {getattr(made, key)!r}"


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
    if info.annotation is float:
        yield math.nan
    if number:
        yield "text"


def _beyond(kind: Any, bound: Any, way: int) -> Any:
    return bound + way if kind is int else math.nextafter(bound, way * math.inf)


def _accepts(
    method: type[HyperParameters], values: Mapping[str, Any], key: str, value: Any
) -> bool:
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
    "sign, KL's mean): without its equation nobody can tell which one this is.",
    mend='"""Name: Author year, arXiv:….\n\n    L = …\n\n    symbol  its meaning\n    """',
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
    told = f"{len(text.splitlines())} lines with formula, symbols and source"
    return fault(f"without {' and '.join(missing)}") if missing else passed(told)
