"""Checks of a method's step: a loss that can be trained, the same however the step is divided.

The first ones run first: if one of them fails, no other result means anything.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils.benchmark import set_torch_threads

from unlearnbench.api.method import LossBatch, Method
from unlearnbench.models.epoch_order import Item
from unlearnbench.testing.check import Outcome, check, fault, not_applicable, passed
from unlearnbench.testing.declarations import is_importable
from unlearnbench.testing.fresh import begin, end
from unlearnbench.testing.probes import freed
from unlearnbench.testing.tiny_lab import Cuts, Measured, TinyLab
from unlearnbench.training.objective import called

NEAR = 1e-7
"""Relative difference that is rounding. float64 rounds at 1e-16, and sums over a step lose few
digits."""


def difference(measured: Measured, other: Measured, first: str, second: str) -> str:
    """Describe the first difference between two measurements of a step; empty if they agree.

    Args:
        measured: One measurement.
        other: Another measurement.
        first: How the one was made, for the description: "in one batch".
        second: How the other one was made: "row by row".
    """
    # A loss may be 0 up to rounding (GRPO's is), so the gradient's norm sets the scale.
    scale = max(measured.norm, other.norm)
    for name in measured.terms:
        a, b = measured.terms[name], other.terms[name]
        if apart(a, b, scale):
            return f"{name} is {a:.6g} {first}, {b:.6g} {second}"
    distance = float((measured.flat - other.flat).norm())
    # Negated, so that NaN is a difference.
    if not distance <= NEAR * scale:
        return f"the gradient differs by {distance / scale:.2g} of its norm: {first}, and {second}"
    for key in measured.state.keys() | other.state.keys():
        a, b = measured.state.get(key, 0.0), other.state.get(key, 0.0)
        if apart(a, b):
            return f"state {key!r} becomes {a:.6g} {first}, {b:.6g} {second}"
    return ""


def apart(a: float, b: float, scale: float = 0.0) -> bool:
    """Whether two numbers differ by more than rounding, relative to the largest or to `scale`."""
    # Negated, so that NaN is apart from all numbers.
    return not abs(a - b) <= NEAR * max(abs(a), abs(b), scale)


_IN_PLACE = re.compile(r"in-?place", re.IGNORECASE)
_CACHED = ("token_logprob", "sequence_logprob", "lengths", "entropy", "margin")
"""Values of a part that are computed once and shared by all readers."""


def _alike(lab: TinyLab, divisions: Iterable[Cuts | None], first: str, second: str) -> Outcome:
    """Compare the step with the same step in other divisions.

    Args:
        lab: With the step.
        divisions: How the step is divided. None means that it is one micro-batch.
        first: What the undivided step is called in a fault: "in one batch".
        second: What the divided step is called: "row by row".
    """
    for cuts in divisions:
        found = difference(lab.whole, lab.measure(cuts), first, second)
        if found:
            return fault(found)
    return passed(f"loss {lab.whole.loss:.6g} every time")


@check(first=True)
def loss(lab: TinyLab) -> Outcome:
    """On an ordinary batch the loss is a finite scalar tensor with a finite gradient.

    A loss without a scalar value and a gradient cannot be trained, and one that is NaN on an
    ordinary batch stops a run at its first step: no other check means anything then.

    `return batch.forget.mean_tokens(values)`: a scalar tensor, or several by name.
    """
    try:
        measured = lab.whole
        lab.total(freed(lab.batch()))
    except Exception as error:  # a change in place is recognised; all others are raised again
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


@check(first=True)
def read_only(lab: TinyLab) -> Outcome:
    """The loss changes nothing in its batch.

    The tensors of a batch are shared: by the terms of a loss, a retain term that is added, and the
    statistics of the step. A change in place changes what the next one reads.

    Write `x = x * 2` in place of `x *= 2`, `masked_fill` in place of `masked_fill_`; or `.clone()`
    first.
    """
    batch = next(lab.batches([lab.draws]))
    state = dict(batch.state)
    parts = list(batch.parts)
    # Computed now, so that a change of what is shared is seen.
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
    """Yield the tensors of a batch, named as authors write them: `batch.forget.labels`."""
    owners: dict[str, Any] = {"batch": batch}
    for part, predictions in batch.parts.items():
        owners[f"batch.{part}"] = predictions
    for part, reference in batch.reference.parts.items():
        owners[f"batch.reference.{part}"] = reference
    for name, owner in owners.items():
        for field, value in vars(owner).items():
            if isinstance(value, Tensor):
                yield f"{name}.{field}", value
            elif isinstance(value, Mapping):
                for key, tensor in value.items():
                    if isinstance(tensor, Tensor):
                        yield f"{name}.{field}[{key!r}]", tensor


@check(first=True)
def repeatable(lab: TinyLab) -> Outcome:
    """The same call twice gives the same loss and gradient.

    A loss that drops at random, or counts its calls, changes its value whenever a step is split,
    resumed or repeated; every other check would report that as its own fault.

    No dropout, no random numbers without a `Generator` of a fixed seed, no counter; values that
    pass from step to step belong in `state`.
    """
    again = "when called again on the same batch: random numbers, or something kept between calls"
    return _alike(lab, [None, None], "at first", again)


@check()
def padding(lab: TinyLab) -> Outcome:
    """Padding, because of longer rows in the batch, changes neither loss nor gradient.

    Harnesses average over padded positions (the KL of the TOFU code, UNDIAL, RMU): the same weight
    then has another strength at every padded length.

    Reduce with `mean_tokens`, `mean_rows` or `mean_sequences`; never reshape to [B, T].
    """
    by_length = sorted(lab.draws, key=lambda draw: lab.lengths[draw.index])
    # Rows of nearly the same length need little padding.
    similar = lab.measure([by_length[i : i + 2] for i in range(0, len(by_length), 2)])
    # The shortest with the longest row, and so on: these need much padding.
    mixed = lab.measure([[by_length[i], by_length[-1 - i]] for i in range(len(by_length) // 2)])
    found = difference(similar, mixed, "in batches of equal lengths", "in batches of mixed lengths")
    return fault(found) if found else passed(f"loss {lab.whole.loss:.6g} every time")


@check()
def order(lab: TinyLab) -> Outcome:
    """The order of the rows within a step changes nothing.

    Rows are shuffled in every epoch; a loss that depends on their order within a step pairs what
    does not belong together.

    Match rows of different parts by position only: row b of each part has one question.
    """
    draws = list(lab.draws)
    orders = (draws[::-1], draws[2:] + draws[:2])
    return _alike(lab, [[draws] for draws in orders], "in order", "in another order")


@check()
def accumulation(lab: TinyLab) -> Outcome:
    """One whole batch, and the same rows accumulated one by one, train the same model.

    Custom losses that average micro-batch means weigh tokens by their neighbours (harnesses after
    transformers 4.46, NPO in SimNPO's WMDP code): the batch size changes the method.

    `batch.forget.mean_tokens(values)` in place of `values.mean()`: it divides by the counts of the
    whole step. Other values of the whole step belong in `statistics`.
    """
    return _alike(lab, [[[draw] for draw in lab.draws]], "in one batch", "row by row")


@check()
def doubling(lab: TinyLab) -> Outcome:
    """A step with the same rows twice has the same loss and gradient as with them once.

    A sum where a mean is meant (`values.sum()`) makes the loss grow with the batch and the answers'
    lengths: the same learning rate then has another strength in every configuration.

    `batch.forget.mean_tokens(values)` in place of `values.sum()`: means divide by the counts of the
    whole optimiser step.
    """
    return _alike(lab, [[[*lab.draws, *lab.draws]]], "once", "with the same rows twice")


@check()
def processes(lab: TinyLab) -> Outcome:
    """The rows of a step, divided among 2 or 3 processes, add up to the same step.

    Results that change with the number of GPUs were reported for every harness (open-unlearning
    #139, #144; PDU's multiplier is updated by each process for itself).

    As for accumulation; and keep values that pass from step to step in `state`, not in the method.
    """
    divisions: list[Cuts] = []
    for world_size in (2, 3):
        cuts: list[Sequence[Item]] = []
        for rank in range(world_size):
            # The trainer divides rows in this way. Each process takes two rows at a time, because
            # one row at a time is what `accumulation` checks.
            rows = lab.draws[rank::world_size]
            cuts += [rows[i : i + 2] for i in range(0, len(rows), 2)]
        divisions.append(cuts)
    return _alike(lab, divisions, "in one process", "in several processes")


@check(name="fresh-process")
def fresh(lab: TinyLab) -> Outcome:
    """A fresh process that has seen another row first gives the same loss and gradient.

    A scale that is fixed by the first batch, or a cache that outlives a run, gives each process of
    a sweep its own numbers, and a resumed run others than an uninterrupted one.

    Keep nothing between calls: values that pass from step to step belong in `state`, those of the
    whole step in `statistics`.
    """
    if not is_importable(type(lab.method)):
        return not_applicable("another process cannot import a class of a function or a notebook")
    lab.fresh = begin(step_numbers, lab.method) if lab.fresh is None else lab.fresh
    answer = end(lab.fresh)
    if isinstance(answer, str):
        return fault(f"in a fresh process: {answer}")
    loss_there, norm_there = answer
    for name, here, there in (
        ("loss", lab.whole.loss, loss_there),
        ("norm", lab.whole.norm, norm_there),
    ):
        if apart(here, there, lab.whole.norm):
            return fault(
                f"the {name} is {here:.6g} here, {there:.6g} in a fresh process that has "
                "seen another row first: something is kept from an earlier call"
            )
    return passed(f"loss {lab.whole.loss:.6g} in both")


def step_numbers(method: Method) -> tuple[float, float]:
    """Return loss and gradient norm of a step, measured after a step with only its last row."""
    with set_torch_threads(1):
        lab = TinyLab(method)
        lab.measure([lab.draws[-1:]])
        return lab.whole.loss, lab.whole.norm
