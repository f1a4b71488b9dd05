"""Checks that run first: if one of them fails, no other result means anything."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from torch import Tensor

from unlearnbench.api.method import LossBatch
from unlearnbench.losses.predictions import Predictions, Reference
from unlearnbench.testing.check import Outcome, check, fault, passed
from unlearnbench.testing.free_logits import freed
from unlearnbench.testing.invariance import difference
from unlearnbench.testing.tiny_lab import TinyLab
from unlearnbench.training.objective import called

_IN_PLACE = re.compile(r"in-?place", re.IGNORECASE)
_CACHED = ("token_logprob", "sequence_logprob", "lengths", "entropy", "margin")
"""Values of a part that are computed once and shared by all readers."""


@check(
    "loss",
    why="A loss without a scalar value and a gradient cannot be trained, and one that is NaN on an "
    "ordinary batch stops a run at its first step: no other check means anything then.",
    fix="`return batch.forget.mean_tokens(values)`: a scalar tensor, or several by name.",
    first=True,
)
def loss(lab: TinyLab) -> Outcome:
    """On an ordinary batch the loss is a finite scalar tensor with a finite gradient."""
    try:
        measured = lab.whole
        lab.total(freed(lab.batch()))
    except Exception as error:  # only a change in place is recognised; the rest is raised
        cause = error.__cause__ or error
        if isinstance(cause, RuntimeError) and _IN_PLACE.search(str(cause)):
            return fault(f"changes a tensor of the batch in place: {error}")
        raise
    for name, value in measured.terms.items():
        if not math.isfinite(value):
            term = "the loss" if name == "loss" else f"the term {name!r}"
            return fault(f"{term} is {value} on an ordinary batch")
    if not measured.flat.isfinite().all():
        return fault(
            f"the gradient is not finite on an ordinary batch, at a loss of {measured.loss:.6g}"
        )
    return passed(f"{measured.loss:.6g}, gradient norm {measured.norm:.6g}")


@check(
    "read-only",
    why="The tensors of a batch are shared: by the terms of a loss, a retain term that is added, "
    "and the statistics of the step. A change in place changes what the next one reads.",
    fix="Write `x = x * 2` in place of `x *= 2`, `masked_fill` in place of `masked_fill_`; or "
    "`.clone()` first.",
    first=True,
)
def read_only(lab: TinyLab) -> Outcome:
    """The loss changes nothing in its batch."""
    batch = next(lab.batches([lab.draws]))
    state, parts = dict(batch.state), list(batch.parts)
    for predictions in batch.parts.values():
        for name in _CACHED:
            getattr(predictions, name)
    tensors = [(name, tensor, tensor._version) for name, tensor in _tensors(batch)]
    with called(lab.method, "loss"):
        lab.method.loss(batch)
    for name, tensor, version in tensors:
        if tensor._version != version:
            return fault(f"changes {name} in place")
    if dict(batch.state) != state:
        return fault("changes `batch.state`, which only `advance` may")
    if list(batch.parts) != parts:
        return fault("changes `batch.parts`")
    return passed(f"{len(tensors)} tensors as they were")


def _tensors(batch: LossBatch) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a batch, named as a method's author writes them."""
    for part, predictions in batch.parts.items():
        yield from _tensors_of(f"batch.{part}", predictions)
    for part, start in batch.reference.parts.items():
        yield from _tensors_of(f"batch.reference.{part}", start)
    for name, value in batch.statistics.items():
        yield f"batch.statistics[{name!r}]", value
    if batch.rewards is not None:
        yield "batch.rewards", batch.rewards


def _tensors_of(name: str, one: Predictions | Reference) -> Iterator[tuple[str, Tensor]]:
    for field, value in vars(one).items():
        if isinstance(value, Tensor) and not field.startswith("_"):
            yield f"{name}.{field}", value
    for layer, state in one.states.items():
        yield f"{name}.hidden_states({layer})", state
    if one.projection is not None and one.projection.weight is not None:
        yield "the model's output layer", one.projection.weight


@check(
    "repeatable",
    why="A loss that drops at random, or counts its calls, changes its value whenever a step is "
    "split, resumed or repeated; every other check would report that as its own fault.",
    fix="No dropout, no random numbers without a `Generator` of a fixed seed, no counter; "
    "values that pass from step to step belong in `state`.",
    first=True,
)
def repeatable(lab: TinyLab) -> Outcome:
    """The same call twice gives the same loss and gradient."""
    first = lab.whole
    for _ in range(2):
        found = difference(first, lab.measure(), "at first", "when called again on the same batch")
        if found:
            return fault(f"{found}: random numbers, or something kept between calls")
    return passed(f"loss {first.loss:.6g} three times")
